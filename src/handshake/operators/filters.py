"""Filters; NumPy compares a column with a constant, other conditions are compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa

from handshake.kernels.columns import integers
from handshake.kernels.evaluate import Evaluator
from handshake.kernels.texts import rows_equal
from handshake.operators.chunk import Array
from handshake.plan.expr import Column, Compare, Expr, Literal
from handshake.schema import Int

__all__ = ["Condition"]

_OPERATORS = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
_Search = Callable[[pa.Array], Array | None]


class Condition:
    """A filter that finds the rows for which an expression is TRUE."""

    def __init__(self, expr: Expr) -> None:
        self._evaluate = Evaluator(expr)
        self._column, self._search = _direct(expr)

    def where(self, arrays: Mapping[Column, pa.Array], rows: int) -> Array:
        """Return the rows in ascending order."""
        if self._column is not None:
            found = self._search(arrays[self._column])
            if found is not None:
                return found
        result = self._evaluate(arrays, rows)
        mask = result.fill_null(False) if result.null_count else result
        return np.flatnonzero(mask.to_numpy(zero_copy_only=False))


def _direct(expr: Expr) -> tuple[Column | None, _Search]:
    match expr:
        case Compare(op="=", left=Column() as column, right=Literal(value=str() as text)):
            return column, lambda array: rows_equal(array, text.encode())
        case Compare(op=op, left=Column(type=Int()) as column, right=Literal(value=int() as number)):
            return column, lambda array: _compare(array, op, number)
    return None, lambda array: None


def _compare(array: pa.Array, op: str, number: int) -> Array | None:
    if array.null_count or not pa.types.is_integer(array.type):
        return None
    return np.flatnonzero(_OPERATORS[op](integers(array), number))
