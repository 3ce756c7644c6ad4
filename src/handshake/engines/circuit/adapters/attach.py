"""A query's circuit behind adapters: Ethernet frames or CPU registers instead of bare streams.

All CPU adapters share one bus. `cpu_address` selects a register, and `cpu_read_data` follows in the same
cycle. `cpu_write` and `cpu_read` are high for one cycle per access. `cpu_interrupt` is high while a result
waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import or_
from typing import Any

from amaranth.hdl import Const, Module, Signal, Value
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.adapters.cpu import WORD, CpuReader, CpuWriter, words
from handshake.engines.circuit.adapters.udp import BYTES, UdpParser, tuple_bytes
from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.stream import copy_beat, forward, stream_in, stream_out
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row
from handshake.errors import UnsupportedError

NETWORK = "network"
"""The stream of Ethernet frames that all UDP adapters read."""
BUS = ("cpu_address", "cpu_write", "cpu_write_data", "cpu_read", "cpu_read_data", "cpu_interrupt")
ADDRESS_BITS = 16
MOST_WORDS = 254
"""Words of a tuple that an adapter's eight address bits reach."""


@dataclass(frozen=True)
class Adapters:
    """The choice of what connects the streams of a query to the outside of the chip."""

    input: str = "none"
    output: str = "none"
    udp_port: int = 5001
    """UDP port of the first input stream; each further stream has the next one."""

    def __post_init__(self) -> None:
        if not 0 < self.udp_port < 1 << 16:
            raise UnsupportedError(f"UDP port {self.udp_port} is not between 1 and 65535; choose another")

    @property
    def latency(self) -> int:
        """Cycles that the adapters add to every result; 0 if there are none."""
        return (self.input != "none") + (self.output != "none")

    @property
    def ports(self) -> tuple[str, ...]:
        """Names of ports, which no stream can have."""
        return (NETWORK,) * (self.input == "udp") + BUS * ("cpu" in (self.input, self.output))


@dataclass(frozen=True)
class Register:
    """One 32-bit register on the CPU bus."""

    address: int
    name: str
    access: str
    """`read` or `write`."""
    meaning: str


