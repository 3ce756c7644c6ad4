"""Compiled loops of nearest joins: pairs that cannot be among the best, and the nearest of sorted numbers."""

from __future__ import annotations

from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, lower_bound


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


@compile_loop(**JIT)
def find_nearest(values, keys, k, starts, stops):  # type: ignore[no-untyped-def]
    """Write the ranges of sorted keys with the k nearest of each value, and all keys as near as the k-th.

    There are at least k keys. No value and no key is infinite or NaN.
    """
    last = keys.shape[0]
    for row in range(values.shape[0]):
        value = values[row]
        start = stop = lower_bound(keys, 0, last, value)
        while stop - start < k:
            if start == 0 or (stop < last and keys[stop] - value < value - keys[start - 1]):
                stop += 1
            else:
                start -= 1
        far = max(value - keys[start], keys[stop - 1] - value)
        while start > 0 and value - keys[start - 1] <= far:
            start -= 1
        while stop < last and keys[stop] - value <= far:
            stop += 1
        starts[row], stops[row] = start, stop
