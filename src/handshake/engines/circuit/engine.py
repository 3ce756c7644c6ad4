"""The circuit engine: plans compiled to logic circuits, which are simulated."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.host import QueryRun, run_plan
from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.host import condition_of, design_of, run_join, simulator_for
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.picture import draw_compiled
from handshake.engines.circuit.report import report
from handshake.engines.engine import Run, plain_table
from handshake.engines.inputs import arrival_order, check_inputs, comes_live, read_inputs
from handshake.engines.joins import SUFFIX, PlainJoin, check_inner, join_tables, plan_as_join
from handshake.errors import InputError, UnsupportedError, format_count, suggest
from handshake.joins.spec import JoinSpec, join_spec
from handshake.options import Options
from handshake.plan.algebra import Plan

CLOCK_MHZ = 100
"""The clock of the papers, for rates."""
MANY_ROWS = 2000
"""From this number of rows on, building a compiled simulation pays."""


class CircuitEngine:
    """Runs a plan that is one join in a circuit of join cores, and any other plan in a query's circuit."""

    name = "circuit"

    def check(self, plan: Plan, options: Options) -> None:
        """Raise a `HandshakeError` if no circuit can be made of the plan."""
        options.check(self.name)
        join = _join_of(plan, options)
        if join is None:
            self.compile(plan, options)
        else:
            design_of(join.windows, options.cores)

    def explain(self, plan: Plan, options: Options) -> str:
        """Return the blocks of a query's circuit with their cycles, or the design of a join's circuit."""
        join = _join_of(plan, options)
        if join is not None:
            return "\n".join(_explain_join(join, options))
        compiled = self.compile(plan, options)
        return "\n".join(plain_table([*_blocks(compiled), *report(compiled, synthesis=False)]))

    def run(self, plan: Plan, inputs: Mapping[str, Any], options: Options) -> Run:
        """Start a plan; see `Engine.run`. All rows are read before the simulation starts."""
        options.check(self.name)
        if options.delay or {options.input_adapter, options.output_adapter} != {"none"}:
            raise UnsupportedError(
                "a run feeds and reads the circuit's streams directly; adapters and a delay are for compile "
                "and explain, leave them out"
            )
        check_inputs(plan, inputs)
        for each in inputs.values():
            if comes_live(each) and each.path != "-":
                raise UnsupportedError(
                    f"a circuit simulates what has come, and '{each.path}' comes live; give a file, or use "
                    'engine="local"'
                )
        join = _join_of(plan, options)
        if join is None:
            return _QueryRun(plan, inputs, options)
        return _JoinRun(join, join_tables(plan, join, inputs), options)

    def compile(self, plan: Plan, options: Options) -> Compiled:
        """Return the circuit of a plan."""
        options.check(self.name)
        check_inner(plan, self.name)
        return compile_plan(
            plan, _bounds(options, _by_stream(options.nullable, plan)), without=options.without,
            input_adapter=options.input_adapter, output_adapter=options.output_adapter,
            udp_port=options.udp_port, delay=options.delay,
        )  # fmt: skip

    def draw(self, plan: Plan, options: Options) -> str:
        """Return a drawing of a plan's circuit, as SVG."""
        return draw_compiled(self.compile(plan, options))


def _join_of(plan: Plan, options: Options) -> PlainJoin | None:
    check_inner(plan, CircuitEngine.name)
    return plan_as_join(plan, options)


def _bounds(options: Options, nullable: Mapping[str, frozenset[str]]) -> Bounds:
    return Bounds(
        groups=options.groups, text=options.text, nullable=nullable, cores=options.cores, join=options.join,
        buffer=options.buffer, window_tuples=options.window_tuples, divider=options.divider,
    )  # fmt: skip


def _by_stream(given: Sequence[str], plan: Plan) -> dict[str, frozenset[str]]:
    """Return fields written as STREAM.FIELD, by stream."""
    found: dict[str, frozenset[str]] = {}
    fields = {name: source.fields.names for name, source in plan.own_inputs.items()}
    for text in given:
        stream, dot, name = text.partition(".")
        if not dot or not name:
            raise InputError(f"nullable='{text}' is no field; write STREAM.FIELD")
        stream = _declared_name(text, "the query has no input", stream, tuple(fields))
        name = _declared_name(text, f"{stream} has no field", name, fields[stream])
        found[stream] = found.get(stream, frozenset()) | {name}
    return found


