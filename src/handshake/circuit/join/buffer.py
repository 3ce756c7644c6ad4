"""Output buffer of cores and mergers: a circular FIFO queue with its two flags (FPGA paper, section IV-A)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

__all__ = ["Buffer", "ResultSignature", "following"]


class ResultSignature(wiring.Signature):
    """Results on their way through the merging network: `over` is high when none are left and none will come.

    Other than `eos` of a stream it is a level, not a beat, so mergers need not look at what passes through.
    """

    def __init__(self, bits: int) -> None:
        super().__init__({"payload": Out(bits), "valid": Out(1), "over": Out(1), "ready": In(1)})


class Buffer:
    """A queue of `depth` entries of `bits`, built into its owner's module.

    `push` writes `data` at the end of the cycle; whoever pushes has looked at the level before. A push into a
    full queue is lost, as it is in the papers' circuit: admission control is there so that none happens.
    `head` is read out of the ring without a register, which is for whoever takes it; `pop` does.

    The level is kept in unary, a register for each entry, so that every question about it is one register and
    its successor lies two look-up tables from `push` and `pop`.
    """

    def __init__(self, bits: int, depth: int) -> None:
        self.bits, self.places = bits, depth
        self.push, self.pop = Signal(name="push"), Signal(name="pop")
        self.data, self.head = Signal(bits, name="data"), Signal(bits, name="head")
        self.levels = Signal(self.places, name="levels")

    def build(self, m: Module, name: str = "ring") -> None:
        """Add the queue to the circuit."""
        slots = (
            1 << self.places.bit_length()
        )  # one to spare takes what is pushed too much: `push` alone writes
        m.submodules[name] = ring = Memory(shape=self.bits, depth=slots, init=[])
        write, read = ring.write_port(), ring.read_port(domain="comb")
        first, last = Signal(range(slots), name="first"), Signal(range(slots), name="last")
        stores = Signal(name="stores")
        m.d.comb += [
            stores.eq(self.push & ~self.at_least(self.places)),
            write.addr.eq(last), write.data.eq(self.data), write.en.eq(self.push),
            read.addr.eq(first), self.head.eq(read.data),
        ]  # fmt: skip
        m.d.sync += [
            self.levels.eq(self._changed(stores, self.pop)),
            first.eq(Mux(self.pop, following(first, slots), first)),
            last.eq(Mux(stores, following(last, slots), last)),
        ]

    def _changed(self, stores: Value, pops: Value) -> Value:
        """One bit more or less, in gates: of multiplexers Yosys makes enables, with gates before them."""
        rises, falls = (v.replicate(self.places) for v in (stores & ~pops, pops & ~stores))
        more, fewer = Cat(Const(1, 1), self.levels)[: self.places], self.levels >> 1
        return (self.levels & (fewer | ~falls)) | (more & rises)

    def at_least(self, entries: int) -> Value:
        """Whether it holds that many."""
        if entries <= 0 or entries > self.places:
            return Const(entries <= 0, 1)
        return self.levels[entries - 1]

    @property
    def valid(self) -> Value:
        """Whether it holds anything."""
        return self.at_least(1)

    def offer(self, m: Module, port: Any) -> None:
        """Let a port of `ResultSignature` take from it."""
        m.d.comb += [
            self.pop.eq(self.valid & port.ready), port.valid.eq(self.valid), port.payload.eq(self.head)
        ]  # fmt: skip


def following(place: Signal, places: int) -> Value:
    """The next place of a ring, by gates and without a carry chain, which would be slower for so few bits."""
    bits = [~place[0], *(place[i] ^ place[:i].all() for i in range(1, len(place)))]
    more = Cat(*bits)
    return more if places == 1 << len(place) else Mux(place == places - 1, 0, more)
