"""FIFO queue: a short buffer between sub-circuits (Glacier, section 4.1.2)."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import moves, stream_in, stream_out
from handshake.engines.circuit.components.types import Row


class Fifo(Block):
    """First in, first out: `depth` beats, latency 1, issue rate 1.

    Ports: `i` and `o` (streams of `row`), `level` (beats held). `i.ready` is low only when `depth` beats are
    held, and never depends on `o.ready`, so a FIFO cuts the chain of `ready` signals. `storage` is
    "registers" (the head is always in the same register) or "memory" (distributed or block RAM, as
    synthesis decides).
    """

    latency = 1

    def __init__(self, row: Row, depth: int, *, storage: str = "registers") -> None:
        self.row, self.depth, self.storage = row, depth, storage
        if depth < 2 and storage == "memory":
            raise ValueError("a FIFO in memory holds at least 2 beats")
        ports = {"i": stream_in(row), "o": stream_out(row), "level": Out(range(depth + 1))}
        super().__init__(ports, (row, depth, storage))

    @property
    def issue_rate(self) -> float:  # type: ignore[override]
        """With a single place, a beat must leave before the next one enters."""
        return 1.0 if self.depth > 1 else 0.5

    def build(self) -> Module:
        m = Module()
        m.d.comb += self.i.ready.eq(self.level != self.depth)
        m.d.sync += self.level.eq(self.level + moves(self.i) - moves(self.o))
        held = _in_registers(m, self) if self.storage == "registers" else _in_memory(m, self)
        _unpack(m, self.o, held, self.level != 0)
        return m


def _pack(stream: Any) -> Value:
    return Cat(stream.valid, stream.eos, stream.payload.as_value())


def _unpack(m: Module, stream: Any, held: Value, present: Value) -> None:
    m.d.comb += [
        stream.valid.eq(held[0] & present),
        stream.eos.eq(held[1] & present),
        stream.payload.as_value().eq(held[2:]),
    ]


def _in_registers(m: Module, fifo: Fifo) -> Value:
    """Build slots that shift towards the head when a beat leaves; a beat enters behind the last one."""
    slots = [Signal(fifo.row.bits + 2, name=f"slot{i}") for i in range(fifo.depth)]
    behind = Signal(range(fifo.depth + 1))
    m.d.comb += behind.eq(fifo.level - moves(fifo.o))
    for place, slot in enumerate(slots):
        with m.If(moves(fifo.i) & (behind == place)):
            m.d.sync += slot.eq(_pack(fifo.i))
        with m.Elif(moves(fifo.o)):
            m.d.sync += slot.eq(slots[min(place + 1, fifo.depth - 1)])
    return slots[0]


def _in_memory(m: Module, fifo: Fifo) -> Value:
    """Build a ring in a memory of one write and one read port.

    The read port is addressed one cycle ahead, by the head of the next cycle, and sees what is written in
    the same cycle, so that a beat leaves one cycle after it came.
    """
    m.submodules.ring = ring = Memory(shape=fifo.row.bits + 2, depth=fifo.depth, init=[])
    write = ring.write_port()
    read = ring.read_port(transparent_for=(write,))
    head, tail = Signal(range(fifo.depth)), Signal(range(fifo.depth))
    after = Signal(range(fifo.depth))
    m.d.comb += [
        after.eq(Mux(moves(fifo.o), next_place(head, fifo.depth), head)),
        write.addr.eq(tail),
        write.data.eq(_pack(fifo.i)),
        write.en.eq(moves(fifo.i)),
        read.addr.eq(after),
        read.en.eq(Const(1)),
    ]
    m.d.sync += [head.eq(after), tail.eq(Mux(moves(fifo.i), next_place(tail, fifo.depth), tail))]
    return read.data


def next_place(pointer: Value, places: int) -> Value:
    """Return the next place on a ring."""
    return Mux(pointer == places - 1, 0, pointer + 1)
