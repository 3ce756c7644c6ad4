"""Synthesis with an open tool, Yosys: resources, and netlists for place and route (`ecp5`).

No open place-and-route exists for Xilinx parts, so clock frequencies are those of a Lattice ECP5-85F.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from amaranth.hdl import Cat, ClockDomain, Module, Signal, Value
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import StreamSignature
from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.yosys import run_yosys

__all__ = ["FAMILIES", "Pinned", "netlist", "resources"]

FAMILIES: Mapping[str, str] = {
    "ecp5": "synth_ecp5 -noflatten -top top",
    "xilinx": "synth_xilinx -family xc6v -noiopad -top top",
    "xilinx7": "synth_xilinx -family xc7 -noiopad -top top",
}
"""Chips that resources are counted for, and how: Virtex-6 is the papers' family, 7-series its successor."""


class Pinned(Block):
    """A circuit with one pin in and one out, for timing: whole streams would need more pins than chips have.

    Everything between the pins and the circuit is registered, so that they do not set the clock. Registers
    get their first values when the chip is configured: a reset by a pin would be a wire to all of it. Inputs
    and outputs of a large circuit are far from each other; they pass `hops` more registers where they part
    and before they meet.
    """

    def __init__(self, circuit: Block, hops: int = 0) -> None:
        self.circuit, self.hops = circuit, hops
        super().__init__({"clk": In(1), "serial_in": In(1), "serial_out": Out(1)})

    def build(self) -> Module:
        m = Module()
        m.domains.sync = domain = ClockDomain("sync")
        m.d.comb += [domain.clk.eq(self.clk), domain.rst.eq(0)]
        m.submodules.circuit = self.circuit
        inwards, outwards = list[Value](), list[Value]()
        for name, member in self.circuit.signature.members.items():
            port, inward = getattr(self.circuit, name), member.flow == In
            if member.is_port:
                (inwards if inward else outwards).append(Value.cast(port))
            elif isinstance(member.signature, StreamSignature):
                forth = [port.payload.as_value(), port.valid, port.eos]
                (inwards if inward else outwards).extend(forth)
                (outwards if inward else inwards).append(port.ready)
        self._shift_in(m, Cat(*inwards))
        self._fold_out(m, Cat(*outwards))
        return m

    def _shift_in(self, m: Module, ports: Value) -> None:
        shift = Signal(len(ports), name="shift")
        m.d.sync += shift.eq(Cat(self.serial_in, shift))
        held: Value = shift
        for _ in range(self.hops + 1):
            # Hops start with other values than the chain: Yosys merges registers that are always equal.
            hop = Signal(len(ports), name="held", init=-1 if self.hops else 0)
            m.d.sync += hop.eq(held)
            held = hop
        m.d.comb += ports.eq(held)

    def _fold_out(self, m: Module, ports: Value) -> None:
        """Drive the output pin by the parity of all outputs, four at a time."""
        for _ in range(self.hops):
            hop = Signal(len(ports), name="hop")
            m.d.sync += hop.eq(ports)
            ports = hop
        while len(ports) > 1:
            stage = Signal((len(ports) + 3) // 4, name="fold")
            m.d.sync += stage.eq(Cat(*(ports[i : i + 4].xor() for i in range(0, len(ports), 4))))
            ports = stage
        m.d.sync += self.serial_out.eq(ports)


def resources(circuit: Block, family: str, *, timeout: float | None = None) -> dict[str, int]:
    """Return the cells of a chip family that the circuit needs, by kind."""
    passes = ("hierarchy -top top", FAMILIES[family], "tee -o {output} stat -json")
    report = json.loads(run_yosys(to_rtlil(circuit), passes, timeout=timeout))
    return count_cells(report["design"]["num_cells_by_type"])


_KINDS = {
    "luts": r"LUT\d", "registers": r"TRELLIS_FF|FD[RSCP]E(_1)?", "block_ram": r"DP16KD|PDPW16KD|RAMB\d+E1",
    "distributed_ram": r"TRELLIS_DPR16X4|RAM\d+X?\d*[A-Z]*\d*|RAM\d+M", "shift_registers": r"SRL\w+",
    "carries": r"CCU2C|CARRY4", "multiplexers": r"PFUMX|L6MUX21|MUXF\d",
}  # fmt: skip


def count_cells(cells: Mapping[str, int]) -> dict[str, int]:
    """Return cells summed up by kind.

    >>> count_cells({"LUT4": 7, "TRELLIS_FF": 3})
    {'luts': 7, 'registers': 3}
    """
    kinds = {kind: sum(n for c, n in cells.items() if re.fullmatch(p, c)) for kind, p in _KINDS.items()}
    return {kind: number for kind, number in kinds.items() if number}


def netlist(circuit: Block, *, hops: int = 0, timeout: float | None = None) -> str:
    """Return the circuit, behind one pin each way (see `Pinned`), as an ECP5 netlist for place and route."""
    passes = ("hierarchy -top top", FAMILIES["ecp5"], "flatten", "opt_clean", "write_json {output}")
    return run_yosys(to_rtlil(Pinned(circuit, hops)), passes, timeout=timeout)
