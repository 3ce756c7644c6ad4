"""Two-in one-out mergers; a binary tree of them collects the results of all cores (FPGA paper, IV-B, C)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.join.buffer import Buffer, ResultSignature, lanes, later
from handshake.engines.circuit.join.links import Span


class Merger(Block):
    """Ports: `a` and `b` (results in), `o` (results out)."""

    def __init__(self, bits: int, depth: int, ports: dict[str, Any] | None = None) -> None:
        self.bits, self.depth = bits, depth
        link = ResultSignature(bits)
        super().__init__({"a": In(link), "b": In(link), "o": Out(link), **(ports or {})}, (bits, depth))

    def _buffer(self, m: Module, *, guarded: bool = False) -> Buffer:
        buffer = Buffer(self.bits, self.depth, guarded=guarded)
        buffer.build(m)
        buffer.offer(m, self.o)
        return buffer

    def _end(self, m: Module, buffer: Buffer, nothing_held: Value) -> None:
        both = Signal(name="both_over")
        m.d.sync += both.eq(self.a.over & self.b.over & nothing_held & ~buffer.valid)
        m.d.comb += self.o.over.eq(both)


class GrantingMerger(Merger):
    """One result per cycle: a register says, a cycle ahead, whose turn it is.

    A turn goes to the other input if that has something to give, and stays otherwise, so one busy input alone
    has all the cycles, and two share them. Offers go into registers first, since they may come from far, and
    the choice is made behind those. A place in the buffer is kept for each grant, whether it is used or not,
    which needs no look at the inputs.
    """

    latency = 2

    def build(self) -> Module:
        m = Module()
        buffer, turn = self._buffer(m), self._turn(m, "turn")
        grants = [Signal(name="grants_a", init=1), Signal(name="grants_b")]
        has, then, room = Signal(name="has"), Signal(name="turn_after"), Signal(name="room")
        granted = Signal(name="granted", init=1)  # either of them
        m.d.comb += [
            self.a.ready.eq(grants[0]), self.b.ready.eq(grants[1]), buffer.push.eq(has),
            then.eq(self._next_turn(turn)),
            room.eq(~_pick_by_count(granted, has, [buffer.at_least(buffer.places - i) for i in range(3)])),
        ]  # fmt: skip
        m.d.sync += [
            grants[0].eq(room & ~then), grants[1].eq(room & then), granted.eq(room),
            has.eq((grants[0] & self.a.valid) | (grants[1] & self.b.valid)),
        ]  # fmt: skip
        for lane in lanes(self.bits):
            self._choose(m, buffer, lane)
        self._end(m, buffer, ~has)
        return m

    def _turn(self, m: Module, name: str) -> Signal:
        """Return a register that says whose turn it is: 0 for a, 1 for b."""
        turn = Signal(name=name)
        m.d.sync += turn.eq(self._next_turn(turn))
        return turn

    def _next_turn(self, turn: Signal) -> Value:
        return Mux(turn, ~self.a.valid, self.b.valid)

    def _choose(self, m: Module, buffer: Buffer, lane: slice) -> None:
        """Choose a part of the payload from the input whose turn it was, by a register of its own."""
        held = [Signal(lane.stop - lane.start, name=f"held_{name}", reset_less=True) for name in "ab"]
        was_b = later(m, self._turn(m, f"turn{lane.start}"), f"was_b{lane.start}")
        m.d.sync += [held[0].eq(self.a.payload[lane]), held[1].eq(self.b.payload[lane])]
        m.d.comb += buffer.data[lane].eq(Mux(was_b, held[1], held[0]))


def _pick_by_count(a: Value, b: Value, values: Sequence[Value]) -> Value:
    """Return the value whose number is how many of the two are high."""
    return Mux(a & b, values[2], Mux(a | b, values[1], values[0]))


def merge(
    m: Module, sources: Sequence[Any], bits: int, depth: int, kind: Callable[[int, int], Merger],
    registers: Callable[[int], int],
) -> tuple[Any, list[Any]]:  # fmt: skip
    """Build a binary tree of mergers over `sources` (figure 7); return its root's port and the mergers.

    `registers` says how many there are on links to a merger, by the number of sources below it.
    """
    level, mergers = [(source, 1) for source in sources], list[Any]()
    while len(level) > 1:
        above = []
        for (left, few), (right, more) in zip(level[::2], level[1::2], strict=False):
            merger: Any = kind(bits, depth)
            number, below = len(mergers), few + more
            m.submodules[f"merger{number}"] = merger
            for side, source in (("a", left), ("b", right)):
                near = _link_to(m, f"span{number}{side}", source, bits, registers(below))
                _connect(m, near, getattr(merger, side))
            mergers.append(merger)
            above.append((merger.o, below))
        level = above + level[len(level) - len(level) % 2 :]
    return level[0][0], mergers


def _link_to(m: Module, name: str, source: Any, bits: int, registers: int) -> Any:
    """Return the port that a merger reads: a source, or the end of the link from it."""
    if not registers:
        return source
    m.submodules[name] = span = Span(bits, registers)
    _connect(m, source, span.i)
    return span.o


def _connect(m: Module, source: Any, sink: Any) -> None:
    m.d.comb += [
        sink.payload.eq(source.payload), sink.valid.eq(source.valid), sink.over.eq(source.over),
        source.ready.eq(sink.ready),
    ]  # fmt: skip


def leave(m: Module, root: Any, results: Any) -> Value:
    """Send results out, and one `eos` after the last; return a bit that is high when that is taken."""
    was, owed = Signal(name="was_over"), Signal(name="eos_owed")
    m.d.sync += was.eq(root.over)
    m.d.comb += [
        results.payload.as_value().eq(root.payload), results.valid.eq(root.valid), results.eos.eq(owed),
        root.ready.eq(results.ready),
    ]  # fmt: skip
    with m.If(root.over & ~was):
        m.d.sync += owed.eq(1)
    with m.Elif(results.ready):
        m.d.sync += owed.eq(0)
    return owed & results.ready
