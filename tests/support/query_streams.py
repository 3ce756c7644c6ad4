"""Streams for tests of queries: made up by Hypothesis, as Arrow batches and as the oracle's rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from handshake.operators.query import Query, Results
from handshake.plan.algebra import Plan
from handshake.schema import arrow_of
from handshake.testing.oracle_values import rows as physical_rows

Item = tuple[str, dict[str, Any]]
"""A stream, and a tuple of it."""

__all__ = ["arrivals", "as_physical", "compare", "cuts", "results", "results_together", "slices", "together"]

NAN = math.nan
NUMBERS = {
    pa.int8(): st.integers(-3, 3) | st.sampled_from([-128, 127]),
    pa.int32(): st.integers(-5, 100) | st.sampled_from([-(2**31), 2**31 - 1]),
    pa.int64(): st.integers(-5, 100) | st.sampled_from([-(2**63), 2**63 - 1]),
    pa.uint64(): st.integers(0, 9) | st.just(2**64 - 1),
    pa.float64(): st.sampled_from(
        [0.0, -0.0, 0.1, 1e300, -1e300, 1.5, 5e-324, math.inf, -math.inf, math.nan]
    ),
    pa.float32(): st.sampled_from([0.0, 0.5, -1.25, 3.0]),
    pa.bool_(): st.booleans(),
    pa.int16(): st.sampled_from([-5, 0, 1, 7]),
    pa.binary(): st.sampled_from([b"", b"a", b"\0", b"ab"]),
    pa.date32(): st.sampled_from([0, 1, -5, 20_000]),
    pa.string(): st.sampled_from(["UBSN", "CSGN", "", "ü"]),
}


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_decimal(kind):
        limit = 10**kind.precision - 1
        digits = st.integers(-30, 30) | st.sampled_from([limit, -limit])
        return digits.map(lambda n: Decimal(n).scaleb(-kind.scale, Context(prec=60)))
    if pa.types.is_timestamp(kind):
        return st.integers(0, 100)
    return NUMBERS[kind]


@st.composite
def arrivals(
    draw: Any, plan: Plan, *, most: int = 24, sorted_times: bool = False, step: int = 1
) -> list[Item]:
    """Draw tuples of all inputs as they come; times in any order unless asked otherwise, some NULL."""
    inputs = [source for source in plan.inputs if source.demux is None]
    count, nulls = draw(st.integers(0, most)), draw(st.booleans())
    drift = 0
    out = []
    for _ in range(count):
        source = draw(st.sampled_from(inputs))
        row = {}
        for f in source.fields:
            kind = arrow_of(f.type)
            if f.name == source.time:
                drift += draw(st.integers(0, 3 * step))
                shift = 0 if sorted_times else draw(st.sampled_from([0, 0, 0, -2 * step, -9 * step]))
                row[f.name] = drift + shift
                if nulls and not sorted_times and draw(st.integers(0, 19)) == 0:
                    row[f.name] = None
            else:
                values = _values(kind)
                row[f.name] = draw(st.none() | values if nulls and draw(st.integers(0, 7)) == 0 else values)
        out.append((source.name, row))
    return out


def cuts(draw: Any, items: list[Item]) -> list[list[Item]]:
    """Cut arrivals into batches: each of one stream, of any length."""
    batches: list[list[Item]] = []
    for item in items:
        if batches and batches[-1][0][0] == item[0] and draw(st.booleans()):
            batches[-1].append(item)
        else:
            batches.append([item])
    return batches


def slices(draw: Any, items: list[Item]) -> list[list[tuple[int, Item]]]:
    """Cut arrivals into batches of any length, of all streams together; each has its place among all."""
    batches: list[list[tuple[int, Item]]] = []
    for placed in enumerate(items):
        if batches and draw(st.integers(0, 3)):
            batches[-1].append(placed)
        else:
            batches.append([placed])
    return batches


def together(query: Query, batch: list[tuple[int, Item]]) -> dict[str, tuple[pa.RecordBatch, Any]]:
    """Return a batch of `slices` as it is pushed."""
    given: dict[str, tuple[pa.RecordBatch, Any]] = {}
    for name in dict.fromkeys(name for _, (name, _) in batch):
        own = [(place, row) for place, (stream, row) in batch if stream == name]
        places = np.array([place for place, _ in own], np.int64)
        given[name] = (batch_of(query, name, [row for _, row in own]), places)
    return given


def batch_of(query: Query, name: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    schema = query.input_schema(name)
    arrays = []
    for f in schema:
        values = [row[f.name] for row in rows]
        if pa.types.is_timestamp(f.type):
            arrays.append(pa.array(values, pa.int64()).view(f.type))
        else:
            arrays.append(pa.array(values, f.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_physical(query: Query, items: list[Item]) -> list[Item]:
    """Return arrivals with physical values, as the oracle wants them."""
    return [
        (name, physical_rows(pa.Table.from_batches([batch_of(query, name, [row])]))[0]) for name, row in items
    ]


def results(query: Query, batches: list[list[Item]]) -> dict[str, list[dict[str, Any]]]:
    """Return the results of a query for batches, with physical values."""
    return _results(
        query,
        lambda: [
            query.push(batch[0][0], batch_of(query, batch[0][0], [row for _, row in batch]))
            for batch in batches
        ],
    )


def results_together(query: Query, batches: list[list[tuple[int, Item]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the results of a query for batches of all streams together, with physical values."""
    return _results(query, lambda: [query.push_together(together(query, batch)) for batch in batches])


def _results(query: Query, push: Callable[[], list[Results]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[pa.RecordBatch]] = {output.name: [] for output in query.plan.outputs}
    with query:
        for step in [*push(), query.finish()]:
            for name, given in step.items():
                found[name] += given
    return {name: physical_rows(pa.Table.from_batches(b, query.schema(name))) for name, b in found.items()}


def compare(found: dict[str, list[dict[str, Any]]], wanted: dict[str, list[dict[str, Any]]]) -> None:
    """Fail where results differ; NaN equals NaN."""
    plain = [{name: [_plain(row) for row in rows] for name, rows in each.items()} for each in (found, wanted)]
    assert plain[0] == plain[1]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {k: _equal_to_itself(v) for k, v in row.items()}


def _equal_to_itself(value: Any) -> Any:
    if isinstance(value, list):
        return [_equal_to_itself(item) for item in value]
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
