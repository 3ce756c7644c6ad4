"""One scan shared by threads: each takes chunks of basic windows until none is left.

A few tuples are joined with a whole window in half a millisecond, which is too short for coordination in
Python. So threads take chunks by atomic counters, one per join core: first those of their own core, then
those of others. A slow thread therefore never delays the scan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.codes import CODES, FACTS, PASSED, Band, searcher
from handshake.kernels.columns import address_words
from handshake.kernels.compile import FEW_PASS, TILE, Program, once
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, QUICK, row_intrinsic

STATE = 8
"""Words of a thread's state: chunk (-1 for none), tile, outer tuple, pairs, groups of pairs, part of the job,
one for look-ups, and blocks whose codes have passed (`kernels.codes`)."""
CHUNK, COUNT, GROUPS, PART = 0, 3, 4, 5
INDEXED, INSIDE, HEADROOM, NULLABLE = 8, 4, 2, 1
CELLS = 7
"""Place of the index in a row of the table: the number of its cells (0 for no index), the address of their
offsets, then for bands the addresses of the first key's extremes and of the fences, or for hashes the
shift."""
_LINE = 8
"""Words per cache line. Each counter has its own, so that cores do not compete for one."""
_PAIRS = 1 << 18
"""Pairs per chunk: some 25 µs, so that the wait for the last one is short."""


def new_counters(homes: int) -> np.ndarray[Any, Any]:
    """Return a counter of taken chunks per core, and one of the threads at work."""
    return np.zeros((homes + 1) * _LINE, np.int64)


def _place(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(array.data, [args[1]])


@intrinsic
def _add(typing_context, counters, at, value):  # type: ignore[no-untyped-def]
    """Add to a counter and return its previous value."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.atomic_rmw("add", _place(context, builder, signature, args), args[2], "seq_cst")

    return types.int64(counters, types.intp, types.int64), code


