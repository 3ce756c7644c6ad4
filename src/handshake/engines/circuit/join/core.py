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

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.join.buffer import (
    Buffer,
    ResultSignature,
    fill,
    fill_inverse,
    following,
    later,
)
from handshake.engines.circuit.join.condition import Delay, PairGates
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.segment import BLOCK_RAM_FROM, WindowSegment


class State(Enum, shape=3):  # type: ignore[call-arg]  # Amaranth has no types
    """The state of a core, one bit for each, so that a test reads one register."""

    READY = 1
    SCAN_R = 2
    SCAN_S = 4


@dataclass(frozen=True)
class CoreShape:
    """The parameters of a core's circuit, except for the condition: segments, and cycles of a scan."""

    left: int
    right: int
    scan_left: int
    """Cycles of a scan of the R segment."""
    scan_right: int
    buffer: int
    margin: int
    pipeline: int
    windows: str
    guarded: bool
    """Whether more results than its buffer holds may come, and are lost then."""
    block_ram_from: int = BLOCK_RAM_FROM

    @classmethod
    def of(cls, design: Design, index: int) -> CoreShape:
        """Return the shape of one core of a design."""
        return cls(
            *design.segments[index], *design.scans(index), design.buffer, design.core_margin, design.stages,
            design.windows, design.is_guarded, design.block_ram_from,
        )  # fmt: skip


class JoinCore(Block):
    """The part of a core that does not depend on admission: segments, comparison, output buffer, and scans.

    Ports: `results`, and those of its kind.
    """

    issue_rate = 0.0  # one step in as many cycles as there are tuples to compare: see `step_cycles`

    def __init__(self, condition: PairGates, shape: CoreShape, ports: dict[str, Any]) -> None:
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
        self.r = WindowSegment(self.bits[0], shape.left, shape.windows, shape.block_ram_from)
        self.s = WindowSegment(self.bits[1], shape.right, shape.windows, shape.block_ram_from)
        # Flags say which tuples count, so reset need not reach registers that hold tuples.
        self.new_r = Signal(self.bits[0], name="new_r", reset_less=True)
        self.new_s = Signal(self.bits[1], name="new_s", reset_less=True)
        self.state = Signal(State, init=State.READY)
        self.is_ready, self.scans_r, self.scans_s = self.state.as_value()
        self.count = Signal(range(max(shape.scan_left, shape.scan_right)))
        self.turn_r, self.turn_s, self.insert_r, self.insert_s = flags(
            "turn_r", "turn_s", "insert_r", "insert_s"
        )
        self.last, self.begins, self.ends, self.crowded = flags("last", "begins", "ends", "crowded")
        self.r.build(m, "r_segment")
        self.s.build(m, "s_segment")
        m.d.comb += [self.r.new.eq(self.new_r), self.s.new.eq(self.new_s)]
        self._compare(m)
        self._control(m)
        return m

    @abstractmethod
    def _control(self, m: Module) -> None:
        """Decide when to load and when to scan."""

    @property
    def _counted(self) -> Value:
        """The next count, which is 0 after the last."""
        if not len(self.count):
            return self.count
        turn = 1 << len(self.count)
        more = following(self.count, turn)
        return more if turn == self.shape.scan_left == self.shape.scan_right else Mux(self.last, 0, more)

    @abstractmethod
    def _compare(self, m: Module) -> None:
        """Build the path from the scans' commands and the segments' heads to the output buffer."""

    def _pass_commands(
        self, m: Module, turn_r: Value, turn_s: Value, insert_r: Value, insert_s: Value
    ) -> None:
        """Pass the commands to the segments."""
        m.d.comb += [
            self.r.turn.eq(turn_r), self.s.turn.eq(turn_s), self.r.insert.eq(insert_r),
            self.s.insert.eq(insert_s),
        ]  # fmt: skip

    def _compare_one(self, m: Module) -> None:
        """Build one comparator whose operands the state chooses, with registers around it."""
        self._pass_commands(m, self.turn_r, self.turn_s, self.insert_r, self.insert_s)
        scans_s = self.scans_s
        left, right = Mux(scans_s, self.r.head, self.new_r), Mux(scans_s, self.new_s, self.s.head)
        probes = Mux(scans_s, self.turn_r, self.turn_s)
        stages = self.shape.pipeline
        if stages >= 1:
            left, right, probes = (later(m, v, "operand") for v in (left, right, probes))
        inner = max(0, stages - 2)
        verdict = self._verdict(m, left, right, inner) & later(m, left[0] & right[0] & probes, "in", inner)
        self._conclude(m, verdict, later(m, self._carry(left, right), "compared_pair", inner))

    def _conclude(self, m: Module, verdict: Value, result: Value) -> None:
        if self.shape.pipeline >= 2:
            verdict, result = later(m, verdict, "match"), later(m, result, "matched", reset_less=True)
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
        """Push results into the output buffer; they are over when the end has come the same way."""
        buffer = Buffer(self.condition.result.bits, self.shape.buffer, guarded=self.shape.guarded)
        ended = Signal(name="ended")
        buffer.build(m)
        buffer.offer(m, self.results)
        m.d.comb += [buffer.push.eq(match), buffer.data.eq(result)]
        arrives = self.ends
        for stage in range(self.shape.pipeline):
            arrives = later(m, arrives, f"end{stage}")
        # In gates: of a condition Yosys would make a reset, and the gates before it take their time.
        m.d.sync += ended.eq((ended | arrives) & ~later(m, self.begins, "began"))
        m.d.comb += [
            self.results.over.eq(later(m, ended & ~buffer.valid, "is_over")),
            # Results that are still on their way must find room.
            self.crowded.eq(buffer.at_least(self.shape.buffer - self.shape.margin)),
        ]


