"""Pipelined links: registers along a long wire and a queue at its far end.

A wire that passes by many cores has registers, in both directions. The sender hears late that the other end
is full, so that end calls itself full while there is still room for all that may be on its way: nothing is
lost, and no gate lies on the way.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module
from amaranth.lib.stream import Signature
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.join.buffer import Buffer, ResultSignature, later


class Way(Block):
    """Registers in a row; of what they carry, the first bit says whether the others count.

    Ports: `i` and `o`. A part of its own, so that the compiled simulation knows it as one.
    """

    def __init__(self, bits: int, registers: int) -> None:
        self.registers = registers
        super().__init__({"i": In(bits), "o": Out(bits)}, (bits, registers))

    def build(self) -> Module:
        m = Module()
        counts = later(m, self.i[0], "counts", self.registers)
        rest = later(m, self.i[1:], "carried", self.registers, reset_less=True)
        m.d.comb += self.o.eq(Cat(counts, rest))
        return m


class Tail(Block):
    """The queue for the last core, at its end of the line.

    Ports: `pushes` and `pushed`, from the driver; `s`, towards the core; `room`: another one may be given,
    beside the `unseen` ones that may have been when the driver hears of it.
    """

    def __init__(self, bits: int, places: int, unseen: int) -> None:
        self.bits, self.places, self.unseen = bits, places, unseen
        ports = {"pushes": In(1), "pushed": In(bits), "s": Out(Signature(bits)), "room": Out(1)}
        super().__init__(ports, (bits, places, unseen))

    def build(self) -> Module:
        m = Module()
        queue = Buffer(self.bits, self.places)
        queue.build(m)
        m.d.comb += [
            queue.push.eq(self.pushes), queue.data.eq(self.pushed),
            self.s.valid.eq(queue.valid), self.s.payload.eq(queue.head),
            queue.pop.eq(queue.valid & self.s.ready),
            self.room.eq(later(m, ~queue.at_least(self.places - self.unseen + 1), "has_room")),
        ]  # fmt: skip
        return m


class Span(Block):
    """A long link of the merging network: a result in each cycle, through as many registers as it is given.

    Ports: `i` and `o`. Results go into a queue at the far end; its flag comes back through as many registers,
    and twice as many results are on their way until it is heard. As many again are in the queue when it asks
    for more, so that it does not run empty meanwhile.
    """

    def __init__(self, bits: int, registers: int) -> None:
        self.bits, self.registers, self.latency = bits, registers, registers + 1
        link = ResultSignature(bits)
        super().__init__({"i": In(link), "o": Out(link)}, (bits, registers))

    def build(self) -> Module:
        m = Module()
        queue = Buffer(self.bits, 4 * self.registers)
        queue.build(m)
        queue.offer(m, self.o)
        asks = later(m, ~queue.at_least(2 * self.registers), "asks", self.registers)
        taken = later(m, self.i.valid & asks, "taken", self.registers)
        over = later(m, self.i.over, "over_there", self.registers)
        m.d.comb += [
            self.i.ready.eq(asks), queue.push.eq(taken),
            queue.data.eq(later(m, self.i.payload, "result", self.registers, reset_less=True)),
            self.o.over.eq(later(m, over & ~queue.valid, "is_over")),
        ]  # fmt: skip
        return m
