"""Rows of columns by number, without a bounds check.

Texts take most of the time if windows are larger than caches, since each is a cache miss. A kernel that
prefetches the next few copies them (`collect`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.kernels.collect import TEXTS, collect_texts

Array = np.ndarray[Any, Any]
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)
_MANY = 256
"""Rows from which the kernel for texts is faster."""


def gather(array: pa.Array, rows: Array, picked: pa.Array | None = None) -> pa.Array:
    """Return the values at some rows, which must exist.

    Args:
        array: The values.
        rows: The numbers of the rows.
        picked: The same numbers in Arrow, if they are known.

    >>> gather(pa.array(["a", "b"]), np.array([1, 0, 1])).to_pylist()
    ['b', 'a', 'b']
    """
    if len(rows) >= _MANY and array.null_count == 0 and array.type in TEXTS:
        texts = _gather_texts(array, rows)
        if texts is not None:
            return texts
    return _TAKE.call([array, pa.array(rows) if picked is None else picked], _UNCHECKED)


def gather_batch(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """Return some rows of a batch."""
    columns = [gather(column, rows) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _gather_texts(array: pa.Array, rows: Array) -> pa.Array | None:
    """Return None if there is no text at all, or more than the offsets can address."""
    if array.buffers()[2] is None:
        return None
    try:
        return collect_texts(array, rows)
    except pa.ArrowInvalid:
        return None
