"""Windows of a join in several memories side by side, so that several tuples are compared in one cycle."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

from handshake.engines.circuit.join.segment import BLOCK_RAM_FROM

__all__ = ["Store"]


class Store:
    """The last `size` tuples of a stream in `lanes` memories, built into its owner's module.

    Tuples lie in the memories in turn, as on a ring; a read gives `lanes` tuples that came one after another,
    the oldest ones first. `first` reads the oldest, `following` the next ones; in the cycle after either,
    `data` has them and `held` says which of them are there; `last` is high when none come after these.
    """

    def __init__(self, bits: int, size: int, lanes: int, name: str) -> None:
        self.bits, self.size, self.lanes, self.name = bits, size, lanes, name
        self.rows = -(-size // lanes)
        self.first, self.following = Signal(name=f"{name}_first"), Signal(name=f"{name}_following")
        self.insert, self.clear = Signal(name=f"{name}_insert"), Signal(name=f"{name}_clear")
        self.new = Signal(bits, name=f"{name}_new")
        self.data = [Signal(bits, name=f"{name}_data{lane}") for lane in range(lanes)]
        self.held, self.oldest_of = Signal(lanes, name=f"{name}_held"), Signal(lanes, name=f"{name}_from")
        """Which lanes have a tuple; and which ones come first: all from the oldest tuple's on."""
        self.last, self.full = Signal(name=f"{name}_last"), Signal(name=f"{name}_full")
        self.at_oldest = Signal(name=f"{name}_at_oldest")
        """Whether `data` begins with the oldest tuple."""

    def build(self, m: Module) -> None:
        """Add the memories and their pointers to the circuit."""
        self.filled = Signal(range(self.size + 1), name=f"{self.name}_filled")
        self.start, self.end = (self._pointer(which) for which in ("start", "end"))
        m.d.comb += self.full.eq(self.filled == self.size)
        self._read(m)
        self._write(m)

    def _pointer(self, which: str) -> tuple[Signal, Signal]:
        lane = Signal(range(self.lanes), name=f"{self.name}_{which}_lane")
        return lane, Signal(range(self.rows), name=f"{self.name}_{which}_row")

    def _read(self, m: Module) -> None:
        here, after = (Signal(range(self.rows), name=f"{self.name}_{what}") for what in ("row", "row_after"))
        seen = Signal(range(self.size + 2 * self.lanes), name=f"{self.name}_seen")
        m.d.comb += after.eq(Mux(self.first, self.start[1], self._next(here, self.rows)))
        with m.If(self.first | self.following):
            m.d.sync += [here.eq(after), seen.eq(Mux(self.first, 0, seen + self.lanes))]
        for lane in range(self.lanes):
            self._lane(m, lane, after, seen)
        m.d.comb += [self.last.eq(seen + self.lanes >= self.filled), self.at_oldest.eq(seen == 0)]

    def _lane(self, m: Module, lane: int, row: Signal, seen: Signal) -> None:
        style = "block" if self.rows >= BLOCK_RAM_FROM else "distributed"
        memory = Memory(shape=self.bits, depth=self.rows, init=[], attrs={"ram_style": style})
        m.submodules[f"{self.name}{lane}"] = memory
        write, read = memory.write_port(), memory.read_port()
        start, end = self.start, self.end
        behind = lane < start[0]  # lanes before the oldest tuple's have theirs one row further on
        place = Signal(range(self.lanes), name=f"{self.name}_place{lane}")
        m.d.comb += [
            read.addr.eq(Mux(behind, self._next(row, self.rows), row)),
            read.en.eq(self.first | self.following),
            self.data[lane].eq(read.data),
            place.eq(Mux(behind, lane + self.lanes - start[0], lane - start[0])),
            self.held[lane].eq(seen + place < self.filled), self.oldest_of[lane].eq(~behind),
            write.addr.eq(end[1]), write.data.eq(self.new), write.en.eq(self.insert & (end[0] == lane)),
        ]  # fmt: skip

    def _write(self, m: Module) -> None:
        with m.If(self.clear):
            pointers = (self.filled, *self.start, *self.end)
            m.d.sync += [pointer.eq(0) for pointer in pointers]
        with m.Elif(self.insert):
            self._advance(m, self.end)
            with m.If(self.full):
                self._advance(m, self.start)
            with m.Else():
                m.d.sync += self.filled.eq(self.filled + 1)

    def _advance(self, m: Module, pointer: tuple[Signal, Signal]) -> None:
        lane, row = pointer
        m.d.sync += lane.eq(self._next(lane, self.lanes))
        with m.If(lane == self.lanes - 1):
            m.d.sync += row.eq(self._next(row, self.rows))

    def _next(self, value: Value, modulus: int) -> Value:
        return Mux(value == modulus - 1, 0, value + 1)

    def oldest(self, low: int, width: int) -> Value:
        """Bits of the oldest tuple, while `data` begins with it."""
        first = self.oldest_of & ~(self.oldest_of << 1)[: self.lanes]
        parts = [d[low : low + width] & first[lane].replicate(width) for lane, d in enumerate(self.data)]
        value: Value = parts[0]
        for part in parts[1:]:
            value = value | part
        return value
