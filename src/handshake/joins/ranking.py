"""Rankings of pairs: their values, and the best pairs of each left row.

`Best` takes pairs batch by batch and holds a few per left row. A compiled filter drops most pairs at once by
keys of 64 bits, which need not be exact. The rest wait until there are many, and are then sorted exactly: by
value, then by the columns of the right row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import ExpressionError, HandshakeError, SchemaError, UnsupportedError
from handshake.joins.numbered import APART
from handshake.joins.spec import SIDES, result_schema
from handshake.kernels.columns import as_array, integers, layout
from handshake.kernels.evaluate import Evaluator
from handshake.kernels.keys import prefix_of, sort_key
from handshake.kernels.nearest import keep_candidates
from handshake.kernels.sorting import order_of, ordered_words
from handshake.kinds import kind_of_best
from handshake.plan.bind import Scope, bind_value
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Expr, show, walk
from handshake.plan.parse import parse
from handshake.schema import (
    Binary,
    Bool,
    Decimal,
    Float,
    Null,
    Schema,
    String,
    Type,
    arrow_of,
    concat_batches,
)

Array = np.ndarray[Any, Any]
Table = Any
"""An Arrow table or batch."""
_MANY = 1 << 14
"""Pairs that wait to be sorted, at least."""
_PARTS = 32
"""Batches in which they wait, at most."""
_FILTERED = 64
"""The largest k for which pairs are filtered before they are sorted: the filter holds k keys per row."""
_WIDE = pa.decimal128(38, 0)
"""The type of whole numbers beyond 64 bits."""


# The request.


@dataclass(frozen=True)
class Ranking:
    """The part of a nearest join that says which pairs are best, and how results show it."""

    by: Expr
    """The ranking, bound; the least value is best."""
    k: int
    keeps_all: bool
    """Whether left rows without a match are results."""
    output: pa.Schema
    """The columns of results: those of both sides, then rank and value if they are asked for."""
    ranked: bool
    valued: bool

    def explain(self) -> str:
        """Describe the ranking."""
        alone = "kept, with NULLs" if self.keeps_all else "dropped"
        return f"best        {self.k} per left row by {show(self.by)}; rows without a match are {alone}"

    def reads(self, side: int) -> set[str]:
        """Return the columns of a side that the ranking reads."""
        return {node.name for node in walk(self.by) if isinstance(node, Column) and node.side == side}

    def evaluator(self, left: pa.Schema, right: pa.Schema) -> Callable[[pa.RecordBatch], pa.Array]:
        """Return a function from pairs, which have the columns of both sides, to the values of the ranking.

        Whole numbers are int64, or decimals if they do not fit; floats are float64.
        """
        starts, names = (0, len(left)), (left.names, right.names)
        columns = {node for node in walk(self.by) if isinstance(node, Column)}
        places = {node: starts[node.side] + names[node.side].index(node.name) for node in columns}
        evaluate, kind = Evaluator(self.by), self.by.type

        def rank(pairs: pa.RecordBatch) -> pa.Array:
            if isinstance(kind, Null):
                return pa.nulls(pairs.num_rows, pa.int64())
            arrays = {node: as_array(pairs.column(place)) for node, place in places.items()}
            return _store_values(evaluate(arrays, pairs.num_rows), kind)

        return rank

    def results(self, left: Table, rows: Array, chosen: Chosen | None, right: Table) -> pa.Table:
        """Return the results of left rows, in their order, with the matches of each by rank.

        Args:
            left: The left rows, which are final.
            rows: Their numbers.
            chosen: The best pairs of these rows; None if there are none.
            right: The right row of each of these pairs.
        """
        if chosen is None:
            alone = left if self.keeps_all else left.slice(0, 0)
            kinds = self.output.types[left.num_columns :]
            missing = [pa.nulls(alone.num_rows, kind) for kind in kinds]
            return pa.table([*alone.columns, *missing], schema=self.output)
        starts, stops = (np.searchsorted(chosen.rows, rows, side) for side in ("left", "right"))
        shown = np.maximum(stops - starts, 1) if self.keeps_all else stops - starts
        repeated = np.repeat(np.arange(len(rows)), shown)
        places = starts[repeated] + np.arange(len(repeated)) - np.repeat(np.cumsum(shown) - shown, shown)
        picked = pa.array(places, mask=(stops == starts)[repeated])
        columns = [*left.take(pa.array(repeated)).columns, *right.take(picked).columns]
        if self.ranked:
            columns.append(pa.array(chosen.ranks, pa.int32()).take(picked))
        if self.valued:
            columns.append(_restore_values(chosen.values.take(picked), self.by, self.output.types[-1]))
        return pa.table(columns, schema=self.output)


def ranking_of(
    left: pa.Schema, right: pa.Schema, by: Any, *, k: Any, how: Any, rank: str | None, value: str | None,
    suffix: str, aliases: tuple[str, str] | None,
) -> Ranking:  # fmt: skip
    """Check a nearest join of two schemas; `handshake.nearest` documents the arguments."""
    count = _count(k)
    kind = kind_of_best(how, "a nearest join")
    schemas = [Schema.from_arrow(s, n) for s, n in zip((left, right), SIDES, strict=True)]
    bound = bind_value(parse_ranking(by), Scope.of(schemas[0], schemas[1], aliases))
    fields = [(rank, pa.int32()), (value, arrow_of(bound.type))]
    output = _with_fields(result_schema(left, right, suffix, kind), fields)
    ranking = Ranking(bound, count, kind.preserves, output, rank is not None, value is not None)
    pairs = pa.schema([*left, *(field.with_name(f"{field.name}{APART}") for field in right)])
    ranking.evaluator(left, right)(pa.RecordBatch.from_pylist([], pairs))  # raises if it cannot be computed
    return ranking


def _count(k: Any) -> int:
    """Return a number of matches."""
    count = int(k) if isinstance(k, Integral) and k is not True else 0
    if count < 1:
        raise UnsupportedError(f"k is the number of matches per left row, from 1 up; {k!r} was given")
    return count


def parse_ranking(by: Any) -> Expr:
    """Return a ranking as an expression."""
    if isinstance(by, str):
        return parse(by, "ranking")
    if isinstance(by, Expression):
        return by.expr
    raise ExpressionError(
        f"the ranking must be SQL text or a built expression, not {type(by).__name__}; "
        "rank by a distance, such as by='ABS(l.x - r.a)'"
    )


def _with_fields(schema: pa.Schema, fields: Sequence[tuple[Any, pa.DataType]]) -> pa.Schema:
    """Add the columns for rank and value, if they have names."""
    for name, kind in fields:
        if name is None:
            continue
        if not isinstance(name, str) or not name:
            raise SchemaError(
                f"a column for rank or value needs a name, or None to leave it out; {name!r} was given"
            )
        if name in schema.names:
            raise SchemaError(
                f"output column '{name}' would appear twice; choose another name for it (rank=…, value=…), "
                "or rename a column"
            )
        schema = schema.append(pa.field(name, kind))
    return schema


# Values, in a form in which those of all batches compare.


def _store_values(values: pa.Array, kind: Type) -> pa.Array:
    """Return values as float64, large text or bytes, or whole numbers: int64, decimals if they do not fit."""
    values = layout(values)
    match kind:
        case Float():
            return values.cast(pa.float64())
        case String():
            return values.cast(pa.large_string())
        case Binary():
            return values.cast(
                pa.binary() if pa.types.is_fixed_size_binary(values.type) else values.type
            ).cast(pa.large_binary())
        case Bool():
            return values.cast(pa.int8()).cast(pa.int64())
    if pa.types.is_decimal(values.type):
        return _narrow(_rescale(values, _WIDE))
    if pa.types.is_temporal(values.type):
        values = values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return _narrow(values.cast(_WIDE)) if values.type == pa.uint64() else values.cast(pa.int64())


def _rescale(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals with the same digits and another scale."""
    return pa.Array.from_buffers(kind, len(values), values.buffers(), offset=values.offset)


