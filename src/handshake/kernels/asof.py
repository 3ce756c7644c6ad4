"""Compiled loops of as-of joins: for each left row, the right row that is best in time."""

from __future__ import annotations

import numpy as np

from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT


@compile_loop(**JIT)
def latest_before(left, left_keys, left_order, right, right_keys, right_order, strict, within, latest, found):  # type: ignore[no-untyped-def]
    """Write the last right row of the same key at or before each left row, by time; -1 if there is none.

    One pass over both sides in the order of time; `latest` has a place per key, all -1. Keys below 0 match
    nothing. Times may be inverted (`~t`) and orders reversed: then it finds the first row at or after. An
    order without rows stands for that of the rows.
    """
    at = 0
    left_moved, right_moved = left_order.shape[0] > 0, right_order.shape[0] > 0
    for place in range(left.shape[0]):
        row = left_order[place] if left_moved else place
        time = left[row]
        while at < right.shape[0]:
            other = right_order[at] if right_moved else at
            if right[other] > time or (strict and right[other] == time):
                break
            if right_keys[other] >= 0:
                latest[right_keys[other]] = other
            at += 1
        key = left_keys[row]
        if key >= 0:
            best = latest[key]
            # Differences of 64-bit times fit unsigned words.
            if best >= 0 and np.uint64(time) - np.uint64(right[best]) <= within:
                found[row] = best


@compile_loop(**JIT)
def last_of_keys(keys, order, latest):  # type: ignore[no-untyped-def]
    """Write the last row of each key in an order of rows; `latest` has a place per key, all -1."""
    for place in range(keys.shape[0]):
        row = order[place] if order.shape[0] > 0 else place
        if keys[row] >= 0:
            latest[keys[row]] = row


@compile_loop(**JIT)
def mark_ties(times, keys, order, latest, tied):  # type: ignore[no-untyped-def]
    """Mark the rows that have the time and the key of another row; return whether there are any."""
    some = False
    for place in range(times.shape[0]):
        row = order[place] if order.shape[0] > 0 else place
        key = keys[row]
        if key < 0:
            continue
        before = latest[key]
        if before >= 0 and times[before] == times[row]:
            tied[before] = tied[row] = some = True
        latest[key] = row
    return some


@compile_loop(**JIT)
def keep_best(rows, others, left, right, rank, strict, found):  # type: ignore[no-untyped-def]
    """Update the best right row of each left row with some pairs: near in time, then early, then by rank."""
    for place in range(rows.shape[0]):
        row, other = rows[place], others[place]
        time, new = left[row], right[other]
        if strict and new == time:
            continue
        best = found[row]
        if best < 0:
            found[row] = other
            continue
        old = right[best]
        distance = np.uint64(time) - np.uint64(new) if new <= time else np.uint64(new) - np.uint64(time)
        least = np.uint64(time) - np.uint64(old) if old <= time else np.uint64(old) - np.uint64(time)
        if distance < least or (
            distance == least and (new < old or (new == old and rank[other] > rank[best]))
        ):
            found[row] = other
