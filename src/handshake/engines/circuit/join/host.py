"""Tables through a simulated join circuit of two streams."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from handshake.engines.circuit.components.types import Row, Wire, wire
from handshake.engines.circuit.join.arrivals import feed_of, steps
from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.design import CORES, Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.simulation.simulate import simulate
from handshake.engines.circuit.simulation.testbench import ALWAYS, Run
from handshake.engines.circuit.tables import physical, table_of_payloads
from handshake.errors import UnsupportedError
from handshake.plan.expr import Expr
from handshake.schema import UNITS, Binary, Date, Float, Opaque, Schema, String, Timestamp
from handshake.windows import Window, Windows

QUICK_FROM, CAREFUL_FROM = 10_000, 2_000_000
"""Cycles times cores from which on a simulation is worth building, and building with optimisation."""


@dataclass(frozen=True)
class JoinRun:
    """The outcome of a simulated join: results, circuit, and the record of the simulation."""

    results: pa.Table
    circuit: HandshakeJoin
    run: Run
    step_cycles: int


def windows_in_tuples(windows: Windows) -> tuple[int, int]:
    """Return the sizes of both windows in tuples; a circuit holds no other windows."""
    left, right = map(_size, windows, ("left", "right"))
    return left, right


def _size(window: Window | None, side: str) -> int:
    if window is None:
        raise UnsupportedError(
            f"the {side} input has no window, so no circuit can hold it; give a number of tuples, "
            'such as window="1000 tuples"'
        )
    if window.capacity == 0:
        raise UnsupportedError(
            f"the {side} input has no window of its own (now), and a join circuit holds at least one tuple "
            'of each; use engine="local"'
        )
    if window.capacity is None:
        raise UnsupportedError(
            f"the {side} window is {window}: how many tuples that will be is not known before they come, "
            'and a join circuit holds a fixed number; give one, such as window="1000 tuples", or use '
            'engine="local"'
        )
    return window.capacity


def design_of(windows: Windows, cores: int | None, **changes: Any) -> Design:
    """Return the circuit for two tuple windows; no more cores than the smaller window has tuples."""
    left, right = windows_in_tuples(windows)
    return Design(min(cores or CORES, left, right), left, right, **changes)


def condition_of(left: pa.Table, right: pa.Table, on: Expr, text_bytes: int | None = None) -> PairGates:
    """Return the wires of both inputs and the gates of a bound predicate."""
    return PairGates(_row(left, "left", text_bytes), _row(right, "right", text_bytes), on)


def _row(table: pa.Table, side: str, text_bytes: int | None) -> Row:
    schema = Schema.from_arrow(table.schema, side)
    return Row(
        tuple(_wire(f, side, bool(table.column(f.name).null_count), text_bytes) for f in schema.fields)
    )


def _wire(field: Any, side: str, nullable: bool, text_bytes: int | None) -> Wire:
    if isinstance(field.type, (Float, Opaque)):
        raise UnsupportedError(
            f"column '{field.name}' of the {side} input is {field.type}, which a join circuit does not "
            "carry: it has integers, decimals, bool, dates, times and text of a fixed length; cast it "
            '(to a decimal, say), drop it, or use engine="local"'
        )
    if isinstance(field.type, (String, Binary)) and text_bytes is None:
        raise UnsupportedError(
            f"column '{field.name}' of the {side} input is {field.type} without a length, and wires need "
            "one; give the most bytes that a text has with text=…, drop the column, or use "
            'engine="local"'
        )
    return wire(field, length=text_bytes, nullable=nullable)


def order_of(left: pa.Table, right: pa.Table, times: tuple[str | None, str | None]) -> list[tuple[int, int]]:
    """Return (side, row) of all tuples in arrival order: by time, ties left first; else in turn."""
    tables = (left, right)
    if times[0] is None or times[1] is None:
        every = sorted((i, side) for side, table in enumerate(tables) for i in range(table.num_rows))
        return [(side, i) for i, side in every]
    keyed = [
        (time is None, time or 0, side, i)
        for side, (table, name) in enumerate(zip(tables, times, strict=True))
        for i, time in enumerate(_instants(table.column(str(name))))
    ]
    return [(side, i) for _, _, side, i in sorted(keyed)]


def _instants(column: pa.ChunkedArray) -> list[int | None]:
    """Return times in nanoseconds; whole numbers stay as they are."""
    kind = Schema.from_arrow(pa.schema([("t", column.type)]), "time").fields[0].type
    unit = UNITS[kind.unit] if isinstance(kind, Timestamp) else UNITS["d"] if isinstance(kind, Date) else 1
    return [None if value is None else value * unit for value in physical(column)]


def simulator_for(design: Design, rows: int) -> str:
    """Return the simulator that finishes such a run first, building included.

    >>> simulator_for(Design(2, 8, 8), 10)
    'amaranth'
    """
    steps = rows + max(design.left, design.right)
    work = design.cores * steps * (1 + sum(design.segments[0]))
    if work < QUICK_FROM or shutil.which("g++") is None:
        return "amaranth"
    return "cxxrtl-quick" if work < CAREFUL_FROM else "cxxrtl"


def run_join(
    left: pa.Table,
    right: pa.Table,
    condition: PairGates,
    design: Design,
    output: pa.Schema,
    *,
    times: tuple[str | None, str | None] = (None, None),
    engine: str = "cxxrtl",
    offered: Sequence[bool] = ALWAYS,
    taken: Sequence[bool] = ALWAYS,
    form: type[HandshakeJoin] = HandshakeJoin,
) -> JoinRun:
    """Feed two tables through the simulated circuit, and collect the table of its results."""
    packed = [_pack(t, row) for t, row in zip((left, right), (condition.left, condition.right), strict=True)]
    order = [(side, packed[side][i]) for side, i in order_of(left, right, times)]
    circuit = form(condition, design)
    feeds = {"arrivals": feed_of(condition, steps(order), pattern=offered)}
    run = simulate(circuit, feeds, engine=engine, ready={"results": taken})
    results = [condition.restore(values) for values in run.tuples("results", condition.result)]
    longest = [max(lengths) for lengths in zip(*design.segments, strict=True)]
    return JoinRun(_table(results, condition, output), circuit, run, 1 + sum(longest))


def _pack(table: pa.Table, row: Row) -> list[int]:
    columns = [physical(table.column(each.name)) for each in row]
    return [row.pack(values) for values in zip(*columns, strict=True)]


def _table(results: list[tuple[Any, ...]], condition: PairGates, output: pa.Schema) -> pa.Table:
    """Return the results with the names of the output's columns."""
    wires = (*condition.left, *condition.right)
    row = Row(tuple(Wire(f.name, w.type, w.bits) for f, w in zip(output, wires, strict=True)))
    return table_of_payloads(results, row, Schema.from_arrow(output, "result")).cast(output)
