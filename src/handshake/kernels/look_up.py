"""Look-ups of a few tuples in the indexes of many basic windows, in one call.

A look-up in a clustered window takes a tenth of a microsecond. A call from Python per window would take a
hundred times as long. So the kernel gets a table of windows, as scans do, with the addresses of their
indexes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.cluster import GRANULE
from handshake.kernels.codes import FACTS
from handshake.kernels.columns import address_words
from handshake.kernels.compile import TILE, Program, once, pair_intrinsic
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, QUICK, lowest_bit_or_64, row_intrinsic
from handshake.kernels.shared_scan import CELLS
from handshake.kernels.sweep import LISTED, SHIFT, granule_intrinsic, prefetch_intrinsic


def _at(dtype: np.dtype[Any]) -> Any:
    """Return `value(address, at)`: value number `at` of an array."""
    kind = numba.from_dtype(dtype)

    @intrinsic
    def value(typing_context, address, at):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            memory = ir.PointerType(context.get_data_type(kind))
            return builder.load(builder.gep(builder.inttoptr(args[0], memory), [args[1]]))

        return kind(types.int64, types.int64), code

    return value


def _searches(key: Any) -> tuple[Any, Any]:
    """Return two binary searches: the first key that is not below, and the first above another."""

    @numba.njit(**JIT, inline="always")
    def not_below(keys, start, stop, sought):  # type: ignore[no-untyped-def]
        while start < stop:
            middle = (start + stop) >> 1
            if key(keys, middle) < sought:
                start = middle + 1
            else:
                stop = middle
        return start

    @numba.njit(**JIT, inline="always")
    def above(keys, start, stop, sought):  # type: ignore[no-untyped-def]
        while start < stop:
            middle = (start + stop) >> 1
            if key(keys, middle) <= sought:
                start = middle + 1
            else:
                stop = middle
        return start

    return not_below, above


def _comparison(program: Program, inner: int) -> Any:
    """Return a function that compares an outer tuple with some rows of a granule and appends pairs."""
    matches, holds = granule_intrinsic(program, inner), pair_intrinsic(program, inner)

    @numba.njit(**JIT, inline="always")
    def compare(outer, i, inner, inner_rows, granule, first, last, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        if granule + GRANULE <= inner_rows:
            mask = matches(outer, i, inner, granule)
            mask &= ~np.uint64(0) << np.uint64(max(first - granule, 0))
            while mask != np.uint64(0):
                found = granule + lowest_bit_or_64(mask)
                if found >= last:
                    break
                out_outer[count] = i
                out_inner[count] = found
                mask &= mask - np.uint64(1)
                count += 1
        else:
            for j in range(max(first, granule), min(last, inner_rows)):
                if holds(outer, i, inner, j):
                    out_outer[count] = i
                    out_inner[count] = j
                    count += 1
        return count

    return compare


@once
def look_up_kernel(program: Program, inner: int, first: str, second: str) -> Any:
    """Return the look-up in the band indexes of all basic windows of a kind; see `kernels.sweep`.

    Keys of the cells have the NumPy type `first`, fences `second`. `kernel(k, part, outer, rows, base, table,
    homes, kinds, kind, low_first, high_first, low, high, seen, state, out_outer, out_inner, windows, ends)`
    returns pairs and state as `shared_scan_kernel` does. It adds the tuples compared to `seen` by home.
    """
    ask_for = prefetch_intrinsic(program, inner)
    row_of = row_intrinsic(address_words(len(program.columns[inner])), FACTS)
    offset, fence = _at(np.dtype(np.int64)), _at(np.dtype(second))
    first_not_below, first_above = _searches(_at(np.dtype(first)))
    not_below, _ = _searches(fence)
    compare = _comparison(program, inner)

    @compile_loop(**QUICK)
    def look_up(  # type: ignore[no-untyped-def]
        k, part, outer, rows, base, table, homes, kinds, kind, low_first, high_first, low, high, seen,
        state, out_outer, out_inner, windows, ends,
    ):  # fmt: skip
        listed = np.empty((LISTED, 3), np.int32)
        room = out_outer.shape[0] - TILE
        w, c, i, count, groups, g = state[0], state[1], state[2], state[3], state[4], state[6]
        if w < 0:
            w, c, i, g = 0, -1, 0, -1
        granules, done = 0, False
        while not done:
            # List granules and prefetch them, until the list is full or there are no more.
            while granules < LISTED:
                if w >= table.shape[0]:
                    done = True
                    break
                if kinds[w] != kind or i >= rows:
                    w, c, i, g = w + 1, -1, 0, -1
                    continue
                cells, offsets, fences = table[w, CELLS], table[w, CELLS + 1], table[w, CELLS + 4]
                if c < 0:
                    c = first_not_below(table[w, CELLS + 3], 0, cells, low_first[i])
                if c >= first_above(table[w, CELLS + 2], 0, cells, high_first[i]):
                    c, i, g = -1, i + 1, -1
                    continue
                start, stop = offset(offsets, c) >> SHIFT, (offset(offsets, c + 1) + GRANULE - 1) >> SHIFT
                if g < 0:
                    g = max(not_below(fences, start, stop, low[i]) - 1, start)
                inner = row_of(table, w)
                while granules < LISTED and g < stop and fence(fences, g) <= high[i]:
                    ask_for(inner, g << SHIFT)
                    listed[granules, 0], listed[granules, 1], listed[granules, 2] = w, i, g
                    granules += 1
                    g += 1
                if g >= stop or fence(fences, g) > high[i]:
                    c, g = c + 1, -1
            for n in range(granules):
                at, start = np.int64(listed[n, 0]), np.int64(listed[n, 2]) << SHIFT
                before, inner, here = count, row_of(table, at), np.int64(listed[n, 1])
                size = table[at, 0]
                count = compare(outer, here, inner, size, start, 0, size, out_outer, out_inner, count)
                seen[homes[at]] += GRANULE
                if count > before:
                    if groups == 0 or windows[groups - 1] != base + at:
                        windows[groups] = base + at
                        groups += 1
                    ends[groups - 1] = count
            granules = 0
            if count > room:
                break
        state[0], state[1], state[2], state[3], state[4], state[5], state[6] = (
            -1 if done and count <= room else w, c, i, count, groups, part, g,
        )  # fmt: skip

    return look_up


@once
def look_up_hashes_kernel(program: Program, inner: int) -> Any:
    """Return the look-up in the hash indexes of all basic windows of a kind.

    `kernel(k, part, outer, rows, base, table, homes, kinds, kind, hashes, seen, state, …)`; see
    `look_up_kernel`.
    """
    compare, offset = _comparison(program, inner), _at(np.dtype(np.int32))
    row_of = row_intrinsic(address_words(len(program.columns[inner])), FACTS)

    @compile_loop(**QUICK)
    def look_up(  # type: ignore[no-untyped-def]
        k, part, outer, rows, base, table, homes, kinds, kind, hashes, seen,
        state, out_outer, out_inner, windows, ends,
    ):  # fmt: skip
        room = out_outer.shape[0] - TILE
        w, row, i, count, groups = state[0], state[1], state[2], state[3], state[4]
        if w < 0:
            w, row, i = 0, -1, 0
        while w < table.shape[0] and count <= room:
            if kinds[w] != kind or i >= rows:
                w, row, i = w + 1, -1, 0
                continue
            shift, offsets = table[w, CELLS + 2], table[w, CELLS + 1]
            cell = np.int64(hashes[i] >> np.uint64(shift)) if shift < 64 else 0
            start, stop = np.int64(offset(offsets, cell)), np.int64(offset(offsets, cell + 1))
            row = max(row, start)
            before, inner = count, row_of(table, w)
            while row < stop and count <= room:
                granule = row & ~(GRANULE - 1)
                count = compare(outer, i, inner, table[w, 0], granule, row, stop, out_outer, out_inner, count)
                seen[homes[w]] += min(stop, granule + GRANULE) - row
                row = granule + GRANULE
            if count > before:
                if groups == 0 or windows[groups - 1] != base + w:
                    windows[groups] = base + w
                    groups += 1
                ends[groups - 1] = count
            if row >= stop:
                row, i = -1, i + 1
        state[0], state[1], state[2], state[3], state[4], state[5] = (
            -1 if w >= table.shape[0] else w, row, i, count, groups, part,
        )  # fmt: skip

    return look_up
