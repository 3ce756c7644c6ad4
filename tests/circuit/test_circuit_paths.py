"""Limits of the clock of a join circuit: gates between two registers, and registers with many readers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cached_property, lru_cache
from typing import Any

from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.yosys import run_yosys
from handshake_bench.circuit_workload import SEGMENT, papers_condition
from handshake_bench.lockstep import FAN, GlobalDesign, LockstepJoin
from handshake_synth.yosys_netlist import netlist

REGISTER, MEMORY = "TRELLIS_FF", "TRELLIS_DPR16X4"


class Netlist:
    """Cells of an ECP5, and the look-up tables on the longest way to each of their inputs."""

    def __init__(self, text: str) -> None:
        self.cells: dict[str, Any] = json.loads(text)["modules"]["top"]["cells"]
        self._levels: dict[int, int] = {}

    @cached_property
    def drivers(self) -> dict[int, str]:
        return {bit: name for name, port, bit in self.pins("output")}

    def pins(self, direction: str) -> Iterator[tuple[str, str, int]]:
        for name, cell in self.cells.items():
            for port, bits in cell["connections"].items():
                if cell["port_directions"][port] == direction:
                    yield from ((name, port, bit) for bit in bits if isinstance(bit, int))

    def tables(self, bit: int) -> int:
        """Count the look-up tables between the registers and a wire."""
        if bit not in self._levels:
            self._levels[bit] = self._tables(self.cells.get(self.drivers.get(bit, "")))
        return self._levels[bit]

    def _tables(self, cell: Any) -> int:
        if cell is None or cell["type"] == REGISTER:
            return 0
        read = ("RAD",) if cell["type"] == MEMORY else cell["connections"]
        inputs = [
            bit
            for port in read
            if cell["port_directions"][port] == "input"
            for bit in cell["connections"][port]
        ]
        deepest = max((self.tables(bit) for bit in inputs if isinstance(bit, int)), default=0)
        return deepest + (cell["type"] == "LUT4")

    def longest(self) -> int:
        """Count the look-up tables on the longest path between two registers."""
        return max(self.tables(bit) for _, _, bit in self.pins("input"))


@lru_cache
def _join_netlist(cores: int) -> Netlist:
    design = Design(cores, SEGMENT * cores, SEGMENT * cores)
    return Netlist(netlist(HandshakeJoin(papers_condition(), design)))


def test_no_path_has_more_than_two_look_up_tables() -> None:
    assert _join_netlist(3).longest() == 2


def test_no_read_address_reaches_more_than_a_part_of_a_word() -> None:
    found = _join_netlist(3)
    readers = Counter(bit for name, port, bit in found.pins("input") if port == "RAD")
    assert max(readers.values()) == 9  # of 17 or 24 memories of four bits each
    windows = Counter(
        bit for name, port, bit in found.pins("input") if port == "RAD" and "_segment" in name
    )  # fmt: skip
    assert max(windows.values()) == 5


def test_between_the_ends_of_the_line_are_registers_alone() -> None:
    cells = _join_netlist(3).cells
    ways = [
        cell["type"] for name, cell in cells.items() if name.startswith(("circuit.there.", "circuit.back."))
    ]
    tuples = papers_condition().right.bits + 1
    assert Counter(ways) == {REGISTER: 1 + tuples + 1}


def test_groups_of_cores_have_registers_of_their_own() -> None:
    design = GlobalDesign(FAN, FAN, FAN)
    text = to_rtlil(LockstepJoin(papers_condition(), design))
    passes = ("hierarchy -top top", "proc", "opt -full", "write_json {output}")
    modules = json.loads(run_yosys(text, passes))["modules"]
    kinds = Counter(cell["type"] for cell in modules["top"]["cells"].values())
    assert kinds["spread"] == 2
