"""The search of indexed basic windows in device memory: only rows in cells that a probe's bands reach.

A run is a basic window with its rows in the order of cells of a grid, and the place where each cell begins. A
warp takes one probe and one run. For each column of cells that the first band reaches, the cells of the
second band are one range of rows, which the lanes test exactly.
"""

from __future__ import annotations

from llvmlite import ir

from handshake.kernels.gpu.scan import SCALARS, Frame, Scan, append, matches, note_looked
from handshake.kernels.gpu.target import THREADS, Target
from handshake.kernels.lower import I32, I64

__all__ = ["RUN_WORDS", "look_up_module"]

RUN_WORDS = 5
"""Words of a run: the addresses of its cells' first places and of its rows, its first slot, the number of
cells in a column, and the number of its grid."""


def look_up_module(scan: Scan, target: Target) -> ir.Module:
    """Return the module of a search: a kernel `look_up`.

    Of the arguments of a scan, `base` is the address of the runs, and `words` that of four numbers for each
    grid and probe: the first and last cell by each band.
    """
    module = ir.Module("look_up")
    columns = sum(len(side) for side in scan.program.columns)
    kernel = target.kernel(module, "look_up", [I64] * (2 * columns + len(SCALARS)))
    frame = Frame(scan, target, kernel)
    b, s = kernel.builder, frame.scalars
    thread = b.add(b.mul(kernel.block_x, I32(THREADS)), kernel.thread)
    probe, lane = b.udiv(thread, I32(target.lanes)), b.and_(thread, I32(target.lanes - 1))
    probes = b.trunc(s["probes"], I32)
    work = b.append_basic_block("work")
    b.cbranch(b.icmp_signed("<", probe, probes), work, kernel.end)
    b.position_at_end(work)
    run = b.zext(kernel.block_y, I64)
    words = [
        frame.load(I64, s["base"], b.add(b.mul(run, I64(RUN_WORDS)), I64(k)), 8) for k in range(RUN_WORDS)
    ]
    offsets, order, slot, cells, grid = words
    own = b.mul(b.add(b.mul(grid, s["probes"]), b.zext(probe, I64)), I64(4))
    left, right, low, high = (frame.load(I32, s["words"], b.add(own, I64(k)), 4) for k in range(4))
    looked = frame.variable(I32)
    b.store(I32(0), looked)
    with frame.loop(left, b.add(right, I32(1)), 1) as column:
        first = b.mul(b.zext(column, I64), cells)
        start = frame.load(I32, offsets, b.add(first, b.zext(low, I64)), 4)
        stop = frame.load(I32, offsets, b.add(first, b.zext(b.add(high, I32(1)), I64)), 4)
        b.store(b.add(b.load(looked), b.sub(stop, start)), looked)
        with frame.loop(start, stop, target.lanes) as turn:
            place = b.add(turn, lane)
            inside = b.icmp_signed("<", place, stop)
            row = frame.load(I32, order, b.zext(b.select(inside, place, start), I64), 4)
            at = b.add(slot, b.zext(row, I64))
            append(frame, lane, probe, at, b.and_(inside, matches(frame, probe, at)))
    note_looked(frame, lane, b.load(looked))
    b.branch(kernel.end)
    return module