def flags(*names: str) -> list[Signal]:
    """Return signals of one bit."""
    return [Signal(name=name) for name in names]


STEP_BITS = 3
"""Bits of a step, in addition to the R tuple: whether R shifts, whether S does, whether it is the end."""


class LocalCore(JoinCore):
    """A core that waits for its neighbours and for room in its own buffer only.

    Ports: `r_in` gives it the step and the new R tuple, and `r_out` hands the same step, with its own oldest
    R tuple, to the right; `s_in` and `s_out` carry the S tuples of those steps that have one. A step is given
    on as soon as it begins, so it runs down the line while the first cores are still scanning: no signal
    reaches further than to a neighbour.
    """

    def __init__(self, condition: PairGates, shape: CoreShape) -> None:
        r = Signature(condition.left.bits + 1 + STEP_BITS)
        s = Signature(condition.right.bits + 1)
        super().__init__(condition, shape, {"r_in": In(r), "r_out": Out(r), "s_in": In(s), "s_out": Out(s)})

    def _compare(self, m: Module) -> None:
        if self.shape.pipeline:
            self._compare_both(m)
        else:
            self._compare_one(m)

    def _compare_both(self, m: Module) -> None:
        """Build a comparator for each direction; the scans' commands go through registers.

        So no gate lies between the state machine and the enables of whole tuples, or before the operands.
        Segments lag by a cycle without effect: what is handed over is read a cycle or more after the step has
        begun, and input buffers keep their tuples a cycle longer than the scan.
        """
        commands = (self.turn_r, self.turn_s, self.insert_r, self.insert_s)
        turn_r, turn_s, insert_r, insert_s = (later(m, v, f"then_{v.name}") for v in commands)
        self._pass_commands(m, turn_r, turn_s, insert_r, insert_s)
        pairs = ((self.new_r, self.s.head), (self.r.head, self.new_s))
        probes = (self.scans_r & self.turn_s, self.scans_s & self.turn_r)
        inner = max(0, self.shape.pipeline - 2)
        found = [self._meets(m, *pair, probe, inner) for pair, probe in zip(pairs, probes, strict=True)]
        carried = [self._carry(left, right) for left, right in pairs]
        result = Mux(later(m, self.scans_s, "meets_r"), carried[1], carried[0])
        self._conclude(m, found[0] | found[1], later(m, result, "compared_pair", inner, reset_less=True))

    def _meets(self, m: Module, left: Value, right: Value, probe: Value, inner: int) -> Value:
        """Return whether two tuples are there, are compared, and join."""
        both = left[0] & right[0] & later(m, probe, "probes")
        views = self.condition.left.layout(left[1:]), self.condition.right.layout(right[1:])
        return self.condition.joins(Delay(m, inner), *views, both)

    def _control(self, m: Module) -> None:
        self.passing, self.giving = flags("passing", "giving")
        self.has_r, self.has_s, self.frees_r, self.frees_s = flags("has_r", "has_s", "frees_r", "frees_s")
        self.may_begin, self.may_leave = flags("may_begin", "may_leave")
        self.room = Signal(name="room", init=1)
        m.d.sync += self.room.eq(~self.crowded)
        self.step = Signal(STEP_BITS, name="step", reset_less=True)
        self.passed = Signal(STEP_BITS, name="passed", reset_less=True)
        self._receive(m, self.r_in, self.has_r, self.frees_r, Cat(self.step, self.new_r))
        self._receive(m, self.s_in, self.has_s, self.frees_s, self.new_s)
        go, done_r, done_s = self.room & self.may_begin, self.room & self.may_leave, self._done_s(self.room)
        self._foresee(m, go, done_r, done_s)
        self._move(m, go, done_r, done_s)
        self._command(m, later(m, self.crowded, "was_crowded"))
        self._begin_step(m, go)

    def _done_s(self, room: Value) -> Value:
        done = (
            room & self.last & self.scans_s
        )  # a scan of several cycles has its tuple, or it would not be last
        return done & self.has_s if self.shape.scan_left == 1 else done

    def _foresee(self, m: Module, go: Value, done_r: Value, done_s: Value) -> None:
        """Compute a cycle ahead, by registers, what the state machine waits for.

        `may_begin` (in READY alone): there is a step, and the one before has been passed on. `may_leave` (in
        SCAN_R alone): it is the last cycle of the scan, and the neighbour has the oldest R tuple, which is
        about to leave its place.
        """
        passed = ~self.passing | self.r_out.ready
        last = self.last | (self._nearly & self.room)
        waits = (self.is_ready & ~go) | done_s
        m.d.sync += [
            self.may_begin.eq(waits & (self.has_r | self.r_in.valid) & passed),
            self.may_leave.eq(self.scans_r & ~done_r & last & passed),
        ]

    @property
    def _nearly(self) -> Value:
        """High if one cycle of a scan is left after this one."""
        left, right = (
            self.count == length - 2 if length > 1 else Const(0)
            for length in (self.shape.scan_left, self.shape.scan_right)
        )
        return left if self.shape.scan_left == self.shape.scan_right else Mux(self.scans_s, left, right)

    def _move(self, m: Module, go: Value, done_r: Value, done_s: Value) -> None:
        """Compute the next state in gates; Yosys would turn conditions into enables."""
        shift_r, shift_s, end = self.step
        enters_s = shift_s & (done_r | (go & ~shift_r))
        m.d.sync += self.state.as_value().eq(
            Cat(
                (self.is_ready & ~(go & ~end)) | (done_r & ~shift_s) | done_s,
                (self.scans_r & ~done_r) | (go & shift_r),
                (self.scans_s & ~done_s) | enters_s,
            )
        )
        m.d.comb += [self.frees_s.eq(later(m, done_s, "left_s")), self.frees_r.eq(done_r | (go & ~shift_r))]
        with m.If(self._steps(self.room)):
            m.d.sync += [self.count.eq(self._counted), self.last.eq(self._nearly)]
        self._expect(m, enters_s, go & shift_r)

    def _steps(self, room: Value) -> Value:
        """Return whether a scan goes on in this cycle."""
        return room & ((self.scans_r & (~self.last | self.may_leave)) | (self.scans_s & self.has_s))

    def _command(self, m: Module, crowded: Value) -> None:
        """Command the segments by a flag that the state machine does not read, as they lie apart."""
        done_r, done_s, steps = ~crowded & self.may_leave, self._done_s(~crowded), self._steps(~crowded)
        m.d.comb += [
            self.turn_s.eq((self.scans_r & steps) | done_s), self.turn_r.eq((self.scans_s & steps) | done_r),
            self.insert_s.eq(done_s), self.insert_r.eq(done_r),
        ]  # fmt: skip

    def _expect(self, m: Module, enters_s: Value, enters_r: Value) -> None:
        """Set `last` if the first cycle of a scan is its last."""
        for enters, length in ((enters_s, self.shape.scan_left), (enters_r, self.shape.scan_right)):
            if 1 in (self.shape.scan_left, self.shape.scan_right):
                with m.If(enters):
                    m.d.sync += self.last.eq(length == 1)

    def _receive(self, m: Module, port: Any, has: Signal, frees: Signal, held: Value) -> None:
        """Build input buffer registers: they take anything while they are free, and keep what is valid.

        Neighbours read a register directly, without even an inverter behind it. The enable of a whole tuple
        is a second register, and the state machine reads a third.
        """
        shown, loads = Signal(name=f"shows_{has.name}", init=1), Signal(name=f"loads_{has.name}", init=1)
        fill(m, has, port.valid, frees)
        for free in (shown, loads):
            fill_inverse(m, free, port.valid, frees)
        m.d.comb += port.ready.eq(shown)
        with m.If(loads):
            m.d.sync += held.eq(port.payload)

    def _begin_step(self, m: Module, go: Value) -> None:
        """Begin a step and pass it on, in gates; Yosys would turn conditions into resets."""
        _, shift_s, end = self.step
        m.d.comb += [
            self.r_out.valid.eq(self.passing), self.r_out.payload.eq(Cat(self.passed, self.r.head)),
            self.s_out.valid.eq(self.giving), self.s_out.payload.eq(self.s.head),
        ]  # fmt: skip
        m.d.comb += [self.ends.eq(go & end), self.begins.eq(go & ~end)]
        m.d.sync += [
            self.passing.eq((self.passing & ~self.r_out.ready) | go),
            # The left neighbour has begun this step before, so its buffer for S is free: one cycle will do.
            self.giving.eq(go & shift_s),
        ]
        with m.If(~self.passing):  # whatever it is: `passing` says whether it counts
            m.d.sync += self.passed.eq(self.step)
