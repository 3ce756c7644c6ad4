"""Arrivals of several streams in one order, for joins: every stream gets a beat for every arrival.

A join's results depend on the order of arrivals. So below a join streams go in lock step, as *slots*: for
each arrival of any stream, every stream has one beat, and the hidden field `@here` says whether that beat has
a tuple of the stream. A selection clears `@here` instead of dropping the beat. So beats that the join takes
from all its inputs at once belong to the same arrival.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.demux import holds
from handshake.engines.circuit.components.operators import Select, Stage, copy_field
from handshake.engines.circuit.components.slide import HERE, SHOWN
from handshake.engines.circuit.components.stream import beat, moves, stream_in, stream_out
from handshake.engines.circuit.components.types import Row, Wire
from handshake.engines.circuit.components.union import multiplex
from handshake.schema import BOOL, INT64

PLACE = "#place"
"""Field of inputs that are joined with others: a tuple's place among the arrivals of all of them, from 0."""
PLACE_BITS = 32

_HERE = Wire(HERE, BOOL, 1)


def place_wire() -> Wire:
    """Return the wires of a place; it begins again at 0 after the largest."""
    return Wire(PLACE, INT64, PLACE_BITS)


def slot_row(row: Row) -> Row:
    """Return an input's wires without its place, and the flag that a beat has a tuple."""
    return Row((*(w for w in row if w.name != PLACE), _HERE))


class Sequence(Block):
    """Takes the tuples of `i0`, `i1`, … by their places and sends slots on `o0`, `o1`, …

    With one input there is no place to look at. The end is a beat of its own, on all outputs, when all inputs
    have ended; then places begin at 0 again. Latency 0, one arrival per cycle.
    """

    latency = 0

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        ports: dict[str, Any] = {f"i{n}": stream_in(row) for n, row in enumerate(rows)}
        ports |= {f"o{n}": stream_out(slot_row(row)) for n, row in enumerate(rows)}
        super().__init__(ports, rows)

    def build(self) -> Module:
        m, n = Module(), len(self.rows)
        inputs, outputs = ([getattr(self, f"{side}{k}") for k in range(n)] for side in "io")
        self.next = Signal(PLACE_BITS, name="next_place")
        here, ended, taken = Signal(n), Signal(n), Signal(n)
        offered, moved = Signal(), Signal()
        for k, source in enumerate(inputs):
            m.d.comb += here[k].eq(source.valid & ~ended[k] & self._due(source))
        m.d.comb += [
            offered.eq(here.any() | ended.all()),
            moved.eq(offered & reduce(and_, (taken[k] | sink.ready for k, sink in enumerate(outputs)))),
        ]
        for k, (source, sink) in enumerate(zip(inputs, outputs, strict=True)):
            self._send(m, k, here[k], here.any() & ~taken[k], ended.all() & ~taken[k])
            m.d.sync += taken[k].eq((taken[k] | moves(sink)) & ~moved)
            alone = source.eos & ~source.valid & ~ended[k]
            m.d.comb += source.ready.eq(alone | (here[k] & moved))
            with m.If(ended.all() & moved):
                m.d.sync += ended[k].eq(0)
            with m.Elif(moves(source) & source.eos):
                m.d.sync += ended[k].eq(1)
        with m.If(moved):
            m.d.sync += self.next.eq(Mux(here.any(), self.next + 1, 0))
        return m

    def _due(self, source: Any) -> Value:
        """Return whether the tuple at the head of an input is the next of all arrivals."""
        if len(self.rows) == 1:
            return Const(1, 1)
        return Value.cast(source.payload[PLACE]) == self.next

    def _send(self, m: Module, n: int, here: Value, valid: Value, eos: Value) -> None:
        source, sink = getattr(self, f"i{n}"), getattr(self, f"o{n}")
        for each in self.rows[n]:
            if each.name != PLACE:
                copy_field(m, sink.payload, source.payload, each, each.name)
        m.d.comb += [sink.payload[HERE].eq(here), sink.valid.eq(valid), sink.eos.eq(eos)]


class Mask(Select):
    """Selection in lock step: where the Boolean `field` is not true, the slot becomes an empty one."""

    def keep(self) -> Value:
        return Const(1, 1)

    def wire(self, m: Module, payload: Any) -> None:
        _copy_slot(m, payload, self.i.payload, self.before, self.is_true())


def _copy_slot(m: Module, target: Any, source: Any, row: Row, stays: Value) -> None:
    """Copy a slot, which is empty unless it `stays`."""
    for each in row:
        if each.name != HERE:
            copy_field(m, target, source, each, each.name)
    m.d.comb += target[HERE].eq(source[HERE] & stays)


class Claim(Stage):
    """De-multiplexing in lock step: the slot stays where `field` holds one of `values`.

    Counter, if `everyone` is given (the values of all streams of the carrier): `unknown`, those of no stream.
    """

    def __init__(
        self,
        row: Row,
        field: str,
        values: tuple[int | str, ...],
        everyone: tuple[int | str, ...] | None = None,
        *,
        registered: bool = True,
    ) -> None:
        self.field, self.values, self.everyone = field, values, everyone
        self.counters = () if everyone is None else ("unknown",)
        ports = {name: Out(COUNTER) for name in self.counters}
        super().__init__(row, row, registered, (field, values, everyone), ports)

    def wire(self, m: Module, payload: Any) -> None:
        slot, tag = self.i.payload, self.before[self.field]
        _copy_slot(m, payload, slot, self.before, holds(slot, tag, self.values))
        if self.everyone is not None:
            with m.If(moves(self.i) & self.i.valid & slot[HERE] & ~holds(slot, tag, self.everyone)):
                m.d.sync += self.unknown.eq(self.unknown + 1)


class LockstepUnion(Block):
    """Slots of several streams in one; no two of them have a tuple in the same beat. Latency 0.

    Its clock is the slowest of theirs.
    """

    latency = 0

    def __init__(self, row: Row, inputs: int) -> None:
        self.row, self.inputs = row, inputs
        ports: dict[str, Any] = {f"i{n}": stream_in(row) for n in range(inputs)}
        super().__init__(ports | {"o": stream_out(row)}, (row, inputs))

    def build(self) -> Module:
        m = Module()
        inputs = [getattr(self, f"i{n}") for n in range(self.inputs)]
        both, here = in_step(m, inputs), Cat(*(each.payload[HERE] for each in inputs))
        picked = multiplex(here, [each.payload for each in inputs])
        m.d.comb += self.o.payload.eq(picked)
        if SHOWN in self.row.names:
            m.d.comb += self.o.payload[SHOWN].eq(least([Value.cast(each.payload[SHOWN]) for each in inputs]))
        m.d.comb += [self.o.valid.eq(both & inputs[0].valid), self.o.eos.eq(both & inputs[0].eos)]
        m.d.comb += [each.ready.eq(both & self.o.ready) for each in inputs]
        return m


def least(values: list[Value]) -> Value:
    """Return the smallest of some numbers."""
    return reduce(lambda a, b: Value.cast(Mux(a < b, a, b)), values)


def in_step(m: Module, inputs: list[Any]) -> Value:
    """Return a bit that is high when all inputs have a beat; in lock step it is of the same arrival."""
    together = Signal(name="together")
    m.d.comb += together.eq(reduce(and_, (beat(each) for each in inputs)))
    return together
