"""Filters: which rows of a batch are left; comparisons with a constant, other conditions are compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import pyarrow as pa

from handshake.kernels.columns import integers
from handshake.kernels.evaluate import Evaluator
from handshake.kernels.gather import gather
from handshake.kernels.texts import rows_equal
from handshake.operators.chunk import Array
from handshake.plan.expr import COMPARISONS, Column, Compare, Expr, Literal, columns_of
from handshake.schema import Int


class Rows:
    """The remaining rows of a batch; a column of the batch is reduced to them when it is read.

    Args:
        columns: The columns of the batch.
        count: The number of its rows.
    """

    def __init__(self, columns: Mapping[str, pa.Array], count: int) -> None:
        self._batch = columns
        self._ready: dict[str, pa.Array] = {}
        self._picked: pa.Array | None = None
        self.count = count
        self.places: Array | None = None
        """The rows of the batch that are left; None if all are."""

    def __getitem__(self, name: str) -> pa.Array:
        """Return a column of the remaining rows."""
        found = self._ready.get(name)
        if found is not None:
            return found
        if self.places is None:
            return self._batch[name]
        if self._picked is None:
            self._picked = pa.array(self.places)
        found = self._ready[name] = gather(self._batch[name], self._picked)
        return found

    def integers(self, name: str) -> Array | None:
        """Return a column as whole numbers, or None if it has NULLs or other values. No column is reduced."""
        ready = self._ready.get(name)
        array = self._batch[name] if ready is None else ready
        if array.null_count or not pa.types.is_integer(array.type):
            return None
        values = integers(array)
        return values if ready is not None or self.places is None else values[self.places]

    def add(self, name: str, values: pa.Array) -> None:
        """Add a computed column."""
        self._ready[name] = values

    def keep(self, found: Array, names: tuple[str, ...]) -> None:
        """Keep these rows in ascending order, and the columns that are read later."""
        if len(found) == self.count:
            return
        self._ready = {name: gather(array, found) for name, array in self._ready.items() if name in names}
        self.places = found if self.places is None else self.places[found]
        self._picked, self.count = None, len(found)


class RowSearch:
    """A filter that finds the rows for which an expression is TRUE."""

    def __init__(self, expr: Expr) -> None:
        self._expr, self._reads, self._direct = expr, columns_of(expr), _direct(expr)

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self._expr)

    def where(self, rows: Rows) -> Array:
        """Return the rows in ascending order."""
        found = self._direct(rows)
        if found is not None:
            return found
        arrays = {column: rows[column.name] for column in self._reads}
        return self._evaluator.where(arrays, rows.count)


def _direct(expr: Expr) -> Callable[[Rows], Array | None]:
    """Return a search that needs no compiled expression; it returns None for columns that it cannot read."""
    match expr:
        case Compare(op="=", left=Column(name=name), right=Literal(value=str() as text)):
            wanted = text.encode()
            return lambda rows: rows_equal(rows[name], wanted)
        case Compare(op=op, left=Column(name=name, type=Int()), right=Literal(value=int() as number)):
            compare = COMPARISONS[op]
            return lambda rows: _compare(rows.integers(name), compare, number)
    return lambda rows: None


def _compare(values: Array | None, compare: Callable[[Array, int], Array], number: int) -> Array | None:
    return None if values is None else compare(values, number).nonzero()[0]