def _narrow(values: pa.Array) -> pa.Array:
    """Return whole decimals as int64 if all of them fit."""
    keys = sort_key(values)
    ends = np.iinfo(np.int64)
    fits = not len(keys) or (keys.min() > ends.min and keys.max() < ends.max)
    return values.cast(pa.int64()) if fits else values


def _restore_values(values: pa.Array, by: Expr, target: pa.DataType) -> pa.Array:
    """Return stored values of a ranking in the type of their column."""
    kind = arrow_of(by.type)
    if pa.types.is_null(kind):
        return pa.nulls(len(values), target)
    try:
        if isinstance(by.type, Decimal):
            return _rescale(values.cast(_WIDE), pa.decimal128(38, by.type.scale)).cast(target)
        if pa.types.is_temporal(kind):
            values = values.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
        return values.cast(target)
    except pa.ArrowInvalid as error:
        raise HandshakeError(f"a value of {show(by)} does not fit {target}: {error}; cast it") from None


def _classes(values: pa.Array) -> Array | None:
    """Return 0 for values, 1 for NaN and 2 for NULL, per pair; None if all are values."""
    classes = np.zeros(len(values), np.uint8)
    if pa.types.is_floating(values.type):
        classes[np.isnan(_floats(values))] = 1
    if values.null_count:
        classes[np.asarray(values.is_null())] = 2
    return classes if classes.any() else None


