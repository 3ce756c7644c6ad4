"""Ties: the order of right rows that are equally good matches, which depends on nothing but their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.kernels.columns import as_array

Array = np.ndarray[Any, Any]
Column = Any
"""An Arrow array, plain or chunked."""


def order_by_columns(table: pa.Table | pa.RecordBatch) -> Array:
    """Return the order of rows by their columns: NULL, then NaN, then values, least first.

    Of rows that are equally good, joins take the last one in this order. Zeros of either sign are equal,
    unless nothing else differs; then -0.0 comes first. Nested values and calendar intervals compare by the
    `repr` of their Python values, values of extension types by their storage.

    >>> order_by_columns(pa.table({"x": [2, None, 1], "s": ["a", "b", "c"]})).tolist()
    [1, 2, 0]
    """
    columns = [_sortable(column) for column in table.columns if not pa.types.is_null(column.type)]
    columns += [sign for sign in map(_signs_of_zeros, columns) if sign is not None]
    if not columns:
        return np.arange(table.num_rows)
    names = [str(number) for number in range(len(columns))]
    # NaN and NULL come last in any order, so the order is reversed.
    keys = [(name, "descending") for name in names]
    order = pc.sort_indices(pa.table(columns, names=names), sort_keys=keys)
    return np.asarray(order).astype(np.int64)[::-1]


def _sortable(column: Column) -> Column:
    """Return a column in a type that Arrow sorts."""
    if isinstance(column.type, pa.BaseExtensionType):
        return _sortable(column.cast(column.type.storage_type))
    if pa.types.is_dictionary(column.type):
        return _sortable(column.cast(column.type.value_type))
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    if pa.types.is_nested(column.type) or pa.types.is_interval(column.type):
        return pa.array([None if value is None else repr(value) for value in column.to_pylist()])
    return column


def _signs_of_zeros(column: Column) -> pa.Array | None:
    """Return false for each -0.0 and true for all other values; None if there is no -0.0."""
    if not pa.types.is_floating(column.type):
        return None
    values = as_array(column).to_numpy(zero_copy_only=False)
    negative = (values == 0) & np.signbit(values)
    return pa.array(~negative) if negative.any() else None
