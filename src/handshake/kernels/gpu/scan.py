"""The scan of a window in device memory by a batch of probes, for any predicate.

A thread keeps some tuples of the window in registers, and all probes pass by. A loose filter is accumulated
over several pairs; where it lets one through, the warp tests those pairs exactly, one for each lane, and
appends what matches to the output with one atomic addition. The number of matches is counted even if the
output is full, so the host can make room and repeat. A reduction adds up matches instead (`reduce.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from handshake.kernels.gpu.filters import rejects
from handshake.kernels.gpu.frame import Frame, Scan, columns_of, note_looked
from handshake.kernels.gpu.reduce import Accumulator, arguments_of
from handshake.kernels.gpu.target import THREADS, Target, call
from handshake.kernels.lower import I1, I16, I32, I64, Lowered, truth
from handshake.plan.expr import Column

PROBES = 1024
"""Probes that a block lets pass."""
SCALARS = ("start", "probes", "base", "first", "end", "out", "count", "room",
           "words", "codes", "others", "most", "one")  # fmt: skip
"""The arguments of a scan behind the addresses of columns.

Probe 0 is in slot `start`; blocks begin in slot `base`; slots from `first` to `end` count. Then come the
addresses of the output and of its two counters (pairs, and warps that looked again), and the pairs that fit;
for codes, the addresses of the probes' words and of both columns, and the largest distance; and the number 1.
"""
_PAIR, _QUAD = ir.VectorType(I16, 2), ir.VectorType(I32, 4)


def scan_module(scan: Scan, target: Target) -> ir.Module:
    """Return the module of a scan: a kernel `scan`."""
    assert scan.tuples * scan.at_once % target.lanes == 0, "a warp looks at whole turns"
    module = ir.Module("scan")
    frame = Frame(scan, target, module, (1 - scan.inner, scan.inner), (*SCALARS, *arguments_of(scan)))
    kernel, b, s = frame.kernel, frame.builder, frame.scalars
    tile = THREADS * scan.tuples
    base = b.add(s["base"], b.mul(b.zext(kernel.block_x, I64), I64(tile)))
    probes, chunk = b.trunc(s["probes"], I32), b.mul(kernel.block_y, I32(PROBES))
    stop = b.add(chunk, I32(PROBES))
    stop = b.select(b.icmp_signed("<", probes, stop), probes, stop)
    filter_probe = (_codes if scan.coded else _signs)(frame, base)
    accumulator = Accumulator(frame, scan.reduction) if scan.reduction else None
    looked = frame.kernel.variable(I32)
    b.store(I32(0), looked)
    with frame.kernel.loop(chunk, stop, scan.at_once) as probe:
        lanes = target.ballot(b, filter_probe(probe))
        with b.if_then(b.icmp_unsigned("!=", lanes, I32(0)), likely=False):
            b.store(b.add(b.load(looked), I32(1)), looked)
            _look_again(frame, base, probe, lanes, accumulator)
    if accumulator is not None:
        accumulator.flush()
    lane = b.and_(kernel.thread, I32(target.lanes - 1))
    note_looked(frame, lane, b.load(looked))
    b.branch(kernel.end)
    return module


Filtered = Callable[[ir.Value], ir.Value]
"""From the number of a probe: whether a pair of it, or of the next ones, passes the filter."""


def _slot(frame: Frame, base: ir.Value, thread: ir.Value, k: ir.Value | int) -> ir.Value:
    """Return the slot of the tuple `k` of a thread. With codes, two neighbours share a register."""
    b = frame.builder
    k = I32(k) if isinstance(k, int) else k
    if frame.scan.coded:
        word = b.add(b.mul(b.lshr(k, I32(1)), I32(THREADS)), thread)
        offset = b.or_(b.shl(word, I32(1)), b.and_(k, I32(1)))
    else:
        offset = b.add(b.mul(k, I32(THREADS)), thread)
    return b.add(base, b.zext(offset, I64))


def _signs(frame: Frame, base: ir.Value) -> Filtered:
    """Return the filter by the signs of differences, with tuples of the window in registers."""
    scan, b, thread = frame.scan, frame.builder, frame.kernel.thread
    condition, inner = scan.filter, scan.inner
    held = [
        {c: frame.value(c, _slot(frame, base, thread, k)) for c in columns_of(condition, inner)}
        for k in range(scan.tuples)
    ]

    def filter_probe(probe: ir.Value) -> ir.Value:
        word: ir.Value = ir.Constant(I32, -1)
        for u in range(scan.at_once):
            place = b.add(frame.scalars["start"], b.zext(b.add(probe, I32(u)), I64))
            outer = {c: frame.value(c, place) for c in columns_of(condition, 1 - inner)}
            for mine in held:
                env = frame.env(_finder(frame, {**outer, **mine}))
                word = b.and_(word, rejects(condition, env, frame.target, scan.all_small))
        return b.icmp_signed(">=", word, I32(0))

    return filter_probe


def _finder(
    frame: Frame, values: dict[Column, tuple[ir.Value, ir.Value | None]]
) -> Callable[[Column], Lowered]:
    return lambda column: frame.lower(column, *values[column])


def _codes(frame: Frame, base: ir.Value) -> Filtered:
    """Return the filter by codes of 16 bits, two tuples to a register.

    A tuple is near if its code is at most `most` above the probe's in both columns. The second sum is one of
    32 bits, on the multipliers' pipe; its carry may add 1, which `most` allows for.
    """
    scan, b, s = frame.scan, frame.builder, frame.scalars
    first = b.add(b.lshr(base, I64(1)), b.zext(frame.kernel.thread, I64))
    held = []
    for k in range(scan.tuples // 2):
        at = b.add(first, I64(k * THREADS))
        held.append([frame.load(I32, s[name], at, 4) for name in ("codes", "others")])
    one, most = b.trunc(s["one"], I32), b.trunc(s["most"], I32)

    def pick(name: str, x: ir.Value, y: ir.Value) -> ir.Value:
        return call(b, f"{name}.v2i16", _PAIR, x, y)

    def filter_probe(probe: ir.Value) -> ir.Value:
        nearest: list[ir.Value] = [ir.Constant(_PAIR, [-1, -1])] * 2
        quads = [
            frame.load(_QUAD, s["words"], b.add(b.lshr(b.zext(probe, I64), I64(1)), I64(q)), 16)
            for q in range(scan.at_once // 2)
        ]
        for u in range(scan.at_once):
            x, y = (b.extract_element(quads[u // 2], I32(2 * (u % 2) + part)) for part in (0, 1))
            for k, (code, other) in enumerate(held):
                one_way = b.add(b.bitcast(code, _PAIR), b.bitcast(x, _PAIR))
                other_way = b.bitcast(b.add(b.mul(other, one), y), _PAIR)
                farther = pick("llvm.umax", one_way, other_way)
                nearest[k // 2 % 2] = pick("llvm.umin", nearest[k // 2 % 2], farther)
        word = b.bitcast(pick("llvm.umin", *nearest), I32)
        low, high = b.and_(word, I32(0xFFFF)), b.lshr(word, I32(16))
        return b.or_(b.icmp_unsigned("<=", low, most), b.icmp_unsigned("<=", high, most))

    return filter_probe


def _look_again(
    frame: Frame, base: ir.Value, probe: ir.Value, lanes: ir.Value, accumulator: Accumulator | None
) -> None:
    """Test all pairs of the lanes exactly, and append or accumulate what matches."""
    b, target, scan = frame.builder, frame.target, frame.scan
    thread = frame.kernel.thread
    lane = b.and_(thread, I32(target.lanes - 1))
    warp = b.sub(thread, lane)
    waiting = frame.kernel.variable(I32)
    b.store(lanes, waiting)
    head, body, after = (b.append_basic_block(name) for name in ("lanes", "lane", "looked"))
    b.branch(head)
    b.position_at_end(head)
    left = b.load(waiting)
    b.cbranch(b.icmp_unsigned("!=", left, I32(0)), body, after)
    b.position_at_end(body)
    its = call(b, "llvm.cttz.i32", I32, left, I1(1))
    b.store(b.and_(left, b.sub(left, I32(1))), waiting)
    with frame.kernel.loop(I32(0), I32(scan.tuples * scan.at_once), target.lanes) as turn:
        number = b.add(turn, lane)
        k, u = b.urem(number, I32(scan.tuples)), b.udiv(number, I32(scan.tuples))
        slot, mine = _slot(frame, base, b.add(warp, its), k), b.add(probe, u)
        places = {scan.inner: slot, 1 - scan.inner: b.add(frame.scalars["start"], b.zext(mine, I64))}
        matches = _matches(frame, mine, slot, places)
        if accumulator is None:
            _append(frame, lane, mine, slot, matches)
        else:
            accumulator.add_pair(matches, places)
    b.branch(head)
    b.position_at_end(after)


def _matches(frame: Frame, probe: ir.Value, slot: ir.Value, places: dict[int, ir.Value]) -> ir.Value:
    """Return whether a pair counts and the exact predicate is true of it."""
    b, s = frame.builder, frame.scalars
    counts = b.icmp_signed("<", b.zext(probe, I64), s["probes"])
    counts = b.and_(counts, b.icmp_signed(">=", slot, s["first"]))
    counts = b.and_(counts, b.icmp_signed("<", slot, s["end"]))
    return b.and_(counts, truth(frame.scan.program.expr, frame.pair(places)).yes)


def _append(frame: Frame, lane: ir.Value, probe: ir.Value, slot: ir.Value, holds: ir.Value) -> None:
    """Append the pairs of a warp: the slot in the upper half of a word, the probe in the lower."""
    b, target, s = frame.builder, frame.target, frame.scalars
    found = target.ballot(b, holds)
    with b.if_then(b.icmp_unsigned("!=", found, I32(0)), likely=False):
        place = frame.kernel.variable(I64)
        b.store(I64(0), place)
        with b.if_then(b.icmp_signed("==", lane, I32(0))):
            total = b.zext(call(b, "llvm.ctpop.i32", I32, found), I64)
            b.store(b.atomic_rmw("add", target.pointer(b, s["count"], I64), total, "monotonic"), place)
        start = target.broadcast(b, b.load(place), I32(0))
        before = b.and_(found, b.sub(b.shl(I32(1), lane), I32(1)))
        at = b.add(start, b.zext(call(b, "llvm.ctpop.i32", I32, before), I64))
        with b.if_then(b.and_(holds, b.icmp_unsigned("<", at, s["room"]))):
            pair = b.or_(b.shl(slot, I64(32)), b.zext(probe, I64))
            b.store(pair, b.gep(target.pointer(b, s["out"], I64), [at]))
