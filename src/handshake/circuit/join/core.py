"""Join core: the state machine of figure 4 of the FPGA paper, with immediate scan by nested loops.

STATE1 is READY, STATE2 and STATE3 (read the ports, write the input buffers) are the load of those buffers,
STATE5 and STATE7 are SCAN_R and SCAN_S; STATE4 and STATE6 only choose among these, and STATE0 is the
power-up state. In a *step* a core is given the oldest R tuple of its left neighbour and the oldest S tuple
of its right neighbour: it compares the R tuple with its segment of S, inserts it, compares the S tuple with
its segment of R, inserts that. All cores that do the same steps in the same order compute the same, at
whatever time each of them does.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.stream import Signature
from amaranth.lib.wiring import In, Out

from handshake.circuit.block import Block
from handshake.circuit.join.buffer import Buffer, ResultSignature
from handshake.circuit.join.condition import Condition, Delay
from handshake.circuit.join.design import Design
from handshake.circuit.join.segment import Segment

__all__ = ["CoreShape", "GlobalCore", "JoinCore", "LocalCore"]


class State(Enum, shape=2):  # type: ignore[call-arg]  # Amaranth has no types
    """What a core is at."""

    READY = 0
    SCAN_R = 1
    SCAN_S = 2


@dataclass(frozen=True)
class CoreShape:
    """What a core's circuit depends on, beside the condition: its segments, and how long a scan takes."""

    left: int
    right: int
    scan_left: int
    """Cycles of a scan of the R segment: under lock step, as many as the longest segment has tuples."""
    scan_right: int
    buffer: int
    margin: int
    pipeline: int
    windows: str

    @classmethod
    def of(cls, design: Design, index: int) -> CoreShape:
        """That of one core of a design."""
        left, right = design.segments[index]
        longest = tuple(max(lengths) for lengths in zip(*design.segments, strict=True))
        scans = (left, right) if design.admission == "local" else longest
        return cls(
            left, right, scans[0], scans[1],
            design.buffer, design.core_margin, design.pipeline, design.windows,
        )  # fmt: skip


