"""Streams for tests of as-of joins: random rows, conditions, and the pairs in results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pyarrow as pa

from handshake.plan import bind, parse
from handshake.plan.expr import Expr
from strategies import scope_of

DIRECTIONS = ("backward", "forward", "nearest")
CONDITIONS: dict[str | None, tuple[str, ...]] = {
    None: (),
    "l.x BETWEEN r.x - 1 AND r.x + 1": ("x",),
    "l.k < r.k": ("k",),
}
"""Conditions, and the columns of left rows that must have a value."""
SECOND = 10**9


def seconds(values: list[int | None], kind: pa.DataType) -> pa.Array:
    """Return seconds as a time column."""
    whole = pa.array(values, pa.int64())
    return (
        whole.cast(pa.timestamp("s", kind.tz)).cast(kind) if pa.types.is_timestamp(kind) else whole.cast(kind)
    )


def make_stream(rng: Random, size: int, kind: pa.DataType, side: str) -> pa.Table:
    """Return rows roughly in the order of time, with ties, zeros of either sign, NULL and NaN."""
    times = [place // 2 + rng.choice((0, 0, 0, 0, 1, 3, -2, -6)) for place in range(size)]
    known = [None if rng.random() < 0.05 else time for time in times]
    return pa.table(
        {
            "k": pa.array(rng.choices((None, 1, 2, 3), (1, 6, 6, 6), k=size), pa.int64()),
            "x": pa.array(
                rng.choices((None, math.nan, -0.0, 0.0, 0.5, 2.0), (1, 1, 2, 2, 4, 4), k=size), pa.float64()
            ),
            "t": seconds(known, kind),
            f"row of {side}": pa.array(range(size), pa.int64()),
        }
    )


def predicate_of(left: pa.Table, right: pa.Table, on: str | None, by: str | None) -> Expr:
    """Return the condition on pairs, with the keys."""
    parts = [part for part in (on and f"({on})", by and f"l.{by} = r.{by}") if part]
    return bind(parse(" AND ".join(parts) or "TRUE"), scope_of(left.schema, right.schema))


def pairs(batches: Sequence[pa.RecordBatch]) -> list[tuple[int, int | None]]:
    """Return the numbers of the rows in each result."""
    return [
        pair
        for batch in batches
        for pair in zip(
            *(batch.column(f"row of {side}").to_pylist() for side in ("left", "right")), strict=True
        )
    ]
