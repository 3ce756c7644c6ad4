"""States of which the largest stays: min and max, and values of the row that comes first or last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.kernels.panes import greatest
from handshake.operators.chunk import Array
from handshake.operators.slots import Rows, order_levels
from handshake.operators.sort_keys import cells_of, has_integer_keys, keys_of, restore_cells, values_of
from handshake.plan.algebra import Aggregate
from handshake.schema import Type, arrow_of


class Extreme:
    """The row of numbers (or objects) per slot that is largest: its first `levels` numbers are compared.

    Here the one number is a key in the order of the values (`max`), or against it (`min`).
    """

    down = False
    levels = width = 1

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        assert kind is not None
        self.aggregate, self.type, self._arrow = aggregate, kind, arrow_of(kind)
        self.compiled = self._compiles([self._arrow])
        """Whether keys are 64-bit integers, not Python objects."""
        self.dtype: Any = np.int64 if self.compiled else object

    def _compiles(self, types: Sequence[pa.DataType]) -> bool:
        return all(map(has_integer_keys, types))

    def reduce(self, rows: Rows) -> tuple[Array, Array]:
        """Return the largest row of numbers of each slot, and whether there is one."""
        return self._greatest(rows.slots, *self.numbers(rows), rows.count)

    def numbers(self, rows: Rows) -> tuple[Array, Array]:
        """Return the numbers of each row, and which rows count (an empty array: all)."""
        field = self.aggregate.fields[0]
        return keys_of(rows.column(field), self._arrow, self.down)[:, None], rows.valid((field,))

    def combine(self, state: tuple[Array, Array], slots: Array, count: int) -> tuple[Array, Array]:
        """Return the states of larger slots, given the larger slot of each slot."""
        return self._greatest(slots, *state, count)

    def _greatest(self, slots: Array, numbers: Array, valid: Array, count: int) -> tuple[Array, Array]:
        out, seen = np.zeros((count, self.width), self.dtype), np.zeros(count, np.bool_)
        run = greatest if self.compiled else greatest.py_func
        run(slots, numbers, valid, self.levels, out, seen)
        return out, seen

    def finish(self, state: tuple[Array, Array]) -> pa.Array:
        """Return the values of keys; NULL without a value."""
        return values_of(state[0][:, 0], state[1], self._arrow, self.down, self.type)


class Least(Extreme):
    """The least value."""

    down = True


class Last(Extreme):
    """The value of the last row, by arrival or by ORDER BY; ties by arrival.

    The numbers of a row are the levels of its order, its arrival, its value, and whether that is not NULL.
    """

    backwards = False

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        super().__init__(aggregate, kind)
        self.levels = self._order_width() + 1
        self.width = self.levels + 2

    def _order_width(self) -> int:
        fields = [by.field for by in self.aggregate.order]
        self._check_compiles(fields)
        return 2 * len(fields)

    def _check_compiles(self, fields: Sequence[str]) -> None:
        known = self.aggregate.input.schema
        types = [self._arrow, *(arrow_of(known.get(name).type) for name in fields)]
        self.compiled = self._compiles(types)
        self.dtype = np.int64 if self.compiled else object

    def order(self, rows: Rows) -> tuple[list[Array], Array]:
        """Return the levels of the order, and which rows count."""
        return order_levels(rows, self.aggregate.order, backwards=self.backwards), np.empty(0, np.bool_)

    def numbers(self, rows: Rows) -> tuple[Array, Array]:
        """Return the numbers of each row, and which rows count."""
        levels, valid = self.order(rows)
        arrivals = ~rows.arrivals if self.backwards else rows.arrivals
        value = rows.column(self.aggregate.fields[0])
        parts = [*levels, arrivals, cells_of(value), np.asarray(value.is_valid()).astype(np.int64)]
        matrix = np.empty((len(rows.slots), self.width), self.dtype)
        for at, part in enumerate(parts):
            matrix[:, at] = part
        return matrix, valid

    def finish(self, state: tuple[Array, Array]) -> pa.Array:
        """Return values; NULL without a row."""
        numbers, seen = state
        there = seen & (numbers[:, -1] != 0)
        return restore_cells(numbers[:, -2], there, self._arrow, self.type)


class First(Last):
    """The value of the first row."""

    backwards = True


class MaxBy(Last):
    """The value of the row in which a second column is largest; of several, of the last to arrive."""

    def _order_width(self) -> int:
        self._check_compiles(self.aggregate.fields[1:])
        return 1

    def order(self, rows: Rows) -> tuple[list[Array], Array]:
        """Return the keys of the second column; rows in which it is NULL do not count."""
        name = self.aggregate.fields[1]
        column = rows.column(name)
        return [keys_of(column, column.type, self.down)], rows.valid((name,))


class MinBy(MaxBy):
    """The value of the row in which a second column is least; of several, of the last to arrive."""

    down = True
