"""Aggregates of panes, and of windows from panes: plain loops that touch each row and each pane once.

A *slot* is a pane of a group, or any other set of rows that are aggregated together. Exact sums are kept in
limbs of 32 bits inside 64-bit words, so 2**31 of them can be added or subtracted before one overflows. A
float64 is a whole multiple of 2**-1074 and has its place among 67 limbs (a superaccumulator), so float sums
are exact in any order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from handshake.kernels.compile_cache import compile_loop

Array = np.ndarray[Any, Any]
FLOAT_LIMBS = 67
SQUARE_LIMBS = 132
"""Limbs of the square of a float64, which is a whole multiple of 2**-2148."""
_MASK = np.int64(0xFFFFFFFF)


@compile_loop(nogil=True)
def count_rows(slots: Array, valid: Array, out: Array) -> None:
    """Count the rows of each slot. An empty `valid` means that all are valid."""
    everything = len(valid) == 0
    for i in range(len(slots)):
        if everything or valid[i]:
            out[slots[i]] += 1


@compile_loop(nogil=True)
def add_limbs(slots: Array, values: Array, valid: Array, out: Array) -> None:
    """Sum whole numbers, given as columns of limbs, by slot."""
    everything = len(valid) == 0
    for i in range(len(slots)):
        if everything or valid[i]:
            for k in range(values.shape[1]):
                out[slots[i], k] += values[i, k]


@compile_loop(nogil=True)
def add_floats(slots: Array, values: Array, bits: Array, valid: Array, out: Array, odd: Array) -> None:
    """Sum float64 values exactly by slot; `odd` counts NaN, plus and minus infinity."""
    everything = len(valid) == 0
    for i in range(len(slots)):
        if not (everything or valid[i]):
            continue
        value, word, slot = values[i], bits[i], slots[i]
        exponent = (word >> 52) & 0x7FF
        if exponent == 0x7FF:
            odd[slot, 0 if value != value else 1 if value > 0 else 2] += 1
            continue
        digits = word & 0xFFFFFFFFFFFFF
        if exponent:
            digits |= 1 << 52
            exponent -= 1
        limb, shift = exponent >> 5, exponent & 31
        low = (digits & _MASK) << shift
        high = (digits >> 32) << shift
        sign = np.int64(-1) if word < 0 else np.int64(1)
        out[slot, limb] += sign * (low & _MASK)
        out[slot, limb + 1] += sign * ((low >> 32) & _MASK)
        out[slot, limb + 1] += sign * (high & _MASK)
        out[slot, limb + 2] += sign * ((high >> 32) & _MASK)


@compile_loop(nogil=True)
def add_squares(slots: Array, digits: Array, shifts: Array, valid: Array, out: Array) -> None:
    """Sum the squares of whole numbers by slot: each is given as limbs without a sign, its square is shifted.

    A product of two limbs has 64 bits. The square is carried over to limbs of 32 bits before it is shifted.
    """
    everything = len(valid) == 0
    limbs = digits.shape[1]
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    square = np.zeros(2 * limbs, np.uint64)
    for i in range(len(slots)):
        if not (everything or valid[i]):
            continue
        for k in range(2 * limbs):
            square[k] = np.uint64(0)
        for a in range(limbs):
            carry = np.uint64(0)
            for b in range(limbs):  # at most (2**32 - 1)**2 + 2 (2**32 - 1), which is 2**64 - 1
                product = np.uint64(digits[i, a]) * np.uint64(digits[i, b]) + square[a + b] + carry
                square[a + b] = product & mask
                carry = product >> half
            square[a + limbs] = carry
        slot, first, shift = slots[i], shifts[i] >> 5, np.uint64(shifts[i] & 31)
        for k in range(2 * limbs):
            moved = square[k] << shift
            out[slot, first + k] += np.int64(moved & mask)
            if moved >> half:
                out[slot, first + k + 1] += np.int64(moved >> half)


@compile_loop(nogil=True)
def greatest(slots: Array, rows: Array, valid: Array, levels: int, out: Array, seen: Array) -> None:
    """Find the greatest row of each slot; rows are compared by their first `levels` numbers."""
    everything = len(valid) == 0
    for i in range(len(slots)):
        if not (everything or valid[i]):
            continue
        slot = slots[i]
        larger = not seen[slot]
        if not larger:
            for k in range(levels):
                if rows[i, k] != out[slot, k]:
                    larger = rows[i, k] > out[slot, k]
                    break
        if larger:
            seen[slot] = True
            for k in range(rows.shape[1]):
                out[slot, k] = rows[i, k]


@compile_loop(nogil=True)
def slide_present(
    ins: Array, in_groups: Array, in_counts: Array, outs: Array, out_groups: Array, out_counts: Array,
    held: Array, active: Array, spots: Array, count: int,
) -> tuple[Array, Array, int]:  # fmt: skip
    """Find the groups with rows in each window; return where each window's groups begin, and the groups.

    Before window i, panes ins[i] to ins[i + 1] enter and panes outs[i] to outs[i + 1] leave. `held` counts
    the rows per group, `active` lists the groups that have some, `spots` is the place of a group in that
    list.
    """
    windows = len(ins) - 1
    starts = np.zeros(windows + 1, np.int64)
    found = np.empty(max(16, 2 * windows), np.int32)
    used = 0
    for i in range(windows):
        for row in range(ins[i], ins[i + 1]):
            group = in_groups[row]
            if held[group] == 0:
                active[count], spots[group] = group, count
                count += 1
            held[group] += in_counts[row]
        for row in range(outs[i], outs[i + 1]):
            group = out_groups[row]
            held[group] -= out_counts[row]
            if held[group] == 0:
                count -= 1
                last = active[count]
                active[spots[group]], spots[last] = last, spots[group]
        if used + count > len(found):
            larger = np.empty(2 * (used + count), np.int32)
            for at in range(used):  # a loop: Numba takes seconds longer to compile slices
                larger[at] = found[at]
            found = larger
        for at in range(count):
            found[used + at] = active[at]
        used += count
        starts[i + 1] = used
    return starts, found[:used], count


@compile_loop(nogil=True)
def slide_add(
    ins: Array, in_groups: Array, in_values: Array, outs: Array, out_groups: Array, out_values: Array,
    starts: Array, groups: Array, sums: Array, result: Array,
) -> None:  # fmt: skip
    """Compute sums of windows: panes that enter are added, panes that leave are subtracted."""
    limbs = sums.shape[1]
    for i in range(len(ins) - 1):
        for row in range(ins[i], ins[i + 1]):
            for k in range(limbs):
                sums[in_groups[row], k] += in_values[row, k]
        for row in range(outs[i], outs[i + 1]):
            for k in range(limbs):
                sums[out_groups[row], k] -= out_values[row, k]
        for at in range(starts[i], starts[i + 1]):
            for k in range(limbs):
                result[at, k] = sums[groups[at], k]


@compile_loop(nogil=True)
def slide_greatest(
    ins: Array, in_groups: Array, in_rows: Array, in_seen: Array, in_last: Array, windows: Array,
    starts: Array, groups: Array, rows: Array, last: Array, after: Array, before: Array, head: Array,
    tail: Array, used: int, levels: int, result: Array, known: Array,
) -> int:  # fmt: skip
    """Find the greatest rows of windows: per group, a list of the panes that may still become the greatest.

    Rows are compared by their first `levels` numbers. Along a list, rows fall and the last windows of the
    panes rise; the head is the answer.
    """
    for i in range(len(ins) - 1):
        for row in range(ins[i], ins[i + 1]):
            if not in_seen[row]:
                continue
            group, until = in_groups[row], in_last[row]
            right, left = -1, tail[group]
            while left >= 0 and last[left] > until:  # only behind a late row
                right, left = left, before[left]
            hidden = right >= 0
            if hidden:
                for k in range(levels):
                    if rows[right, k] != in_rows[row, k]:
                        hidden = rows[right, k] > in_rows[row, k]
                        break
            if hidden:
                continue
            while left >= 0:
                larger = False
                for k in range(levels):
                    if rows[left, k] != in_rows[row, k]:
                        larger = rows[left, k] > in_rows[row, k]
                        break
                if larger:
                    break
                left = before[left]
            node = used
            used += 1
            last[node], before[node], after[node] = until, left, right
            for k in range(in_rows.shape[1]):
                rows[node, k] = in_rows[row, k]
            if left >= 0:
                after[left] = node
            else:
                head[group] = node
            if right >= 0:
                before[right] = node
            else:
                tail[group] = node
        for at in range(starts[i], starts[i + 1]):
            group = groups[at]
            first = head[group]
            while first >= 0 and last[first] < windows[i]:
                first = after[first]
            head[group] = first
            if first < 0:
                tail[group] = -1
            else:
                before[first] = -1
                for k in range(rows.shape[1]):
                    result[at, k] = rows[first, k]
            known[at] = first >= 0
    return used


@compile_loop(nogil=True)
def compact(
    rows: Array, last: Array, after: Array, before: Array, head: Array, tail: Array,
    new_rows: Array, new_last: Array, new_after: Array, new_before: Array,
) -> int:  # fmt: skip
    """Copy the lists to the front of other arrays."""
    used = 0
    for group in range(len(head)):
        node, previous = head[group], -1
        if node >= 0:
            head[group] = used
        while node >= 0:
            new_last[used], new_before[used] = last[node], previous
            for k in range(rows.shape[1]):
                new_rows[used, k] = rows[node, k]
            if previous >= 0:
                new_after[previous] = used
            new_after[used] = -1
            previous = used
            used += 1
            node = after[node]
        if previous >= 0:
            tail[group] = previous
    return used
