"""Ties: the order of right rows that are equally good matches, which depends on nothing but their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["order_by_columns"]

Array = np.ndarray[Any, Any]


def order_by_columns(table: pa.Table | pa.RecordBatch) -> Array:
    """Return the order of rows by their columns: NULL, then NaN, then values, least first.

    Of rows that are equally good, joins take the last one in this order. Zeros of either sign are equal.
    Nested values and calendar intervals compare as text.

    >>> order_by_columns(pa.table({"x": [2, None, 1], "s": ["a", "b", "c"]})).tolist()
    [1, 2, 0]
    """
    keys, columns = [], {}
    for number, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if pa.types.is_float16(column.type):  # Arrow sorts neither these nor nested values and intervals
            column = column.cast(pa.float32())
        if pa.types.is_nested(column.type) or pa.types.is_interval(column.type):
            column = pa.array([None if value is None else repr(value) for value in column.to_pylist()])
        if not pa.types.is_null(column.type):
            columns[str(number)] = column
            keys.append((str(number), "descending"))
    if not keys:
        return np.arange(table.num_rows)
    order = pc.sort_indices(pa.table(columns), sort_keys=keys)  # NaN and NULL come last in any order
    return np.asarray(order).astype(np.int64)[::-1]
