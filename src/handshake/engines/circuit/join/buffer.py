"""Output buffer of cores and mergers: a circular FIFO queue with its two flags (FPGA paper, section IV-A)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

LANE = 32
"""Bits of distributed RAM that one register of read addresses drives: wider words have copies of it."""


class ResultSignature(wiring.Signature):
    """Results on their way through the merging network: `over` is high when none are left and none will come.

    Other than `eos` of a stream it is a level, not a beat, so mergers need not look at what passes through.
    """

    def __init__(self, bits: int) -> None:
        super().__init__({"payload": Out(bits), "valid": Out(1), "over": Out(1), "ready": In(1)})


class Buffer:
    """A queue of `depth` entries of `bits`, built into its owner's module.

    `push` writes `data` at the end of the cycle; the level must be checked before. A push into a
    full queue is lost if it is `guarded`, as in the papers' circuit; else admission must let none happen.
    `head` is read out of the ring without a register; `pop` takes it.

    The level is kept in unary, a register for each entry, so that every question about it is one register and
    its successor lies two look-up tables from `push` and `pop`.
    """

    def __init__(self, bits: int, depth: int, *, guarded: bool = False) -> None:
        self.bits, self.places, self.guarded = bits, depth, guarded
        self.push, self.pop = Signal(name="push"), Signal(name="pop")
        self.data, self.head = Signal(bits, name="data"), Signal(bits, name="head")
        self.levels = Signal(self.places, name="levels")

    def build(self, m: Module, name: str = "ring") -> None:
        """Add the queue to the circuit."""
        slots = (
            1 << self.places.bit_length()
        )  # one to spare takes what is pushed too much: `push` alone writes
        last, stores = Signal(range(slots), name="last"), Signal(name="stores")
        m.d.comb += stores.eq(self.push & ~self.at_least(self.places) if self.guarded else self.push)
        m.d.sync += [
            self.levels.eq(self._next_levels(stores, self.pop)),
            last.eq(Mux(stores, following(last, slots), last)),
        ]
        for lane in lanes(self.bits):
            self._lane(m, f"{name}{lane.start}", lane, slots, last)

    def _lane(self, m: Module, name: str, lane: slice, slots: int, last: Signal) -> None:
        """Build a part of the ring, with a read address of its own."""
        m.submodules[name] = ring = Memory(shape=lane.stop - lane.start, depth=slots, init=[])
        write, read = ring.write_port(), ring.read_port(domain="comb")
        first = Signal(range(slots), name=f"{name}_first")
        m.d.comb += [
            write.addr.eq(last), write.data.eq(self.data[lane]), write.en.eq(self.push),
            read.addr.eq(first), self.head[lane].eq(read.data),
        ]  # fmt: skip
        m.d.sync += first.eq(Mux(self.pop, following(first, slots), first))

    def _next_levels(self, stores: Value, pops: Value) -> Value:
        """Return the level after a push or pop, in gates; Yosys would turn multiplexers into enables."""
        rises, falls = (v.replicate(self.places) for v in (stores & ~pops, pops & ~stores))
        more, fewer = Cat(Const(1, 1), self.levels)[: self.places], self.levels >> 1
        return (self.levels & (fewer | ~falls)) | (more & rises)

    def at_least(self, entries: int) -> Value:
        """Return whether the buffer holds at least that many entries."""
        if entries <= 0 or entries > self.places:
            return Const(entries <= 0, 1)
        return self.levels[entries - 1]

    @property
    def valid(self) -> Value:
        """High if the buffer holds anything."""
        return self.at_least(1)

    def offer(self, m: Module, port: Any) -> None:
        """Let a port of `ResultSignature` take from it."""
        m.d.comb += [
            self.pop.eq(self.valid & port.ready), port.valid.eq(self.valid), port.payload.eq(self.head)
        ]  # fmt: skip


def lanes(bits: int, most: int = LANE) -> Iterator[slice]:
    """Yield the parts of a word that share an address.

    >>> [(lane.start, lane.stop) for lane in lanes(65)]
    [(0, 33), (33, 65)]
    """
    count = -(-bits // (most + 1))  # a tuple's valid flag goes along
    for part in range(count):
        yield slice(-(-part * bits // count), -(-(part + 1) * bits // count))


def following(place: Signal, places: int) -> Value:
    """Return the next place of a ring by gates, which for few bits are faster than a carry chain."""
    bits = [~place[0], *(place[i] ^ place[:i].all() for i in range(1, len(place)))]
    more = Cat(*bits)
    return more if places == 1 << len(place) else Mux(place == places - 1, 0, more)


def later(m: Module, value: Value, name: str, cycles: int = 1, *, reset_less: bool = False) -> Value:
    """Return the value, `cycles` registers later."""
    for _ in range(cycles):
        register = Signal(value.shape(), name=name, reset_less=reset_less)
        m.d.sync += register.eq(value)
        value = register
    return value


def fill(m: Module, has: Signal, arrives: Value, leaves: Value) -> None:
    """Let a register say that a place is taken, from an arrival until it leaves."""
    m.d.sync += has.eq((has & ~leaves) | (~has & arrives))


def fill_inverse(m: Module, free: Signal, arrives: Value, leaves: Value) -> None:
    """Let a register say that the place is free; each reader has its own."""
    m.d.sync += free.eq((free & ~arrives) | (~free & leaves))
