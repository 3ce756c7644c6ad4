"""As-of joins of tables: each left row with the right row that is best in time.

Without a predicate, one pass over both sides in the order of time finds them (`kernels.asof`). With a
selective one, a join on the predicate and the times gives all pairs, and the best one of each row is kept. If
there would be too many pairs, window joins find them: first under a short window, which is enough for most
rows, then under longer ones for rows that have found nothing. A pair under a short window is nearer in time
than any that a longer one adds, so each row is done when it has found one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import SchemaError, UnsupportedError, WindowError, suggest
from handshake.io.frames import plain_table
from handshake.joins.driver import times_of
from handshake.joins.lengths import Length, length_of
from handshake.joins.plan import JoinPlan, prepare
from handshake.joins.replay import Replay
from handshake.joins.spec import SIDES, common_unit, result_schema
from handshake.joins.ties import order_by_columns
from handshake.kernels.asof import keep_best, last_of_keys, latest_before, mark_ties
from handshake.kinds import kind_of_best
from handshake.plan.bind import Scope, bind
from handshake.plan.build import Expression
from handshake.plan.expr import Arithmetic, Column, Compare, Expr, Literal, Name, conjunction, conjuncts, walk
from handshake.schema import INT64, UNITS, Schema
from handshake.windows import TimeWindow, Windows

__all__ = ["DIRECTIONS", "AsOf", "Found", "split_keys"]

DIRECTIONS = ("backward", "forward", "nearest")
Array = np.ndarray[Any, Any]
By = str | Sequence[str | tuple[str, str]] | None
_ANY = 2**64 - 1
"""A tolerance that allows every distance."""
_LONGEST = 1 << 62
_AS_THEY_ARE = np.empty(0, np.int64)
"""The order of rows that are in the order of time already."""
_FEW = 1 << 16
_SAMPLE = (1 << 10, 1 << 15)
"""Left and right rows of a sample."""
_AT_ONCE = -1
_CANDIDATES, _WIDER = 64, 16
"""Approximate number of right rows in the first window, and how much wider the next window is."""


class Found(NamedTuple):
    """The result of a join of left rows with their best matches."""

    table: pa.Table
    matched: Array
    """Which left rows have a match."""


@dataclass(frozen=True)
class AsOf:
    """An as-of join that is checked and ready to run on tables; `handshake.asof` documents the fields."""

    left: pa.Table
    right: pa.Table
    on: Expr | None
    by: By
    times: tuple[str | None, str | None]
    direction: str = "backward"
    tolerance: Length | None = None
    allow_exact_matches: bool = True
    how: str = "left"
    suffix: str = "_right"
    aliases: tuple[str, str] | None = None
    cores: int | None = None
    most_pairs: int = 64
    """Joins with more than about this many pairs per left row use growing windows."""

    def run(self) -> pa.Table:
        """Return the joined table; left rows stay in their order."""
        return self.find().table

    def find(self) -> Found:
        """Return the joined table, and which left rows have a match."""
        search = _Search(self)
        found = search.by_predicate() if self.on is not None else search.by_time()
        left, right = search.tables
        matched = found >= 0
        if not search.kind.preserves:
            rows = np.flatnonzero(matched)
            left, found = left.take(pa.array(rows)), found[rows]
        columns = right.take(pa.array(found, mask=found < 0)).columns
        return Found(pa.table([*left.columns, *columns], schema=search.schema), matched)

    def edge_rows(self, *, forward: bool) -> Array | None:
        """Return the numbers of the right rows that count for left rows on one side of them; None for all.

        Left rows that are later than all right rows find the last row of their key, or nothing. Earlier ones
        find the first one (`forward`).
        """
        other = "backward" if forward else "forward"
        wanted = self.on is None and self.direction != other
        return _Search(self).edge_rows(forward) if wanted else None

    def reach(self) -> tuple[str, int, int]:
        """Return how far a left row looks back and ahead, at most: the unit of time, and two numbers."""
        search = _Search(self)
        back, ahead = self.direction != "forward", self.direction != "backward"
        return search.unit, search.within if back else 0, search.within if ahead else 0

    def condition(self) -> Expr:
        """Return what must hold for a pair, apart from times: keys are equal, and `on`."""
        names = self.aliases or ("l", "r")
        parts: list[Expr] = [
            Compare("=", *(Name((name, column)) for name, column in zip(names, pair, strict=True)))
            for pair in _pairs(self.by)
        ]
        return conjunction((*parts, *([] if self.on is None else [self.on])))


class _Search:
    """The search for the best right row of each left row: its number, or -1."""

    def __init__(self, join: AsOf) -> None:
        self._join = join
        if join.direction not in DIRECTIONS:
            raise UnsupportedError(
                f"no direction {join.direction!r} of an as-of join; choose one of {', '.join(DIRECTIONS)}"
                f"{suggest(str(join.direction), DIRECTIONS)}"
            )
        if not isinstance(join.allow_exact_matches, (bool, np.bool_)):
            raise UnsupportedError(
                f"allow_exact_matches is True or False; {join.allow_exact_matches!r} was given"
            )
        self.kind = kind_of_best(join.how, "an as-of join")
        self.tables = tuple(plain_table(table).combine_chunks() for table in (join.left, join.right))
        left, right = self._schemas = tuple(table.schema for table in self.tables)
        self.schema = result_schema(left, right, join.suffix, self.kind)
        self._names = join.aliases or ("l", "r")
        schemas = [Schema.from_arrow(s, n) for s, n in zip(self._schemas, SIDES, strict=True)]
        self._scope = Scope.of(schemas[0], schemas[1], join.aliases)
        for time, schema in zip(join.times, schemas, strict=True):
            if time is None:
                raise WindowError(
                    f"an as-of join needs a time column, and none is named for the {schema.stream} input; "
                    f"name one of {', '.join(schema.names)} (time=…, or {schema.stream}_time=…)"
                )
        self._by = [self._key(pair) for pair in _pairs(join.by)]
        self.unit = common_unit((schemas[0], schemas[1]), Windows(None, None), join.times)
        self.within = self._tolerance()
        self._strict = not join.allow_exact_matches
        dated = [
            times_of(table.column(schema.get(str(time)).name), self.unit, str(time), schema.stream)
            for table, schema, time in zip(self.tables, schemas, join.times, strict=True)
        ]
        self._times = [times.astype(np.int64, copy=False) for times, _ in dated]
        self._known = [known for _, known in dated]
        """Which rows have a time, per side; None if all have one."""

    def _tolerance(self) -> int:
        """Return the largest distance in whole units."""
        given = self._join.tolerance
        if given is None:
            return _ANY
        return min(length_of(given, "tolerance").nanoseconds // UNITS[self.unit], _ANY)

    def _key(self, pair: tuple[str, str]) -> Expr:
        """Return the bound equality of a pair of columns, or NULL for columns that have no values."""
        sides = [Name((name, column)) for name, column in zip(self._names, pair, strict=True)]
        return bind(Compare("=", *sides), self._scope)

    # Without a predicate: one pass in the order of time.

    def by_time(self) -> Array:
        """Find the rows of equal keys that are best in time."""
        keys = self._codes()
        if keys is None:
            return self.by_predicate()
        count = max(int(codes.max(initial=-1)) for codes in keys) + 1
        for side, known in enumerate(self._known):
            keys[side] = keys[side] if known is None else np.where(known, keys[side], -1)
        ranked = self._rank_ties(keys[1], count)
        found = {
            way: self._pass(keys, count, ranked, forward=way == "forward")
            for way in ("backward", "forward")
            if self._join.direction in (way, "nearest")
        }
        if self._join.direction != "nearest":
            return found[self._join.direction]
        return self._nearer(found["backward"], found["forward"])

    def edge_rows(self, forward: bool) -> Array | None:
        """Return the last right row of each key, or the first one; None if keys cannot be numbered."""
        keys = self._codes()
        if keys is None:
            return None
        known = self._known[1]
        codes = keys[1] if known is None else np.where(known, keys[1], -1)
        count = int(codes.max(initial=-1)) + 1
        edge = np.full(count, -1, np.int64)
        last_of_keys(codes, self._by_moment(1, self._rank_ties(codes, count), forward), edge)
        return edge[edge >= 0]

    def _pass(self, keys: list[Array], count: int, ranked: Array | None, *, forward: bool) -> Array:
        left, right = (~times if forward else times for times in self._times)
        found = np.full(len(left), -1, np.int64)
        latest_before(
            left, keys[0], self._by_moment(0, None, forward), right, keys[1],
            self._by_moment(1, ranked, forward), self._strict,
            np.uint64(self.within), np.full(count, -1, np.int64), found,
        )  # fmt: skip
        return found

    def _by_moment(self, side: int, ranked: Array | None, forward: bool) -> Array:
        """Return the rows of a side in the order of a pass; rows of one time stay in that of `ranked`."""
        if forward and ranked is None:
            order = _order(self._times[side], None)
            return (order if len(order) else np.arange(len(self._times[side])))[::-1].copy()
        return _order(~self._times[side] if forward else self._times[side], ranked)

    def _nearer(self, before: Array, after: Array) -> Array:
        """Return the nearer of two rows; of equally near ones, the earlier."""
        left, right = self._times
        if not len(right):
            return before
        back = left.view(np.uint64) - right[before].view(np.uint64)
        ahead = right[after].view(np.uint64) - left.view(np.uint64)
        return np.where((before >= 0) & ((after < 0) | (back <= ahead)), before, after)

    def _codes(self) -> list[Array] | None:
        """Return small numbers for the keys, equal if the keys are; -1 for keys that match nothing."""
        codes: list[Array] | None = None
        for key in self._by:
            one = self._codes_of(key)
            if one is None:
                return None
            codes = one if codes is None else _combine(codes, one)
        return codes or [np.zeros(len(times), np.int64) for times in self._times]

    def _codes_of(self, key: Expr) -> list[Array] | None:
        """Number the values of one pair of columns; None if their types have no common one."""
        if not isinstance(key, Compare):
            return [np.full(len(times), -1) for times in self._times]
        left, right = key.left, key.right
        if not (isinstance(left, Column) and isinstance(right, Column)):
            return None  # the comparison needs a cast
        columns = [self.tables[part.side].column(part.name) for part in (left, right)]
        if columns[0].type != columns[1].type or pa.types.is_nested(columns[0].type):
            return None
        values = pa.chunked_array([*columns[0].chunks, *columns[1].chunks], columns[0].type)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        codes = _small_numbers(values)
        if codes is None:
            missing = np.asarray(values.is_null(nan_is_null=True))
            if pa.types.is_floating(values.type):
                values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
            codes = np.where(missing, -1, _number(values)) if missing.any() else _number(values)
        return [codes[: len(columns[0])], codes[len(columns[0]) :]]

    def _rank_ties(self, keys: Array, count: int) -> Array | None:
        """Return the right rows in an order in which ties go by their columns; None if there are no ties."""
        times = self._times[1]
        tied = np.zeros(len(times), np.bool_)
        if not mark_ties(times, keys, _order(times, None), np.full(count, -1, np.int64), tied):
            return None
        places = np.flatnonzero(tied)
        ranked = np.arange(len(times))
        ranked[places] = places[order_by_columns(self.tables[1].take(pa.array(places)))]
        return ranked

    # With a predicate: window joins, each wider than the one before.

    def by_predicate(self) -> Array:
        """Find the rows that are best in time among those for which the predicate holds."""
        parts: list[Expr] = list(self._by)
        if self._join.on is not None:
            parts.append(bind(self._join.on, self._scope))
        predicate = conjunction(tuple(parts))
        found, rank = np.full(len(self._times[0]), -1, np.int64), self._rank()
        right, waiting = self._side(1, predicate, self._dated_rows(1)), self._dated_rows(0)
        if not len(waiting) or not right.num_rows:
            return found
        expected = self._expected_pairs(self._side(0, predicate, waiting), right, predicate)
        at_once = expected <= self._join.most_pairs * len(waiting)
        for width in [_AT_ONCE] if at_once else self._widths():
            if not len(waiting):
                break
            for rows, others in self._pairs(self._side(0, predicate, waiting), right, predicate, width):
                keep_best(rows, others, *self._times, rank, self._strict, found)
            waiting = waiting[found[waiting] < 0]
        return found

    def _pairs(
        self, left: pa.Table, right: pa.Table, predicate: Expr, width: int | None
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the numbers of the rows of pairs that the join allows, or of those at most `width` apart."""
        plan = (
            self._plan_at_once(left, right, predicate)
            if width == _AT_ONCE
            else self._plan_within(left, right, predicate, width)
        )
        for batch in Replay(plan, left, right):
            yield np.asarray(batch.column(left.num_columns - 1)), np.asarray(batch.columns[-1])

    def _expected_pairs(self, left: pa.Table, right: pa.Table, predicate: Expr) -> float:
        """Estimate the number of all pairs that the join allows, from a sample of both sides."""
        some = [_sample(table, rows) for table, rows in ((left, _SAMPLE[0]), (right, _SAMPLE[1]))]
        found = sum(len(rows) for rows, _ in self._pairs(some[0], some[1], predicate, _AT_ONCE))
        shares = [part.num_rows / whole.num_rows for part, whole in zip(some, (left, right), strict=True)]
        return float(found / (shares[0] * shares[1]))

    def _dated_rows(self, side: int) -> Array:
        """Return the rows of a side that have a time."""
        known = self._known[side]
        return np.arange(len(self._times[side])) if known is None else np.flatnonzero(known)

    def _rank(self) -> Array:
        """Return numbers by which right rows of one time are compared."""
        rank = np.zeros(len(self._times[1]), np.int64)
        keys = np.full(len(rank), -1)
        keys[self._dated_rows(1)] = 0
        ranked = self._rank_ties(keys, 1)
        if ranked is not None:
            rank[ranked] = np.arange(len(ranked))
        return rank

    def _widths(self) -> Iterator[int | None]:
        """Yield the widths of the windows in units, the widest last; None has no end."""
        times = self._times[1][self._dated_rows(1)]
        span = int(times.max(initial=0)) - int(times.min(initial=0)) if len(times) else 0
        width = max(span * _CANDIDATES // max(len(times), 1), 1)
        while width < min(self.within, span):
            yield width
            width *= _WIDER
        yield None if self.within >= _LONGEST else self.within

    def _side(self, side: int, predicate: Expr, rows: Array) -> pa.Table:
        """Return the columns of a side that the predicate reads, the times, and the numbers of the rows."""
        read = {n.name for n in walk(predicate) if isinstance(n, Column) and n.side == side}
        table = self.tables[side].select([name for name in self._schemas[side].names if name in read])
        if len(rows) < table.num_rows:
            table = table.take(pa.array(rows))
        times, numbers = _hidden_names(table.schema.names)
        columns = [*table.columns, pa.array(self._times[side][rows]), pa.array(rows)]
        return pa.table(columns, names=[*table.schema.names, times, numbers])

    def _plan_at_once(self, left: pa.Table, right: pa.Table, predicate: Expr) -> JoinPlan:
        """Return a join without windows; its predicate also says what the tolerance and the direction do."""
        mine, theirs = (
            Name((name, table.schema.names[-2])) for name, table in zip("lr", (left, right), strict=True)
        )
        parts = [predicate]
        if self._join.direction != "nearest":
            parts.append(Compare("<=" if self._join.direction == "backward" else ">=", theirs, mine))
        if self.within < _LONGEST:
            length = Literal(self.within, type=INT64)
            if self._join.direction != "forward":
                parts.append(Compare(">=", theirs, Arithmetic("-", mine, length)))
            if self._join.direction != "backward":
                parts.append(Compare("<=", theirs, Arithmetic("+", mine, length)))
        on = Expression(conjunction(tuple(parts)))
        return prepare(left.schema, right.schema, on, suffix="\1right", cores=self._join.cores)

    def _plan_within(self, left: pa.Table, right: pa.Table, predicate: Expr, width: int | None) -> JoinPlan:
        """Return a join of rows at most `width` apart, in the direction of the join."""
        far = None if width is None else TimeWindow((width + 1) * UNITS["s"])  # plain numbers are seconds
        near = TimeWindow(UNITS["s"])
        windows = {"backward": (near, far), "forward": (far, near), "nearest": (far, far)}
        left_window, right_window = windows[self._join.direction]
        return prepare(
            left.schema, right.schema, Expression(predicate), left_window=left_window,
            right_window=right_window, left_time=left.schema.names[-2], right_time=right.schema.names[-2],
            suffix="\1right", cores=self._join.cores,
        )  # fmt: skip


def _sample(table: pa.Table, rows: int) -> pa.Table:
    """Return about this many rows of a table, evenly spread."""
    step = -(-table.num_rows // rows)
    return table if step < 2 else table.take(pa.array(np.arange(0, table.num_rows, step)))


def _hidden_names(names: list[str]) -> tuple[str, str]:
    """Return two names that no column has."""
    mark = "_" * (1 + max((len(name) for name in names), default=0))
    return f"{mark}time", f"{mark}row"


def split_keys(condition: Expr, left: str) -> tuple[list[tuple[str, str]], Expr | None]:
    """Return the pairs of columns that a condition wants equal, and the rest of it; None if nothing is left.

    Args:
        condition: A condition that names columns as in `l.x = r.a`.
        left: The name of the left input.
    """
    keys, others = [], []
    for part in conjuncts(condition):
        match part:
            case Compare(op="=", left=Name(parts=(a, x)), right=Name(parts=(b, y))) if a != b:
                keys.append((x, y) if a == left else (y, x))
            case Literal(value=True):
                pass
            case _:
                others.append(part)
    return keys, conjunction(tuple(others)) if others else None


def _pairs(by: Any) -> list[tuple[str, str]]:
    """Return the pairs of columns that must be equal."""
    if by is None:
        return []
    pairs = []
    for each in by if isinstance(by, (list, tuple)) else [by]:
        pair = (each, each) if isinstance(each, str) else each
        if isinstance(pair, (list, tuple)) and [type(name) for name in pair] == [str, str]:
            pairs.append((pair[0], pair[1]))
        else:
            raise SchemaError(
                "by is a column of both inputs, or a list of such columns and of pairs (left, right), as in "
                f"by=['day', ('symbol', 'ticker')]; {each!r} is neither a name nor a pair of names"
            )
    return pairs


def _order(times: Array, ranked: Array | None) -> Array:
    """Return the rows in the order of time; rows of one time stay in the order of `ranked`.

    Nothing is returned for rows that are in order.
    """
    ordered = times if ranked is None else times[ranked]
    if not np.any(ordered[1:] < ordered[:-1]):
        return _AS_THEY_ARE if ranked is None else ranked
    order = np.argsort(ordered, kind="stable")
    return order if ranked is None else ranked[order]


def _combine(first: list[Array], second: list[Array]) -> list[Array]:
    """Return one number for each pair of numbers; -1 if either is."""
    many = max(int(codes.max(initial=-1)) for codes in second) + 1
    whole = [
        np.where((a < 0) | (b < 0), -1, a.astype(np.int64) * many + b)
        for a, b in zip(first, second, strict=True)
    ]
    together = np.concatenate(whole)
    dense = np.where(together < 0, -1, _number(pa.chunked_array([pa.array(together)])))
    return [dense[: len(whole[0])], dense[len(whole[0]) :]]


def _small_numbers(values: pa.ChunkedArray) -> Array | None:
    """Return whole numbers in a short range less their least one; None for other values."""
    if not pa.types.is_integer(values.type) or values.null_count or not len(values):
        return None
    least, most = (side.as_py() for side in pc.min_max(values).values())
    if most - least > len(values) + _FEW:
        return None
    numbers = values.to_numpy()
    return numbers.astype(np.int64) - least if most < 2**63 else None


def _number(values: pa.ChunkedArray) -> Array:
    """Return small numbers for values, equal if the values are."""
    encoded = values.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return np.asarray(encoded.indices.fill_null(0))
