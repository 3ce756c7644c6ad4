"""The local engine: plans on the CPU cores of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from handshake.engines.engine import Run, progress_text
from handshake.engines.inputs import Address, Slice, check_inputs, comes_live, read_inputs, slices
from handshake.engines.joins import JOIN, BestJoin, PlainJoin, best_join, join_tables, plan_as_join
from handshake.engines.local.live import Receivers, all_over_udp, standard_input
from handshake.errors import UnsupportedError, format_count
from handshake.io.udp.demux import Counters
from handshake.io.udp.receive import direct
from handshake.joins.join import JoinPlan, Metrics, MultiReplay, Replay
from handshake.joins.late import LateRows, LateStream
from handshake.joins.latency import Latency
from handshake.joins.why.answer import Why
from handshake.kinds import INNER
from handshake.operators.query import Query
from handshake.operators.reduced_plan import reduce_joins
from handshake.options import Options, PairOptions
from handshake.plan.algebra import Plan
from handshake.plan.explain import explain_plan
from handshake.plan.optimise import optimise


class LocalEngine:
    """Runs a plan that is one join on join cores, and any other plan by the operators of queries."""

    name = "local"

    def check(self, plan: Plan, options: Options) -> None:
        """Raise a `HandshakeError` if the plan cannot run with these options."""
        options.check(self.name)
        if best_join(plan, options) is not None:
            return
        join = plan_as_join(plan, options)
        if join is None:
            _start_query(plan, dataclasses.replace(options, late_to=None)).close()
        else:
            _prepare(join, *join.schemas, options)

    def explain(self, plan: Plan, options: Options) -> str:
        """Return the access method and the arrangement of a join, or the operators of a query."""
        options.check(self.name)
        best = best_join(plan, options)
        if best is not None:
            return best.explain()
        join = plan_as_join(plan, options)
        if join is not None:
            return _prepare(join, *join.schemas, options).explain()
        shown = optimise(plan) if options.optimised else plan
        return explain_plan(reduce_joins(shown) if options.device == "gpu" else shown).rstrip("\n")

    def run(self, plan: Plan, inputs: Mapping[str, Any], options: Options) -> Run:
        """Start a plan; see `Engine.run`."""
        options.check(self.name)
        check_inputs(plan, inputs)
        best = best_join(plan, options)
        if best is not None:
            return BestRun(best, join_tables(plan, best, inputs), options)
        join = plan_as_join(plan, options)
        if join is None or any(map(comes_live, inputs.values())):
            return QueryRun(plan, inputs, options)
        return JoinRun(join, join_tables(plan, join, inputs), options)


def _start_query(plan: Plan, options: Options) -> Query:
    return Query(
        plan, optimised=options.optimised, cores=options.cores or 1, late_to=options.late_to,
        device=options.device,
    )  # fmt: skip


def _prepare(join: PlainJoin, left: pa.Schema, right: pa.Schema, options: Options) -> JoinPlan:
    return join.prepare(left, right, ordered=options.order == "time", **options.pick(PairOptions))


class _ReplayRun(Run):
    """Tables that are replayed as streams through a join."""

    _replay: Replay | MultiReplay

    def sources_of_figures(self) -> list[Any]:
        """Return what has the figures while it runs."""
        return [self._replay]

    def progress(self) -> tuple[str, int, int | None]:
        """Return how many rows have been joined."""
        return "joining", self._replay.done, self._replay.total

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the join as plain data."""
        return self._replay.metrics().to_dict()


