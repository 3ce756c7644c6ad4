"""The driver: takes the arrivals, gives them to both ends of the line, pushes the last ones through."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.stream import Signature
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import stream_in
from handshake.engines.circuit.join.arrivals import HAS_LEFT, HAS_RIGHT, arrivals_row
from handshake.engines.circuit.join.buffer import later
from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.core import STEP_BITS
from handshake.engines.circuit.join.design import Design


class Phase(Enum, shape=4):  # type: ignore[call-arg]  # Amaranth has no types
    """The phase of the input: open, pushed through by empty tuples, at its end, or waiting for results.

    A bit for each, so that one of them is asked for by looking at one register.
    """

    OPEN = 1
    FLUSH = 2
    END = 4
    WAIT = 8


class Driver(Block):
    """The part of a driver that does not depend on admission.

    Ports: `arrivals`; `over`: all results of this input have left, so the next one may come.
    """

    def __init__(self, condition: PairGates, design: Design, ports: dict[str, Any], extra: Any) -> None:
        self.condition, self.design = condition, design
        self.longest = max(design.left, design.right)
        streams = {"arrivals": stream_in(arrivals_row(condition)), "over": In(1)}
        super().__init__({**streams, **ports}, (condition.key, self.longest, extra))

    def _common(self, m: Module) -> None:
        self.phase = Signal(Phase, init=Phase.OPEN)
        self.opens, self.flushes, self.ends, self.waits = self.phase.as_value()
        self.left = Signal(range(self.longest), name="flushes_left", init=self.longest - 1)
        self.last = Signal(name="flushes_last", init=self.longest == 1)
        """Whether none are left; a register, since there are many bits to look at."""
        m.d.sync += self.last.eq(self.left == 0)  # there are two cycles or more from one flush to the next
        with m.If(~self.flushes):
            m.d.sync += [self.left.eq(self.longest - 1), self.last.eq(self.longest == 1)]

    @property
    def _tuples(self) -> tuple[Value, Value]:
        """The two tuples of a beat, each with its valid flag."""
        whole, width = self.arrivals.payload.as_value(), self.condition.left.bits
        return Cat(Const(1, 1), whole[2 : 2 + width]), Cat(Const(1, 1), whole[2 + width :])

    def _shifts(self) -> tuple[Value, Value]:
        payload = self.arrivals.payload
        return payload[HAS_LEFT] & self.arrivals.valid, payload[HAS_RIGHT] & self.arrivals.valid

    def _close(self, m: Module) -> None:
        with m.If(self.arrivals.eos):
            m.d.sync += self.phase.eq(Phase.FLUSH)

    def _count_flush(self, m: Module) -> None:
        m.d.sync += self.left.eq(self.left - 1)
        with m.If(self.last):
            m.d.sync += self.phase.eq(Phase.END)

    def _wait(self, m: Module, over: Value) -> None:
        with m.If(over):
            m.d.sync += self.phase.eq(Phase.OPEN)


class LocalDriver(Driver):
    """Gives steps and R tuples to the first core, S tuples towards the last; holds input back meanwhile.

    Ports: `r`, towards the first core; `pushes` and `pushed`, to the queue at the other end of the line, and
    `room`, by which that asks for more.
    """

    def __init__(self, condition: PairGates, design: Design) -> None:
        r, s = condition.left.bits + 1 + STEP_BITS, condition.right.bits + 1
        ports = {"r": Out(Signature(r)), "pushes": Out(1), "pushed": Out(s), "room": In(1)}
        super().__init__(condition, design, ports, ())

    def build(self) -> Module:
        m = Module()
        self._common(m)
        self.has, self.ready = Signal(name="has_step"), Signal(name="is_open", init=1)
        self.issues = Signal(name="issues")
        self._admit(m)
        self._give_steps(m)
        self._give_tuples(m)
        with m.If(self.ready):
            self._close(m)
        with m.If(self.issues & self.flushes):
            self._count_flush(m)
        with m.If(self.issues & self.ends):
            m.d.sync += self.phase.eq(Phase.WAIT)
        with m.If(self.waits):
            self._wait(m, later(m, self.over, "was_over"))
        return m

    def _admit(self, m: Module) -> None:
        """Decide, a cycle ahead and by registers, when to take a beat or to issue an empty step."""
        m.d.comb += self.arrivals.ready.eq(self.ready)
        m.d.sync += [
            self.issues.eq(~self.has & ~self.ready & ~self.issues & self.room),
            self.ready.eq(
                (self.ready & ~(self.arrivals.valid | self.arrivals.eos)) | (self.issues & self.opens)
            ),
        ]

    def _give_steps(self, m: Module) -> None:
        """Give steps and R tuples to the first core; `has` says whether the registers count."""
        shift_r, shift_s = self._shifts()
        token = Signal(STEP_BITS + 1, name="token", reset_less=True)
        held = Signal(self.condition.left.bits, name="held", reset_less=True)
        idle = Signal(name="idle", init=1)  # not `has`, for the enables of a whole tuple
        given = Cat(shift_r, shift_s, Const(0, 1), Const(1, 1))
        empty = Cat(self.flushes, self.flushes, self.ends, Const(0, 1))
        with m.If(idle):
            m.d.sync += [held.eq(self._tuples[0][1:]), token.eq(Mux(self.ready, given, empty))]
        # Late by a cycle without effect: steps are issued two cycles after a phase begins, or later.
        empties = later(m, self.flushes | self.ends, "empties")
        begins = (self.ready & (shift_r | shift_s)) | (self.issues & empties)
        has = (self.has & ~self.r.ready) | begins
        m.d.sync += [self.has.eq(has), idle.eq(~has)]
        m.d.comb += [self.r.valid.eq(self.has), self.r.payload.eq(Cat(token, held))]

    def _give_tuples(self, m: Module) -> None:
        """Give S tuples to the last core, and empty ones while the input is pushed through."""
        shift_s = self._shifts()[1]
        pushes = (self.ready & shift_s) | (self.issues & self.flushes)
        pushed = Cat(self.ready, self._tuples[1][1:])
        m.d.comb += [
            self.pushes.eq(later(m, pushes, "gives_s")),
            self.pushed.eq(later(m, pushed, "given_s", reset_less=True)),
        ]
