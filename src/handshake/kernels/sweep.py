"""The kernel of the band index: outer tuples against granules of clustered inner tuples.

A granule is as many tuples as a vector has lanes. The window keeps the first key of each, its fence. An outer
tuple finds its granules by fences alone, lists them and prefetches them. When the list is full, its granules
are compared, one vector at a time. So the processor waits for many cache lines at once instead of one by one.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types

from handshake.kernels import compile as kernels
from handshake.kernels.cluster import GRANULE
from handshake.kernels.compile import TILE, Program, once
from handshake.kernels.compile_cache import compile_loop, predicate_function
from handshake.kernels.intrinsics import (
    JIT,
    count_bits,
    emit_prefetch,
    lower_bound,
    lowest_bit_or_64,
    upper_bound,
)
from handshake.kernels.lower import I64
from handshake.schema import Bool

LISTED = TILE // GRANULE
"""Granules on the list. Their matches fit into the output buffers."""
_LINE = 64
SHIFT = GRANULE.bit_length() - 1
_AT_ONCE = 4
"""Matches of a granule that are written without a branch. There are seldom more."""


def granule_intrinsic(program: Program, inner: int) -> Any:
    """Return `matches(outer, i, inner, j)`: a mask of the matches in a granule."""

    def emit_granule(builder: ir.IRBuilder, args: Any) -> ir.Value:
        return kernels.block_mask(builder, program, program.expr, inner, args, GRANULE)

    return kernels.mask_intrinsic("granule", program, inner, emit_granule)


def prefetch_intrinsic(program: Program, inner: int) -> Any:
    """Return `prefetch(inner, row)`, which asks for the cache lines of a granule without waiting for them."""

    def emit_granule_prefetch(builder: ir.IRBuilder, args: Any) -> None:
        for position, column in enumerate(program.columns[inner]):
            if isinstance(column.type, Bool):  # the bits of a whole window are in few lines
                continue
            width = kernels.memory_bytes(column)
            data = builder.extract_value(args[0], 2 * position)
            start = builder.add(data, builder.mul(args[1], ir.Constant(I64, width)))
            for byte in range(0, GRANULE * width, _LINE):
                emit_prefetch(builder, builder.add(start, ir.Constant(I64, byte)))

    arguments = ir.FunctionType(ir.VoidType(), [kernels.addresses(program, inner), I64])
    function = predicate_function("prefetch", arguments, emit_granule_prefetch)
    return kernels.as_intrinsic(function, types.void)


@once
def sweep_kernel(program: Program, inner: int) -> Any:
    """Return the index probe: outer tuple `p` visits the cells that overlap `low_first[p] … high_first[p]`.

    In each cell it is compared with the granules that overlap `low[p] … high[p]`. `kernel(…) -> (count,
    compared)`; done when `state[0] >= len(low)`. The state begins with (0, 0, -1). The buffers must hold a
    few pairs more than `TILE`.
    """
    matches, holds = granule_intrinsic(program, inner), kernels.pair_intrinsic(program, inner)
    prefetch = prefetch_intrinsic(program, inner)

    @numba.njit(**JIT, inline="always")
    def compare(outer, inner, inner_rows, listed, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        for k in range(listed.shape[0]):
            i, start = np.int64(listed[k, 0]), np.int64(listed[k, 1]) << SHIFT
            if start + GRANULE <= inner_rows:
                mask = matches(outer, i, inner, start)
                found = count_bits(mask)
                for at in range(_AT_ONCE):
                    out_outer[count + at] = i
                    out_inner[count + at] = start + lowest_bit_or_64(mask)
                    mask &= mask - np.uint64(1)
                if found > _AT_ONCE:
                    at = count + _AT_ONCE
                    while mask != np.uint64(0):
                        out_outer[at] = i
                        out_inner[at] = start + lowest_bit_or_64(mask)
                        mask &= mask - np.uint64(1)
                        at += 1
                count += found
            else:
                for j in range(start, inner_rows):
                    if holds(outer, i, inner, j):
                        out_outer[count] = i
                        out_inner[count] = j
                        count += 1
        return count

    @compile_loop(**JIT)
    def sweep(  # type: ignore[no-untyped-def]
        outer, low_first, high_first, low, high,
        inner, inner_rows, offsets, cells_low, cells_high, fences, state, out_outer, out_inner,
    ):  # fmt: skip
        listed = np.empty((LISTED, 2), np.int32)
        count, granules, compared = 0, 0, np.int64(0)
        room = out_outer.shape[0] - TILE - _AT_ONCE
        cells = cells_low.shape[0]
        p, c, g = state[0], state[1], state[2]
        while True:
            # List granules and prefetch them, until the list is full or there are no more.
            full = False
            while p < low.shape[0] and not full:
                c = max(c, lower_bound(cells_high, 0, cells, low_first[p]))
                last = upper_bound(cells_low, 0, cells, high_first[p])
                while c < last and not full:
                    start, stop = offsets[c] >> SHIFT, (offsets[c + 1] + GRANULE - 1) >> SHIFT
                    if g < 0:
                        g = max(lower_bound(fences, start, stop, low[p]) - 1, start)
                    while g < stop and fences[g] <= high[p]:
                        if granules == LISTED:
                            full = True
                            break
                        prefetch(inner, g << SHIFT)
                        listed[granules, 0], listed[granules, 1] = p, g
                        granules += 1
                        g += 1
                    if not full:
                        g = -1
                        c += 1
                if not full:
                    c = 0
                    p += 1
            count = compare(outer, inner, inner_rows, listed[:granules], out_outer, out_inner, count)
            compared += granules * GRANULE
            granules = 0
            if not full or count > room:
                break
        state[0], state[1], state[2] = p, c, g
        return count, compared

    return sweep
