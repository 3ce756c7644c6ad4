"""The band index's kernel: outer tuples against granules of clustered inner ones.

A granule is as many tuples as one vector has lanes; for each, the window keeps the key that it begins with (a
fence). An outer tuple finds its granules by looking at fences alone. What it finds is put on a list and asked
for from memory; only when the list is full are its granules compared, a vector at a time. So the processor
waits for many cache lines at once instead of one after the other.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.cluster import GRANULE
from handshake.kernels.compile import (
    JIT,
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
from handshake.kernels.lower import I64
from handshake.kernels.memory import emit_prefetch
from handshake.kernels.ondisk import compiled, part
from handshake.plan.expr import Column
from handshake.schema import Bool

__all__ = ["ask_intrinsic", "granule_intrinsic", "lowest_or_all", "sweep_kernel"]

_LISTED = TILE // GRANULE
"""Granules on the list: what they can give at most is what buffers have room for."""
_LINE = 64
_SHIFT = GRANULE.bit_length() - 1
_AT_ONCE = 4
"""Matches of a granule that are written without a jump in between; there are seldom more."""


def granule_intrinsic(program: Program, inner: int) -> Any:
    """Which tuples of a granule match, as a mask."""

    def emit_granule(builder: ir.IRBuilder, args: Any) -> ir.Value:
        return block_mask(builder, program, program.expr, inner, args, GRANULE)

    return mask_intrinsic("granule", program, inner, emit_granule)


def ask_intrinsic(program: Program, inner: int) -> Any:
    """Ask for a granule's cache lines, without waiting for them."""

    def emit_ask(builder: ir.IRBuilder, args: Any) -> None:
        for position, column in enumerate(program.columns[inner]):
            if not isinstance(column.type, Bool):  # their bits of a whole window lie in few lines
                _ask_for(builder, builder.extract_value(args[0], 2 * position), args[1], column)

    arguments = ir.FunctionType(ir.VoidType(), [addresses(program, inner), I64])
    return as_intrinsic(part("ask", arguments, emit_ask), types.void)


def _ask_for(builder: ir.IRBuilder, data: ir.Value, row: ir.Value, column: Column) -> None:
    width = memory_bytes(column)
    start = builder.add(data, builder.mul(row, ir.Constant(I64, width)))
    for byte in range(0, GRANULE * width, _LINE):
        emit_prefetch(builder, builder.add(start, ir.Constant(I64, byte)))


@intrinsic
def lowest_or_all(typing_context, mask):  # type: ignore[no-untyped-def]
    """Index of the lowest set bit, 64 where there is none."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(mask), code


@intrinsic
def bits_of(typing_context, mask):  # type: ignore[no-untyped-def]
    """How many bits are set."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.ctpop(args[0])

    return types.int64(mask), code


@numba.njit(**JIT, inline="always")
def _below(keys, start, stop, key):  # type: ignore[no-untyped-def]
    """First place whose key is not below `key`; the step is a conditional move, not a jump."""
    length = stop - start
    while length > 1:
        half = length >> 1
        start += half if keys[start + half - 1] < key else 0
        length -= half
    if length == 1 and keys[start] < key:
        start += 1
    return start


@numba.njit(**JIT, inline="always")
def _up_to(keys, start, stop, key):  # type: ignore[no-untyped-def]
    """First place whose key is above `key`."""
    length = stop - start
    while length > 1:
        half = length >> 1
        start += half if keys[start + half - 1] <= key else 0
        length -= half
    if length == 1 and keys[start] <= key:
        start += 1
    return start


@once
def sweep_kernel(program: Program, inner: int) -> Any:
    """Index probe: outer tuple `p` meets the cells that overlap `low_first[p] … high_first[p]`.

    In each, it meets the granules that overlap `low[p] … high[p]`, and there the whole predicate.
    `kernel(…) -> (count, compared)`; done when `state[0] >= len(low)`. It begins with (0, 0, -1), and the
    buffers must hold a few pairs more than `TILE`.
    """
    matches, holds = granule_intrinsic(program, inner), pair_intrinsic(program, inner)
    ask = ask_intrinsic(program, inner)

    @numba.njit(**JIT, inline="always")
    def compare(outer, inner, inner_rows, listed, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        for k in range(listed.shape[0]):
            i, start = np.int64(listed[k, 0]), np.int64(listed[k, 1]) << _SHIFT
            if start + GRANULE <= inner_rows:
                mask = matches(outer, i, inner, start)
                found = bits_of(mask)
                for at in range(_AT_ONCE):
                    out_outer[count + at] = i
                    out_inner[count + at] = start + lowest_or_all(mask)
                    mask &= mask - np.uint64(1)
                if found > _AT_ONCE:
                    at = count + _AT_ONCE
                    while mask != np.uint64(0):
                        out_outer[at] = i
                        out_inner[at] = start + lowest_or_all(mask)
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

    @compiled(**JIT)
    def sweep(  # type: ignore[no-untyped-def]
        outer, low_first, high_first, low, high,
        inner, inner_rows, offsets, cells_low, cells_high, fences, state, out_outer, out_inner,
    ):  # fmt: skip
        listed = np.empty((_LISTED, 2), np.int32)
        count, granules, compared = 0, 0, np.int64(0)
        room = out_outer.shape[0] - TILE - _AT_ONCE
        cells = cells_low.shape[0]
        p, c, g = state[0], state[1], state[2]
        while True:
            # List granules, and ask for their memory, until the list is full or there are no more.
            full = False
            while p < low.shape[0] and not full:
                c = max(c, _below(cells_high, 0, cells, low_first[p]))
                last = _up_to(cells_low, 0, cells, high_first[p])
                while c < last and not full:
                    start, stop = offsets[c] >> _SHIFT, (offsets[c + 1] + GRANULE - 1) >> _SHIFT
                    if g < 0:
                        g = max(_below(fences, start, stop, low[p]) - 1, start)
                    while g < stop and fences[g] <= high[p]:
                        if granules == _LISTED:
                            full = True
                            break
                        ask(inner, g << _SHIFT)
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
