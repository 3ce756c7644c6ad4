"""The scan: every outer tuple against every tuple of some basic windows, in one call.

A call from Python costs as much as a hundred thousand comparisons, and a window is many basic windows. So the
kernel gets a table with the addresses of all basic windows to search, one row each.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from handshake.kernels.columns import address_words
from handshake.kernels.compile import BLOCK, PASS, TILE, Program, block_intrinsic, once, pair_intrinsic
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, lowest_bit, row_intrinsic

__all__ = ["pair_writers", "scan_kernel", "tile_search"]


def pair_writers(program: Program, inner: int) -> tuple[Any, Any]:
    """Return two functions that append the matches of one outer tuple and return the new count.

    `block(outer, i, inner, j, out_outer, out_inner, count)` searches a block; `rest(outer, i, inner, start,
    stop, out_outer, out_inner, count)` searches tuples that do not fill one.
    """
    matches, holds = block_intrinsic(program, inner), pair_intrinsic(program, inner)

    @numba.njit(**JIT, inline="always")
    def block(outer, i, inner, j, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        mask = matches(outer, i, inner, j)
        while mask != np.uint64(0):
            out_outer[count] = i
            out_inner[count] = j + lowest_bit(mask)
            count += 1
            mask &= mask - np.uint64(1)
        return count

    @numba.njit(**JIT, inline="always")
    def rest(outer, i, inner, start, stop, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        for j in range(start, stop):
            if holds(outer, i, inner, j):
                out_outer[count] = i
                out_inner[count] = j
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


@once
def scan_kernel(program: Program, inner: int) -> Any:
    """Return nested loops over tiles and blocks of basic windows.

    `kernel(outer, outer_rows, table, rows, state, ends, out_outer, out_inner) -> count`. Window `w` has
    `rows[w]` tuples at the addresses `table[w]`. `ends[w]` is set to the number of pairs of windows 0..w when
    window `w` is done. Done when `state[0] >= len(rows)`. The buffers must hold at least `TILE` pairs.
    """
    search = tile_search(program, inner)
    row_of = row_intrinsic(address_words(len(program.columns[inner])))

    @compile_loop(**JIT)
    def scan(outer, outer_rows, table, rows, state, ends, out_outer, out_inner):  # type: ignore[no-untyped-def]
        count = 0
        room = out_outer.shape[0] - TILE
        w, tile, i = state[0], state[1], state[2]
        while w < rows.shape[0]:
            inner, inner_rows = row_of(table, w), rows[w]
            while tile < inner_rows:
                stop = min(tile + PASS, inner_rows)
                while i < outer_rows:
                    if count > room:
                        state[0], state[1], state[2] = w, tile, i
                        return count
                    count = search(outer, i, inner, tile, stop, out_outer, out_inner, count)
                    i += 1
                tile, i = stop, 0
            ends[w] = count
            w, tile = w + 1, 0
        state[0], state[1], state[2] = w, 0, 0
        return count

    return scan
