"""Stages that a source and a union need: time and clock of tuples, and fields on more wires."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.operators import copy_field
from handshake.engines.circuit.components.slide import CLOCK, HERE, SHOWN, TIME
from handshake.engines.circuit.components.stream import forward, moves, stream_in, stream_out
from handshake.engines.circuit.components.types import Row, Wire, bits_of_range, null_of
from handshake.errors import UnsupportedError
from handshake.schema import Binary, String


def stamped_row(row: Row, time: str, lateness: int) -> Row:
    """Return a source's fields, then its tuples' time and clock; in lock step also `@shown`."""
    own = row[time]
    kept = tuple(w for w in row if w.name != TIME)
    bits, signed = bits_of_range(own.range[0] - lateness, own.range[1])
    clock = Wire(CLOCK, own.type, max(own.bits + 1, bits if signed else bits + 1), True)
    shown = (replace(clock, name=SHOWN),) if HERE in row.names else ()
    return Row((*kept, replace(own, name=TIME), clock, *shown))


class Stamp(Block):
    """Gives each tuple its time (the field `time`) and its source's clock. Latency 0.

    The clock is the largest time so far, less `lateness` (docs/queries.md); a NULL time does not move it.
    """

    latency = 0

    def __init__(self, row: Row, time: str, lateness: int) -> None:
        self.row, self.time, self.lateness = row, time, lateness
        self.after = stamped_row(row, time, lateness)
        super().__init__({"i": stream_in(row), "o": stream_out(self.after)}, (row, time, lateness))

    def build(self) -> Module:
        m = Module()
        m.d.comb += [self.o.valid.eq(self.i.valid), self.o.eos.eq(self.i.eos), self.i.ready.eq(self.o.ready)]
        for each in self.after:
            if each.name not in (CLOCK, SHOWN):
                source = self.time if each.name == TIME else each.name
                copy_field(m, self.o.payload, self.i.payload, each, source)
        self._clock(m)
        return m

    def _clock(self, m: Module) -> None:
        own = self.row[self.time]
        least = own.range[0]
        newest = Signal(own.shape, init=least)
        time = Value.cast(self.i.payload[self.time])
        present = Const(1, 1) if not own.nullable else ~self.i.payload[null_of(self.time)]
        if HERE in self.row.names:  # an empty slot has no time
            present = present & self.i.payload[HERE]
        now = Mux(self.i.valid & present & (time > newest), time, newest)
        for name in (CLOCK, SHOWN):
            if name in self.after.names:
                m.d.comb += self.o.payload[name].eq(now - self.lateness)
        with m.If(moves(self.i)):
            m.d.sync += newest.eq(Mux(self.i.eos, least, now))


def common_row(rows: list[Row], what: str) -> Row:
    """Return wires that carry the values of all rows, field by field, with the names of the first row."""
    return Row(tuple(_common(list(wires), what) for wires in zip(*rows, strict=True)))


def _common(wires: list[Wire], what: str) -> Wire:
    first = wires[0]
    if any(w.count_bits for w in wires) and any(replace(w, name=first.name) != first for w in wires):
        raise UnsupportedError(f"{what}: averages of different widths ('{first.name}') cannot be one stream")
    nullable = any(w.nullable for w in wires)
    if isinstance(first.type, (String, Binary)):
        return replace(first, bits=max(w.bits for w in wires), nullable=nullable)
    bits, signed = bits_of_range(min(w.range[0] for w in wires), max(w.range[1] for w in wires))
    return replace(first, bits=bits, signed=signed, nullable=nullable)


class Widen(Block):
    """The fields of `i` on the wires of `target`, by position. Latency 0."""

    latency = 0

    def __init__(self, row: Row, target: Row) -> None:
        self.row, self.target = row, target
        super().__init__({"i": stream_in(row), "o": stream_out(target)}, (row, target))

    def build(self) -> Module:
        m = Module()
        if self.row == self.target:
            forward(m, self.i, self.o)
            return m
        m.d.comb += [self.o.valid.eq(self.i.valid), self.o.eos.eq(self.i.eos), self.i.ready.eq(self.o.ready)]
        for own, wide in zip(self.row, self.target, strict=True):
            self._widen(m, own, wide, self.o.payload)
        return m

    def _widen(self, m: Module, own: Wire, wide: Wire, payload: Any) -> None:
        if own.count_bits:
            copy_field(m, payload, self.i.payload, wide, own.name)
            return
        value = Value.cast(self.i.payload[own.name])
        if isinstance(own.type, (String, Binary)):
            value = Cat(Const(0, wide.bits - own.bits), value)
        m.d.comb += payload[wide.name].eq(value)
        if wide.nullable:
            null = self.i.payload[null_of(own.name)] if own.nullable else Const(0, 1)
            m.d.comb += payload[null_of(wide.name)].eq(null)
