"""Paths that miss the clock are made shorter: cells go nearer to each other, to free spots or in exchange.

A placer weighs all wires of a circuit against each other. At the end a few of many thousands lie badly, and
the worst of them sets the clock; the more paths there are, the worse it is. Here only the cells on late paths
are looked at, each with all spots around its neighbours, and only wires of those that move are routed again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from handshake_synth.ecp5.delays import Delays
from handshake_synth.ecp5.placed import Pin, Placed, Spot
from handshake_synth.ecp5.tiles import Tiles, Unit, What
from handshake_synth.ecp5.timing import Timing

__all__ = ["shorten_late_paths"]

PARTS, REACH = (1.0, 0.5, 0.25), 5
"""How far to go from where a cell lies to the middle of its neighbours, and tiles to look at around there."""
NEAR = 400
"""Picoseconds: neighbours on paths with less slack than this say where the middle is."""
GAIN = 30
"""Picoseconds by which a move must better the worst path that it touches."""
ENOUGH = 150
"""Slack in picoseconds beyond which a path is as good as any."""
TRIES = 3
"""Moves of one cell: after these it stays, lest two cells that want one spot go on for ever."""
SAME_TILE = 700
_FIXED = frozenset({"CLK", "WCK", "DI", "F1", "FXA", "FXB"})
"""Pins whose wire is the same wherever the cell lies: clocks, and those within a tile."""


def shorten_late_paths(placed: Placed, delays: Delays, period: int, caution: int) -> set[str]:
    """Move cells of paths that take longer than `period` picoseconds; return those that moved.

    Reckoned is with wires as slow as `caution` per cent of those that are as long.
    """
    closure = _Closure(placed, Timing(placed, delays), period, caution)
    closure.run()
    placed.move(closure.moved)
    return closure.moved


class _Move(NamedTuple):
    """A spot to go to: the worst slack then as far as it matters, how short wires would be, and where."""

    slack: int
    shortness: int
    spot: Spot


class _Closure:
    def __init__(self, placed: Placed, timing: Timing, period: int, caution: int) -> None:
        self.placed, self.timing, self.period = placed, timing, period
        self.tiles = Tiles(placed)
        self.moved = set[str]()
        self._tries: defaultdict[str, int] = defaultdict(int)
        self._length = _Lengths(placed, timing, caution)

    def run(self) -> None:
        """Work on the latest path first; leave one that nothing helps, and look at the next."""
        given_up = set[int]()
        while True:
            self.timing.analyse(self.period)
            late = np.flatnonzero(self.timing.slack < 0)
            arcs = [arc for arc in late[np.argsort(self.timing.slack[late])] if arc not in given_up]
            if not arcs:
                return
            if not any(self._better(cell) for cell in self._ends(arcs[0])):
                given_up.add(arcs[0])

    def _ends(self, arc: int) -> tuple[str, str]:
        return self.timing.pins[arc].cell, self.timing.cells[self.timing.sources[arc]]

    def _better(self, cell: str) -> bool:
        """Move a cell to the best spot around, if that helps."""
        unit = self.tiles.unit(cell)
        if unit is None or self._tries[cell] == TRIES:
            return False
        together = self._together(unit)
        before = self.timing.worst(self._arcs(together), {}, self._nodes(together), self.period)
        best = max(self._moves(unit, together), default=None)
        if best is None or best.slack < before + GAIN:
            return False
        self._tries[cell] += 1
        self._go(unit, best.spot)
        return True

    def _together(self, unit: Unit) -> list[str]:
        """Return the cells that move as one."""
        tables = () if unit.what is What.REGISTER else (self.tiles.tables.get(spot) for spot in unit.spots)
        registers = () if unit.what is What.TABLE else (self.tiles.registers.get(spot) for spot in unit.spots)
        return [name for name in (*tables, *registers) if name is not None]

    def _moves(self, unit: Unit, together: list[str]) -> Iterator[_Move]:
        for other in self._around(unit, together):
            moved = self.tiles.exchange(unit, other)
            if moved is not None:
                delays = self._estimates(moved)
                slack = self.timing.worst(delays, delays, self._nodes(moved), self.period)
                yield _Move(min(slack, ENOUGH), -sum(delays.values()), other)
                self.tiles.take_back(unit, other)

    def _around(self, unit: Unit, together: list[str]) -> Iterator[Spot]:
        """Yield spots near the middle of the urgent neighbours, and on the way there."""
        arcs = [arc for arc in self._arcs(together) if self.timing.slack[arc] < NEAR]
        ends = [self.placed.cells[end].tile for arc in arcs for end in self._ends(arc) if end not in together]
        if not ends:
            return
        near = set[tuple[int, int]]()
        for part in PARTS:
            x, y = (
                round((1 - part) * here + part * sum(there) / len(there))
                for here, there in zip(unit.spot.tile, zip(*ends, strict=True), strict=True)
            )
            near |= {(x + i, y + j) for i in range(-REACH, REACH + 1) for j in range(-REACH, REACH + 1)}
        for tile in sorted(near & self.tiles.all):
            yield from (Spot(*tile, nth) for nth in range(0, 8, unit.span))

    def _go(self, unit: Unit, other: Spot) -> None:
        moved = self.tiles.exchange(unit, other)
        assert moved is not None
        for arc, delay in self._estimates(moved).items():
            self.timing.delays[arc] = delay
        self.moved.update(moved)

    def _arcs(self, cells: Iterable[str]) -> list[int]:
        arcs = {arc for cell in cells for arc in self.timing.of_cell[cell]}
        return [arc for arc in arcs if self.timing.pins[arc].port not in _FIXED]

    def _estimates(self, cells: Iterable[str]) -> dict[int, int]:
        return {arc: self._length.of(*self._ends(arc)) for arc in self._arcs(cells)}

    def _nodes(self, cells: Iterable[str]) -> list[int]:
        """Return the nodes that leave these cells, except outputs of registers."""
        pins = (Pin(cell, port) for cell in cells for port in ("F", "OFX"))
        return [self.timing.nodes[pin] for pin in pins if pin in self.timing.nodes]


class _Lengths:
    """Delays of wires by the distance of their ends: the `caution` percentile of those in the circuit."""

    def __init__(self, placed: Placed, timing: Timing, caution: int) -> None:
        self._placed, self._known = placed, dict[tuple[int, int], int]()
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for arc, pin in enumerate(timing.pins):
            source = timing.cells[timing.sources[arc]]
            if pin.port not in _FIXED and not source.startswith("$PACKER"):
                found[self._distance(pin.cell, source)].append(int(timing.delays[arc]))
        found.pop((0, 0), None)
        rows = np.array([_terms(*distance) for distance in found]).reshape(-1, 7)
        weights = np.array([len(each) ** 0.5 for each in found.values()])
        usual = np.array([np.percentile(each, caution) for each in found.values()])
        self._rates = np.linalg.lstsq(rows * weights[:, None], usual * weights, rcond=None)[0]

    def _distance(self, one: str, other: str) -> tuple[int, int]:
        (x, y), (i, j) = self._placed.cells[one].tile, self._placed.cells[other].tile
        return abs(x - i), abs(y - j)

    def of(self, one: str, other: str) -> int:
        """Return the picoseconds between two cells as they lie now."""
        distance = self._distance(one, other)
        if distance not in self._known:
            self._known[distance] = (
                int(self._rates @ np.array(_terms(*distance))) if any(distance) else SAME_TILE
            )
        return self._known[distance]


def _terms(across: int, down: int) -> tuple[int, ...]:
    """Return the cost of a distance; the first tiles cost more than those after them."""
    return 1, *_pieces(across), *_pieces(down)


def _pieces(tiles: int) -> tuple[int, int, int]:
    return min(tiles, 6), min(max(tiles - 6, 0), 14), max(tiles - 20, 0)