def _declared_name(text: str, lacks: str, name: str, names: Sequence[str]) -> str:
    """Return a name as it was declared; case is ignored if that is unambiguous."""
    same = [n for n in names if n == name] or [n for n in names if n.casefold() == name.casefold()]
    if len(same) != 1:
        raise InputError(f"nullable='{text}': {lacks} '{name}' ({', '.join(names)}){suggest(name, names)}")
    return same[0]


def _blocks(compiled: Compiled) -> list[tuple[str, str]]:
    """Return the blocks of a circuit, each with the cycle in which it has its result."""
    circuit = compiled.circuit()
    facts = [(name, f"input, {net.row.bits} wires") for name, net in circuit.leaves.items()]
    shown = set()
    for net in circuit.order:
        if net.inputs and net.unit not in shown:
            shown.add(net.unit)
            facts.append((circuit.blocks[net.unit].title, f"cycle {net.latency}, {net.row.bits} wires"))
    return facts


class _QueryRun(Run):
    """Tables through the simulated circuit of a query."""

    def __init__(self, plan: Plan, inputs: Mapping[str, Any], options: Options) -> None:
        self._plan, self._inputs, self._options = plan, inputs, options
        self._simulator, self._seconds = options.simulator, 0.0
        self._done: QueryRun | None = None
        self.schemas = {output.name: output.schema.to_arrow() for output in plan.outputs}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        options, tables = self._options, arrival_order(self._plan, read_inputs(self._plan, self._inputs))
        if self._simulator == "auto":
            rows = sum(table.num_rows for table in tables.values())
            quick = rows < MANY_ROWS or shutil.which("g++") is None
            self._simulator = "amaranth" if quick else "cxxrtl"
        began = time.perf_counter()
        self._done = run_plan(
            self._plan, tables, _bounds(options, _by_stream(options.nullable, self._plan)),
            without=options.without, engine=self._simulator, arrival=time.time_ns() // 1000,
            vcd=Path(options.vcd) if options.vcd else None,
        )  # fmt: skip
        self._seconds = time.perf_counter() - began
        for name, table in self._done.results.items():
            for batch in table.to_batches():
                yield name, batch

    def metrics(self) -> dict[str, Any]:
        """Return cycles, results, latency and the counters of the circuit."""
        assert self._done is not None
        return {
            "cycles": self._done.run.cycles,
            "results": {name: table.num_rows for name, table in self._done.results.items()},
            "latency": self._done.compiled.latency,
            **self._done.counters,
            "seconds": self._seconds,
        }

    def results(self) -> Mapping[str, Any]:
        """Return the tables of results; warn about rows that found no room in the circuit."""
        found = super().results()
        for _, lost in self._losses():
            warnings.warn(f"in the circuit, {lost}", RuntimeWarning, stacklevel=3)
        return found

    def _losses(self) -> list[tuple[str, str]]:
        """Return which rows found no room in the circuit."""
        assert self._done is not None
        counters, options, losses = self._done.counters, self._options, []
        if n := counters.get("overflow", 0):
            dropped = f"{n:,} rows of groups beyond {options.groups} were dropped; allow more groups"
            losses.append(("overflow", dropped))
        if n := counters.get("evicted", 0):
            early = f"{n:,} rows had to leave their window before their time; results may be missing"
            losses.append(("evicted", f"{early}: allow more rows in it than {options.window_tuples}"))
        return losses

    def facts(self) -> list[tuple[str, str]]:
        """Return rows, results, rows that were lost, and cycles."""
        assert self._done is not None
        run, counters = self._done.run, self._done.counters
        facts = [(name, format_count(len(taken) - 1, "row")) for name, taken in run.accepted.items()]
        facts += [
            (name, format_count(table.num_rows, "result")) for name, table in self._done.results.items()
        ]
        words = {"late": "late", "no_time": "without a time", "unknown": "of no stream"}
        facts += [
            (word, format_count(n, "row")) for key, word in words.items() if (n := counters.get(key, 0))
        ]
        facts += self._losses()
        time_at_clock = f"{run.cycles / CLOCK_MHZ:,.1f} µs at {CLOCK_MHZ} MHz"
        return [
            *facts,
            ("circuit", f"{run.cycles:,} cycles, {time_at_clock}"),
            ("simulated in", f"{self._seconds:.2f} s by {self._simulator}"),
        ]


