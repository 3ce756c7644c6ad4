"""Rows whose text equals a constant, the most common filter of Glacier's queries.

Lengths are compared first, and then byte by byte the rows that are left, which are few after the first byte.
Texts of one length, as symbols often are, are compared as whole words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["rows_equal"]

Array = np.ndarray[Any, Any]
_OFFSETS: dict[pa.DataType, np.dtype[Any]] = {
    pa.string(): np.dtype(np.int32), pa.binary(): np.dtype(np.int32),
    pa.large_string(): np.dtype(np.int64), pa.large_binary(): np.dtype(np.int64),
}  # fmt: skip
_FEW = 4
"""If more than one row in `_FEW` begins as the constant does, Arrow's comparison is faster."""


def rows_equal(column: pa.Array, wanted: bytes) -> Array | None:
    """Return the rows with the wanted bytes in ascending order, or None if Arrow would be faster.

    >>> rows_equal(pa.array(["UBSN", "UBS", "", "ABB", "CS"]), b"UBSN")
    array([0])
    """
    rows, kind = len(column), _OFFSETS.get(column.type)
    if kind is None or column.null_count or not rows:
        return None
    _, places, data = column.buffers()
    offsets = np.frombuffer(places, kind, rows + 1, column.offset * kind.itemsize)
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    fitting = offsets[1:] - offsets[:-1] == len(wanted)
    if not wanted:
        return np.flatnonzero(fitting)
    if fitting.all():
        return _search_fixed(raw[offsets[0] : offsets[-1]], wanted)
    return _narrow(raw, offsets, np.flatnonzero(fitting), wanted, 0)


def _search_fixed(raw: Array, wanted: bytes) -> Array | None:
    """Search texts of the same length that are adjacent in memory."""
    size = len(wanted)
    if size in (1, 2, 4, 8):
        return np.flatnonzero(raw.view(f"u{size}") == np.frombuffer(wanted, f"u{size}")[0])
    starts = np.arange(0, len(raw), size)
    return _narrow(raw, starts, np.flatnonzero(raw[::size] == wanted[0]), wanted, 1)


def _narrow(raw: Array, starts: Array, rows: Array, wanted: bytes, compared: int) -> Array | None:
    for at in range(compared, len(wanted)):
        if at and len(rows) > len(starts) // _FEW:
            return None
        rows = rows[raw[starts[rows] + at] == wanted[at]]
    return rows
