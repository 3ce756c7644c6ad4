"""The window join of a query: slots of two streams in, results out, and one of two arrangements between.

`handshake`: join cores in a line (handshake.circuit.join), results in any order. `ordered`: the windows in
memories side by side (handshake.circuit.ordered_join), results as they are defined to come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value
from amaranth.lib.wiring import Out

from handshake.circuit.block import Block
from handshake.circuit.join.arrivals import HAS_LEFT, HAS_RIGHT, arrivals_row
from handshake.circuit.join.condition import Condition
from handshake.circuit.join.design import Design
from handshake.circuit.join.join import HandshakeJoin
from handshake.circuit.operators import copy_field
from handshake.circuit.ordered_join import Held, OrderedJoin
from handshake.circuit.sequence import least, zipped
from handshake.circuit.slide import CLOCK, HERE, SHOWN, TIME
from handshake.circuit.stream import stream_in, stream_out
from handshake.circuit.types import Row, Wire, bits_of_range, null_of
from handshake.circuit.window import COUNTER
from handshake.plan.expr import Expr

__all__ = ["JoinSpec", "WindowJoin", "joined_row"]


@dataclass(frozen=True)
class JoinSpec:
    """What a join is like, beside the wires that it reads."""

    names: tuple[str, str]
    """What the streams are called; columns of results are `name.column`."""
    on: Expr
    """The condition, that of time windows included."""
    held: tuple[Held, Held]
    lanes: int
    """Join cores, or memories side by side."""
    ordered: bool
    buffer: int = 8
    merger_buffer: int = 4
    timed: bool = False
    """Whether results need a time and a clock."""

    @property
    def reads_time(self) -> bool:
        """Whether the join itself looks at times."""
        return any(held.kind == "time" for held in self.held)

    @property
    def design(self) -> Design:
        """The handshake join for it."""
        left, right = (held.tuples for held in self.held)
        return Design(self.lanes, left, right, buffer=self.buffer, merger_buffer=self.merger_buffer)

    def kept(self, row: Row) -> Row:
        """The wires of a stream's slots that the join holds."""
        hidden = (TIME,) * (self.timed or self.reads_time) + (CLOCK,) * self.timed
        return Row(tuple(w for w in row if not w.name.startswith("@") or w.name in hidden))

    def condition(self, left: Row, right: Row) -> Condition:
        """The condition on the wires that are held."""
        return Condition(self.kept(left), self.kept(right), self.on)


def joined_row(left: Row, right: Row, spec: JoinSpec) -> Row:
    """The wires of results: all columns of both streams, then time and clock where they are needed."""
    wires: list[Wire] = []
    for name, row in zip(spec.names, (left, right), strict=True):
        wires += [replace(w, name=f"{name}.{w.name}") for w in row if not w.name.startswith("@")]
    hidden = (TIME, CLOCK) if spec.timed else ()
    return Row((*wires, *(_later(left[name], right[name]) for name in hidden)))


def _later(a: Wire, b: Wire) -> Wire:
    """The wires of the later of two times; it is NULL if both are."""
    bits, signed = bits_of_range(min(a.range[0], b.range[0]), max(a.range[1], b.range[1]))
    return replace(a, bits=bits, signed=signed, nullable=a.nullable and b.nullable)


