"""Compiled loop of nearest joins: drops pairs that cannot be among the best of their left row."""

from __future__ import annotations

from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT

__all__ = ["keep_candidates"]


@compile_loop(**JIT)
def keep_candidates(rows, keys, first, counts, best, keep):  # type: ignore[no-untyped-def]
    """Write which pairs may be among the best of their left row, and remember the least keys of each row.

    Row `first + i` has `counts[i]` keys in `best[i]`, least first. Equal keys decide nothing, so both pairs
    stay. Rows before `first` keep all pairs.
    """
    most = best.shape[1]
    for pair in range(rows.shape[0]):
        row, key = rows[pair] - first, keys[pair]
        if row < 0:
            keep[pair] = True
            continue
        count = counts[row]
        keep[pair] = count < most or key <= best[row, most - 1]
        if count < most:
            counts[row] = count + 1
            place = count
        elif key < best[row, most - 1]:
            place = most - 1
        else:
            continue
        while place > 0 and best[row, place - 1] > key:
            best[row, place] = best[row, place - 1]
            place -= 1
        best[row, place] = key
