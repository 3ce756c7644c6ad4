"""Rows of columns by number, without a bounds check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)


def gather(array: pa.Array, rows: Array | pa.Array) -> pa.Array:
    """Return the values at some rows, which must exist.

    >>> gather(pa.array(["a", "b"]), np.array([1, 0, 1])).to_pylist()
    ['b', 'a', 'b']
    """
    return _TAKE.call([array, pa.array(rows)], _UNCHECKED)


def gather_batch(batch: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """Return some rows of a batch."""
    picked = pa.array(rows)
    return pa.RecordBatch.from_arrays(
        [gather(column, picked) for column in batch.columns], schema=batch.schema
    )
