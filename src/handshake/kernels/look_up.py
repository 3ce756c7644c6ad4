"""Look-ups of tuples in the indexes of basic windows.

A look-up in a clustered window takes a tenth of a microsecond. A call from Python per window would take a
hundred times as long. So the kernels get a table of windows, as scans do, with the addresses of their
indexes.

A granule is as many tuples as a vector has lanes. For bands, a window keeps the first key of each, its fence.
An outer tuple finds its granules by fences alone, lists them and prefetches them. When the list is full, its
granules are compared, one vector at a time. So the processor waits for many cache lines at once instead of
one by one.
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
from handshake.kernels.compile import (
    TILE,
    Program,
    addresses,
    as_intrinsic,
    block_mask,
    mask_intrinsic,
    memory_bytes,
    once,
    pair_intrinsic,
)
from handshake.kernels.compile_cache import compile_loop, predicate_function
from handshake.kernels.intrinsics import (
    JIT,
    QUICK,
    count_bits,
    emit_prefetch,
    lowest_bit_or_64,
    row_intrinsic,
)
from handshake.kernels.lower import I64
from handshake.kernels.shared_scan import CELLS
from handshake.schema import Bool

_LISTED = TILE // GRANULE
"""Granules on the list. Their matches fit into the output buffers."""
_LINE = 64
_SHIFT = GRANULE.bit_length() - 1
_AT_ONCE = 4
"""Matches of a granule that are written without a branch. There are seldom more."""


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
    """Return two binary searches: the first key that is not below, and the first above another.

    Each step is a conditional move, not a jump.
    """

    @numba.njit(**JIT, inline="always")
    def not_below(keys, start, stop, sought):  # type: ignore[no-untyped-def]
        length = stop - start
        while length > 1:
            half = length >> 1
            start += half if key(keys, start + half - 1) < sought else 0
            length -= half
        return start + 1 if length == 1 and key(keys, start) < sought else start

    @numba.njit(**JIT, inline="always")
    def above(keys, start, stop, sought):  # type: ignore[no-untyped-def]
        length = stop - start
        while length > 1:
            half = length >> 1
            start += half if key(keys, start + half - 1) <= sought else 0
            length -= half
        return start + 1 if length == 1 and key(keys, start) <= sought else start

    return not_below, above


@numba.njit(**JIT, inline="always")
def _close_group(windows, ends, groups, window, before, count):  # type: ignore[no-untyped-def]
    """Note that the pairs from `before` up to `count` are of a window; return the number of groups."""
    if count > before:
        if groups == 0 or windows[groups - 1] != window:
            windows[groups] = window
            groups += 1
        ends[groups - 1] = count
    return groups


def _granule_intrinsic(program: Program, inner: int) -> Any:
    """Return `matches(outer, i, inner, j)`: a mask of the matches in a granule."""

    def emit_granule(builder: ir.IRBuilder, args: Any) -> ir.Value:
        return block_mask(builder, program, program.expr, inner, args, GRANULE)

    return mask_intrinsic("granule", program, inner, emit_granule)


def _prefetch_intrinsic(program: Program, inner: int) -> Any:
    """Return `prefetch(inner, row)`, which asks for the cache lines of a granule without waiting for them."""

    def emit_granule_prefetch(builder: ir.IRBuilder, args: Any) -> None:
        for position, column in enumerate(program.columns[inner]):
            if isinstance(column.type, Bool):  # the bits of a whole window are in few lines
                continue
            width = memory_bytes(column)
            data = builder.extract_value(args[0], 2 * position)
            start = builder.add(data, builder.mul(args[1], ir.Constant(I64, width)))
            for byte in range(0, GRANULE * width, _LINE):
                emit_prefetch(builder, builder.add(start, ir.Constant(I64, byte)))

    arguments = ir.FunctionType(ir.VoidType(), [addresses(program, inner), I64])
    function = predicate_function("prefetch", arguments, emit_granule_prefetch)
    return as_intrinsic(function, types.void)


@once
def look_up_kernel(program: Program, inner: int, first: str, second: str, few: bool) -> Any:
    """Return the look-up in the band indexes of all basic windows of a kind.

    An outer tuple visits the cells that overlap `low_first … high_first`, and is compared there with the
    granules that overlap `low … high`. Keys of the cells have the NumPy type `first`, fences `second`. Calls
    with `few` tuples keep the interpreter's lock.

    `kernel(k, part, outer, rows, base, table, homes, kinds, kind, low_first, high_first, low, high, seen,
    state, out_outer, out_inner, windows, ends)` returns pairs and state as `shared_scan_kernel` does. It adds
    the tuples compared to `seen` by home. It begins with a state of -1, and ends with it.
    """
    matches, holds = _granule_intrinsic(program, inner), pair_intrinsic(program, inner)
    ask_for = _prefetch_intrinsic(program, inner)
    row_of = row_intrinsic(address_words(len(program.columns[inner])), FACTS)
    offset, fence = _at(np.dtype(np.int64)), _at(np.dtype(second))
    first_not_below, first_above = _searches(_at(np.dtype(first)))
    not_below, _ = _searches(fence)

    @numba.njit(**JIT, inline="always")
    def compare(outer, i, inner, start, size, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        if start + GRANULE > size:
            for j in range(start, size):
                if holds(outer, i, inner, j):
                    out_outer[count] = i
                    out_inner[count] = j
                    count += 1
            return count
        mask = matches(outer, i, inner, start)
        found = count_bits(mask)
        for at in range(_AT_ONCE):
            out_outer[count + at] = i
            out_inner[count + at] = start + lowest_bit_or_64(mask)
            mask &= mask - np.uint64(1)
        at = count + _AT_ONCE
        while mask != np.uint64(0):
            out_outer[at] = i
            out_inner[at] = start + lowest_bit_or_64(mask)
            mask &= mask - np.uint64(1)
            at += 1
        return count + found

    @compile_loop(**(QUICK if few else JIT))
    def look_up(  # type: ignore[no-untyped-def]
        k, part, outer, rows, base, table, homes, kinds, kind, low_first, high_first, low, high, seen,
        state, out_outer, out_inner, windows, ends,
    ):  # fmt: skip
        listed = np.empty((_LISTED, 3), np.int32)
        room = out_outer.shape[0] - TILE
        w, c, i, count, groups, g = state[0], state[1], state[2], state[3], state[4], state[6]
        if w < 0:
            w, c, i, g = 0, 0, 0, -1
        granules = 0
        while True:
            # List granules and prefetch them, until the list is full or there are no more.
            full = False
            while w < table.shape[0] and not full:
                if kinds[w] != kind:
                    w += 1
                    continue
                cells, offsets, fences = table[w, CELLS], table[w, CELLS + 1], table[w, CELLS + 4]
                lows, highs, inner = table[w, CELLS + 2], table[w, CELLS + 3], row_of(table, w)
                while i < rows and not full:
                    c = max(c, first_not_below(highs, 0, cells, low_first[i]))
                    last = first_above(lows, 0, cells, high_first[i])
                    while c < last and not full:
                        start = offset(offsets, c) >> _SHIFT
                        stop = (offset(offsets, c + 1) + GRANULE - 1) >> _SHIFT
                        if g < 0:
                            g = max(not_below(fences, start, stop, low[i]) - 1, start)
                        while g < stop and fence(fences, g) <= high[i]:
                            if granules == _LISTED:
                                full = True
                                break
                            ask_for(inner, g << _SHIFT)
                            listed[granules, 0], listed[granules, 1], listed[granules, 2] = w, i, g
                            granules += 1
                            g += 1
                        if not full:
                            c, g = c + 1, -1
                    if not full:
                        c, i = 0, i + 1
                if not full:
                    w, i = w + 1, 0
            at, size, before = np.int64(-1), np.int64(0), count
            for n in range(granules):
                if listed[n, 0] != at:
                    groups = _close_group(windows, ends, groups, base + at, before, count)
                    at, before = np.int64(listed[n, 0]), count
                    inner, size = row_of(table, at), table[at, 0]
                seen[homes[at]] += GRANULE
                here, start = np.int64(listed[n, 1]), np.int64(listed[n, 2]) << _SHIFT
                count = compare(outer, here, inner, start, size, out_outer, out_inner, count)
            groups = _close_group(windows, ends, groups, base + at, before, count)
            granules = 0
            if not full or count > room:
                break
        state[0], state[1], state[2], state[3], state[4], state[5], state[6] = (
            -1 if w >= table.shape[0] and count <= room else w, c, i, count, groups, part, g,
        )  # fmt: skip

    return look_up


@once
def look_up_hashes_kernel(program: Program, inner: int) -> Any:
    """Return the look-up in the hash indexes of all basic windows of a kind.

    `kernel(k, part, outer, rows, base, table, homes, kinds, kind, hashes, seen, state, …)`; see
    `look_up_kernel`.
    """
    matches, holds = _granule_intrinsic(program, inner), pair_intrinsic(program, inner)
    row_of, offset = row_intrinsic(address_words(len(program.columns[inner])), FACTS), _at(np.dtype(np.int32))

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
            groups = _close_group(windows, ends, groups, base + w, before, count)
            if row >= stop:
                row, i = -1, i + 1
        state[0], state[1], state[2], state[3], state[4], state[5] = (
            -1 if w >= table.shape[0] else w, row, i, count, groups, part,
        )  # fmt: skip

    return look_up
