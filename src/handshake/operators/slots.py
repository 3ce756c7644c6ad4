"""Rows by slot: sets of rows that are aggregated together, and what an aggregate reads of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.operators.chunk import Array
from handshake.operators.groups import codes_of
from handshake.operators.sort_keys import keys_of
from handshake.plan.algebra import Ordering


@dataclass(frozen=True)
class Rows:
    """Rows in the order of their arrival, each with its slot."""

    slots: Array
    """The slot of each row, from 0 to `count` - 1."""
    count: int
    columns: Mapping[str, pa.Array]
    first: int = 0
    """The number of the first row among all arrivals."""
    picked: Array | None = None
    """Which rows are left, by their places in the original columns; None: all."""

    @cached_property
    def arrivals(self) -> Array:
        """The number of each row among all arrivals."""
        return self.first + (np.arange(len(self.slots)) if self.picked is None else self.picked)

    def column(self, name: str) -> pa.Array:
        """Return a column of the rows that are left."""
        whole = self.columns[name]
        return whole if self.picked is None else whole.take(pa.array(self.picked))

    def take(self, places: Array) -> Rows:
        """Keep the rows at these places."""
        picked = places if self.picked is None else self.picked[places]
        return Rows(self.slots[places], self.count, self.columns, self.first, picked)

    def where(self, condition: str | None) -> Rows:
        """Keep the rows in which a column is TRUE."""
        if condition is None:
            return self
        holds = np.asarray(pc.fill_null(self.column(condition), False))
        return self if holds.all() else self.take(np.flatnonzero(holds))

    def with_values(self, fields: Sequence[str]) -> Rows:
        """Keep the rows in which none of these columns is NULL."""
        valid = self.valid(fields)
        return self if not len(valid) else self.take(np.flatnonzero(valid))

    def valid(self, fields: Sequence[str]) -> Array:
        """Return in which rows none of these columns is NULL; an empty array if in all of them."""
        columns = [column for column in map(self.column, fields) if column.null_count]
        found = [np.asarray(column.is_valid()) for column in columns]
        return np.logical_and.reduce(found) if found else np.empty(0, np.bool_)

    def distinct(self, fields: Sequence[str]) -> Rows:
        """Keep, in each slot, the first of the rows with equal values, and none with NULL."""
        rows = self.with_values(fields)
        if not len(rows.slots):
            return rows
        codes, first = codes_of([rows.column(name) for name in fields])
        _, places = np.unique(rows.slots * len(first) + codes, return_index=True)
        return rows.take(np.sort(places))

    def values(self, field: str, order: Sequence[Ordering] = ()) -> Values:
        """Return the values of a column that are not NULL, slot by slot, in an order, ties by arrival."""
        rows = self.with_values((field,))
        levels = [_ranks(level) for level in order_levels(rows, order)]
        places = np.lexsort((*levels[::-1], rows.slots))
        if not np.array_equal(places, np.arange(len(places))):
            rows = rows.take(places)
        return Values(rows.column(field), rows.slots, np.searchsorted(rows.slots, np.arange(self.count + 1)))


@dataclass(frozen=True)
class Values:
    """Values that are not NULL, slot by slot; in the order of arrival within a slot, or in another one."""

    array: pa.Array
    slots: Array
    """The slot of each value."""
    bounds: Array
    """Slot k has the values from `bounds[k]` to `bounds[k + 1]`."""

    def rank(self) -> tuple[pa.Array, Array]:
        """Return the values sorted within each slot, and whole numbers in their order."""
        keys = _ranks(keys_of(self.array, self.array.type, False))
        order = np.lexsort((keys, self.slots))
        return self.array.take(pa.array(order)), keys[order]


def order_levels(rows: Rows, order: Sequence[Ordering], *, backwards: bool = False) -> list[Array]:
    """Return keys that sort rows level by level: per column, whether it is NULL, then its value."""
    levels = []
    for by in order:
        column = rows.column(by.field)
        ahead = np.asarray(column.is_valid() if by.nulls_first else column.is_null()).astype(np.int64)
        levels.append(-ahead if backwards else ahead)
        levels.append(keys_of(column, column.type, by.descending != backwards))
    return levels


def _ranks(keys: Array) -> Array:
    """Replace Python objects by whole numbers in the same order; None, which has none, by 0."""
    if keys.dtype != object:
        return keys
    ranks = {value: rank for rank, value in enumerate(sorted(set(keys) - {None}))}
    return np.array([ranks.get(value, 0) for value in keys], np.int64)