class JoinCore(Block):
    """What both kinds of core share: segments, comparison, output buffer, and the scans.

    Ports: `results`, and those of its kind.
    """

    issue_rate = 0.0  # one step in as many cycles as there are tuples to compare: see `step_cycles`

    def __init__(self, condition: Condition, shape: CoreShape, ports: dict[str, Any]) -> None:
        self.condition, self.shape = condition, shape
        self.bits = (condition.left.bits + 1, condition.right.bits + 1)  # tuples with their valid flags
        results = Out(ResultSignature(condition.result.bits))
        super().__init__({**ports, "results": results}, (condition.key, shape))

    @property
    def title(self) -> str:
        """Module name in Verilog."""
        return "join_core"

    @property
    def step_cycles(self) -> int:
        """Cycles for a step with a tuple of each stream, when nothing is held back."""
        return 1 + self.shape.scan_left + self.shape.scan_right

    def build(self) -> Module:
        m = Module()
        shape = self.shape
        self.r = Segment(self.bits[0], shape.left, shape.windows)
        self.s = Segment(self.bits[1], shape.right, shape.windows)
        self.new_r, self.new_s = Signal(self.bits[0], name="new_r"), Signal(self.bits[1], name="new_s")
        self.state = Signal(State)
        self.count = Signal(range(max(shape.scan_left, shape.scan_right)))
        self.last, self.wants_s, self.begins, self.ends, self.is_full = _flags(
            "last", "wants_s", "begins", "ends", "is_full"
        )
        self.r.build(m, "r_segment")
        self.s.build(m, "s_segment")
        m.d.comb += [self.r.new.eq(self.new_r), self.s.new.eq(self.new_s)]
        self._compare(m)
        self._control(m)
        return m

    @abstractmethod
    def _control(self, m: Module) -> None:
        """When to load, when to scan."""

    def _enter(self, m: Module, shift_r: Value, shift_s: Value) -> None:
        """From READY to the first scan that has a tuple to scan for."""
        m.d.sync += self.wants_s.eq(shift_s)
        with m.If(shift_r):
            m.d.sync += [self.state.eq(State.SCAN_R), self.last.eq(self.shape.scan_right == 1)]
        with m.Elif(shift_s):
            m.d.sync += [self.state.eq(State.SCAN_S), self.last.eq(self.shape.scan_left == 1)]

    def _scan_r(self, m: Module, go: Value, leave: Value) -> Value:
        """Nested loop of the new R tuple over S; high in its last cycle, which needs `leave` as well."""
        steps, done = go & (~self.last | leave), go & self.last & leave
        m.d.comb += [self.s.turn.eq(steps & self._held(self.shape.right, self.shape.scan_right))]
        m.d.comb += [self.r.turn.eq(done), self.r.insert.eq(1)]
        with m.If(done):
            m.d.sync += self.state.eq(Mux(self.wants_s, State.SCAN_S, State.READY))
        self._advance(m, steps, done, self.shape.scan_right, self.shape.scan_left)
        return done

    def _scan_s(self, m: Module, go: Value) -> Value:
        done = go & self.last
        m.d.comb += [self.r.turn.eq(go & self._held(self.shape.left, self.shape.scan_left))]
        m.d.comb += [self.s.turn.eq(done), self.s.insert.eq(1)]
        with m.If(done):
            m.d.sync += self.state.eq(State.READY)
        self._advance(m, go, done, self.shape.scan_left, self.shape.scan_left)
        return done

    def _held(self, length: int, scan: int) -> Value:
        """Whether this cycle of a scan meets a tuple: a segment may be shorter than the longest one."""
        return Const(1) if length == scan else self.count < length

    def _advance(self, m: Module, steps: Value, done: Value, length: int, following: int) -> None:
        """Count; `last` is a register, so that the whole core need not wait for a comparison with `count`."""
        with m.If(done):
            m.d.sync += [self.count.eq(0), self.last.eq(following == 1)]
        with m.Elif(steps):
            m.d.sync += [self.count.eq(self.count + 1), self.last.eq(self.count == length - 2)]

    def _compare(self, m: Module) -> None:
        """From the heads of the segments to the output buffer, through as many registers as asked for."""
        scans_s = self.state == State.SCAN_S
        left, right = Mux(scans_s, self.r.head, self.new_r), Mux(scans_s, self.new_s, self.s.head)
        probes = Mux(scans_s, self.r.turn, self.s.turn)
        stages = self.shape.pipeline
        if stages >= 1:
            left, right, probes = (_later(m, v, "operand") for v in (left, right, probes))
        inner = int(stages >= 3)
        verdict = self._verdict(m, left, right, inner) & _later(m, left[0] & right[0] & probes, "in", inner)
        result = _later(m, self._carry(left, right), "compared_pair", inner)
        if stages >= 2:
            verdict, result = (_later(m, v, "match") for v in (verdict, result))
        self._collect(m, verdict, result)

    def _verdict(self, m: Module, left: Value, right: Value, inner: int) -> Value:
        return self.condition.matches(
            Delay(m, inner), self.condition.left.layout(left[1:]), self.condition.right.layout(right[1:])
        )

    def _carry(self, left: Value, right: Value) -> Value:
        return self.condition.carry(
            self.condition.left.layout(left[1:]), self.condition.right.layout(right[1:])
        )

    def _collect(self, m: Module, match: Value, result: Value) -> None:
        """Results into the output buffer; they are over when the end has gone the same way."""
        buffer, ended = Buffer(self.condition.result.bits, self.shape.buffer), Signal(name="ended")
        buffer.build(m)
        buffer.offer(m, self.results)
        m.d.comb += [buffer.push.eq(match), buffer.data.eq(result)]
        arrives = self.ends
        for stage in range(self.shape.pipeline):
            arrives = _later(m, arrives, f"end{stage}")
        with m.If(self.begins):
            m.d.sync += ended.eq(0)
        with m.Elif(arrives):
            m.d.sync += ended.eq(1)
        m.d.sync += self.results.over.eq(ended & buffer.empty_after & ~self.begins)
        # Full or almost full: what is still on its way must find room.
        m.d.sync += self.is_full.eq(buffer.after + self.shape.margin >= self.shape.buffer)


def _flags(*names: str) -> list[Signal]:
    return [Signal(name=name) for name in names]


def _later(m: Module, value: Value, name: str, cycles: int = 1) -> Value:
    if not cycles:
        return value
    register = Signal(value.shape(), name=name)
    m.d.sync += register.eq(value)
    return register


