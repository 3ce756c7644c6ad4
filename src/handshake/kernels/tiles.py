"""The innermost loops of scans: one outer tuple against a block or a tile of inner tuples.

Buffers are addresses here. An array that reaches an inlined function costs Numba two atomic counts of its
references per call, which takes as long as comparing a thousand codes.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from handshake.kernels.compile import BLOCK, Program, block_intrinsic, pair_intrinsic
from handshake.kernels.intrinsics import JIT, lowest_bit, writer

_write = writer(numba.int32)


def pair_writers(program: Program, inner: int) -> tuple[Any, Any]:
    """Return two functions that append the matches of one outer tuple and return the new count.

    `block(outer, i, inner, j, out_outer, out_inner, count)` searches a block; `rest(outer, i, inner, start,
    stop, out_outer, out_inner, count)` searches tuples that do not fill one. The outputs are addresses.
    """
    matches, holds = block_intrinsic(program, inner), pair_intrinsic(program, inner)

    @numba.njit(**JIT, inline="always")
    def block(outer, i, inner, j, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        mask = matches(outer, i, inner, j)
        while mask != np.uint64(0):
            _write(out_outer + 4 * count, i)
            _write(out_inner + 4 * count, j + lowest_bit(mask))
            count += 1
            mask &= mask - np.uint64(1)
        return count

    @numba.njit(**JIT, inline="always")
    def rest(outer, i, inner, start, stop, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        for j in range(start, stop):
            if holds(outer, i, inner, j):
                _write(out_outer + 4 * count, i)
                _write(out_inner + 4 * count, j)
                count += 1
        return count

    return block, rest


def tile_search(program: Program, inner: int) -> Any:
    """Return `search(outer, i, inner, tile, stop, out_outer, out_inner, count)`.

    It compares one outer tuple with a tile of up to `PASS` tuples that begins with a block, appends the
    matches and returns the new count.
    """
    block, rest = pair_writers(program, inner)

    @numba.njit(**JIT, inline="always")
    def search(outer, i, inner, tile, stop, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        whole = stop & ~(BLOCK - 1)
        for j in range(tile, whole, BLOCK):
            count = block(outer, i, inner, j, out_outer, out_inner, count)
        return rest(outer, i, inner, whole, stop, out_outer, out_inner, count)

    return search