def _floats(values: pa.Array) -> Array:
    """Return floats, and 0 for NULL."""
    values = values.fill_null(0.0) if values.null_count else values
    return np.asarray(values.to_numpy(zero_copy_only=False))


def _filter_keys(values: pa.Array, classes: Array | None) -> Array:
    """Return numbers of the same order as the values; equal ones decide nothing. NaN and NULL come last."""
    last: float = np.iinfo(np.int64).max
    if pa.types.is_floating(values.type):
        keys, last = _floats(values), np.inf
    elif pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type):
        keys = integers(prefix_of(values))
    else:
        keys = sort_key(values)
    return keys if classes is None else np.where(classes > 0, last, keys)


def _sort_keys(values: pa.Array, classes: Array | None) -> Array:
    """Return words of the same order as the values, equal if these are; 0 for NaN and NULL."""
    if pa.types.is_floating(values.type):
        words = ordered_words(_floats(values))
    elif pa.types.is_int64(values.type):
        words = ordered_words(integers(values))
    else:
        encoded = values.dictionary_encode()
        places = np.empty(len(encoded.dictionary), np.uint64)
        places[np.asarray(pc.sort_indices(encoded.dictionary))] = np.arange(len(places))
        words = (
            places[np.asarray(encoded.indices.fill_null(0))] if len(places) else np.zeros(len(values), "u8")
        )
    return words if classes is None else np.where(classes > 0, np.uint64(0), words)


# The best pairs of each left row.


class Chosen(NamedTuple):
    """The best pairs of some left rows: by row, then by rank."""

    rows: Array
    """The numbers of the left rows."""
    ranks: Array
    values: pa.Array
    payload: pa.RecordBatch
    """Columns that came with the pairs."""


class _Pairs(NamedTuple):
    rows: Array
    values: pa.Array
    payload: pa.RecordBatch

    def take(self, places: Array) -> _Pairs:
        """Return the pairs at these places."""
        picked = pa.array(places)
        return _Pairs(self.rows[places], self.values.take(picked), self.payload.take(picked))


def _concat(parts: Sequence[_Pairs]) -> _Pairs:
    if len(parts) == 1:
        return parts[0]
    values = [part.values for part in parts]
    if len({array.type for array in values}) > 1:
        values = [array.cast(_WIDE) for array in values]
    rows = np.concatenate([part.rows for part in parts])
    return _Pairs(rows, pa.concat_arrays(values), concat_batches([part.payload for part in parts]))


