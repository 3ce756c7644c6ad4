"""Circuits as text: RTLIL with each distinct component once, and readable Verilog from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockSignal, Fragment, Instance, ResetSignal
from amaranth.hdl import _ir as ir  # directions of ports, which Amaranth has no public name for
from amaranth.lib import wiring

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.yosys import run_yosys

_TO_VERILOG = (
    "proc -nomux -norom",
    "memory_collect",
    "attrmap -remove generator -remove top -remove src -remove amaranth.hierarchy -remove amaranth.decoding",
    "attrmap -modattr -remove generator -remove top -remove src -remove amaranth.hierarchy",
    "write_verilog -norename {output}",
)


def to_verilog(circuit: Any, name: str = "top") -> str:
    """Return the circuit as Verilog, with its hierarchy; each distinct component is written once."""
    return run_yosys(to_rtlil(circuit, name), _TO_VERILOG)


def to_rtlil(circuit: Any, name: str = "top") -> str:
    """Return the circuit in Yosys' own language, which keeps signedness and sources."""
    library = Library(circuit)
    top = library.convert(Fragment.get(circuit, library), circuit, name)
    return "\n".join((*library.modules, top))


class Library:
    """Turns every block of the same class and parameters into an instance of one module."""

    def __init__(self, top: Any) -> None:
        self._top = top
        self.modules: list[str] = []
        self._names: dict[Any, tuple[str, bool]] = {}
        self._taken: set[str] = set()

    def instance(self, block: Block) -> Any:
        """Return an instance of the block's module, which is written on its first use."""
        if block is self._top:
            return block.build()
        name, clocked = self._module(block)
        ports: dict[str, Any] = {
            f"{'i' if direction == ir.PortDirection.Input else 'o'}_{path}": value
            for path, (value, direction) in _ports(block).items()
        }
        if clocked:
            ports |= {"i_clk": ClockSignal(), "i_rst": ResetSignal()}
        return Instance(name, **ports)

    def _module(self, block: Block) -> tuple[str, bool]:
        key = (type(block), block.parameters)
        if key not in self._names:
            name = self._fresh(block.title)
            text = self.convert(Fragment.get(block.build(), self), block, name)
            self.modules.append(text.replace("attribute \\top 1\n", ""))
            self._names[key] = (name, _is_clocked(text, name))
        return self._names[key]

    def _fresh(self, title: str) -> str:
        """Return the title, with a number if different circuits share it."""
        name, number = title, 1
        while name in self._taken:
            number += 1
            name = f"{title}_{number}"
        self._taken.add(name)
        return name

    def convert(self, fragment: Any, circuit: Any, name: str) -> str:
        """Return one module as RTLIL, with what it holds that is not shared."""
        text, _ = rtlil.convert_fragment(fragment, _ports(circuit), name, emit_src=False)
        return str(text)


def _is_clocked(text: str, name: str) -> bool:
    """Return whether the module has a clock; one of gates alone has none."""
    body = text[text.index(f"module \\{name}\n") :]
    return re.search(r"wire width 1 input \d+ +\\clk\n", body.split("\nend\n")[0] + "\n") is not None


def _ports(circuit: Any) -> Mapping[str, tuple[Any, Any]]:
    """Return flat names, signals and directions of the ports, in order, without ports of no width."""
    return {path: port for path, port in _flat(circuit) if len(port[0])}


def _flat(circuit: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for path, member, value in circuit.signature.flatten(circuit):
        inward = member.flow == wiring.In
        signal = value.as_value() if hasattr(value, "as_value") else value
        yield (
            "__".join(map(str, path)),
            (signal, ir.PortDirection.Input if inward else ir.PortDirection.Output),
        )
