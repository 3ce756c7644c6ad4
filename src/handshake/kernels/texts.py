"""Rows whose text is a constant: the commonest filter of the paper's queries, in one loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from handshake.kernels.ondisk import kernel

__all__ = ["rows_equal", "searchable"]

Array = np.ndarray[Any, Any]
_OFFSETS = {
    pa.string(): np.int32,
    pa.binary(): np.int32,
    pa.large_string(): np.int64,
    pa.large_binary(): np.int64,
}


def searchable(column: pa.Array) -> bool:
    """Whether `rows_equal` takes a column: text or bytes, one after the other, no NULL among them."""
    return column.type in _OFFSETS and not column.null_count


def rows_equal(column: pa.Array, wanted: bytes) -> Array:
    """The rows whose bytes are the wanted ones, rising.

    >>> rows_equal(pa.array(["UBSN", "UBS", "", "UBSN"]), b"UBSN").tolist()
    [0, 3]
    """
    rows = len(column)
    _, places, data = column.buffers()
    kind = _OFFSETS[column.type]
    if not rows:
        return np.empty(0, np.int64)
    offsets = np.frombuffer(places, kind, rows + 1, column.offset * np.dtype(kind).itemsize)
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    # a word at every byte, so that texts of up to eight bytes are compared at once
    words = np.ndarray(max(len(raw) - 7, 0), np.uint64, raw.data, strides=(1,))
    found = np.empty(rows + 1, np.int64)
    sought = np.frombuffer(wanted, np.uint8)
    first = int.from_bytes(wanted[:8], "little")
    mask = (1 << 8 * min(len(wanted), 8)) - 1
    count = _search(offsets, raw, words, sought, np.uint64(first), np.uint64(mask), found)
    return found[:count]


@kernel
def _search(
    offsets: Array, raw: Array, words: Array, sought: Array, first: np.uint64, mask: np.uint64, found: Array
) -> int:
    size, count = len(sought), 0
    safe = len(offsets) - 1
    while safe > 0 and offsets[safe - 1] >= len(words):  # the last texts have no whole word behind them
        safe -= 1
    for row in range(safe):  # no branches: what is found is written over when it is none
        start = offsets[row]
        found[count] = row
        count += (offsets[row + 1] - start == size) & ((words[start] & mask) == first)
    if size > 8:
        count = _confirmed(offsets, raw, sought, found, count, 8)
    before = count
    for row in range(safe, len(offsets) - 1):
        found[count] = row
        count += offsets[row + 1] - offsets[row] == size
    return before + _confirmed(offsets, raw, sought, found[before:], count - before, 0)


@njit(nogil=True)
def _confirmed(offsets: Array, raw: Array, sought: Array, found: Array, count: int, begin: int) -> int:
    """Of texts of the right length, those whose bytes from `begin` on are the wanted ones."""
    kept = 0
    for at in range(count):
        same = True
        for k in range(begin, len(sought)):
            same = same and raw[offsets[found[at]] + k] == sought[k]
        found[kept] = found[at]
        kept += same
    return kept