class Best:
    """The k best pairs of each left row, of the pairs so far.

    Args:
        k: The number of pairs per left row.
        tie_numbers: Returns a number for each row of a payload. Of pairs with equal values, the one with the
            largest number is best.
        many: Pairs that wait to be sorted, at least.
    """

    def __init__(self, k: int, tie_numbers: Callable[[pa.RecordBatch], Array], many: int = _MANY) -> None:
        self._k, self._tie_numbers, self._many = k, tie_numbers, many
        self._filter = _Filter(k) if k <= _FILTERED else None
        self._sorted: _Pairs | None = None
        """Pairs by left row, then by rank; also of rows in `_taken`."""
        self._waiting: list[_Pairs] = []
        """Pairs that have not been sorted."""
        self._taken: list[Array] = []
        """Rows whose pairs have been taken since the last sort."""
        self._oldest = 0
        """A row that no held pair is older than, as of the last sort."""

    def add(self, rows: Array, values: pa.Array, payload: pa.RecordBatch) -> None:
        """Add pairs: numbers of their left rows, values as `Ranking.evaluator` gives them, and columns."""
        pairs = _Pairs(rows, values, payload)
        if self._filter is not None and len(rows):
            keep = self._filter.keep(rows, _filter_keys(values, _classes(values)), self._oldest)
            pairs = pairs if keep.all() else pairs.take(np.flatnonzero(keep))
        if len(pairs.rows):
            self._waiting.append(pairs)
        if len(self._waiting) > _PARTS:
            self._waiting = [_concat(self._waiting)]
        held = 0 if self._sorted is None else len(self._sorted.rows)
        if sum(len(part.rows) for part in self._waiting) > max(held // 4, self._many):
            self._sort()

    @property
    def rows(self) -> int:
        """The number of left rows of which pairs are held."""
        parts = [part.rows for part in self._parts()]
        held = np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)
        return int(np.count_nonzero(np.isin(held, self._taken_rows(), invert=True)))

    @property
    def nbytes(self) -> int:
        """The memory of the pairs, and of the keys by which others are dropped."""
        pairs = sum(part.rows.nbytes + part.values.nbytes + part.payload.nbytes for part in self._parts())
        return int(pairs) + (0 if self._filter is None else self._filter.nbytes)

    def _parts(self) -> list[_Pairs]:
        return [*([] if self._sorted is None else [self._sorted]), *self._waiting]

    def _taken_rows(self) -> Array:
        return np.concatenate(self._taken) if self._taken else np.empty(0, np.int64)

    def _sort(self) -> None:
        """Sort all pairs, and drop those of rows that were taken and those that are not among the best."""
        pairs, taken = _concat(self._parts()), self._taken_rows()
        if len(taken):
            pairs = pairs.take(np.flatnonzero(np.isin(pairs.rows, taken, invert=True)))
            self._oldest = int(pairs.rows.min() if len(pairs.rows) else taken.max())
        pairs, _ = self._best_of(pairs)
        self._sorted, self._waiting, self._taken = pairs if len(pairs.rows) else None, [], []

    def take_all(self) -> Chosen | None:
        """Return the best pairs of all rows; None if there are none."""
        assert not self._taken
        parts = self._parts()
        if not parts:
            return None
        self._sorted, self._waiting = None, []
        return self._chosen(parts)

    def take(self, rows: Array) -> Chosen | None:
        """Return the best pairs of some rows, to which no pair will be added; None if there are none."""
        rows = np.sort(rows)
        parts = self._parts_of(rows)
        if not parts:
            return None
        self._taken.append(rows)
        return self._chosen(parts)

    def look(self, rows: Array) -> Chosen | None:
        """Return the best pairs of some rows so far, which stay here; None if there are none."""
        parts = self._parts_of(np.sort(rows))
        return self._chosen(parts) if parts else None

    def _parts_of(self, rows: Array) -> list[_Pairs]:
        """Return the pairs of some rows, whose numbers rise."""
        parts = []
        if self._sorted is not None:
            starts, stops = (np.searchsorted(self._sorted.rows, rows, side) for side in ("left", "right"))
            places = [
                np.arange(start, stop) for start, stop in zip(starts, stops, strict=True) if start < stop
            ]
            parts += [self._sorted.take(np.concatenate(places))] if places else []
        for part in self._waiting:
            found = np.flatnonzero(np.isin(part.rows, rows))
            parts += [part.take(found)] if len(found) else []
        return parts

    def _chosen(self, parts: list[_Pairs]) -> Chosen:
        pairs, ranks = self._best_of(_concat(parts))
        return Chosen(pairs.rows, ranks, pairs.values, pairs.payload)

    def _best_of(self, pairs: _Pairs) -> tuple[_Pairs, Array]:
        """Return the best pairs by left row, then by rank, and their ranks."""
        classes = _classes(pairs.values)
        words = _sort_keys(pairs.values, classes)
        order = order_of(words)
        if classes is not None:
            order = order[np.argsort(classes[order], kind="stable")]
        order = order[order_of(pairs.rows[order])]
        rows, words = pairs.rows[order], words[order]
        new_row = _differs(rows)
        new_value = new_row | _differs(words)
        if classes is not None:
            new_value |= _differs(classes[order])
        places = _since(new_row)
        if not new_value.all():
            order = self._break_ties(pairs, order, new_value, places)
        best = places < self._k
        return pairs.take(order[best]), places[best] + 1

    def _break_ties(self, pairs: _Pairs, order: Array, new_value: Array, places: Array) -> Array:
        """Return the order with pairs of equal values by their columns, if they may be among the best."""
        groups = np.cumsum(new_value) - 1
        sizes, firsts = np.bincount(groups), places[new_value]
        tied = np.flatnonzero(((sizes > 1) & (firsts < self._k))[groups])
        numbers = self._tie_numbers(pairs.payload.take(pa.array(order[tied])))
        order = order.copy()
        order[tied] = order[tied[np.lexsort((-numbers, groups[tied]))]]
        return order