def _spec(join: PlainJoin, left: pa.Schema, right: pa.Schema) -> JoinSpec:
    return join_spec(left, right, join.on, join.windows, times=join.times, suffix=SUFFIX)


def _explain_join(join: PlainJoin, options: Options) -> Iterator[str]:
    options.check("circuit")
    left, right = (schema.empty_table() for schema in join.schemas)
    design, condition = (
        design_of(join.windows, options.cores),
        condition_of(left, right, join.on, options.text),
    )
    longest = [max(lengths) for lengths in zip(*design.segments, strict=True)]
    yield _spec(join, left.schema, right.schema).explain()
    yield f"circuit     {design.cores} join cores in a line, {design.cores - 1} mergers over them"
    yield f"segments    up to {longest[0]} left and {longest[1]} right tuples per core, {design.windows}"
    bits = (condition.left.bits, condition.right.bits, condition.result.bits)
    yield "wires       {} left, {} right, {} of a result".format(*bits)
    yield f"step        {1 + sum(longest)} cycles for a tuple of each side, while no buffer is full"


class _JoinRun(Run):
    """Two tables through the simulated circuit of a handshake join."""

    def __init__(self, join: PlainJoin, tables: tuple[pa.Table, pa.Table], options: Options) -> None:
        self._join, (self._left, self._right) = join, tables
        self._output = _spec(join, self._left.schema, self._right.schema).output
        self._design: Design = design_of(join.windows, options.cores)
        self._condition: PairGates = condition_of(self._left, self._right, join.on, options.text)
        self.schemas = {join.name: join.output(self._output)}
        self._figures: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        left, right, design = self._left, self._right, self._design
        rows, began = left.num_rows + right.num_rows, time.perf_counter()
        simulator = simulator_for(design, rows)
        done = run_join(
            left, right, self._condition, design, self._output, times=self._join.times, engine=simulator
        )
        cycles, condition = done.run.cycles, self._condition
        self._figures = {
            "left_rows": left.num_rows, "right_rows": right.num_rows, "results": done.results.num_rows,
            "cycles": cycles, "cycles_per_step": done.step_cycles,
            "tuples_per_second": rows / cycles * CLOCK_MHZ * 1e6 if cycles else 0.0, "cores": design.cores,
            "left_window": design.left, "right_window": design.right, "left_bits": condition.left.bits,
            "right_bits": condition.right.bits, "result_bits": condition.result.bits,
            "elapsed": time.perf_counter() - began,
        }  # fmt: skip
        for batch in done.results.to_batches():
            yield self._join.name, self._join.select(batch, self.schemas[self._join.name])

    def metrics(self) -> dict[str, Any]:
        """Return rows, results, cycles and the sizes of the circuit."""
        return self._figures

    def facts(self) -> list[tuple[str, str]]:
        """Return rows, results, cycles, rate, cores and wires."""
        figures = self._figures
        wires = "{left_bits} left, {right_bits} right, {result_bits} of a result".format(**figures)
        return [
            ("left", format_count(figures["left_rows"], "row")),
            ("right", format_count(figures["right_rows"], "row")),
            ("results", f"{figures['results']:,}"),
            ("elapsed", f"{figures['elapsed']:.2f} s"),
            ("cycles", f"{figures['cycles']:,}, the last tuples pushed through included"),
            ("rate", f"{figures['tuples_per_second']:,.0f} input rows/s at {CLOCK_MHZ} MHz"),
            ("cores", f"{figures['cores']} in hardware, simulated"),
            ("wires", wires),
        ]
