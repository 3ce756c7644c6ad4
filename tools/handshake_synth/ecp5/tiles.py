"""Tiles of an ECP5: the cells in them, which cells may share one, and exchanges that keep to that.

A tile has four slices (A to D) of two logic cells, each a look-up table and a register. Registers of a tile
have one clock and one reset, those of a slice one enable. RAM takes the tables of slices A to C; multiplexers
and carries take adjacent tables. Single tables and registers move, and slices or half tiles with a
multiplexer; nextpnr checks what comes out of it (`Placed.move`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from handshake_synth.ecp5.placed import Cell, Placed, Spot

__all__ = ["Tiles", "Unit", "What"]

_CHAINED = ("F1", "FXA", "FXB")
"""Inputs of a multiplexer that come from tables beside it."""
_CARRIES = ("FCI", "FCO")
STAYS = 99


class What(Enum):
    """Which parts of logic cells are exchanged."""

    TABLE = "table"
    REGISTER = "register"
    BOTH = "both"


class Unit(NamedTuple):
    """Cells that move together: `span` logic cells from `spot` on, or only the table or register of one."""

    spot: Spot
    what: What
    span: int = 1

    @property
    def spots(self) -> list[Spot]:
        return self.at(self.spot)

    def at(self, spot: Spot) -> list[Spot]:
        """Return the spots that the unit would take there."""
        return [spot._replace(nth=spot.nth + offset) for offset in range(self.span)]


class Tiles:
    """The places of the tables and registers of a circuit."""

    def __init__(self, placed: Placed) -> None:
        self._placed, self._cells = placed, placed.cells
        self.tables: dict[Spot, str] = {}
        self.registers: dict[Spot, str] = {}
        self.all = set[tuple[int, int]]()
        self._ram_tiles = {cell.tile for cell in self._cells.values() if cell.kind == "TRELLIS_RAMW"}
        for name, cell in self._cells.items():
            if cell.spot is not None:
                (self.registers if cell.kind == "TRELLIS_FF" else self.tables)[cell.spot] = name
                self.all.add(cell.spot.tile)
        constants = {net for net, pin in placed.drivers.items() if pin.cell.startswith("$PACKER")}
        self._spans = {name: self._span(name, constants) for name in self.tables.values()}
        self._widen()

    def _span(self, name: str, constants: set[int]) -> int:
        """Return the logic cells that move with a table, by its ports: itself, its slice, half of the tile.

        STAYS: it is part of a RAM or a carry, or at a constant, which is wired to all of the chip.
        """
        cell = self._cells[name]
        if cell.mode != "LOGIC" or any(port in cell.nets for port in _CARRIES):
            return STAYS
        if not constants.isdisjoint(cell.nets.values()):
            return STAYS
        return 4 if "FXA" in cell.nets or "FXB" in cell.nets else 2 if "F1" in cell.nets else 1

    def _widen(self) -> None:
        """Let what feeds a multiplexer move with it if it lies within; of a longer chain all stays."""
        links = [link for name in self.tables.values() for link in self._links(name)]
        changed = True
        while changed:
            changed = False
            for one, other in links:
                span = max(self._spans[one], self._spans[other], self._reach(one, other))
                for name in (one, other):
                    changed |= self._spans[name] != span
                    self._spans[name] = span

    def _links(self, name: str) -> Iterator[tuple[str, str]]:
        nets = self._cells[name].nets
        for port in _CHAINED:
            if port in nets:
                yield name, self._placed.drivers[nets[port]].cell

    def _reach(self, one: str, other: str) -> int:
        spots = self._cells[one].spot, self._cells[other].spot
        assert spots[0] is not None
        assert spots[1] is not None
        return next((span for span in (2, 4) if _base(spots[0], span) == _base(spots[1], span)), STAYS)

    def unit(self, name: str) -> Unit | None:
        """Return what must move for this cell to move; None if it cannot."""
        spot = self._cells[name].spot
        if spot is None:
            return None
        register = self.registers.get(spot)
        table = self.tables.get(spot) if name != register or self._is_fed(spot) else None
        span = 1 if table is None else self._spans[table]
        if span == STAYS:
            return None
        if span > 1 or self._is_fed(spot):
            return Unit(_base(spot, span), What.BOTH, span)
        return Unit(spot, What.REGISTER if table is None else What.TABLE)

    def exchange(self, unit: Unit, other: Spot) -> list[str] | None:
        """Exchange a unit with what lies elsewhere; return the cells that moved.

        None, and all as it was, if something there cannot move, or would not be valid at its new place.
        """
        unit, other = self._whole(unit, other), _base(other, unit.span)
        if other == unit.spot or not all(
            self._is_free(spot, unit) for spot in (*unit.spots, *unit.at(other))
        ):
            return None
        moved = self._swap(unit, other)
        if self.is_valid(unit.spot.tile) and self.is_valid(other.tile):
            return moved
        self._swap(unit, other)
        return None

    def take_back(self, unit: Unit, other: Spot) -> None:
        """Undo an exchange."""
        # What feeds a register lies at the other place now, and asks for the same.
        self._swap(self._whole(unit, other), _base(other, unit.span))

    def _whole(self, unit: Unit, other: Spot) -> Unit:
        """Return the unit of a table and the register that it feeds, which move together."""
        if unit.what is What.TABLE and (self._is_fed(unit.spot) or self._is_fed(other)):
            return unit._replace(what=What.BOTH)
        return unit

    def _is_fed(self, spot: Spot) -> bool:
        """Return whether the register there has its value from the table before it, without a wire."""
        return spot in self.registers and "DI" in self._cells[self.registers[spot]].nets

    def _is_free(self, spot: Spot, unit: Unit) -> bool:
        """Return whether what lies at a spot can move in a unit like this."""
        if unit.what is What.REGISTER:
            return not self._is_fed(spot)
        return spot not in self.tables or self._spans[self.tables[spot]] <= unit.span

    def _swap(self, unit: Unit, other: Spot) -> list[str]:
        moved = list[str]()
        for one, two in zip(unit.spots, unit.at(other), strict=True):
            if unit.what is not What.REGISTER:
                moved += self._swap_in(self.tables, one, two)
            if unit.what is not What.TABLE:
                moved += self._swap_in(self.registers, one, two)
        return moved

    def _swap_in(self, where: dict[Spot, str], one: Spot, other: Spot) -> Iterator[str]:
        there = [(other, where.pop(one, None)), (one, where.pop(other, None))]
        for spot, name in there:
            if name is not None:
                where[spot] = name
                self._cells[name].spot, self._cells[name].tile = spot, spot.tile
                yield name

    def is_valid(self, tile: tuple[int, int]) -> bool:
        """Return whether the cells of a tile may lie together."""
        if tile in self._ram_tiles and any(self._mode(Spot(*tile, nth)) != "RAMW_BLOCK" for nth in (4, 5)):
            return False
        spots = [Spot(*tile, nth) for nth in range(8)]
        there = {spot: self._cells[self.registers[spot]] for spot in spots if spot in self.registers}
        if any("M" in cell.nets and self._needs_select(spot) for spot, cell in there.items()):
            return False
        slices = ([cell for spot, cell in there.items() if spot.nth // 2 == each] for each in range(4))
        return _agree(map(_controls, there.values())) and all(_agree(map(_enable, each)) for each in slices)

    def _mode(self, spot: Spot) -> str:
        return self._cells[self.tables[spot]].mode if spot in self.tables else "RAMW_BLOCK"

    def _needs_select(self, spot: Spot) -> bool:
        """Return whether the table is part of a multiplexer, whose choice uses the register's wire."""
        table = self.tables.get(spot)
        return table is not None and any(port in self._cells[table].nets for port in _CHAINED)


def _base(spot: Spot, span: int) -> Spot:
    """Return the first of the `span` logic cells that a spot is one of."""
    return spot._replace(nth=spot.nth - spot.nth % span)


def _agree(things: Iterable[Hashable]) -> bool:
    return len(set(things)) <= 1


def _controls(register: Cell) -> Hashable:
    of = register.parameters
    inverted = tuple(of.get(name) == "INV" for name in ("CLKMUX", "LSRMUX"))
    return register.nets.get("CLK"), register.nets.get("LSR"), inverted, of.get("SRMODE") == "ASYNC"


def _enable(register: Cell) -> Hashable:
    return register.nets.get("CE"), register.parameters.get("CEMUX"), register.parameters.get("GSR")