class JoinRun(_ReplayRun):
    """Two tables, replayed as streams through join cores."""

    def __init__(self, join: PlainJoin, tables: tuple[pa.Table, pa.Table], options: Options) -> None:
        left, right = tables
        self.plan = _prepare(join, left.schema, right.schema, options)
        self._join, self._options = join, options
        self._late = (
            None if options.late_to is None else LateRows(options.late_to, self._late_streams(tables))
        )
        self._replay = Replay(
            self.plan, left, right, pace=options.pace, on_shed=options.on_shed,
            on_late=None if self._late is None else self._late.add,
        )  # fmt: skip
        self.schemas = {join.name: join.output(self.plan.output_schema)}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        name = self._join.name
        schema = self.schemas[name]
        with contextlib.ExitStack() as stack:
            if self._late is not None:
                stack.callback(self._late.close)
            for batch in self._replay:
                yield name, self._join.select(batch, schema)

    def _late_streams(self, tables: Sequence[pa.Table]) -> list[LateStream]:
        sources, unit = self._join.sources, self.plan.spec.unit
        return [LateStream(s.name, t.schema, unit) for s, t in zip(sources, tables, strict=True)]

    def results(self) -> Mapping[str, Any]:
        """Return the table of results; warn about shed rows unless `on_shed` was given."""
        found = super().results()
        metrics = self._replay.metrics()
        if self._options.on_shed is None and metrics.left_shed + metrics.right_shed:
            shed = f"{metrics.left_shed:,} left and {metrics.right_shed:,} right tuples"
            message = f"the join was behind and shed {shed}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
        return found

    def facts(self) -> list[tuple[str, str]]:
        """Return rows, results, rate, access method and cores."""
        metrics, options = self._replay.metrics(), self._options
        facts = [
            ("left", format_count(metrics.left_rows, "row")),
            ("right", format_count(metrics.right_rows, "row")),
            ("results", f"{metrics.results:,}"),
            ("late", f"{metrics.late:,}"),
        ]
        if self._join.kind != INNER:
            alone = f", {metrics.unmatched:,} without a match" if self._join.kind.preserves else ""
            facts.append(
                (self._join.kind.name, f"{format_count(metrics.matched, 'row')} with a match{alone}")
            )
        facts += _no_time(metrics)
        if options.overload == "shed":
            left, right = metrics.shed_shares
            shed = f"left {metrics.left_shed:,} ({left:.2%}), right {metrics.right_shed:,} ({right:.2%})"
            facts.append(("shed", shed))
        if options.pace is not None:
            facts.append(("latency", _latency(metrics.latency)))
        return [
            *facts,
            *_time_and_rate(metrics.left_rows + metrics.right_rows, metrics.elapsed),
            ("method", f"{self.plan.method}: {self.plan.why}"),
            ("cores", f"{_cores(self.plan, metrics)}, {metrics.algorithm}"),
        ]


class BestRun(Run):
    """Two tables, joined at once by an algorithm that chooses the best matches."""

    def __init__(self, join: BestJoin, tables: tuple[pa.Table, pa.Table], options: Options) -> None:
        self._best, self._tables = dataclasses.replace(join.best, cores=options.cores), tables
        self.schemas = {JOIN: join.best.schema}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return ((JOIN, batch) for batch in self._best.find(*self._tables).table.to_batches())

    def facts(self) -> list[tuple[str, str]]:
        """Return the join."""
        return [("join", self._best.describe())]

    def metrics(self) -> dict[str, Any]:
        """Return the rows of both tables."""
        return {"left_rows": self._tables[0].num_rows, "right_rows": self._tables[1].num_rows}


def _cores(plan: JoinPlan, metrics: Metrics) -> str:
    """Return the number of cores; with `adapt`, the fewest and the most that were in use."""
    used = [cores for _, cores in metrics.core_counts]
    return f"{min(used)} to {max(used)} of {plan.cores}" if used else str(plan.cores)


def _no_time(metrics: Metrics) -> list[tuple[str, str]]:
    lost = f"{format_count(metrics.no_time, 'row')} without a timestamp, so without a match"
    return [("no time", lost)] if metrics.no_time else []


def _latency(latency: Latency) -> str:
    p50, p99, longest = (1e3 * seconds for seconds in (latency.p50, latency.p99, latency.longest))
    return f"p50 {p50:,.1f} ms, p99 {p99:,.1f} ms, longest {longest:,.1f} ms"


def _time_and_rate(rows: int, elapsed: float) -> list[tuple[str, str]]:
    rate = rows / elapsed if elapsed else 0
    return [("elapsed", f"{elapsed:.2f} s"), ("rate", f"{rate:,.0f} input rows/s")]


class MultiJoinRun(_ReplayRun):
    """Tables of several streams, replayed through a join of all of them."""

    def __init__(self, replay: MultiReplay, name: str, schema: pa.Schema) -> None:
        self._replay, self._name = replay, name
        self.schemas = {name: schema}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        return ((self._name, batch) for batch in self._replay)

    def facts(self) -> list[tuple[str, str]]:
        """Return rows and join order of each stream, results, rate and cores."""
        metrics: Metrics = self._replay.metrics()
        facts = [
            (stream.name, f"{format_count(stream.rows, 'row')}, joined with {', then '.join(stream.order)}")
            for stream in metrics.streams
        ]
        facts += [("results", f"{metrics.results:,}"), ("late", f"{metrics.late:,}")]
        if metrics.shed:
            shed = (f"{s.name} {s.shed:,} ({s.shed_share:.2%})" for s in metrics.streams)
            facts.append(("shed", ", ".join(shed)))
        facts += _no_time(metrics)
        cores = ("cores", f"{len(metrics.cores)}, {metrics.algorithm}")
        return [*facts, *_time_and_rate(metrics.rows, metrics.elapsed), cores]


