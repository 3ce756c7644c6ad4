"""A segment of a window: it turns past one comparator, and its head is what is handed over.

Both kinds do the same in each cycle: `turn` brings the next tuple to the head; with `insert` (which asks for
`turn` as well), the tuple that was at the head is replaced by `new` as it goes round, which is what a shift
register does with its oldest tuple. After as many turns as it has places, the oldest tuple is at the head
again.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from handshake.circuit.join.buffer import following

__all__ = ["BLOCK_RAM_FROM", "Segment"]

BLOCK_RAM_FROM = 64
"""Tuples from which a segment is worth block RAM; shorter ones go into the look-up tables' RAM."""


class Segment:
    """`length` tuples of `bits` (valid flag included), in registers or in memory."""

    def __init__(self, bits: int, length: int, windows: str) -> None:
        self.bits, self.length = bits, length
        self.in_memory = windows == "memory" and length > 1
        self.turn, self.insert = Signal(name="turn"), Signal(name="insert")
        self.new, self.head = Signal(bits, name="new"), Signal(bits, name="head")

    def build(self, m: Module, name: str) -> None:
        """Add the segment to the circuit."""
        if self.in_memory:
            self._in_memory(m, name)
        else:
            self._in_registers(m, name)

    def _in_registers(self, m: Module, name: str) -> None:
        slots = [Signal(self.bits, name=f"{name}_slot{i}") for i in range(self.length)]
        m.d.comb += self.head.eq(slots[-1])
        with m.If(self.turn):
            entering: Value = Mux(self.insert, self.new, self.head)
            m.d.sync += [slot.eq(before) for slot, before in zip(slots, (entering, *slots), strict=False)]

    def _in_memory(self, m: Module, name: str) -> None:
        """The place at the head moves instead of the tuples."""
        block = self.length >= BLOCK_RAM_FROM
        style = "block" if block else "distributed"
        store = Memory(shape=self.bits, depth=self.length, init=[], attrs={"ram_style": style})
        m.submodules[name] = store
        place, write = Signal(range(self.length), name=f"{name}_place"), store.write_port()
        m.d.comb += [write.addr.eq(place), write.data.eq(self.new), write.en.eq(self.insert)]
        with m.If(self.turn):
            m.d.sync += place.eq(following(place, self.length))
        if block:
            self._read_ahead(m, store, name)
        else:
            read = store.read_port(domain="comb")
            m.d.comb += [read.addr.eq(place), self.head.eq(read.data)]

    def _read_ahead(self, m: Module, store: Memory, name: str) -> None:
        """Block RAM is slow to answer, so it is read two places ahead, and its answer has a register."""
        ahead, read = Signal(range(self.length), name=f"{name}_ahead", init=2), store.read_port()
        answer = Signal(self.bits, name=f"{name}_answer", reset_less=True)
        m.d.comb += [read.addr.eq(ahead), read.en.eq(self.turn), self.head.eq(answer)]
        with m.If(self.turn):
            m.d.sync += [ahead.eq(following(ahead, self.length)), answer.eq(read.data)]