class WindowJoin(Block):
    """Joins the slots `i0` and `i1`; results leave on `o`.

    `latency` is from the later tuple of a result to the result, where the partner is the oldest of its
    window: exact in the ordered arrangement, the least in a handshake join, where tuples drift together.
    `issue_rate` is that of arrivals with full windows: exact in order, the least in a handshake join.
    """

    def __init__(self, left: Row, right: Row, spec: JoinSpec) -> None:
        self.rows, self.spec = (left, right), spec
        self.condition = spec.condition(left, right)
        self.after = joined_row(left, right, spec)
        self.core = self._core()
        self.counters = self.core.counters
        ports: dict[str, Any] = {"i0": stream_in(left), "i1": stream_in(right), "o": stream_out(self.after)}
        super().__init__(ports | {name: Out(COUNTER) for name in self.counters}, (left, right, spec))

    def _core(self) -> Block:
        spec = self.spec
        if spec.ordered:
            core: Block = OrderedJoin(self.condition, *spec.held, spec.lanes, shown=self._shown)
            self.latency, self.issue_rate = core.latency, core.issue_rate
            return core
        design = spec.design
        self.latency, self.issue_rate = handshake_latency(design), handshake_rate(design)
        return HandshakeJoin(self.condition, design)

    def build(self) -> Module:
        m = Module()
        m.submodules.join = core = self.core
        self._arrive(m, core.arrivals)
        self._leave(m, core.results)
        for name in self.counters:
            m.d.comb += getattr(self, name).eq(getattr(core, name))
        return m

    def _arrive(self, m: Module, arrivals: Any) -> None:
        """Slots of the same arrival side by side; those without a tuple of either stream end here."""
        inputs = [self.i0, self.i1]
        together, some = zipped(m, inputs), Signal(name="some")
        here = [each.payload[HERE] for each in inputs]
        m.d.comb += [
            some.eq(here[0] | here[1]),
            arrivals.valid.eq(together & self.i0.valid & some),
            arrivals.eos.eq(together & self.i0.eos),
            arrivals.payload[HAS_LEFT].eq(here[0]),
            arrivals.payload[HAS_RIGHT].eq(here[1]),
        ]
        nothing = self.i0.valid & ~some
        m.d.comb += [each.ready.eq(together & (arrivals.ready | nothing)) for each in inputs]
        if self.spec.reads_time:
            m.d.comb += self.core.mark.eq(least([Value.cast(each.payload[SHOWN]) for each in inputs]))
        row = arrivals_row(self.condition)
        for side, source, own in zip("lr", inputs, self._kept, strict=True):
            for each in own:
                copy_field(m, arrivals.payload, source.payload, row[f"{side}.{each.name}"], each.name)

    @property
    def _shown(self) -> Shape | None:
        """The wires of what the clock of the join shows, if it looks at times."""
        if not self.spec.reads_time:
            return None
        return Shape(max(row[SHOWN].bits for row in self.rows), True)

    @property
    def _kept(self) -> tuple[Row, Row]:
        return self.condition.left, self.condition.right

    def _leave(self, m: Module, results: Any) -> None:
        """Results by the names of the query; what an equality lets no wires carry is its partner's value."""
        m.d.comb += [
            self.o.valid.eq(results.valid), self.o.eos.eq(results.eos), results.ready.eq(self.o.ready)
        ]  # fmt: skip
        for side, name, row in zip("lr", self.spec.names, self._kept, strict=True):
            for each in row:
                if not each.name.startswith("@"):
                    self._field(m, results.payload, side, each, f"{name}.{each.name}")
        if self.spec.timed:
            self._times(m, results.payload)

    def _field(self, m: Module, payload: Any, side: str, each: Wire, name: str) -> None:
        shared = self.condition.shared.get(each.name) if side == "r" else None
        source = f"l.{shared}" if shared is not None else f"{side}.{each.name}"
        m.d.comb += self.o.payload[name].eq(payload[source])
        if each.nullable:  # equal values are no NULLs
            null = Const(0, 1) if shared is not None else payload[null_of(source)]
            m.d.comb += self.o.payload[null_of(name)].eq(null)

    def _times(self, m: Module, payload: Any) -> None:
        for name in (TIME, CLOCK):
            times = [Value.cast(payload[self._carrier(side, name)]) for side in "lr"]
            nulls = [self._null(payload, side, name) for side in "lr"]
            first = ~nulls[0] & (nulls[1] | (times[0] >= times[1]))
            m.d.comb += self.o.payload[name].eq(Mux(first, times[0], times[1]))
            if self.after[name].nullable:
                m.d.comb += self.o.payload[null_of(name)].eq(nulls[0] & nulls[1])

    def _carrier(self, side: str, name: str) -> str:
        shared = self.condition.shared.get(name) if side == "r" else None
        return f"l.{shared}" if shared is not None else f"{side}.{name}"

    def _null(self, payload: Any, side: str, name: str) -> Value:
        row = self.condition.left if side == "l" else self.condition.right
        if not row[name].nullable or self._carrier(side, name) != f"{side}.{name}":
            return Const(0, 1)
        return Value.cast(payload[null_of(f"{side}.{name}")])


def handshake_latency(design: Design) -> int:
    """Cycles from a tuple to its result, at least.

    One each for the driver, the core's load and its comparison, the pipeline's, two for the core's buffer,
    and two for each merger on the way.
    """
    levels = (design.cores - 1).bit_length()
    return 5 + design.stages + 2 * levels


def handshake_rate(design: Design) -> float:
    """Arrivals per cycle, at least: for each one a core scans a segment, hands over, and takes the next."""
    return 1 / (3 + max(max(lengths) for lengths in design.segments))
