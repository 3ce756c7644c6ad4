"""The window join of a query: slots of its streams in, results out, and one of three arrangements between.

`handshake`: join cores in a line (`join/join.py`), results in any order. `ordered`: the windows in parallel
memories, results in their defined order; of two streams (`ordered_join.py`), or of more (`nested_scan.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.join_windows import HeldTuples
from handshake.engines.circuit.components.nested_scan import NestedScan, most_cycles
from handshake.engines.circuit.components.operators import copy_field
from handshake.engines.circuit.components.ordered_join import OrderedJoin
from handshake.engines.circuit.components.sequence import in_step, least
from handshake.engines.circuit.components.slide import CLOCK, HERE, SHOWN, TIME
from handshake.engines.circuit.components.stream import stream_in, stream_out
from handshake.engines.circuit.components.types import Row, Wire, bits_of_range, null_of
from handshake.engines.circuit.join.arrivals import arrivals_row, has_of
from handshake.engines.circuit.join.condition import Combination, PairGates
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.plan.expr import Expr


@dataclass(frozen=True)
class JoinSpec:
    """The parameters of a join, except for the wires that it reads."""

    names: tuple[str, ...]
    """The names of the streams; columns of results are `name.column`."""
    on: Expr
    """The condition, that of time windows included."""
    held: tuple[HeldTuples, ...]
    lanes: int
    """The number of join cores, or of parallel memories."""
    ordered: bool
    buffer: int = 8
    merger_buffer: int = 4
    timed: bool = False
    """Whether results need a time and a clock."""
    together: tuple[frozenset[int], ...] = ()
    """Streams that one arrival may have tuples of, by their numbers: an input that is joined with itself."""

    @property
    def reads_time(self) -> bool:
        """True if the join itself reads times."""
        return any(held.rule is not None for held in self.held)

    @property
    def cycles(self) -> int:
        """The most cycles that an arrival takes in a join of several streams; see `most_cycles`."""
        return most_cycles(self.held, self.lanes, self.together)

    @property
    def design(self) -> Design:
        """The design of the handshake join."""
        left, right = (held.tuples for held in self.held)
        return Design(self.lanes, left, right, buffer=self.buffer, merger_buffer=self.merger_buffer)

    def held_row(self, row: Row) -> Row:
        """Return the wires of a stream's slots that the join holds."""
        hidden = (TIME,) * (self.timed or self.reads_time) + (CLOCK,) * self.timed
        return Row(tuple(w for w in row if not w.name.startswith("@") or w.name in hidden))

    def condition(self, rows: tuple[Row, ...]) -> PairGates | Combination:
        """Return the condition on the wires that are held."""
        kept = tuple(self.held_row(row) for row in rows)
        return PairGates(*kept, self.on) if len(kept) == 2 else Combination(kept, self.on)


def joined_row(rows: tuple[Row, ...], spec: JoinSpec) -> Row:
    """Return the wires of results: all columns of all streams, then time and clock if they are needed."""
    wires: list[Wire] = []
    for name, row in zip(spec.names, rows, strict=True):
        wires += [replace(w, name=f"{name}.{w.name}") for w in row if not w.name.startswith("@")]
    hidden = (TIME, CLOCK) if spec.timed else ()
    return Row((*wires, *(reduce(_later, (row[name] for row in rows)) for name in hidden)))


def _later(a: Wire, b: Wire) -> Wire:
    """Return the wires of the later of two times; it is NULL if both are."""
    bits, signed = bits_of_range(min(a.range[0], b.range[0]), max(a.range[1], b.range[1]))
    return replace(a, bits=bits, signed=signed, nullable=a.nullable and b.nullable)


