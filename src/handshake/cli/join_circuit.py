"""`handshake join --backend circuit`: the same files, options and output, through a simulated circuit."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from handshake.cli.join import JoinRequest, write_metrics
from handshake.cli.preview import Preview, plain_table
from handshake.engines.circuit.join.condition import Condition
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.host import JoinRun, condition_of, design_of, run_join, simulator_for
from handshake.io import read, sink_for
from handshake.joins.join import JoinPlan, prepare
from handshake.joins.plan import predicate_of
from handshake.plan.bind import Scope, bind
from handshake.schema import Schema

__all__ = ["join_files_on_circuit"]

CLOCK = 100e6
"""The papers' clock, for rates."""


@dataclass(frozen=True)
class CircuitFigures:
    """What a run of the circuit did."""

    left_rows: int
    right_rows: int
    results: int
    cycles: int
    cycles_per_step: int
    tuples_per_second: float
    """At 100 MHz, the end of the streams being pushed through included."""
    cores: int
    left_window: int
    right_window: int
    left_bits: int
    right_bits: int
    result_bits: int
    elapsed: float

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return dataclasses.asdict(self)


def join_files_on_circuit(request: JoinRequest, text_bytes: int | None) -> None:
    """Run a request from the files to the summary."""
    request.check()
    left, right = read(request.left, "left"), read(request.right, "right")
    plan = _prepare(request, left.schema, right.schema)
    design = design_of(plan.spec.windows, request.cores)
    scope = Scope.of(Schema.from_arrow(left.schema, "left"), Schema.from_arrow(right.schema, "right"))
    on = bind(predicate_of(request.on), scope)
    condition = condition_of(left, right, on, text_bytes)
    if request.explain:
        for line in _explained(plan, condition, design):
            print(line)
        return
    began, times = time.perf_counter(), (plan.spec.sides[0].time, plan.spec.sides[1].time)
    engine = simulator_for(design, left.num_rows + right.num_rows)
    done = run_join(left, right, condition, design, plan.output_schema, times=times, engine=engine)
    figures = _figures(left, right, done, condition, design, time.perf_counter() - began)
    _deliver(request, plan, done, figures)


def _prepare(request: JoinRequest, left: pa.Schema, right: pa.Schema) -> JoinPlan:
    names = ("window", "left_window", "right_window", "time", "left_time", "right_time")
    return prepare(left, right, request.on, **{name: getattr(request, name) for name in names})


def _explained(plan: JoinPlan, condition: Condition, design: Design) -> Iterator[str]:
    yield plan.spec.explain()
    longest = [max(lengths) for lengths in zip(*design.segments, strict=True)]
    yield f"circuit     {design.cores} join cores in a line, {design.mergers} mergers over them"
    yield f"segments    up to {longest[0]} left and {longest[1]} right tuples per core, {design.windows}"
    bits = (condition.left.bits, condition.right.bits, condition.result.bits)
    yield "wires       {} left, {} right, {} of a result".format(*bits)
    yield f"step        {1 + sum(longest)} cycles for a tuple of each side, while no buffer is full"


def _figures(
    left: pa.Table, right: pa.Table, done: JoinRun, condition: Condition, design: Design, elapsed: float
) -> CircuitFigures:
    rows, cycles = left.num_rows + right.num_rows, done.run.cycles
    return CircuitFigures(
        left.num_rows, right.num_rows, done.results.num_rows, cycles, done.step_cycles,
        rows / cycles * CLOCK if cycles else 0.0, design.cores, design.left, design.right,
        condition.left.bits, condition.right.bits, condition.result.bits, elapsed,
    )  # fmt: skip


def _deliver(request: JoinRequest, plan: JoinPlan, done: JoinRun, figures: CircuitFigures) -> None:
    preview = Preview(plan.output_schema)
    with contextlib.ExitStack() as stack:
        deliver = preview.add
        if request.output is not None:
            deliver = stack.enter_context(sink_for(request.output, plan.output_schema)).write
        for batch in done.results.to_batches():
            deliver(batch)
    if request.metrics is not None:
        write_metrics(request.metrics, figures)
    for line in [] if request.output is not None else preview.lines():
        print(line)
    for line in _summary(request, figures):
        print(line, file=request.summary_to)


def _summary(request: JoinRequest, figures: CircuitFigures) -> Iterator[str]:
    facts = [
        ("left", f"{figures.left_rows:,} rows"),
        ("right", f"{figures.right_rows:,} rows"),
        ("results", f"{figures.results:,}"),
        ("elapsed", f"{figures.elapsed:.2f} s"),
        ("cycles", f"{figures.cycles:,}, the last tuples pushed through included"),
        ("rate", f"{figures.tuples_per_second:,.0f} input rows/s at 100 MHz"),
        ("cores", f"{figures.cores} in hardware, simulated"),
        ("wires", f"{figures.left_bits} left, {figures.right_bits} right, {figures.result_bits} of a result"),
    ]
    if request.output not in (None, "-"):
        facts.append(("output", str(request.output)))
    return plain_table(facts)
