"""Keys as small numbers: equal numbers for keys that are equal, on both sides of a join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.plan.expr import Column, Compare, Expr

Array = np.ndarray[Any, Any]
_FEW = 1 << 16


def number_keys(keys: Sequence[Expr], tables: Sequence[pa.Table]) -> list[Array] | None:
    """Return a number per row of each side, equal if all keys are; -1 for rows that match nothing.

    Args:
        keys: Bound equalities of a left and a right column, or NULL for columns that have no values.
        tables: The rows of both sides.

    Returns:
        None if the columns of a key have no common type.
    """
    numbers: list[Array] | None = None
    for key in keys:
        one = _number_key(key, tables)
        if one is None:
            return None
        numbers = one if numbers is None else _combine(numbers, one)
    return numbers or [np.zeros(table.num_rows, np.int64) for table in tables]


def _number_key(key: Expr, tables: Sequence[pa.Table]) -> list[Array] | None:
    """Number the values of one pair of columns; None if their types have no common one."""
    if not isinstance(key, Compare):
        return [np.full(table.num_rows, -1) for table in tables]
    left, right = key.left, key.right
    if not (isinstance(left, Column) and isinstance(right, Column)):
        return None  # the comparison needs a cast
    columns = [tables[part.side].column(part.name) for part in (left, right)]
    if columns[0].type != columns[1].type or pa.types.is_nested(columns[0].type):
        return None
    values = pa.chunked_array([*columns[0].chunks, *columns[1].chunks], columns[0].type)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    numbers = _small_numbers(values)
    if numbers is None:
        missing = np.asarray(values.is_null(nan_is_null=True))
        if pa.types.is_floating(values.type):
            values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 is 0.0
        numbers = np.where(missing, -1, _number(values)) if missing.any() else _number(values)
    return [numbers[: len(columns[0])], numbers[len(columns[0]) :]]


def _combine(first: list[Array], second: list[Array]) -> list[Array]:
    """Return one number for each pair of numbers; -1 if either is."""
    many = max(int(numbers.max(initial=-1)) for numbers in second) + 1
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
