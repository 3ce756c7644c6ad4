"""Output buffer of cores and mergers: a circular FIFO queue with its two flags (FPGA paper, section IV-A)."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib.memory import Memory

__all__ = ["Buffer"]


class Buffer:
    """A ring of `depth` entries of `bits`, built into the module of its owner.

    `push` writes `data` at the end of the cycle; whoever pushes has looked at `level` before. A push into a
    full ring is lost, as it is in the papers' circuit: admission control is there so that none happens.
    `valid` is a register and `head` what it offers; `pop` takes it.
    """

    def __init__(self, bits: int, depth: int) -> None:
        self.bits, self.depth = bits, depth
        self.push, self.pop = Signal(name="push"), Signal(name="pop")
        self.data, self.head = Signal(bits, name="data"), Signal(bits, name="head")
        self.valid = Signal(name="holds")
        self.level = Signal(range(depth + 1), name="level")
        self.after = Signal(range(depth + 1), name="level_after")

    def build(self, m: Module, name: str = "ring") -> None:
        """Add the ring to the circuit."""
        m.submodules[name] = ring = Memory(shape=self.bits, depth=self.depth, init=[])
        write, read = ring.write_port(), ring.read_port(domain="comb")
        first, last = Signal(range(self.depth), name="first"), Signal(range(self.depth), name="last")
        stores = self.push & (self.level != self.depth)
        m.d.comb += [
            write.addr.eq(last), write.data.eq(self.data), write.en.eq(stores),
            read.addr.eq(first), self.head.eq(read.data),
            self.after.eq(self.level + stores - self.pop),
        ]  # fmt: skip
        m.d.sync += [
            self.level.eq(self.after),
            self.valid.eq(self.after != 0),
            first.eq(self._next(first, self.pop)),
            last.eq(self._next(last, stores)),
        ]

    def _next(self, pointer: Signal, step: Value) -> Value:
        return Mux(step, Mux(pointer == self.depth - 1, 0, pointer + 1), pointer)
