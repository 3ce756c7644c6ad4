"""A segment of a window: it turns past one comparator, and its head is what is handed over.

Both kinds do the same in each cycle: `turn` brings the next tuple to the head; with `insert` (which also
needs `turn`), the tuple that was at the head is replaced by `new` as it goes round, which is what a shift
register does with its oldest tuple. After as many turns as it has places, the oldest tuple is at the head
again.
"""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from handshake.engines.circuit.join.buffer import following, lanes

BLOCK_RAM_FROM = 64
"""Tuples from which a segment is worth block RAM; shorter ones go into the look-up tables' RAM."""

LANE = 16
"""Bits that share a read address: fewer than in a buffer, since a comparison follows before any register."""


class WindowSegment:
    """`length` tuples of `bits` (valid flag included), in registers or in memory."""

    def __init__(self, bits: int, length: int, windows: str, block_ram_from: int = BLOCK_RAM_FROM) -> None:
        self.bits, self.length, self.block_ram_from = bits, length, block_ram_from
        self.in_memory = windows == "memory" and length > 1
        self.turn, self.insert = Signal(name="turn"), Signal(name="insert")
        self.new, self.head = Signal(bits, name="new"), Signal(bits, name="head")

    def build(self, m: Module, name: str) -> None:
        """Add the segment to the circuit."""
        if not self.in_memory:
            self._in_registers(m, name)
        elif self.length >= self.block_ram_from:
            self._in_block_ram(m, name)
        else:
            self._in_look_up_tables(m, name)

    def _in_registers(self, m: Module, name: str) -> None:
        slots = [Signal(self.bits, name=f"{name}_slot{i}") for i in range(self.length)]
        m.d.comb += self.head.eq(slots[-1])
        with m.If(self.turn):
            entering: Value = Mux(self.insert, self.new, self.head)
            m.d.sync += [slot.eq(before) for slot, before in zip(slots, (entering, *slots), strict=False)]

    def _in_look_up_tables(self, m: Module, name: str) -> None:
        """Keep the tuples in place; the place of the head moves."""
        for lane in lanes(self.bits, LANE):
            store = self._store(m, f"{name}{lane.start}", lane, "distributed")
            place = self._place(m, f"{name}{lane.start}_place")
            self._write(m, store, place, lane)
            read = store.read_port(domain="comb")
            m.d.comb += [read.addr.eq(place), self.head[lane].eq(read.data)]

    def _in_block_ram(self, m: Module, name: str) -> None:
        """Read two places ahead, with a register behind, since block RAM is slow to answer.

        So no place is ever read while it is written, and Yosys need not see to what would be read then: an
        attribute says so, which counts where Yosys itself finds the register of the read port.
        """
        whole = slice(0, self.bits)
        store = self._store(m, name, whole, "block", no_rw_check=True)
        self._write(m, store, self._place(m, f"{name}_place"), whole)
        found, answer = (Signal(self.bits, name=f"{name}_{n}", reset_less=True) for n in ("found", "answer"))
        read, ahead = store.read_port(domain="comb"), self._place(m, f"{name}_ahead", 2)
        m.d.comb += [read.addr.eq(ahead), self.head.eq(answer)]
        with m.If(self.turn):
            m.d.sync += [found.eq(read.data), answer.eq(found)]

    def _store(self, m: Module, name: str, lane: slice, style: str, **attributes: bool) -> Memory:
        width, attrs = lane.stop - lane.start, {"ram_style": style, **attributes}
        store = Memory(shape=width, depth=self.length, init=[], attrs=attrs)
        m.submodules[name] = store
        return store

    def _place(self, m: Module, name: str, init: int = 0) -> Signal:
        place = Signal(range(self.length), name=name, init=init)
        with m.If(self.turn):
            m.d.sync += place.eq(following(place, self.length))
        return place

    def _write(self, m: Module, store: Memory, place: Signal, lane: slice) -> None:
        write = store.write_port()
        m.d.comb += [write.addr.eq(place), write.data.eq(self.new[lane]), write.en.eq(self.insert)]
