"""Rows of columns by number. The numbers are our own, so nobody has to check them again.

Texts are what takes most of the time when windows are larger than caches: each lies somewhere else. Many of
them are copied by a kernel that asks for the next few from memory meanwhile (`collect`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.kernels.collect import TEXTS, collect_texts

__all__ = ["gather", "gather_batch"]

Array = np.ndarray[Any, Any]
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_MANY = 256
"""From so many rows on, texts are worth a kernel of their own."""


def gather(array: pa.Array, rows: Array) -> pa.Array:
    """The values at these rows, which must all be there.

    >>> gather(pa.array(["a", "b"]), np.array([1, 0, 1])).to_pylist()
    ['b', 'a', 'b']
    """
    if len(rows) >= _MANY and array.null_count == 0 and array.type in TEXTS:
        texts = _gather_texts(array, rows)
        if texts is not None:
            return texts
    return pc.call_function("take", [array, pa.array(rows)], _UNCHECKED)


def gather_batch(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """The rows of a batch."""
    columns = [gather(column, rows) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _gather_texts(array: pa.Array, rows: Array) -> pa.Array | None:
    """None where there is no text at all, or more than the offsets reach."""
    if array.buffers()[2] is None:
        return None
    try:
        return collect_texts(array, rows)
    except pa.ArrowInvalid:
        return None
