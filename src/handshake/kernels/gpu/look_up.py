"""The search of indexed basic windows in device memory: only rows in cells that a probe's bands reach.

A run is a basic window with its rows in the order of cells of a grid, and the place where each cell begins. A
warp takes one probe and looks at 32 runs at a time, one per lane. By a column of cells that the first band
reaches, the cells of the second band are one range of rows. The lanes then share the rows of all 32 ranges
evenly and test them exactly. Rows that match wait in memory that the warp shares. They go to the output
many at a time, as a segment: the probe, and the place of its rows. A reduction adds up pairs instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from llvmlite import ir

from handshake.kernels.gpu.frame import Frame, Scan, note_looked
from handshake.kernels.gpu.reduce import Accumulator, arguments_of
from handshake.kernels.gpu.target import THREADS, Target, call
from handshake.kernels.lower import I32, I64, truth

RUN_WORDS = 5
"""Words of a run before the addresses of its columns and of their validity: the addresses of its cells' first
places and of its row numbers, its first slot, the number of cells in a column, and the number of its grid."""
_OFFSETS, _ROWS, _SLOT, _CELLS, _GRID = range(RUN_WORDS)
STAGED = 512
"""Rows of a probe that wait for a common place in the output."""
_ARGUMENTS = ("start", "probes", "table", "runs", "share", "reach", "stride",
              "count", "rows", "room", "segments", "most")  # fmt: skip
"""The arguments behind the addresses of the probes' columns.

