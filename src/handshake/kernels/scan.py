"""The scan: every outer tuple against every tuple of some inner runs, in one call.

A window is many basic windows, and a call from Python costs as much as a hundred thousand comparisons. So the
kernel is given a table with the addresses of all runs that it is to search, one row each.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.columns import address_words
from handshake.kernels.compile import (
    BLOCK,
    JIT,
    PASS,
    TILE,
    Program,
    block_intrinsic,
    lowest_bit,
    once,
    pair_intrinsic,
)
from handshake.kernels.ondisk import compiled

__all__ = ["pair_notes", "row_intrinsic", "scan_kernel", "tile_search"]


def row_intrinsic(width: int, skip: int = 0) -> Any:
    """Row `at` of a table as the tuple of addresses that predicates load from, after `skip` other words."""

    @intrinsic
    def row(typing_context, table, at):  # type: ignore[no-untyped-def]
        answer = types.UniTuple(types.int64, width)  # type: ignore[attr-defined]

        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            array = context.make_array(signature.args[0])(context, builder, args[0])
            start = builder.mul(args[1], context.get_constant(types.intp, skip + width))
            places = [
                builder.gep(array.data, [builder.add(start, context.get_constant(types.intp, skip + k))])
                for k in range(width)
            ]
            return context.make_tuple(builder, answer, [builder.load(place) for place in places])

        return answer(table, types.intp), code

    return row


def pair_notes(program: Program, inner: int) -> tuple[Any, Any]:
    """`block(outer, i, inner, j, out_outer, out_inner, count)` and `rest(outer, i, inner, start, stop,
    out_outer, out_inner, count)`: the pairs of one outer tuple with a block, and with tuples that fill none.

    Both append those that hold to the `count` that are there already, and give their number.
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
    """One outer tuple against a tile of up to `PASS` tuples, which begins with a block.

    `search(outer, i, inner, tile, stop, out_outer, out_inner, count)` appends the pairs that hold to the
    `count` that are there already, and gives their number.
    """
    block, rest = pair_notes(program, inner)

    @numba.njit(**JIT, inline="always")
    def search(outer, i, inner, tile, stop, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        whole = stop & ~(BLOCK - 1)
        for j in range(tile, whole, BLOCK):
            count = block(outer, i, inner, j, out_outer, out_inner, count)
        return rest(outer, i, inner, whole, stop, out_outer, out_inner, count)

    return search


@once
def scan_kernel(program: Program, inner: int) -> Any:
    """Nested loops, a block of a run at a time, tile by tile.

    `kernel(outer, outer_rows, table, rows, state, ends, out_outer, out_inner) -> count`; run `w` has
    `rows[w]` tuples at the addresses `table[w]`. `ends[w]` of the pairs that it gives are of runs up to `w`,
    where it has ended one. Done when `state[0] >= len(rows)`. The buffers must hold at least `TILE` pairs.
    """
    search = tile_search(program, inner)
    row_of = row_intrinsic(address_words(len(program.columns[inner])))

    @compiled(**JIT)
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