class QueryRun(Run):
    """Inputs in the order of arrival through the operators of a query."""

    stoppable = True

    def __init__(self, plan: Plan, inputs: Mapping[str, Any], options: Options) -> None:
        self._plan, self._inputs, self._options = plan, inputs, options
        self._live = all_over_udp(inputs)
        _check_pace(inputs, self._live, options)
        self._query = _start_query(direct(plan) if self._live else plan, options)
        self.schemas = {output.name: self._query.schema(output.name) for output in plan.outputs}
        self._seconds, self._began = 0.0, 0.0
        self._lag: float | None = None
        self._counters: dict[str, Counters] = {}

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        with contextlib.ExitStack() as stack:
            pieces = self._slices(stack)
            self._began = time.perf_counter()
            for piece in pieces:
                self._lag = piece.lag
                yield from _flat(self._query.push_together(piece.batches))
            yield from _flat(self._query.finish())
        self._seconds = time.perf_counter() - self._began

    def _slices(self, stack: contextlib.ExitStack) -> Iterator[Slice]:
        def is_stopped() -> bool:
            return self.stopped

        if self._live:
            receivers = stack.enter_context(Receivers(self._plan, self._inputs))
            stack.callback(lambda: self._counters.update(receivers.counters))
            return receivers.slices(is_stopped)
        if _is_standard_input(self._inputs):
            name, place = next(iter(self._inputs.items()))
            source = next(source for source in self._plan.inputs if source.name == name)
            return standard_input(self._plan, source, place.bad, is_stopped)
        tables = read_inputs(self._plan, self._inputs)
        return slices(self._plan, tables, pace=self._options.pace, stop=is_stopped)

    def sources_of_figures(self) -> list[Any]:
        """Return what has the figures while it runs."""
        return [self._query]

    def progress(self) -> tuple[str, int, int | None]:
        """Return rows, rate, lag and results so far."""
        counts = self._query.metrics()
        rows, seconds = sum(counts.rows.values()), time.perf_counter() - self._began
        return progress_text(rows, seconds, self._lag, sum(counts.results.values())), rows, None

    def metrics(self) -> dict[str, Any]:
        """Return the counts of the query, and those of datagrams."""
        received = {name: counts.json() for name, counts in self._counters.items()}
        figures = {**dataclasses.asdict(self._query.metrics()), "seconds": self._seconds}
        return {**figures, **({"datagrams": received} if received else {})}

    def facts(self) -> list[tuple[str, str]]:
        """Return rows of each input, results, rows that were lost, and the rate."""
        figures = self._query.metrics()
        received = [(f"{name}, datagrams", _datagrams(counts)) for name, counts in self._counters.items()]
        rate = sum(figures.rows.values()) / max(self._seconds, 1e-9)
        return [*figures.facts(), *received, ("time", f"{self._seconds:.2f} s, {rate:,.0f} rows/s")]


def explain_inputs(plan: Plan, inputs: Mapping[str, Any], numbers: Mapping[str, int]) -> tuple[Why, ...]:
    """Explain rows of whole inputs, given by their numbers in the streams that a query joins.

    Files are replayed by time, so none of their rows is late. Rows on standard input come in the order of its
    lines: the query runs until the last of the rows has come, and says what has become of each.
    """
    query, tables = Query(plan, optimised=False), read_inputs(plan, inputs)
    if _is_standard_input(inputs):
        for name, table in tables.items():
            query.push(name, table.slice(0, max(numbers.values(), default=-1) + 1))
    return query.why(numbers, tables)


def _flat(results: Mapping[str, list[pa.RecordBatch]]) -> Iterator[tuple[str, pa.RecordBatch]]:
    return ((name, batch) for name, batches in results.items() for batch in batches)


def _is_standard_input(inputs: Mapping[str, Any]) -> bool:
    return len(inputs) == 1 and all(
        isinstance(each, Address) and each.path == "-" for each in inputs.values()
    )


def _check_pace(inputs: Mapping[str, Any], live: bool, options: Options) -> None:
    """Refuse a pace for rows that come at the pace of their sender."""
    if options.pace is not None and (live or _is_standard_input(inputs)):
        name, place = next(iter(inputs.items()))
        raise UnsupportedError(
            f"pace={options.pace:g} is for files, and {name} comes from '{place.path}' at the pace of its "
            "sender; leave it out"
        )


def _datagrams(counts: Counters) -> str:
    """Return how many datagrams came, and how many were lost, by the reason."""
    lost = {
        "malformed": counts.malformed, "of unknown type": counts.unknown,
        "out of sequence": counts.out_of_sequence, "missing": counts.missing,
        "dropped by the kernel": counts.kernel_dropped or 0,
    }  # fmt: skip
    return ", ".join((f"{counts.datagrams:,}", *(f"{n:,} {what}" for what, n in lost.items() if n)))