def _differs(values: Array) -> Array:
    """Return which values differ from the one before; the first one does."""
    different = np.ones(len(values), np.bool_)
    different[1:] = values[1:] != values[:-1]
    return different


def _since(marks: Array) -> Array:
    """Return how many places ago the last mark was; the first place has one."""
    places = np.arange(len(marks))
    since: Array = places - np.maximum.accumulate(np.where(marks, places, 0))
    return since


class _Filter:
    """The least keys of each left row, by which most pairs are dropped before they are sorted."""

    def __init__(self, k: int) -> None:
        self._first = 0
        """The number of the row whose keys come first."""
        self._counts = np.zeros(0, np.int64)
        self._best = np.empty((0, k), np.int64)

    @property
    def nbytes(self) -> int:
        """The memory of the keys."""
        return int(self._counts.nbytes + self._best.nbytes)

    def keep(self, rows: Array, keys: Array, oldest: int) -> Array:
        """Return which pairs may be among the best of their rows.

        Args:
            rows: The numbers of the left rows.
            keys: A number per pair; the smaller the better.
            oldest: The filter may forget rows before this one if it needs room.
        """
        self._make_room(rows, keys.dtype, oldest)
        kept = np.empty(len(rows), np.bool_)
        keep_candidates(rows, keys, self._first, self._counts, self._best, kept)
        return kept

    def _make_room(self, rows: Array, kind: np.dtype[Any], oldest: int) -> None:
        last = int(rows.max())
        if last - self._first < len(self._counts):
            return
        first = max(self._first, min(oldest, int(rows.min())))
        counts, best = self._counts[first - self._first :], self._best[first - self._first :]
        size = 2 * (last + 1 - first)
        self._counts = np.zeros(size, np.int64)
        self._best = np.empty((size, best.shape[1]), kind)
        self._counts[: len(counts)], self._best[: len(best)] = counts, best
        self._first = first
