"""The papers' join circuit: cores in lock step, all of which are suspended while any buffer is full.

It is built to be measured beside `HandshakeJoin`, which computes the same and whose cores wait on their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import forward
from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.core import CoreShape, JoinCore, State
from handshake.engines.circuit.join.design import Design, check_choice
from handshake.engines.circuit.join.driver import Driver, Phase
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.join.merger import Merger, leave

__all__ = ["FAN", "OVERLOADS", "GlobalDesign", "LockstepJoin", "join_of", "original"]

OVERLOADS = ("hold", "discard")
FAN = 16
"""Flags that one stage of the admission gathers; one of its registers drives half as many cores."""
SIGNALS = ("go", "shift_r", "shift_s", "end", "suspend")
"""Signals of the controller to the cores."""


@dataclass(frozen=True)
class GlobalDesign(Design):
    """A design under global admission: all cores wait for a full buffer.

    >>> GlobalDesign(4, 10, 8).scans(3)
    (3, 2)
    """

    overload: str = "hold"
    """The rule for input meanwhile: it is held back, or discarded and counted."""
    most_stages: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("overload", self.overload, OVERLOADS)

    def scans(self, index: int) -> tuple[int, int]:
        """Return the cycles of a scan: as many as the longest segments have tuples."""
        left, right = (max(lengths) for lengths in zip(*self.segments, strict=True))
        return left, right

    @property
    def gather_stages(self) -> int:
        """Registers between a full flag and the suspension of all cores, on the way up."""
        stages, flags = 1, self.cores + self.cores - 1  # of cores and mergers
        while flags > FAN:
            stages, flags = stages + 1, -(-flags // FAN)
        return stages

    @property
    def needed_margin(self) -> int:
        return self.gather_stages + 1 + self.stages  # 1: from the controller to the cores

    @property
    def is_guarded(self) -> bool:
        return True

    def link_registers(self, below: int) -> int:
        return 0


def original(cores: int, left: int, right: int, **changes: Any) -> GlobalDesign:
    """Return the papers' circuit: shift registers, plain comparison, all cores suspended together."""
    return GlobalDesign(cores, left, right, **{"windows": "registers", "pipeline": 0, **changes})


class StateMerger(Merger):
    """The papers' merger, figure 6: read both inputs, store the first, store the second; two in three cycles.

    `full`: its buffer has no room for two, so its inputs are disabled and, under global admission, all cores
    are suspended.
    """

    issue_rate = 2 / 3
    latency = 2

    class State(Enum, shape=2):  # type: ignore[call-arg]  # Amaranth has no types
        """STATE1 to STATE3 of the figure."""

        READ = 0
        FIRST = 1
        SECOND = 2

    def __init__(self, bits: int, depth: int) -> None:
        super().__init__(bits, depth, {"full": Out(1)})

    def build(self) -> Module:
        m = Module()
        buffer, state = self._buffer(m, guarded=True), Signal(self.State, name="state")
        held = [Signal(self.bits, name=f"held_{name}", reset_less=True) for name in "ab"]
        has = [Signal(name=f"has_{name}") for name in "ab"]
        m.d.comb += self.full.eq(buffer.at_least(buffer.places - 1))
        self._end(m, buffer, ~(has[0] | has[1]))
        with m.Switch(state):
            with m.Case(self.State.READ):
                with m.If(~self.full):
                    m.d.comb += [self.a.ready.eq(1), self.b.ready.eq(1)]
                    m.d.sync += [has[0].eq(self.a.valid), has[1].eq(self.b.valid), state.eq(self.State.FIRST)]
                m.d.sync += [held[0].eq(self.a.payload), held[1].eq(self.b.payload)]
            with m.Case(self.State.FIRST):
                m.d.comb += [buffer.push.eq(has[0]), buffer.data.eq(held[0])]
                m.d.sync += [has[0].eq(0), state.eq(self.State.SECOND)]
            with m.Case(self.State.SECOND):
                m.d.comb += [buffer.push.eq(has[1]), buffer.data.eq(held[1])]
                m.d.sync += [has[1].eq(0), state.eq(self.State.READ)]
        return m


class GlobalCore(JoinCore):
    """A core in lock step with all others, as the papers have it.

    Ports: `go` starts a step of all cores (`shift_r`, `shift_s`: which streams have a new tuple; `end`: no
    more will come); `suspend` stops all of them; `r_in`, `s_in`: the oldest tuples of the neighbours,
    `r_out`, `s_out`: its own; `full`: its buffer is almost full.
    """

    def __init__(self, condition: PairGates, shape: CoreShape) -> None:
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


class GlobalDriver(Driver):
    """The controller of the papers: starts all cores together, and suspends them while a buffer is full.

    It goes through the same states as the cores, as many cycles ahead as its signals need to reach them.
    """

    design: GlobalDesign

    def __init__(self, condition: PairGates, design: GlobalDesign) -> None:
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
            self._step(m, Const(1, 1), Const(1, 1))
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


class LockstepJoin(HandshakeJoin):
    """The join under global admission. Under overload "discard" it also has the port `discarded`."""

    design: GlobalDesign

    def __init__(self, condition: PairGates, design: GlobalDesign) -> None:
        ports = {"discarded": Out(32)} if design.overload == "discard" else {}
        super().__init__(condition, design, **ports)

    def build(self) -> Module:
        m = Module()
        m.submodules.driver = driver = GlobalDriver(self.condition, self.design)
        forward(m, self.arrivals, driver.arrivals)
        cores = [GlobalCore(self.condition, CoreShape.of(self.design, i)) for i in range(self.design.cores)]
        for index, core in enumerate(cores):
            m.submodules[f"core{index}"] = core
            m.d.comb += [
                core.r_in.eq(cores[index - 1].r_out if index else driver.r),
                core.s_in.eq(cores[index + 1].s_out if index < len(cores) - 1 else driver.s),
            ]
        root, mergers = self._merge(m, cores, StateMerger)
        m.d.comb += driver.suspended.eq(_gather(m, [part.full for part in (*cores, *mergers)]))
        _spread(m, driver, cores)
        m.d.comb += driver.over.eq(leave(m, root, self.results))
        if self.design.overload == "discard":
            m.d.comb += self.discarded.eq(driver.discarded)
        return m


def join_of(condition: PairGates, design: Design) -> HandshakeJoin:
    """Return the circuit of a design, under whichever admission."""
    return (
        LockstepJoin(condition, design)
        if isinstance(design, GlobalDesign)
        else HandshakeJoin(condition, design)
    )


def _gather(m: Module, flags: Sequence[Value]) -> Value:
    """Combine many flags by registered stages of bounded fan-in; a global OR would lower the clock."""
    groups = [flags[i : i + FAN] for i in range(0, len(flags), FAN)]
    stage = Signal(len(groups), name="any_full")
    m.d.sync += stage.eq(Cat(*(Cat(*group).any() for group in groups)))
    return stage[0] if len(groups) == 1 else _gather(m, list(stage))


def _spread(m: Module, driver: GlobalDriver, cores: Sequence[Any]) -> None:
    """Send the controller's signals through one register for each group of cores."""
    for first in range(0, len(cores), FAN // 2):
        m.submodules[f"spread{first}"] = spread = Spread()
        m.d.comb += spread.i.eq(Cat(getattr(driver, name) for name in SIGNALS))
        for core in cores[first : first + FAN // 2]:
            m.d.comb += Cat(getattr(core, name) for name in SIGNALS).eq(spread.o)