@intrinsic
def _look(typing_context, counters, at):  # type: ignore[no-untyped-def]
    """Read the current value of a counter."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.load_atomic(_place(context, builder, signature, args), "seq_cst", 8)

    return types.int64(counters, types.intp), code


@compile_loop(**JIT)
def _take(k, bounds, counters):  # type: ignore[no-untyped-def]
    """Take a free chunk of core `k`, or else of the next core that has one; return -1 if none is left."""
    homes = bounds.shape[0] - 1
    for step in range(homes):
        home = (k + step) % homes
        size = bounds[home + 1] - bounds[home]
        if _look(counters, home * _LINE) < size:
            taken = _add(counters, home * _LINE, 1)
            if taken < size:
                return bounds[home] + taken
    return -1


@compile_loop(**QUICK)
def all_have_left(counters, patience):  # type: ignore[no-untyped-def]
    """Return whether no thread is at work any more, after at most `patience` reads."""
    at_work = counters.shape[0] - _LINE
    while patience > 0 and _look(counters, at_work) != 0:
        patience -= 1
    return patience > 0


@compile_loop(**QUICK)
def sort_out(table, homes, old, limits, headroom, nullable, indexed, kinds, counts):  # type: ignore[no-untyped-def]
    """Find the kind of predicate per basic window, -1 if no pair can be in the windows.

    A kind has a bit each for `INSIDE` (every pair is in the windows), `HEADROOM`, `NULLABLE` and, if wanted,
    `INDEXED`. A row of the table has the number of tuples, the extremes of both stamps, headroom, nullable,
    the index, and addresses. The stamp at column `old` must be at least `limits[0]`, and no tuple is too old
    from `limits[1]` on. The other stamp must be at most `limits[2]`, and no tuple is too new up to
    `limits[3]`. Counts the tuples to scan and the skipped windows by home. Returns a mask of the kinds found.
    """
    present = 0
    new = 4 - old
    for w in range(table.shape[0]):
        if table[w, old + 1] < limits[0] or table[w, new] > limits[2]:
            kinds[w] = -1
            counts[1, homes[w]] += 1
            continue
        inside = table[w, old] >= limits[1] and table[w, new + 1] <= limits[3]
        kind = INSIDE if inside else 0
        kind |= HEADROOM if headroom and table[w, 5] else 0
        kind |= NULLABLE if nullable or table[w, 6] else 0
        if indexed and table[w, CELLS]:
            kind |= INDEXED
        else:
            counts[0, homes[w]] += table[w, 0]
        kinds[w] = kind
        present |= 1 << kind
    return present


@compile_loop(**QUICK)
def cut_chunks(table, homes, kinds, present, outer_rows, chunks, bounds):  # type: ignore[no-untyped-def]
    """Cut the basic windows to scan into chunks by kind and home; return the number of chunks.

    Chunk `c` is the tuples `chunks[c, 1]` to `chunks[c, 2]` of basic window `chunks[c, 0]`. The chunks of
    kind `k` and home `h` are `bounds[k, h]` up to `bounds[k, h + 1]`.
    """
    size = max(_PAIRS // max(outer_rows, 1) // TILE, 1) * TILE
    count = 0
    for kind in range(INDEXED):
        if not present >> kind & 1:
            continue
        home = 0
        bounds[kind, 0] = count
        for w in range(table.shape[0]):
            if kinds[w] != kind:
                continue
            while home < homes[w]:
                home += 1
                bounds[kind, home] = count
            for start in range(0, table[w, 0], size):
                chunks[count, 0], chunks[count, 1] = w, start
                chunks[count, 2] = min(start + size, table[w, 0])
                count += 1
        bounds[kind, home + 1 :] = count
    return count


@once
def shared_scan_kernel(program: Program, inner: int, bands: tuple[Band, ...] = ()) -> Any:
    """Return nested loops over the chunks that this thread takes; with `bands`, codes are compared first.

    `kernel(k, part, outer, rows, base, table, chunks, bounds, counters, state, out_outer, out_inner, windows,
    ends)` appends pairs at the place in `state`. The pairs from `ends[g - 1]` up to `ends[g]` are of basic
    window `windows[g]`, row `windows[g] - base` of the table. The buffers must hold more than `TILE` pairs.
    If they are full, `state[CHUNK]` is not -1: call again with a state that is empty except for that place.
    """
    search = searcher(program, inner, bands)
    row_of = row_intrinsic(address_words(len(program.columns[inner])), FACTS)

    @compile_loop(**JIT)
    def scan(  # type: ignore[no-untyped-def]
        k,
        part,
        outer,
        rows,
        base,
        table,
        chunks,
        bounds,
        counters,
        state,
        out_outer,
        out_inner,
        windows,
        ends,
    ):
        at_work = counters.shape[0] - _LINE
        _add(counters, at_work, 1)
        room = out_outer.shape[0] - TILE
        passed = state.ctypes.data + 8 * PASSED
        to_outer, to_inner = out_outer.ctypes.data, out_inner.ctypes.data
        chunk, tile, i, count, groups = state[0], state[1], state[2], state[3], state[4]
        before = ends[groups - 1] if groups else 0
        while True:
            if chunk < 0:
                chunk = _take(k, bounds, counters)
                if chunk < 0:
                    break
                tile, i = chunks[chunk, 1], 0
            w, last = chunks[chunk, 0], chunks[chunk, 2]
            inner, row = row_of(table, w), table.ctypes.data + w * table.strides[0]
            full = False
            size = FEW_PASS if table[w, CODES] == 0 else TILE  # more codes fit the first-level cache
            while tile < last and not full:
                stop = min(tile + size, last)
                while i < rows:
                    if count > room:
                        full = True
                        break
                    count = search(outer, i, inner, row, tile, stop, passed, to_outer, to_inner, count)
                    i += 1
                if not full:
                    tile, i = stop, 0
            if count > before:
                if groups == 0 or windows[groups - 1] != base + w:
                    windows[groups] = base + w
                    groups += 1
                ends[groups - 1] = before = count
            if full:
                break
            chunk = -1
        state[0], state[1], state[2], state[3], state[4], state[5] = chunk, tile, i, count, groups, part
        _add(counters, at_work, -1)

    return scan
