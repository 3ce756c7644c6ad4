"""A circuit as nextpnr leaves it on an ECP5: its cells, where they lie, and which wires join them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Cell", "Pin", "Placed", "Spot"]

_BEL = re.compile(r"X(\d+)/Y(\d+)/(?:SLICE([A-D])\.(K|FF|RAMW)(\d?))?")
_LOCKED = format(5, "032b")
"""Strength of a place that somebody chose: nextpnr checks it, and leaves it."""


class Pin(NamedTuple):
    """A port of a cell."""

    cell: str
    port: str


class Spot(NamedTuple):
    """One of the eight logic cells of a tile (slice A has 0 and 1): a look-up table, a register behind it."""

    x: int
    y: int
    nth: int

    @property
    def tile(self) -> tuple[int, int]:
        return self.x, self.y


@dataclass(slots=True)
class Cell:
    """A cell: what it is, the net at each connected port, the tile it lies in, and its spot if it has one."""

    kind: str
    parameters: Mapping[str, str]
    nets: Mapping[str, int]
    tile: tuple[int, int]
    spot: Spot | None

    @property
    def mode(self) -> str:
        """LOGIC, or what else a look-up table is used for (RAM, carries)."""
        return self.parameters.get("MODE", "LOGIC")


class Placed:
    """The circuit of a file that nextpnr has written after place and route."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._top = document["modules"]["top"]
        self.cells: dict[str, Cell] = {name: _cell(each) for name, each in self._top["cells"].items()}
        self.drivers: dict[int, Pin] = {}
        self.sinks: defaultdict[int, list[Pin]] = defaultdict(list)
        for name, each in self._top["cells"].items():
            self._join(name, self.cells[name], each["port_directions"])

    def _join(self, name: str, cell: Cell, directions: Mapping[str, str]) -> None:
        for port, net in cell.nets.items():
            if directions[port] == "output":
                self.drivers[net] = Pin(name, port)
            else:
                self.sinks[net].append(Pin(name, port))

    def move(self, cells: Iterable[str]) -> None:
        """Note in the document where these cells lie now, and that their wires are to be routed again.

        All cells are marked as placed by hand: nextpnr then moves none, and refuses a place that is wrong.
        """
        loose = set[int]()
        for name in cells:
            loose.update(self.cells[name].nets.values())
            self._top["cells"][name]["attributes"]["NEXTPNR_BEL"] = _bel(self.cells[name])
        for each in self._top["cells"].values():
            each["attributes"]["BEL_STRENGTH"] = _LOCKED
        for net in self._top["netnames"].values():
            if net["bits"][0] in loose:
                net["attributes"].pop("ROUTING", None)


def _cell(each: Mapping[str, Any]) -> Cell:
    nets = {port: bits[0] for port, bits in each["connections"].items() if bits and isinstance(bits[0], int)}
    found = _BEL.match(each["attributes"]["NEXTPNR_BEL"])
    assert found is not None, each
    x, y, kind = int(found[1]), int(found[2]), found[4]
    spot = Spot(x, y, 2 * "ABCD".index(found[3]) + int(found[5])) if kind in ("K", "FF") else None
    return Cell(each["type"], each["parameters"], nets, (x, y), spot)


def _bel(cell: Cell) -> str:
    assert cell.spot is not None
    x, y, nth = cell.spot
    kind = "FF" if cell.kind == "TRELLIS_FF" else "K"
    return f"X{x}/Y{y}/SLICE{'ABCD'[nth // 2]}.{kind}{nth % 2}"
