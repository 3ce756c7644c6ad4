"""Output buffer of cores and mergers: a circular FIFO queue with its two flags (FPGA paper, section IV-A)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["Buffer", "ResultSignature"]


class ResultSignature(wiring.Signature):
    """Results on their way through the merging network: `over` is high when none are left and none will come.

    Other than `eos` of a stream it is a level, not a beat, so mergers need not look at what passes through.
    """

    def __init__(self, bits: int) -> None:
        super().__init__({"payload": Out(bits), "valid": Out(1), "over": Out(1), "ready": In(1)})


class Buffer:
    """A queue of `depth` entries of `bits`, built into its owner's module: a ring, and a register before it.

    `push` writes `data` at the end of the cycle; whoever pushes has looked at `level` before. A push into a
    full ring is lost, as it is in the papers' circuit: admission control is there so that none happens.
    `valid` and `head` are registers, so that nothing but wires lies between two buffers; `pop` takes `head`.
    """

    def __init__(self, bits: int, depth: int) -> None:
        self.bits, self.places = bits, depth - 1
        self.push, self.pop = Signal(name="push"), Signal(name="pop")
        self.data, self.head = Signal(bits, name="data"), Signal(bits, name="head")
        self.valid = Signal(name="holds")
        self.level = Signal(range(depth), name="level")
        """Entries in the ring."""
        self.after = Signal(range(depth), name="level_after")
        self.empty_after = Signal(name="empty_after")
        """Whether ring and register will be empty in the next cycle."""

    def build(self, m: Module, name: str = "ring") -> None:
        """Add the queue to the circuit."""
        m.submodules[name] = ring = Memory(shape=self.bits, depth=self.places, init=[])
        write, read = ring.write_port(), ring.read_port(domain="comb")
        first, last = Signal(range(self.places), name="first"), Signal(range(self.places), name="last")
        filled = Signal(name="filled")
        """Whether the ring has an entry."""
        stores, moves = Signal(name="stores"), Signal(name="moves")
        m.d.comb += [
            stores.eq(self.push & (self.level != self.places)),
            moves.eq(filled & (~self.valid | self.pop)),
            write.addr.eq(last), write.data.eq(self.data), write.en.eq(stores),
            read.addr.eq(first),
            self.after.eq(self.level + stores - moves),
            self.empty_after.eq((self.after == 0) & ~moves & (~self.valid | self.pop)),
        ]  # fmt: skip
        m.d.sync += [
            self.level.eq(self.after), filled.eq(self.after != 0),
            self.valid.eq(moves | (self.valid & ~self.pop)),
            first.eq(self._next(first, moves)), last.eq(self._next(last, stores)),
        ]  # fmt: skip
        with m.If(moves):
            m.d.sync += self.head.eq(read.data)

    def offer(self, m: Module, port: Any) -> None:
        """Let a port of `ResultSignature` take from it."""
        m.d.comb += [
            self.pop.eq(self.valid & port.ready), port.valid.eq(self.valid), port.payload.eq(self.head)
        ]  # fmt: skip

    def _next(self, pointer: Signal, step: Value) -> Value:
        return Mux(step, Mux(pointer == self.places - 1, 0, pointer + 1), pointer)
