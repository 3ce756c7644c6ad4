"""The scan: every outer tuple against every tuple of some basic windows, in one call.

A call from Python costs as much as a hundred thousand comparisons, and a window is many basic windows. So the
kernel gets a table with the addresses of all basic windows to search, one row each.
"""

from __future__ import annotations

from typing import Any

from handshake.kernels.codes import CODES, FACTS, PASSED, Band, searcher
from handshake.kernels.columns import address_words
from handshake.kernels.compile import PASS, TILE, Program, once
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, row_intrinsic

STATE = 8
"""Words of the state: basic window, tile, outer tuple, and at `PASSED` blocks whose codes have passed."""


@once
def scan_kernel(program: Program, inner: int, bands: tuple[Band, ...] = ()) -> Any:
    """Return nested loops over tiles and blocks of basic windows; with `bands`, codes are compared first.

    `kernel(outer, outer_rows, table, state, ends, out_outer, out_inner) -> count`. Row `w` of the table is
    the `scan_row` of a basic window. `ends[w]` is set to the number of pairs of windows 0..w when window `w`
    is done. Done when `state[0] >= len(table)`. The buffers must hold at least `TILE` pairs.
    """
    search = searcher(program, inner, bands)
    row_of = row_intrinsic(address_words(len(program.columns[inner])), FACTS)

    @compile_loop(**JIT)
    def scan(outer, outer_rows, table, state, ends, out_outer, out_inner):  # type: ignore[no-untyped-def]
        count = 0
        room = out_outer.shape[0] - TILE
        passed = state.ctypes.data + 8 * PASSED
        to_outer, to_inner = out_outer.ctypes.data, out_inner.ctypes.data
        w, tile, i = state[0], state[1], state[2]
        while w < table.shape[0]:
            inner, inner_rows, row = row_of(table, w), table[w, 0], table.ctypes.data + w * table.strides[0]
            size = PASS if table[w, CODES] == 0 else TILE  # more codes fit the first-level cache
            while tile < inner_rows:
                stop = min(tile + size, inner_rows)
                while i < outer_rows:
                    if count > room:
                        state[0], state[1], state[2] = w, tile, i
                        return count
                    count = search(outer, i, inner, row, tile, stop, passed, to_outer, to_inner, count)
                    i += 1
                tile, i = stop, 0
            ends[w] = count
            w, tile = w + 1, 0
        state[0], state[1], state[2] = w, 0, 0
        return count

    return scan
