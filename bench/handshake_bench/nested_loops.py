"""The baseline of the FPGA paper: nested loops over whole windows, two matching processes in parallel.

After the paper's description of Terada and others: a tuple is compared with the opposite window one by one;
that of R and that of S go on at the same time, and input waits while the buffer of the output is full.
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib.enum import Enum

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import stream_in, stream_out
from handshake.engines.circuit.join.arrivals import HAS_LEFT, HAS_RIGHT, arrivals_row
from handshake.engines.circuit.join.buffer import Buffer
from handshake.engines.circuit.join.condition import Delay, PairGates
from handshake.engines.circuit.join.merger import GrantingMerger, leave
from handshake.engines.circuit.join.segment import WindowSegment

__all__ = ["NestedLoops"]


class NestedLoops(Block):
    """The join of windows of `left` and `right` tuples by two matching processes.

    Ports: `arrivals` and `results`, as of `HandshakeJoin`.
    """

    class State(Enum, shape=3):  # type: ignore[call-arg]  # Amaranth has no types
        """The state of both processes."""

        READY = 0
        INSERT_R = 1
        SCAN = 2
        INSERT_S = 3
        CLEAR = 4
        WAIT = 5

    def __init__(self, condition: PairGates, left: int, right: int, buffer: int = 8) -> None:
        self.condition, self.left, self.right, self.depth = condition, left, right, buffer
        ports = {"arrivals": stream_in(arrivals_row(condition)), "results": stream_out(condition.result)}
        super().__init__(ports, (condition.key, left, right, buffer))

    @property
    def step_cycles(self) -> int:
        """Cycles for a tuple of each stream, when nothing is held back."""
        return 3 + max(self.left, self.right)

    def build(self) -> Module:
        m = Module()
        self.r = WindowSegment(self.condition.left.bits + 1, self.left, "memory")
        self.s = WindowSegment(self.condition.right.bits + 1, self.right, "memory")
        self.r.build(m, "r_window")
        self.s.build(m, "s_window")
        self.new_r = Signal(self.condition.left.bits + 1, name="new_r")
        self.new_s = Signal(self.condition.right.bits + 1, name="new_s")
        self.state, self.has = Signal(self.State), Signal(2)
        self.count = Signal(range(max(self.left, self.right)))
        buffers = self._match(m)
        self.room = ~(buffers[0].at_least(self.depth - 1) | buffers[1].at_least(self.depth - 1))
        m.d.comb += [self.r.new.eq(self.new_r), self.s.new.eq(self.new_s)]
        over = self._merge(m, buffers)
        self._control(m, over)
        return m

    def _control(self, m: Module, over: Value) -> None:
        last = self.count == max(self.left, self.right) - 1
        with m.Switch(self.state):
            with m.Case(self.State.READY):
                self._load(m)
            with m.Case(self.State.INSERT_R):  # first, so that the new S tuple meets the new R tuple
                m.d.comb += [self.r.turn.eq(self.has[0]), self.r.insert.eq(self.has[0])]
                m.d.sync += self.state.eq(self.State.SCAN)
            with m.Case(self.State.SCAN), m.If(self.room):
                m.d.comb += [
                    self.s.turn.eq(self.count < self.right), self.r.turn.eq(self.count < self.left)
                ]  # fmt: skip
                self._count(m, last, self.State.INSERT_S)
            with m.Case(self.State.INSERT_S):
                m.d.comb += [self.s.turn.eq(self.has[1]), self.s.insert.eq(self.has[1])]
                m.d.sync += self.state.eq(self.State.READY)
            with m.Case(self.State.CLEAR):  # after the end as after power-up
                m.d.comb += [self.r.turn.eq(1), self.r.insert.eq(1), self.s.turn.eq(1), self.s.insert.eq(1)]
                self._count(m, last, self.State.WAIT)
            with m.Case(self.State.WAIT), m.If(over):
                m.d.sync += self.state.eq(self.State.READY)

    def _count(self, m: Module, last: Value, then: Any) -> None:
        m.d.sync += self.count.eq(self.count + 1)
        with m.If(last):
            m.d.sync += [self.count.eq(0), self.state.eq(then)]

    def _load(self, m: Module) -> None:
        payload, width = self.arrivals.payload, self.condition.left.bits
        whole = payload.as_value()
        m.d.comb += self.arrivals.ready.eq(1)
        m.d.sync += [
            self.has.eq(Cat(payload[HAS_LEFT], payload[HAS_RIGHT])),
            self.new_r.eq(Cat(Const(1, 1), whole[2 : 2 + width])),
            self.new_s.eq(Cat(Const(1, 1), whole[2 + width :])),
        ]
        with m.If(self.arrivals.valid):
            m.d.sync += self.state.eq(self.State.INSERT_R)
        with m.Elif(self.arrivals.eos):
            m.d.sync += [self.new_r.eq(0), self.new_s.eq(0), self.state.eq(self.State.CLEAR)]

    def _match(self, m: Module) -> list[Buffer]:
        """Build the two processes: new R tuple against the window of S, new S tuple against that of R."""
        scanning = (self.state == self.State.SCAN) & 1
        pairs = ((self.new_r, self.s.head, self.s.turn, 0), (self.r.head, self.new_s, self.r.turn, 1))
        buffers = []
        for left, right, turn, side in pairs:
            views = self.condition.left.layout(left[1:]), self.condition.right.layout(right[1:])
            buffer = Buffer(self.condition.result.bits, self.depth)
            buffer.build(m, f"ring{side}")
            found = self.condition.matches(Delay(m, 0), *views) & left[0] & right[0]
            m.d.comb += [
                buffer.data.eq(self.condition.carry(*views)),
                buffer.push.eq(found & turn & scanning & self.has[side]),
            ]
            buffers.append(buffer)
        return buffers

    def _merge(self, m: Module, buffers: list[Buffer]) -> Value:
        m.submodules.merger = merger = GrantingMerger(self.condition.result.bits, self.depth)
        for buffer, port in zip(buffers, (merger.a, merger.b), strict=True):
            m.d.comb += [
                port.valid.eq(buffer.valid), port.payload.eq(buffer.head),
                buffer.pop.eq(buffer.valid & port.ready),
                port.over.eq((self.state == self.State.WAIT) & ~buffer.valid),
            ]  # fmt: skip
        return leave(m, merger.o, self.results)