class GlobalCore(JoinCore):
    """A core in lock step with all others, as the papers have it.

    Ports: `go` starts a step of all cores (`shift_r`, `shift_s`: which streams have a new tuple; `end`: no
    more will come); `suspend` stops all of them; `r_in`, `s_in`: the oldest tuples of the neighbours,
    `r_out`, `s_out`: its own; `full`: its buffer is almost full.
    """

    def __init__(self, condition: Condition, shape: CoreShape) -> None:
        r, s = condition.left.bits + 1, condition.right.bits + 1
        ports: dict[str, Any] = {name: In(1) for name in ("go", "shift_r", "shift_s", "end", "suspend")}
        ports |= {"r_in": In(r), "r_out": Out(r), "s_in": In(s), "s_out": Out(s), "full": Out(1)}
        super().__init__(condition, shape, ports)

    def _control(self, m: Module) -> None:
        runs = ~self.suspend
        m.d.comb += [
            self.r_out.eq(self.r.head),
            self.s_out.eq(self.s.head),
            self.full.eq(self.is_full),
        ]
        with m.Switch(self.state):
            with m.Case(State.READY), m.If(self.go & runs):
                self._load(m)
            with m.Case(State.SCAN_R):
                self._scan_r(m, runs, Const(1))
            with m.Case(State.SCAN_S):
                self._scan_s(m, runs)

    def _load(self, m: Module) -> None:
        m.d.comb += [self.ends.eq(self.end), self.begins.eq(~self.end)]
        m.d.sync += [self.new_r.eq(self.r_in), self.new_s.eq(self.s_in)]
        self._enter(m, self.shift_r, self.shift_s)


STEP_BITS = 3
"""What a step says beside the R tuple: whether R shifts, whether S does, whether it is the end."""


class LocalCore(JoinCore):
    """A core that waits for nobody but its neighbours, and for room in its own buffer.

    Ports: `r_in` gives it the step and the new R tuple, and `r_out` hands the same step, with its own oldest
    R tuple, to the right; `s_in` and `s_out` carry the S tuples of those steps that have one. A step is given
    on as soon as it begins, so it runs down the line while the first cores are still scanning: no signal
    reaches further than to a neighbour.
    """

    def __init__(self, condition: Condition, shape: CoreShape) -> None:
        r = Signature(condition.left.bits + 1 + STEP_BITS)
        s = Signature(condition.right.bits + 1)
        super().__init__(condition, shape, {"r_in": In(r), "r_out": Out(r), "s_in": In(s), "s_out": Out(s)})

    def _control(self, m: Module) -> None:
        self.has_r, self.has_s, self.passing, self.giving = _flags("has_r", "has_s", "passing", "giving")
        self.step, self.passed = Signal(STEP_BITS, name="step"), Signal(STEP_BITS, name="passed")
        self._receive(m)
        self._hand_over(m)
        room = ~self.is_full
        with m.Switch(self.state):
            with m.Case(State.READY), m.If(self.has_r & ~self.passing & room):
                self._begin(m)
            # The oldest R tuple leaves its place only when the neighbour has it.
            with m.Case(State.SCAN_R), m.If(self._scan_r(m, room, ~self.passing)):
                m.d.sync += self.has_r.eq(0)
            with m.Case(State.SCAN_S), m.If(self._scan_s(m, room & self.has_s)):
                m.d.sync += self.has_s.eq(0)

    def _receive(self, m: Module) -> None:
        """Input buffer registers, filled when they are free."""
        m.d.comb += [self.r_in.ready.eq(~self.has_r), self.s_in.ready.eq(~self.has_s)]
        with m.If(self.r_in.valid & ~self.has_r):
            m.d.sync += [self.has_r.eq(1), Cat(self.step, self.new_r).eq(self.r_in.payload)]
        with m.If(self.s_in.valid & ~self.has_s):
            m.d.sync += [self.has_s.eq(1), self.new_s.eq(self.s_in.payload)]

    def _hand_over(self, m: Module) -> None:
        m.d.comb += [
            self.r_out.valid.eq(self.passing), self.r_out.payload.eq(Cat(self.passed, self.r.head)),
            self.s_out.valid.eq(self.giving), self.s_out.payload.eq(self.s.head),
        ]  # fmt: skip
        # The left neighbour has begun this step before, so its buffer for S is free: one cycle will do.
        m.d.sync += self.giving.eq(0)
        with m.If(self.passing & self.r_out.ready):
            m.d.sync += self.passing.eq(0)

    def _begin(self, m: Module) -> None:
        shift_r, shift_s, end = self.step
        m.d.comb += [self.ends.eq(end), self.begins.eq(~end)]
        m.d.sync += [self.passing.eq(1), self.passed.eq(self.step), self.giving.eq(shift_s)]
        self._enter(m, shift_r, shift_s)
        with m.If(~shift_r):
            m.d.sync += self.has_r.eq(0)