class AdaptedCircuit(Block):
    """`circuit` with adapters at its inputs and outputs.

    Ports: `network`, the bytes of Ethernet frames, if the input adapter is `udp`; the CPU bus if an adapter
    is `cpu`; the circuit's own streams on a side without adapters. Counters of adapters are named after
    their stream.
    """

    def __init__(
        self, circuit: Any, inputs: Mapping[str, Row], outputs: Mapping[str, Row], adapters: Adapters
    ) -> None:
        self.circuit, self.adapters, self.inputs, self.outputs = circuit, adapters, inputs, outputs
        self.sources = {name: self._source(n, name, row) for n, (name, row) in enumerate(inputs.items())}
        read = outputs.items() if adapters.output == "cpu" else ()
        self.readers = {name: CpuReader(_check_words(name, row)) for name, row in read}
        self.latency = circuit.latency + adapters.latency
        own = (f"{name}_{each}" for name, block in self._blocks() for each in block.counters)
        self.counters = (*circuit.counters, *own)
        ports: dict[str, Any] = {NETWORK: stream_in(BYTES)} if adapters.input == "udp" else {}
        if adapters.input == "none":
            ports |= {name: stream_in(row) for name, row in inputs.items()}
        if adapters.output == "none":
            ports |= {name: stream_out(row) for name, row in outputs.items()}
        if "cpu" in (adapters.input, adapters.output):
            sizes = (In(ADDRESS_BITS), In(1), In(WORD), In(1), Out(WORD), Out(1))
            ports |= dict(zip(BUS, sizes, strict=True))
        super().__init__(ports | {name: Out(COUNTER) for name in self.counters})

    def _source(self, number: int, name: str, row: Row) -> Any:
        if self.adapters.input == "udp":
            port = self.adapters.udp_port + number
            if port >= 1 << 16:
                raise UnsupportedError(f"stream '{name}' would get UDP port {port}; give a smaller one")
            return UdpParser(row, port=port)
        return CpuWriter(_check_words(name, row)) if self.adapters.input == "cpu" else None

    def _blocks(self) -> list[tuple[str, Any]]:
        every = (*self.sources.items(), *self.readers.items())
        return [(name, block) for name, block in every if block is not None]

    def registers(self) -> list[Register]:
        """Return the register map of the CPU bus; it is empty without CPU adapters."""
        found: list[tuple[str, str, str]] = []
        for name, block in self._blocks():
            if isinstance(block, CpuWriter):
                found += _words(name, block.row, "write")
                found.append((f"{name}.send", "write", "bit 0: a tuple, bit 1: the end; reads 1 while full"))
            elif isinstance(block, CpuReader):
                found.append((f"{name}.status", "read", "bit 0: a tuple, bit 1: the end, from bit 8: level"))
                found += _words(name, block.row, "read")
        if found:
            found += [(name, "read", "a counter") for name in self.counters]
        return [Register(address, *each) for address, each in enumerate(found)]

    def build(self) -> Module:
        m = Module()
        m.submodules.plan = self.circuit
        for name, block in self._blocks():
            m.submodules[f"{block.title}_{name}"] = block
            m.d.comb += [getattr(self, f"{name}_{each}").eq(getattr(block, each)) for each in block.counters]
        for name, source in self.sources.items():
            forward(m, getattr(self, name) if source is None else source.o, getattr(self.circuit, name))
        for name in self.outputs:
            reader = self.readers.get(name)
            forward(m, getattr(self.circuit, name), getattr(self, name) if reader is None else reader.i)
        m.d.comb += [getattr(self, name).eq(getattr(self.circuit, name)) for name in self.circuit.counters]
        if self.adapters.input == "udp":
            self._receive(m)
        if self.registers():
            self._connect_bus(m)
        return m

    def _receive(self, m: Module) -> None:
        """Give every byte to all parsers, which are always ready."""
        m.d.comb += self.network.ready.eq(1)
        for parser in self.sources.values():
            m.d.comb += copy_beat(parser.i, self.network)

    def _connect_bus(self, m: Module) -> None:
        at = {each.name: each.address for each in self.registers()}
        interrupts: list[Value] = [Const(0, 1)]
        values: dict[int, Value] = {at[name]: getattr(self, name) for name in self.counters}
        for name, block in self._blocks():
            if isinstance(block, UdpParser):
                continue
            writes, size = isinstance(block, CpuWriter), words(block.row) + 1
            first = at[f"{name}.word0" if writes else f"{name}.status"]
            selected = Signal(name=f"selects_{name}")
            m.d.comb += [
                selected.eq((self.cpu_address >= first) & (self.cpu_address < first + size)),
                block.address.eq(self.cpu_address - first),
            ]
            if writes:
                m.d.comb += [block.write.eq(self.cpu_write & selected), block.data.eq(self.cpu_write_data)]
                values[at[f"{name}.send"]] = block.full
            else:
                m.d.comb += block.read.eq(self.cpu_read & selected)
                interrupts.append(block.interrupt)
                values |= {first + k: block.data for k in range(size)}
        with m.Switch(self.cpu_address):
            for address, value in values.items():
                with m.Case(address):
                    m.d.comb += self.cpu_read_data.eq(value)
        m.d.comb += self.cpu_interrupt.eq(tree_of(or_, interrupts))


def _words(name: str, row: Row, access: str) -> list[tuple[str, str, str]]:
    bits = ((k, WORD * k, min(WORD * (k + 1), max(row.bits, 1)) - 1) for k in range(words(row)))
    return [(f"{name}.word{k}", access, f"bits {low} to {high} of the tuple") for k, low, high in bits]


def _check_words(name: str, row: Row) -> Row:
    if words(row) > MOST_WORDS:
        raise UnsupportedError(
            f"a tuple of '{name}' has {words(row)} words, more than the {MOST_WORDS} registers of a CPU "
            "adapter; select fewer columns"
        )
    return row


def describe(adapted: AdaptedCircuit) -> list[tuple[str, str]]:
    """Return what each adapter does and the register map, for people."""
    facts = []
    for name, block in adapted.sources.items():
        if isinstance(block, UdpParser):
            size = f"{tuple_bytes(block.row)} bytes per tuple, one byte per cycle"
            facts.append((f"{name} by UDP", f"port {block.port}, {size}"))
    for each in adapted.registers():
        facts.append((f"register {each.address}", f"{each.access} {each.name}: {each.meaning}"))
    return facts
