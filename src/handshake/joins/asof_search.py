"""The two searches for as-of matches of tables: in the order of time, or by a predicate.

Without a predicate, one pass over both sides in the order of time finds the matches (`kernels.asof`). With a
selective one, a join on the predicate and the times gives all pairs, and the best one of each row is kept. If
there would be too many pairs, window joins find them: first under a short window, which is enough for most
rows, then under longer ones for rows that have found nothing. A pair under a short window is nearer in time
than any that a longer one adds, so each row is done when it has found one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.driver import times_of
from handshake.joins.key_numbers import number_keys
from handshake.joins.numbered import APART, number_rows
from handshake.joins.plan import JoinPlan, prepare
from handshake.joins.replay import Replay
from handshake.joins.spec import SIDES
from handshake.joins.ties import order_by_columns
from handshake.kernels.asof import keep_best, last_of_keys, latest_before, mark_ties
from handshake.plan.build import Expression
from handshake.plan.expr import Arithmetic, Column, Compare, Expr, Literal, Name, conjunction, walk
from handshake.schema import INT64, UNITS
from handshake.windows import TimeWindow

Array = np.ndarray[Any, Any]
ANY = 2**64 - 1
"""A tolerance that allows every distance."""
_LONGEST = 1 << 62
_AS_THEY_ARE = np.empty(0, np.int64)
"""The order of rows that are in the order of time already."""
_SAMPLE = (1 << 10, 1 << 15)
"""Left and right rows of a sample."""
_CANDIDATES, _WIDER = 64, 16
"""Approximate number of right rows in the first window, and how much wider the next window is."""


@dataclass(frozen=True)
class Wanted:
    """The requirements for a match, with bound expressions."""

    times: tuple[str, str]
    """The time columns."""
    unit: str
    direction: str
    within: int
    """The largest distance in whole units of time."""
    strict: bool
    """Whether rows of equal times do not match."""
    keys: tuple[Expr, ...]
    on: Expr | None

    def looks(self, way: str) -> bool:
        """Return true if matches may lie in this direction, `backward` or `forward`."""
        return self.direction in (way, "nearest")


class Rows:
    """The rows of both sides with their times."""

    def __init__(self, tables: tuple[pa.Table, pa.Table], wanted: Wanted) -> None:
        self.tables = tables
        dated = [
            times_of(table.column(name), wanted.unit, name, side)
            for table, name, side in zip(tables, wanted.times, SIDES, strict=True)
        ]
        self.times = [times.astype(np.int64, copy=False) for times, _ in dated]
        self._known = [known for _, known in dated]
        """Which rows have a time, per side; None if all have one."""

    def find_dated(self, side: int) -> Array:
        """Return the numbers of the rows of a side that have a time."""
        known = self._known[side]
        return np.arange(len(self.times[side])) if known is None else np.flatnonzero(known)

    def number_keys(self, keys: Sequence[Expr]) -> list[Array] | None:
        """Number the keys, -1 for rows without a time, too; None if their types have no common one."""
        numbers = number_keys(keys, self.tables)
        if numbers is None:
            return None
        return [
            each if known is None else np.where(known, each, -1)
            for each, known in zip(numbers, self._known, strict=True)
        ]

    def rank_ties(self, keys: Array) -> Array | None:
        """Return the right rows in an order in which ties go by their columns; None if there are no ties."""
        times = self.times[1]
        tied = np.zeros(len(times), np.bool_)
        if not mark_ties(times, keys, _order(times, None), np.full(_count(keys), -1, np.int64), tied):
            return None
        places = np.flatnonzero(tied)
        ranked = np.arange(len(times))
        ranked[places] = places[order_by_columns(self.tables[1].take(pa.array(places)))]
        return ranked

    def by_moment(self, side: int, ranked: Array | None, *, forward: bool) -> Array:
        """Return the rows of a side in the order of a pass; rows of one time stay in that of `ranked`."""
        if forward and ranked is None:
            order = _order(self.times[side], None)
            return (order if len(order) else np.arange(len(self.times[side])))[::-1].copy()
        return _order(~self.times[side] if forward else self.times[side], ranked)


def _count(*keys: Array) -> int:
    """Return the number of numbers that keys have."""
    return max(int(numbers.max(initial=-1)) for numbers in keys) + 1


def _order(times: Array, ranked: Array | None) -> Array:
    """Return the rows in the order of time; rows of one time stay in the order of `ranked`.

    Nothing is returned for rows that are in order.
    """
    ordered = times if ranked is None else times[ranked]
    if not np.any(ordered[1:] < ordered[:-1]):
        return _AS_THEY_ARE if ranked is None else ranked
    order = np.argsort(ordered, kind="stable")
    return order if ranked is None else ranked[order]


# Without a predicate: one pass in the order of time.


def search_by_time(wanted: Wanted, rows: Rows) -> Array | None:
    """Return the best right row of each left row, or -1; None if keys cannot be numbered."""
    keys = rows.number_keys(wanted.keys)
    if keys is None:
        return None
    ranked = rows.rank_ties(keys[1])
    found = [
        _pass(wanted, rows, keys, ranked, forward=way == "forward")
        for way in ("backward", "forward")
        if wanted.looks(way)
    ]
    return found[0] if len(found) == 1 else _nearer(rows, *found)


def edge_rows(wanted: Wanted, rows: Rows, *, forward: bool) -> Array | None:
    """Return the last right row of each key, or the first one; None if keys cannot be numbered."""
    numbers = rows.number_keys(wanted.keys)
    if numbers is None:
        return None
    keys = numbers[1]
    edge = np.full(_count(keys), -1, np.int64)
    last_of_keys(keys, rows.by_moment(1, rows.rank_ties(keys), forward=forward), edge)
    return edge[edge >= 0]


def _pass(wanted: Wanted, rows: Rows, keys: list[Array], ranked: Array | None, *, forward: bool) -> Array:
    left, right = (~times if forward else times for times in rows.times)
    found = np.full(len(left), -1, np.int64)
    latest_before(
        left, keys[0], rows.by_moment(0, None, forward=forward), right, keys[1],
        rows.by_moment(1, ranked, forward=forward), wanted.strict, np.uint64(wanted.within),
        np.full(_count(*keys), -1, np.int64), found,
    )  # fmt: skip
    return found


def _nearer(rows: Rows, before: Array, after: Array) -> Array:
    """Return the nearer of two rows; of equally near ones, the earlier."""
    left, right = rows.times
    if not len(right):
        return before
    back = left.view(np.uint64) - right[before].view(np.uint64)
    ahead = right[after].view(np.uint64) - left.view(np.uint64)
    return np.where((before >= 0) & ((after < 0) | (back <= ahead)), before, after)


# With a predicate: one join of all pairs, or window joins, each wider than the one before.


def search_by_predicate(wanted: Wanted, rows: Rows, cores: int | None, most_pairs: int) -> Array:
    """Return the best right row of each left row, or -1.

    Args:
        wanted: The requirements for a match.
        rows: The rows of both sides.
        cores: Join cores.
        most_pairs: Pairs per left row, about, that are still found at once.
    """
    search = _PredicateSearch(wanted, rows, cores)
    found, rank = np.full(len(rows.times[0]), -1, np.int64), search.rank()
    right, waiting = search.side(1, rows.find_dated(1)), rows.find_dated(0)
    if not len(waiting) or not right.num_rows:
        return found
    left = search.side(0, waiting)
    plans = search.plans(left, right, at_once=search.expected_pairs(left, right) <= most_pairs * len(waiting))
    for plan in plans:
        for pair in search.pairs(plan, search.side(0, waiting), right):
            keep_best(*pair, *rows.times, rank, wanted.strict, found)
        waiting = waiting[found[waiting] < 0]
        if not len(waiting):
            break
    return found


class _PredicateSearch:
    """The joins that find candidates for which a predicate holds.

    Their inputs have the columns that the predicate reads, then the times, then the numbers of the rows.
    """

    def __init__(self, wanted: Wanted, rows: Rows, cores: int | None) -> None:
        self._wanted, self._rows, self._cores = wanted, rows, cores
        self._predicate = conjunction((*wanted.keys, *([] if wanted.on is None else [wanted.on])))

    def side(self, side: int, numbers: Array) -> pa.Table:
        """Return the columns of some rows of a side."""
        read = {n.name for n in walk(self._predicate) if isinstance(n, Column) and n.side == side}
        table = number_rows(self._rows.tables[side], read, self._rows.times[side])
        return table if len(numbers) == table.num_rows else table.take(pa.array(numbers))

    def rank(self) -> Array:
        """Return numbers by which right rows of one time are compared."""
        rank = np.zeros(len(self._rows.times[1]), np.int64)
        keys = np.full(len(rank), -1)
        keys[self._rows.find_dated(1)] = 0
        ranked = self._rows.rank_ties(keys)
        if ranked is not None:
            rank[ranked] = np.arange(len(ranked))
        return rank

    def pairs(self, plan: JoinPlan, left: pa.Table, right: pa.Table) -> Iterator[tuple[Array, Array]]:
        """Yield the numbers of the rows of pairs."""
        for batch in Replay(plan, left, right):
            yield np.asarray(batch.column(left.num_columns - 1)), np.asarray(batch.columns[-1])

    def expected_pairs(self, left: pa.Table, right: pa.Table) -> float:
        """Estimate the number of all pairs that the join allows, from a sample of both sides."""
        some = [_sample(table, size) for table, size in zip((left, right), _SAMPLE, strict=True)]
        found = sum(len(rows) for rows, _ in self.pairs(self._plan_at_once(left, right), *some))
        shares = [part.num_rows / whole.num_rows for part, whole in zip(some, (left, right), strict=True)]
        return float(found / (shares[0] * shares[1]))

    def plans(self, left: pa.Table, right: pa.Table, *, at_once: bool) -> Iterator[JoinPlan]:
        """Yield the joins to run, one after the other, until all left rows have found a match."""
        if at_once:
            yield self._plan_at_once(left, right)
            return
        for width in self._widths():
            yield self._plan_within(left, right, width)

    def _widths(self) -> Iterator[int | None]:
        """Yield the widths of the windows in units, the widest last; None has no end."""
        times, within = self._rows.times[1][self._rows.find_dated(1)], self._wanted.within
        span = int(times.max(initial=0)) - int(times.min(initial=0)) if len(times) else 0
        width = max(span * _CANDIDATES // max(len(times), 1), 1)
        while width < min(within, span):
            yield width
            width *= _WIDER
        yield None if within >= _LONGEST else within

    def _plan_at_once(self, left: pa.Table, right: pa.Table) -> JoinPlan:
        """Return a join without windows; its predicate also says what the tolerance and the direction do."""
        wanted, parts = self._wanted, [self._predicate]
        mine, theirs = (
            Name((name, table.schema.names[-2])) for name, table in zip("lr", (left, right), strict=True)
        )
        if not wanted.looks("forward"):
            parts.append(Compare("<=", theirs, mine))
        if not wanted.looks("backward"):
            parts.append(Compare(">=", theirs, mine))
        if wanted.within < _LONGEST:
            length = Literal(wanted.within, type=INT64)
            if wanted.looks("backward"):
                parts.append(Compare(">=", theirs, Arithmetic("-", mine, length)))
            if wanted.looks("forward"):
                parts.append(Compare("<=", theirs, Arithmetic("+", mine, length)))
        on = Expression(conjunction(tuple(parts)))
        return prepare(left.schema, right.schema, on, suffix=APART, cores=self._cores)

    def _plan_within(self, left: pa.Table, right: pa.Table, width: int | None) -> JoinPlan:
        """Return a join of rows at most `width` apart, in the direction of the join."""
        far = None if width is None else TimeWindow((width + 1) * UNITS["s"])  # plain numbers are seconds
        near = TimeWindow(UNITS["s"])
        return prepare(
            left.schema, right.schema, Expression(self._predicate),
            left_window=far if self._wanted.looks("forward") else near,
            right_window=far if self._wanted.looks("backward") else near,
            left_time=left.schema.names[-2], right_time=right.schema.names[-2], suffix=APART,
            cores=self._cores,
        )  # fmt: skip


def _sample(table: pa.Table, rows: int) -> pa.Table:
    """Return about this many rows of a table, evenly spread."""
    step = -(-table.num_rows // rows)
    return table if step < 2 else table.take(pa.array(np.arange(0, table.num_rows, step)))
