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

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.join.buffer import Buffer, ResultSignature, following, later
from handshake.engines.circuit.join.condition import Condition, Delay
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.segment import WindowSegment

__all__ = ["CoreShape", "GlobalCore", "JoinCore", "State", "flags"]


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
    """Cycles of a scan of the R segment: under lock step, as many as the longest segment has tuples."""
    scan_right: int
    buffer: int
    margin: int
    pipeline: int
    windows: str
    guarded: bool
    """Whether more results than its buffer holds may come, and are lost then."""

    @classmethod
    def of(cls, design: Design, index: int) -> CoreShape:
        """Return the shape of one core of a design."""
        left, right = design.segments[index]
        longest = tuple(max(lengths) for lengths in zip(*design.segments, strict=True))
        scans = (left, right) if design.admission == "local" else longest
        return cls(
            left, right, scans[0], scans[1],
            design.buffer, design.core_margin, design.stages, design.windows,
            design.admission == "global" or design.core_margin < design.needed_margin,
        )  # fmt: skip


class JoinCore(Block):
    """The common part of both kinds of core: segments, comparison, output buffer, and scans.

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
        self.r = WindowSegment(self.bits[0], shape.left, shape.windows)
        self.s = WindowSegment(self.bits[1], shape.right, shape.windows)
        # What counts is said by flags beside them, so reset need not reach registers that hold tuples.
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

    def _obey(self, m: Module, turn_r: Value, turn_s: Value, insert_r: Value, insert_s: Value) -> None:
        """Pass the commands to the segments."""
        m.d.comb += [
            self.r.turn.eq(turn_r), self.s.turn.eq(turn_s), self.r.insert.eq(insert_r),
            self.s.insert.eq(insert_s),
        ]  # fmt: skip

    def _compare_one(self, m: Module) -> None:
        """Build one comparator whose operands the state chooses, with registers around it."""
        self._obey(m, self.turn_r, self.turn_s, self.insert_r, self.insert_s)
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
            # What is still on its way must find room.
            self.crowded.eq(buffer.at_least(self.shape.buffer - self.shape.margin)),
        ]


def flags(*names: str) -> list[Signal]:
    """Return signals of one bit."""
    return [Signal(name=name) for name in names]


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

    def _compare(self, m: Module) -> None:
        self._compare_one(m)

    def _control(self, m: Module) -> None:
        runs, self.wants_s = ~self.suspend, Signal(name="wants_s")
        m.d.comb += [
            self.r_out.eq(self.r.head),
            self.s_out.eq(self.s.head),
            self.full.eq(self.crowded),
        ]
        with m.If(self.is_ready & self.go & runs):
            self._load(m)
        with m.If(self.scans_r):
            self._scan_r(m, runs, Const(1))
        with m.If(self.scans_s):
            self._scan_s(m, runs)

    def _load(self, m: Module) -> None:
        m.d.comb += [self.ends.eq(self.end), self.begins.eq(~self.end)]
        m.d.sync += [self.new_r.eq(self.r_in), self.new_s.eq(self.s_in)]
        self._enter(m, self.shift_r, self.shift_s)

    def _enter(self, m: Module, shift_r: Value, shift_s: Value) -> None:
        """Go from READY to the first scan that has a tuple to scan for."""
        m.d.sync += self.wants_s.eq(shift_s)
        with m.If(shift_r):
            m.d.sync += self.state.eq(State.SCAN_R)
            self._expect(m, self.shape.scan_right)
        with m.Elif(shift_s):
            m.d.sync += self.state.eq(State.SCAN_S)
            self._expect(m, self.shape.scan_left)

    def _expect(self, m: Module, length: int) -> None:
        """Set `last` for a scan of `length` cycles; it stays low if all scans take more than one."""
        if 1 in (self.shape.scan_left, self.shape.scan_right):
            m.d.sync += self.last.eq(length == 1)

    def _scan_r(self, m: Module, go: Value, leave: Value) -> Value:
        """Scan S for the new R tuple; return a bit that is high in the last cycle, if `leave` is too."""
        steps, done = go & (~self.last | leave), go & self.last & leave
        m.d.comb += [self.turn_s.eq(steps & self._meets_tuple(self.shape.right, self.shape.scan_right))]
        m.d.comb += [self.turn_r.eq(done), self.insert_r.eq(done)]
        with m.If(done):
            m.d.sync += self.state.eq(Mux(self.wants_s, State.SCAN_S, State.READY))
        self._advance(m, steps, done, self.shape.scan_right, self.shape.scan_left)
        return done

    def _scan_s(self, m: Module, go: Value) -> Value:
        done = go & self.last
        m.d.comb += [self.turn_r.eq(go & self._meets_tuple(self.shape.left, self.shape.scan_left))]
        m.d.comb += [self.turn_s.eq(done), self.insert_s.eq(done)]
        with m.If(done):
            m.d.sync += self.state.eq(State.READY)
        self._advance(m, go, done, self.shape.scan_left, self.shape.scan_left)
        return done

    def _meets_tuple(self, length: int, scan: int) -> Value:
        """Return whether this cycle of a scan meets a tuple; some segments are shorter than others."""
        return Const(1) if length == scan else self.count < length

    def _advance(self, m: Module, steps: Value, done: Value, length: int, next_length: int) -> None:
        """Count; `last` is a register, so that the core does not wait for a comparison with `count`."""
        with m.If(steps):
            m.d.sync += [self.count.eq(self._counted), self.last.eq(self.count == length - 2)]
        with m.If(done):
            self._expect(m, next_length)
