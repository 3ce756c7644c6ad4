"""Handshake join as a circuit: cores in a line, a tree of mergers over them, and the admission of input.

R enters at the first core and S at the last one; each core hands its oldest tuples on. After the end of the
input, empty tuples push all others through, so that every pair that was to meet has met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.stream import Signature
from amaranth.lib.wiring import In, Out

from handshake.circuit.block import Block
from handshake.circuit.join.arrivals import HAS_LEFT, HAS_RIGHT, arrivals_row
from handshake.circuit.join.buffer import Buffer
from handshake.circuit.join.condition import Condition
from handshake.circuit.join.core import STEP_BITS, CoreShape, GlobalCore, LocalCore, State
from handshake.circuit.join.design import FAN, Design
from handshake.circuit.join.merger import GrantingMerger, StateMerger, merge
from handshake.circuit.stream import forward, moves, stream_in, stream_out

__all__ = ["GlobalDriver", "HandshakeJoin", "LocalDriver"]


class HandshakeJoin(Block):
    """The join of two streams over tuple windows.

    Ports: `arrivals` (see `arrivals_row`), `results` (the condition's result row), and under overload
    "discard" the counter `discarded`.
    """

    def __init__(self, condition: Condition, design: Design) -> None:
        self.condition, self.design = condition, design
        ports = {"arrivals": stream_in(arrivals_row(condition)), "results": stream_out(condition.result)}
        if design.overload == "discard":
            ports["discarded"] = Out(32)
        super().__init__(ports, (condition.key, design))

    def build(self) -> Module:
        m = Module()
        if self.design.admission == "local":
            self._local(m)
        else:
            self._global(m)
        return m

    def _local(self, m: Module) -> None:
        m.submodules.driver = driver = LocalDriver(self.condition, self.design)
        forward(m, self.arrivals, driver.arrivals)
        cores = [LocalCore(self.condition, CoreShape.of(self.design, i)) for i in range(self.design.cores)]
        for index, core in enumerate(cores):
            m.submodules[f"core{index}"] = core
        _link(m, [driver.r, *(core.r_out for core in cores)], [core.r_in for core in cores])
        _link(m, [*(core.s_out for core in cores[1:]), driver.s], [core.s_in for core in cores])
        m.d.comb += [cores[-1].r_out.ready.eq(1), cores[0].s_out.ready.eq(1)]
        root, _ = merge(
            m, [c.results for c in cores], self.condition.result, self.design.merger_buffer, GrantingMerger
        )
        forward(m, root, self.results)

    def _global(self, m: Module) -> None:
        m.submodules.driver = driver = GlobalDriver(self.condition, self.design)
        forward(m, self.arrivals, driver.arrivals)
        cores = [GlobalCore(self.condition, CoreShape.of(self.design, i)) for i in range(self.design.cores)]
        for index, core in enumerate(cores):
            m.submodules[f"core{index}"] = core
            m.d.comb += [
                core.r_in.eq(cores[index - 1].r_out if index else driver.r),
                core.s_in.eq(cores[index + 1].s_out if index < len(cores) - 1 else driver.s),
            ]
        root, mergers = merge(
            m, [c.results for c in cores], self.condition.result, self.design.merger_buffer, StateMerger
        )
        m.d.comb += driver.suspended.eq(_gather(m, [part.full for part in (*cores, *mergers)]))
        _spread(m, driver, cores)
        forward(m, root, self.results)
        if self.design.overload == "discard":
            m.d.comb += self.discarded.eq(driver.discarded)


def _link(m: Module, sources: Sequence[Any], sinks: Sequence[Any]) -> None:
    for source, sink in zip(sources, sinks, strict=False):
        m.d.comb += [
            sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)
        ]  # fmt: skip


def _gather(m: Module, flags: Sequence[Value]) -> Value:
    """One flag of many, by registered stages of bounded fan-in: a global OR would make the clock fall."""
    groups = [flags[i : i + FAN] for i in range(0, len(flags), FAN)]
    stage = Signal(len(groups), name="any_full")
    m.d.sync += stage.eq(Cat(*(Cat(*group).any() for group in groups)))
    return stage[0] if len(groups) == 1 else _gather(m, list(stage))


def _spread(m: Module, driver: GlobalDriver, cores: Sequence[Any]) -> None:
    """The controller's signals, through one register for each group of cores."""
    names = ("go", "shift_r", "shift_s", "end", "suspend")
    for first in range(0, len(cores), FAN // 2):
        for name in names:
            copy = Signal(name=f"{name}_{first}", attrs={"keep": 1}, reset_less=name != "go")
            m.d.sync += copy.eq(getattr(driver, name))
            m.d.comb += [getattr(core, name).eq(copy) for core in cores[first : first + FAN // 2]]


class Phase(Enum, shape=2):
    """Where the input is: open, being pushed through by empty tuples, or at its end."""

    OPEN = 0
    FLUSH = 1
    END = 2


class LocalDriver(Block):
    """Gives steps to the first core, and the S tuples to the last one; holds back input while they wait."""

    def __init__(self, condition: Condition, design: Design) -> None:
        self.condition, self.design = condition, design
        ports = {
            "arrivals": stream_in(arrivals_row(condition)),
            "r": Out(Signature(condition.left.bits + 1 + STEP_BITS)),
            "s": Out(Signature(condition.right.bits + 1)),
        }
        super().__init__(ports, (condition.key, max(design.left, design.right), design.in_flight))

    def build(self) -> Module:
        m = Module()
        self.has, self.token = Signal(), Signal(self.condition.left.bits + 1 + STEP_BITS)
        self.phase = Signal(Phase)
        self.left = Signal(range(max(self.design.left, self.design.right)))
        self.queue = Buffer(self.condition.right.bits + 1, self.design.in_flight)
        self.queue.build(m)
        room = Signal(name="has_room", init=1)
        m.d.sync += room.eq(self.queue.after < self.design.in_flight)
        self.free = ~self.has & room
        m.d.comb += [
            self.r.valid.eq(self.has), self.r.payload.eq(self.token),
            self.s.valid.eq(self.queue.valid), self.s.payload.eq(self.queue.head),
            self.queue.pop.eq(self.queue.valid & self.s.ready),
        ]  # fmt: skip
        with m.If(self.has & self.r.ready):
            m.d.sync += self.has.eq(0)
        with m.Switch(self.phase):
            with m.Case(Phase.OPEN):
                self._open(m)
            with m.Case(Phase.FLUSH):
                self._flush(m)
            with m.Case(Phase.END):
                with m.If(self.free):
                    self._issue(m, 0, 0, 1, 0)
                    m.d.sync += self.phase.eq(Phase.OPEN)
        return m

    def _issue(self, m: Module, shift_r: Any, shift_s: Any, end: Any, tuple_: Any) -> None:
        m.d.sync += [self.has.eq(1), self.token.eq(Cat(_bit(shift_r), _bit(shift_s), _bit(end), tuple_))]

    def _open(self, m: Module) -> None:
        payload = self.arrivals.payload
        left, right = _tuples(self.condition, payload)
        m.d.comb += [self.arrivals.ready.eq(self.free), self.queue.data.eq(Cat(_bit(1), right))]
        with m.If(moves(self.arrivals) & self.arrivals.valid & (payload[HAS_LEFT] | payload[HAS_RIGHT])):
            self._issue(m, payload[HAS_LEFT], payload[HAS_RIGHT], 0, Cat(_bit(1), left))
            m.d.comb += self.queue.push.eq(payload[HAS_RIGHT])
        with m.If(moves(self.arrivals) & self.arrivals.eos):
            m.d.sync += [self.phase.eq(Phase.FLUSH), self.left.eq(max(self.design.left, self.design.right) - 1)]

    def _flush(self, m: Module) -> None:
        """Empty tuples on both sides, as many as the longer window holds."""
        with m.If(self.free):
            self._issue(m, 1, 1, 0, 0)
            m.d.comb += self.queue.push.eq(1)
            m.d.sync += self.left.eq(self.left - 1)
            with m.If(self.left == 0):
                m.d.sync += self.phase.eq(Phase.END)


def _tuples(condition: Condition, payload: Any) -> tuple[Value, Value]:
    whole = payload.as_value()
    width = condition.left.bits
    return whole[2 : 2 + width], whole[2 + width :]


def _bit(value: Any) -> Value:
    return value if isinstance(value, Value) else Value.cast(bool(value))


class GlobalDriver(Block):
    """The controller of the papers: starts all cores together, and suspends them while a buffer is full.

    It goes through the same states as the cores, as many cycles ahead as its signals need to reach them.
    """

    def __init__(self, condition: Condition, design: Design) -> None:
        self.condition, self.design = condition, design
        r, s = condition.left.bits + 1, condition.right.bits + 1
        outputs = {name: Out(1) for name in ("go", "shift_r", "shift_s", "end", "suspend")}
        ports: dict[str, Any] = {"arrivals": stream_in(arrivals_row(condition)), "suspended": In(1), **outputs}
        ports |= {"r": Out(r), "s": Out(s), "discarded": Out(32)}
        longest = tuple(max(lengths) for lengths in zip(*design.segments, strict=True))
        self.scans = longest
        parameters = (condition.key, longest, max(design.left, design.right), design.overload)
        super().__init__(ports, parameters)

    def build(self) -> Module:
        m = Module()
        self.state, self.phase = Signal(State), Signal(Phase)
        self.count = Signal(range(max(self.scans)))
        self.left = Signal(range(max(self.design.left, self.design.right)))
        self.wants_s = Signal()
        m.d.comb += self.suspend.eq(self.suspended)
        self._discard(m)
        with m.If(~self.suspended):
            with m.Switch(self.state):
                with m.Case(State.READY):
                    self._ready(m)
                with m.Case(State.SCAN_R):
                    self._scan(m, self.scans[1], Mux(self.wants_s, State.SCAN_S, State.READY))
                with m.Case(State.SCAN_S):
                    self._scan(m, self.scans[0], State.READY)
        return m

    def _scan(self, m: Module, length: int, then: Any) -> None:
        m.d.sync += self.count.eq(self.count + 1)
        with m.If(self.count == length - 1):
            m.d.sync += [self.count.eq(0), self.state.eq(then)]

    def _ready(self, m: Module) -> None:
        with m.Switch(self.phase):
            with m.Case(Phase.OPEN):
                self._open(m)
            with m.Case(Phase.FLUSH):
                self._step(m, 1, 1)
                m.d.sync += [self.r.eq(0), self.s.eq(0), self.left.eq(self.left - 1)]
                with m.If(self.left == 0):
                    m.d.sync += self.phase.eq(Phase.END)
            with m.Case(Phase.END):
                m.d.comb += [self.go.eq(1), self.end.eq(1)]
                m.d.sync += self.phase.eq(Phase.OPEN)

    def _open(self, m: Module) -> None:
        payload = self.arrivals.payload
        left, right = _tuples(self.condition, payload)
        m.d.comb += self.arrivals.ready.eq(1)
        m.d.sync += [self.r.eq(Cat(_bit(1), left)), self.s.eq(Cat(_bit(1), right))]
        with m.If(self.arrivals.valid):
            self._step(m, payload[HAS_LEFT], payload[HAS_RIGHT])
        with m.If(self.arrivals.eos):
            m.d.sync += [self.phase.eq(Phase.FLUSH), self.left.eq(max(self.design.left, self.design.right) - 1)]

    def _step(self, m: Module, shift_r: Any, shift_s: Any) -> None:
        shift_r, shift_s = _bit(shift_r), _bit(shift_s)
        m.d.comb += [self.go.eq(shift_r | shift_s), self.shift_r.eq(shift_r), self.shift_s.eq(shift_s)]
        m.d.sync += self.wants_s.eq(shift_s)
        m.d.sync += self.state.eq(
            Mux(shift_r, State.SCAN_R, Mux(shift_s, State.SCAN_S, State.READY))
        )

    def _discard(self, m: Module) -> None:
        """While cores are suspended, tuples that arrive are dropped and counted; the end never is."""
        if self.design.overload != "discard":
            return
        payload = self.arrivals.payload
        drops = self.suspended & (self.phase == Phase.OPEN) & self.arrivals.valid & ~self.arrivals.eos
        with m.If(drops):
            m.d.comb += self.arrivals.ready.eq(1)
            m.d.sync += self.discarded.eq(self.discarded + payload[HAS_LEFT] + payload[HAS_RIGHT])
