"""Rankings by the distance of two numbers, `ABS(l.x - r.a)`: a search in sorted numbers, not all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.kernels.columns import as_array, integers
from handshake.kernels.nearest import find_nearest
from handshake.plan.expr import Arithmetic, Call, Column, Expr
from handshake.schema import FLOAT64, Int

Array = np.ndarray[Any, Any]
_LARGEST = 1 << 61
"""Differences of whole numbers up to this fit 64 bits."""
_PAIRS = 1 << 18
"""Pairs of a batch, about."""


class Candidates(NamedTuple):
    """The right rows that may be among the best of each left row: ranges of an order of right rows."""

    order: Array
    rows: Array
    """The numbers of the left rows."""
    starts: Array
    stops: Array
    rest: Array
    """Left rows to rank all right rows for: those without a number, or too far from all."""

    def pairs(self) -> Iterator[tuple[Array, Array]]:
        """Yield the numbers of the left and right rows of all candidates, in batches."""
        counts = self.stops - self.starts
        ends = np.cumsum(counts)
        first = 0
        while first < len(ends):
            done = ends[first] - counts[first]
            last = max(int(np.searchsorted(ends, done + _PAIRS, "right")), first + 1)
            some = slice(first, last)
            lefts = np.repeat(self.rows[some], counts[some])
            within = np.arange(len(lefts)) - np.repeat(ends[some] - counts[some] - done, counts[some])
            yield lefts, self.order[np.repeat(self.starts[some], counts[some]) + within]
            first = last


def find_candidates(by: Expr, left: pa.Table, right: pa.Table, k: int, share: float) -> Candidates | None:
    """Return the candidates of a ranking by distance; None for other rankings, or if they are too many.

    Args:
        by: The ranking.
        left: The left rows.
        right: The right rows.
        k: The number of matches per left row.
        share: The largest share of all pairs that may be candidates.
    """
    columns = distance_of(by)
    if columns is None:
        return None
    mine, theirs = (_numbers(table, name) for table, name in zip((left, right), columns, strict=True))
    if mine is None or theirs is None or len(theirs.rows) < k:
        return None
    by_value = np.argsort(theirs.values, kind="stable")
    keys = theirs.values[by_value]
    starts, stops = np.empty(len(mine.rows), np.int64), np.empty(len(mine.rows), np.int64)
    find_nearest(mine.values, keys, k, starts, stops)
    with np.errstate(over="ignore"):
        near = np.isfinite(mine.values - keys[starts]) & np.isfinite(keys[stops - 1] - mine.values)
    if int((stops - starts).sum()) > share * left.num_rows * right.num_rows:
        return None
    rest = np.setdiff1d(np.arange(left.num_rows), mine.rows[near], assume_unique=True)
    return Candidates(theirs.rows[by_value], mine.rows[near], starts[near], stops[near], rest)


def distance_of(by: Expr) -> tuple[str, str] | None:
    """Return the left and the right column of which a ranking is the distance, if they are plain numbers."""
    match by:
        case Call(name="abs", args=(Arithmetic(op="-", left=Column() as a, right=Column() as b),)):
            whole = isinstance(a.type, Int) and isinstance(b.type, Int)
            if a.side != b.side and (whole or (a.type == FLOAT64 and b.type == FLOAT64)):
                return (a.name, b.name) if a.side == 0 else (b.name, a.name)
    return None


class _Numbers(NamedTuple):
    rows: Array
    values: Array


def _numbers(table: pa.Table, name: str) -> _Numbers | None:
    """Return the rows that have a number, and these; None if differences may not fit 64 bits."""
    column = as_array(table.column(name))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    rows = np.flatnonzero(np.asarray(column.is_valid()))
    column = column.drop_null()
    if not pa.types.is_floating(column.type):
        values = integers(column)
        if len(values) and (values.min() < -_LARGEST or values.max() > _LARGEST):
            return None
        return _Numbers(rows, values.astype(np.int64))
    values = column.to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    return _Numbers(rows[finite], values[finite])
