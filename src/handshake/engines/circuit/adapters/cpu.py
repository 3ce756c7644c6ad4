"""CPU adapters: streams behind a few memory-mapped registers (Glacier, section 5.2)."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Signal
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.stream import forward, stream_in, stream_out
from handshake.engines.circuit.components.types import Row

WORD = 32


def words(row: Row) -> int:
    """Return the number of registers that hold a tuple."""
    return max(1, -(-row.bits // WORD))


class CpuReader(Block):
    """Results to the CPU: a FIFO that is read through registers.

    Register 0 is the status: bit 0 a tuple is here, bit 1 the stream ends with (or, without a tuple, at) this
    beat, bits 8 and up how many beats are held. Registers 1 to n are the tuple's words, the least significant
    first; reading the last of them (with `read` high for a cycle) takes the beat away. `interrupt` is high
    while there is one. Latency 1.
    """

    latency = 1

    def __init__(self, row: Row, *, depth: int = 16) -> None:
        self.row, self.depth = row, depth
        ports = {"i": stream_in(row), "address": In(8), "read": In(1), "data": Out(WORD), "interrupt": Out(1)}
        super().__init__(ports, (row, depth))

    def build(self) -> Module:
        m = Module()
        m.submodules.fifo = fifo = Fifo(self.row, self.depth)
        forward(m, self.i, fifo.i)
        n = words(self.row)
        payload = fifo.o.payload.as_value()
        registers = [Cat(fifo.o.valid, fifo.o.eos, Const(0, 6), fifo.level)]
        registers += [payload[WORD * k : WORD * (k + 1)] for k in range(n)]
        with m.Switch(self.address):
            for k, value in enumerate(registers):
                with m.Case(k):
                    m.d.comb += self.data.eq(value)
        m.d.comb += [self.interrupt.eq(fifo.level != 0), fifo.o.ready.eq(self.read & (self.address == n))]
        return m


class CpuWriter(Block):
    """Tuples from the CPU: slave registers before a FIFO.

    Writing registers 0 to n - 1 (with `write` high for a cycle) sets the words of a tuple; writing register
    n sends it: bit 0 of the data says that there is a tuple, bit 1 that the stream ends. `full` is high while
    there is no room; what is sent then is counted in `refused`. Latency 1.
    """

    latency = 1
    counters = ("refused",)

    def __init__(self, row: Row, *, depth: int = 16) -> None:
        self.row, self.depth = row, depth
        ports = {
            "address": In(8),
            "write": In(1),
            "data": In(WORD),
            "full": Out(1),
            "refused": Out(COUNTER),
            "o": stream_out(row),
        }
        super().__init__(ports, (row, depth))

    def build(self) -> Module:
        m = Module()
        m.submodules.fifo = fifo = Fifo(self.row, self.depth)
        forward(m, fifo.o, self.o)
        n = words(self.row)
        staged = Array(Signal(WORD, name=f"word{k}") for k in range(n))
        send = self.write & (self.address == n)
        with m.If(self.write & (self.address < n)):
            m.d.sync += staged[self.address].eq(self.data)
        m.d.comb += [
            fifo.i.payload.as_value().eq(Cat(*staged)),
            fifo.i.valid.eq(send & self.data[0]),
            fifo.i.eos.eq(send & self.data[1]),
            self.full.eq(~fifo.i.ready),
        ]
        with m.If(send & self.full):
            m.d.sync += self.refused.eq(self.refused + 1)
        return m