class WindowJoin(Block):
    """Joins the slots `i0`, `i1`, …; results leave on `o`.

    `latency` is from the later tuple of a result to the result, where the partner is the oldest of its
    window: exact in the ordered arrangement, the least in a handshake join, where tuples drift together.
    `issue_rate` is that of arrivals with full windows: exact in order of two streams, else the least.
    """

    def __init__(self, rows: tuple[Row, ...], spec: JoinSpec) -> None:
        self.rows, self.spec = rows, spec
        self.condition = spec.condition(rows)
        self.after = joined_row(rows, spec)
        self.core = self._core(self.condition)
        self.counters = self.core.counters
        ports: dict[str, Any] = {f"i{n}": stream_in(row) for n, row in enumerate(rows)}
        ports["o"] = stream_out(self.after)
        super().__init__(ports | {name: Out(COUNTER) for name in self.counters}, (rows, spec))

    def _core(self, condition: PairGates | Combination) -> Block:
        spec = self.spec
        if isinstance(condition, Combination):
            together = spec.together
            core: Block = NestedScan(condition, spec.held, spec.lanes, shown=self._shown, together=together)
        elif spec.ordered:
            core = OrderedJoin(condition, spec.held, spec.lanes, shown=self._shown)
        else:
            design = spec.design
            self.latency, self.issue_rate = handshake_latency(design), handshake_rate(design)
            return HandshakeJoin(condition, design)
        self.latency, self.issue_rate = core.latency, core.issue_rate
        return core

    def build(self) -> Module:
        m = Module()
        m.submodules.join = core = self.core
        self._arrive(m, core.arrivals)
        self._leave(m, core.results)
        for name in self.counters:
            m.d.comb += getattr(self, name).eq(getattr(core, name))
        return m

    def _arrive(self, m: Module, arrivals: Any) -> None:
        """Combine the slots of one arrival; slots without a tuple of any stream end here."""
        inputs = [getattr(self, f"i{n}") for n in range(len(self.rows))]
        together, some = in_step(m, inputs), Signal(name="some")
        here = [each.payload[HERE] for each in inputs]
        m.d.comb += [
            some.eq(reduce(or_, here)),
            arrivals.valid.eq(together & self.i0.valid & some),
            arrivals.eos.eq(together & self.i0.eos),
        ]
        sides = self.condition.sides
        m.d.comb += [arrivals.payload[has_of(side)].eq(has) for side, has in zip(sides, here, strict=True)]
        nothing = self.i0.valid & ~some
        m.d.comb += [each.ready.eq(together & (arrivals.ready | nothing)) for each in inputs]
        if self.spec.reads_time:
            m.d.comb += self.core.mark.eq(least([Value.cast(each.payload[SHOWN]) for each in inputs]))
        row = arrivals_row(self.condition)
        for side, source, own in zip(sides, inputs, self.condition.rows, strict=True):
            for each in own:
                copy_field(m, arrivals.payload, source.payload, row[f"{side}.{each.name}"], each.name)

    @property
    def _shown(self) -> Shape | None:
        """The wires of what the clock of the join shows, if it looks at times."""
        if not self.spec.reads_time:
            return None
        return Shape(max(row[SHOWN].bits for row in self.rows), True)

    def _leave(self, m: Module, results: Any) -> None:
        """Name results as the query does; a field that an equality makes redundant is its partner's."""
        m.d.comb += [
            self.o.valid.eq(results.valid), self.o.eos.eq(results.eos), results.ready.eq(self.o.ready)
        ]  # fmt: skip
        for side, (name, row) in enumerate(zip(self.spec.names, self.condition.rows, strict=True)):
            for each in row:
                if not each.name.startswith("@"):
                    self._field(m, results.payload, side, each, f"{name}.{each.name}")
        if self.spec.timed:
            self._times(m, results.payload)

    def _field(self, m: Module, payload: Any, side: int, each: Wire, name: str) -> None:
        m.d.comb += self.o.payload[name].eq(payload[self._carrier(side, each.name)])
        if each.nullable:
            m.d.comb += self.o.payload[null_of(name)].eq(self._null(payload, side, each.name))

    def _times(self, m: Module, payload: Any) -> None:
        for name in (TIME, CLOCK):
            members = [
                (Value.cast(payload[self._carrier(side, name)]), self._null(payload, side, name))
                for side in range(len(self.rows))
            ]
            time, null = reduce(_latest, members)
            m.d.comb += self.o.payload[name].eq(time)
            if self.after[name].nullable:
                m.d.comb += self.o.payload[null_of(name)].eq(null)

    def _carrier(self, side: int, name: str) -> str:
        carrier, field = self.condition.carrier(side, name)
        return f"{self.condition.sides[carrier]}.{field}"

    def _null(self, payload: Any, side: int, name: str) -> Value:
        shared = self.condition.carrier(side, name) != (side, name)  # equal values are no NULLs
        if shared or not self.condition.rows[side][name].nullable:
            return Const(0, 1)
        return Value.cast(payload[null_of(self._carrier(side, name))])


def _latest(a: tuple[Value, Value], b: tuple[Value, Value]) -> tuple[Value, Value]:
    """Return the later of two times, each with whether it is NULL."""
    first = ~a[1] & (b[1] | (a[0] >= b[0]))
    return Mux(first, a[0], b[0]), a[1] & b[1]


def handshake_latency(design: Design) -> int:
    """Return the least number of cycles from a tuple to its result.

    One each for the driver, the core's load and its comparison, the pipeline's, two for the core's buffer,
    and two for each merger on the way.
    """
    levels = (design.cores - 1).bit_length()
    return 5 + design.stages + 2 * levels


def handshake_rate(design: Design) -> float:
    """Return the least number of arrivals per cycle: a core scans a segment for each, and hands over."""
    return 1 / (3 + max(max(lengths) for lengths in design.segments))
