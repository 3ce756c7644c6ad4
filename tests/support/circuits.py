"""Helpers of the circuit tests: rows of wires, held-back streams, and runs that are checked on the way."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from handshake.engines.circuit.compiler import Compiled
from handshake.engines.circuit.components.sequence import PLACE
from handshake.engines.circuit.components.types import Row, Wire, wire
from handshake.engines.circuit.simulation.simulate import ALWAYS, Beat, Feed, Run, feed, simulate
from handshake.operators.sources import arrow_schema
from handshake.plan.algebra import Plan
from handshake.schema import STRING, Field, Int
from handshake.testing.oracle_values import rows as physical_rows

SMALL = Row((wire(Field("a", Int(8))), wire(Field("b", Int(4, signed=False)))))
TEXT = Row((wire(Field("key", STRING), length=2, nullable=True), wire(Field("v", Int(16)), nullable=True)))

patterns = st.lists(st.booleans(), min_size=1, max_size=6).map(lambda bits: (*bits, True))
"""When a stream may move; it may at last."""


def rows(row: Row) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Return a strategy for tuples of a row."""
    return st.lists(st.tuples(*(_value(each) for each in row)), max_size=12)


def _value(each: Wire) -> st.SearchStrategy[Any]:
    if each.type == STRING:
        values: st.SearchStrategy[Any] = st.sampled_from(["", "A", "AB", "B", "é"])
    else:
        values = st.integers(*each.range)
    return st.none() | values if each.nullable else values


def through(
    block: Any, row: Row, tuples: Sequence[Any], after: Row, *, pattern: Any = ALWAYS, ready: Any = ALWAYS
) -> list[tuple[Any, ...]]:
    """Return the tuples that leave a block of one input and one output."""
    run = simulate(block, {"i": feed(row, tuples, pattern=pattern)}, ready={"o": ready})
    assert run.outputs["o"][-1].eos
    return run.tuples("o", after)


def physical(plan: Plan, items: list[Any]) -> list[Any]:
    """Return arrivals with physical values, as wires and the oracle want them."""
    schemas = {source.name: arrow_schema(source) for source in plan.inputs}
    return [(name, physical_rows(_table(row, schemas[name]))[0]) for name, row in items]


def _table(row: dict[str, Any], schema: pa.Schema) -> pa.Table:
    arrays = [
        pa.array([row[f.name]], pa.int64()).view(f.type)
        if pa.types.is_timestamp(f.type)
        else pa.array([row[f.name]], f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)


def with_places(compiled: Compiled, items: list[Any]) -> list[Any]:
    """Add their places to arrivals of inputs that are joined with others."""
    joined = [name for name, row in compiled.inputs.items() if PLACE in row.names]
    places = itertools.count()
    return [(name, {**row, PLACE: next(places)} if name in joined else row) for name, row in items]


def latency_and_rate(
    block: Any, beats: Sequence[Beat], stream: str = "i", *, at: int = 0
) -> tuple[int, float]:
    """Return cycles from taking beat `at` to the first result, and beats taken per cycle.

    Nothing is held back.
    """
    run = simulate(block, {stream: Feed(beats)}, stop_at_eos=False, quiet=60)
    taken = run.accepted[stream]
    return run.outputs["o"][0].cycle - taken[at], (len(taken) - 1) / (taken[-1] - taken[0])


def tuples_only(run: Run, stream: str = "o") -> list[int]:
    """Return the payloads that left."""
    return [a.payload for a in run.outputs[stream] if a.payload is not None]
