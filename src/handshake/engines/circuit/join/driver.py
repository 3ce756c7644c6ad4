"""Drivers: they take the arrivals, give them to both ends of the line, and push the last ones through."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.stream import Signature
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import stream_in
from handshake.engines.circuit.join.arrivals import HAS_LEFT, HAS_RIGHT, arrivals_row
from handshake.engines.circuit.join.buffer import later
from handshake.engines.circuit.join.condition import Condition
from handshake.engines.circuit.join.core import State
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.local_core import STEP_BITS

__all__ = ["SIGNALS", "GlobalDriver", "LocalDriver", "Spread"]

SIGNALS = ("go", "shift_r", "shift_s", "end", "suspend")
"""What the controller of global admission tells the cores."""


class Phase(Enum, shape=4):  # type: ignore[call-arg]  # Amaranth has no types
    """The phase of the input: open, pushed through by empty tuples, at its end, or waiting for results.

    A bit for each, so that one of them is asked for by looking at one register.
    """

    OPEN = 1
    FLUSH = 2
    END = 4
    WAIT = 8


class _Driver(Block):
    """Ports: `arrivals`; `over`: all results of this input have left, so the next one may come."""

    def __init__(self, condition: Condition, design: Design, ports: dict[str, Any], extra: Any) -> None:
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
        return Cat(_bit(1), whole[2 : 2 + width]), Cat(_bit(1), whole[2 + width :])

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


def _bit(value: Any) -> Value:
    return value if isinstance(value, Value) else Value.cast(bool(value))


class LocalDriver(_Driver):
    """Gives steps and R tuples to the first core, S tuples towards the last; holds input back meanwhile.

    Ports: `r`, towards the first core; `pushes` and `pushed`, to the queue at the other end of the line, and
    `room`, by which that asks for more.
    """

    def __init__(self, condition: Condition, design: Design) -> None:
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
        given = Cat(shift_r, shift_s, _bit(0), _bit(1))
        empty = Cat(self.flushes, self.flushes, self.ends, _bit(0))
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


class Spread(Block):
    """Registers for the controller's signals to a group of cores. Ports: `i` and `o`.

    A part of its own: Yosys would make one register of equal ones in one module.
    """

    def __init__(self) -> None:
        super().__init__({"i": In(len(SIGNALS)), "o": Out(len(SIGNALS))}, ())

    def build(self) -> Module:
        m = Module()
        m.d.sync += self.o.eq(self.i)
        return m


class GlobalDriver(_Driver):
    """The controller of the papers: starts all cores together, and suspends them while a buffer is full.

    It goes through the same states as the cores, as many cycles ahead as its signals need to reach them.
    """

    def __init__(self, condition: Condition, design: Design) -> None:
        r, s = condition.left.bits + 1, condition.right.bits + 1
        outputs: dict[str, Any] = {name: Out(1) for name in SIGNALS}
        ports = {"suspended": In(1), **outputs, "r": Out(r), "s": Out(s), "discarded": Out(32)}
        self.scans = tuple(max(lengths) for lengths in zip(*design.segments, strict=True))
        super().__init__(condition, design, ports, (self.scans, design.overload))

    def build(self) -> Module:
        m = Module()
        self._common(m)
        self.state = Signal(State, init=State.READY)
        self.count = Signal(range(max(self.scans)))
        self.wants_s = Signal()
        m.d.comb += self.suspend.eq(self.suspended)
        with m.If(~self.suspended), m.Switch(self.state):
            with m.Case(State.READY):
                self._ready(m)
            with m.Case(State.SCAN_R):
                self._scan(m, self.scans[1], Mux(self.wants_s, State.SCAN_S, State.READY))
            with m.Case(State.SCAN_S):
                self._scan(m, self.scans[0], State.READY)
        if self.design.overload == "discard":
            self._discard(m)
        return m

    def _scan(self, m: Module, length: int, then: Any) -> None:
        m.d.sync += self.count.eq(self.count + 1)
        with m.If(self.count == length - 1):
            m.d.sync += [self.count.eq(0), self.state.eq(then)]

    def _ready(self, m: Module) -> None:
        with m.If(self.opens):
            self._open(m)
        with m.If(self.flushes):
            self._step(m, _bit(1), _bit(1))
            m.d.sync += [self.r.eq(0), self.s.eq(0)]
            self._count_flush(m)
        with m.If(self.ends):
            m.d.comb += [self.go.eq(1), self.end.eq(1)]
            m.d.sync += self.phase.eq(Phase.WAIT)
        with m.If(self.waits):
            self._wait(m, self.over)

    def _open(self, m: Module) -> None:
        (left, right), (shift_r, shift_s) = self._tuples, self._shifts()
        m.d.comb += self.arrivals.ready.eq(1)
        m.d.sync += [self.r.eq(left), self.s.eq(right)]
        self._step(m, shift_r, shift_s)
        self._close(m)

    def _step(self, m: Module, shift_r: Value, shift_s: Value) -> None:
        m.d.comb += [self.go.eq(shift_r | shift_s), self.shift_r.eq(shift_r), self.shift_s.eq(shift_s)]
        m.d.sync += self.wants_s.eq(shift_s)
        with m.If(shift_r):
            m.d.sync += self.state.eq(State.SCAN_R)
        with m.Elif(shift_s):
            m.d.sync += self.state.eq(State.SCAN_S)

    def _discard(self, m: Module) -> None:
        """Drop and count tuples that arrive while cores are suspended; the end is never dropped."""
        shift_r, shift_s = self._shifts()
        with m.If(self.suspended & self.opens & ~self.arrivals.eos):
            m.d.comb += self.arrivals.ready.eq(1)
            m.d.sync += self.discarded.eq(self.discarded + shift_r + shift_s)
