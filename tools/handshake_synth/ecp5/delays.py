"""Delays of the wires and cells of a routed circuit, as nextpnr writes them (Standard Delay Format)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from handshake_synth.ecp5.placed import Pin

__all__ = ["Delays", "read_delays"]

_TRIPLE = r"\((-?\d+):(-?\d+):(-?\d+)\)"
_WIRE = re.compile(r"\(INTERCONNECT \S+ (\S+)/(\w+) " + _TRIPLE)
_INSTANCE = re.compile(r"\(INSTANCE (.*)\)\s*$")
_PATH = re.compile(r"\(IOPATH (\w+) (\w+) " + _TRIPLE)
_SETUP = re.compile(r"\(SETUPHOLD \(posedge (\w+)\) \(\w+ \w+\) " + _TRIPLE)


@dataclass
class Delays:
    """The longest times, in picoseconds.

    Of the wire to each pin; through cells (which, from, to); and before the clock (which, port).
    """

    wires: dict[Pin, int] = field(default_factory=dict)
    paths: list[tuple[str, str, str, int]] = field(default_factory=list)
    setups: list[tuple[str, str, int]] = field(default_factory=list)


def read_delays(lines: Iterable[str]) -> Delays:
    r"""Read a file of delays.

    >>> read_delays(['  (INTERCONNECT a/F b\\$1/A (1:2:3) (1:2:3))']).wires
    {Pin(cell='b$1', port='A'): 3}
    """
    found, cell = Delays(), ""
    for line in lines:
        cell = _note(line, cell, found)
    return found


def _note(line: str, cell: str, found: Delays) -> str:
    """Note what a line says of `cell`; return the cell that the next line speaks of."""
    if wire := _WIRE.search(line):
        found.wires[Pin(_plain(wire[1]), wire[2])] = int(wire[5])
    elif path := _PATH.search(line):
        found.paths.append((cell, path[1], path[2], int(path[5])))
    elif setup := _SETUP.search(line):
        found.setups.append((cell, setup[1], int(setup[4])))
    elif instance := _INSTANCE.search(line):
        return _plain(instance[1])
    return cell


def _plain(name: str) -> str:
    return name.replace("\\", "").strip()