Probe 0 is in slot `start`. `table` is the address of the runs. A warp looks at `share` of them, by the number
of its block in the second direction. `reach` is the address of the first and last cells by each band: four
numbers for each grid and probe, `stride` numbers apart. Then come the addresses of three counters (rows, rows
that were looked at, segments) and of the rows, the rows that fit, the address of the segments, and how many
segments fit.
"""


def look_up_module(scan: Scan, target: Target) -> ir.Module:
    """Return the module of a search: a kernel `look_up`."""
    module = ir.Module("look_up")
    frame = Frame(scan, target, module, (1 - scan.inner,), (*_ARGUMENTS, *arguments_of(scan)))
    kernel, b, s, lanes = frame.kernel, frame.builder, frame.scalars, target.lanes
    accumulator = Accumulator(frame, scan.reduction) if scan.reduction else None
    stage = target.stage(kernel, STAGED) if accumulator is None else None
    thread = b.add(b.mul(kernel.block_x, I32(THREADS)), kernel.thread)
    probe, lane = b.udiv(thread, I32(lanes)), b.and_(thread, I32(lanes - 1))
    probes, runs, share = (b.trunc(s[name], I32) for name in ("probes", "runs", "share"))
    begin = b.mul(kernel.block_y, share)
    stop = b.add(begin, share)
    runs = b.select(b.icmp_signed("<", stop, runs), stop, runs)
    work = b.append_basic_block("work")
    b.cbranch(b.icmp_signed("<", probe, probes), work, kernel.end)
    b.position_at_end(work)
    looked, held = kernel.variable(I32), kernel.variable(I32)
    b.store(I32(0), looked)
    b.store(I32(0), held)
    with kernel.loop(begin, runs, lanes) as group:
        run = b.add(group, lane)
        exists = b.icmp_signed("<", run, runs)
        known = b.select(exists, run, group)
        offsets, cells, grid = (_word(frame, known, k) for k in (_OFFSETS, _CELLS, _GRID))
        own = b.add(b.mul(b.mul(grid, I64(4)), s["stride"]), b.zext(probe, I64))
        left, right, low, high = (
            frame.load(I32, s["reach"], b.add(own, b.mul(s["stride"], I64(k))), 4) for k in range(4)
        )
        wide = b.select(exists, b.add(b.sub(right, left), I32(1)), I32(0))
        with kernel.loop(I32(0), _maximum(frame, lane, wide), 1) as column:
            inside = b.icmp_signed("<", column, wide)
            first = b.mul(b.zext(b.add(left, b.select(inside, column, I32(0))), I64), cells)
            start = frame.load(I32, offsets, b.add(first, b.zext(low, I64)), 4)
            stop = frame.load(I32, offsets, b.add(first, b.zext(b.add(high, I32(1)), I64)), 4)
            length = b.select(inside, b.sub(stop, start), I32(0))
            end = _running_sum(frame, lane, length)
            total = target.shuffle(b, end, I32(lanes - 1))
            ahead = b.sub(start, b.sub(end, length))
            b.store(b.add(b.load(looked), total), looked)
            with kernel.loop(I32(0), total, lanes) as turn:
                number = b.add(turn, lane)
                counts = b.icmp_signed("<", number, total)
                owner = _owner(frame, end, number)
                place = b.select(counts, b.add(number, target.shuffle(b, ahead, owner)), I32(0))
                its = b.select(counts, b.add(group, owner), group)
                at = b.zext(place, I64)
                places = {scan.inner: at, 1 - scan.inner: b.add(s["start"], b.zext(probe, I64))}
                holds = b.and_(counts, _matches(frame, its, places))
                if accumulator is None:
                    _append(frame, lane, probe, stage, held, holds, its, at)
                else:
                    accumulator.add_pair(holds, places)
    if accumulator is None:
        with b.if_then(b.icmp_signed(">", b.load(held), I32(0))):
            _flush(frame, lane, probe, stage, held)
    else:
        accumulator.flush()
    note_looked(frame, lane, b.load(looked))
    b.branch(kernel.end)
    return module


def _word(frame: Frame, run: ir.Value, number: int) -> ir.Value:
    """Load a word of a run."""
    b = frame.builder
    words = RUN_WORDS + 2 * len(frame.scan.program.columns[frame.scan.inner])
    at = b.add(b.mul(b.zext(run, I64), I64(words)), I64(number))
    return frame.load(I64, frame.scalars["table"], at, 8)


def _matches(frame: Frame, run: ir.Value, places: Mapping[int, ir.Value]) -> ir.Value:
    """Return whether the exact predicate is true of a probe and of the row at a place of a run."""
    scan = frame.scan
    for k, column in enumerate(scan.program.columns[scan.inner]):
        first = RUN_WORDS + 2 * k
        frame.addresses[column] = (_word(frame, run, first), _word(frame, run, first + 1))
    return truth(scan.program.expr, frame.pair(places)).yes


def _steps(frame: Frame) -> list[int]:
    """Return 1, 2, 4, ... below the number of lanes."""
    return [1 << k for k in range(frame.target.lanes.bit_length() - 1)]


def _maximum(frame: Frame, lane: ir.Value, word: ir.Value) -> ir.Value:
    """Return the largest word of all lanes, in all lanes."""
    b = frame.builder
    for step in _steps(frame):
        other = frame.target.shuffle(b, word, b.xor(lane, I32(step)))
        word = b.select(b.icmp_signed(">", other, word), other, word)
    return word


def _running_sum(frame: Frame, lane: ir.Value, word: ir.Value) -> ir.Value:
    """Return the sum of the words of this lane and of those before it."""
    b = frame.builder
    for step in _steps(frame):
        other = frame.target.shuffle(b, word, b.sub(lane, I32(step)))
        word = b.add(word, b.select(b.icmp_signed(">=", lane, I32(step)), other, I32(0)))
    return word


def _owner(frame: Frame, end: ir.Value, number: ir.Value) -> ir.Value:
    """Return the first lane whose running sum is larger than a number; the last one if there is none."""
    b, owner = frame.builder, I32(0)
    for step in reversed(_steps(frame)):
        last = frame.target.shuffle(b, end, b.add(owner, I32(step - 1)))
        owner = b.select(b.icmp_signed("<=", last, number), b.add(owner, I32(step)), owner)
    return owner


def _append(
    frame: Frame, lane: ir.Value, probe: ir.Value, stage: ir.Value, held: ir.Value, holds: ir.Value,
    run: ir.Value, at: ir.Value,
) -> None:  # fmt: skip
    """Let the rows of the lanes that match wait for their place in the output."""
    b, target = frame.builder, frame.target
    row = frame.load(I32, _word(frame, run, _ROWS), at, 4)
    slot = b.add(b.trunc(_word(frame, run, _SLOT), I32), row)
    found = target.ballot(b, holds)
    with b.if_then(b.icmp_unsigned("!=", found, I32(0))):
        before = b.and_(found, b.sub(b.shl(I32(1), lane), I32(1)))
        free = b.add(b.load(held), call(b, "llvm.ctpop.i32", I32, before))
        with b.if_then(holds):
            b.store(slot, b.gep(stage, [free]))
        b.store(b.add(b.load(held), call(b, "llvm.ctpop.i32", I32, found)), held)
        with b.if_then(b.icmp_signed(">", b.load(held), I32(STAGED - target.lanes)), likely=False):
            _flush(frame, lane, probe, stage, held)


def _flush(frame: Frame, lane: ir.Value, probe: ir.Value, stage: ir.Value, held: ir.Value) -> None:
    """Write the waiting rows to the output as a segment, if they fit, and count them."""
    b, s, target = frame.builder, frame.scalars, frame.target
    rows, first = b.load(held), b.icmp_signed("==", lane, I32(0))
    place, number = frame.kernel.variable(I64), frame.kernel.variable(I64)
    target.sync(b)
    b.store(I64(0), place)
    b.store(I64(0), number)
    with b.if_then(first):
        counters = target.pointer(b, s["count"], I64)
        b.store(b.atomic_rmw("add", counters, b.zext(rows, I64), "monotonic"), place)
        b.store(b.atomic_rmw("add", b.gep(counters, [I64(2)]), I64(1), "monotonic"), number)
    start, segment = (target.broadcast(b, b.load(each), I32(0)) for each in (place, number))
    fits = b.icmp_unsigned("<=", b.add(start, b.zext(rows, I64)), s["room"])
    with b.if_then(b.and_(fits, b.icmp_unsigned("<", segment, s["most"]))):
        out = b.gep(target.pointer(b, s["rows"], I32), [start])
        with frame.kernel.loop(lane, rows, target.lanes) as at:
            b.store(b.load(b.gep(stage, [at])), b.gep(out, [at]))
        with b.if_then(first):
            words = b.gep(target.pointer(b, s["segments"], I64), [b.shl(segment, I64(1))])
            b.store(b.or_(b.shl(b.zext(rows, I64), I64(32)), b.zext(probe, I64)), words)
            b.store(start, b.gep(words, [I64(1)]))
    target.sync(b)
    b.store(I32(0), held)
