"""Late paths made shorter after place and route: nextpnr has the last word on times and places."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copy
from subprocess import TimeoutExpired
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.errors import HandshakeError
from handshake_bench.circuit_workload import papers_condition
from handshake_synth.ecp5 import nextpnr
from handshake_synth.ecp5.delays import Delays, read_delays
from handshake_synth.ecp5.placed import Pin, Placed, Spot
from handshake_synth.ecp5.tiles import Tiles, Unit, What
from handshake_synth.ecp5.timing import END, Graph, Step, Timing
from handshake_synth.yosys_netlist import netlist

NEVER = -(10**9)


# -- timing ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wires:
    """A random circuit: nodes 0 to starts-1 are registers, the others gates that only earlier nodes feed."""

    starts: list[int]
    gates: int
    arcs: list[tuple[int, int, int, int]]  # from, to (END: a register), delay of the wire, time behind it


@st.composite
def wires(draw: st.DrawFn) -> Wires:
    starts = draw(st.lists(st.integers(0, 500), min_size=1, max_size=3))
    gates = draw(st.integers(0, 5))
    nodes = len(starts) + gates
    times = st.integers(0, 900)
    ends = st.tuples(st.integers(0, nodes - 1), st.just(END), times, times)
    arcs = draw(st.lists(ends, min_size=1, max_size=4))
    for gate in range(len(starts), nodes):
        fed = st.tuples(st.integers(0, gate - 1), st.just(gate), times, times)
        arcs += draw(st.lists(fed, max_size=3))
    return Wires(starts, gates, draw(st.permutations(arcs)))


def paths(of: Wires, node: int, so_far: int, used: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield every way from a node into a register: its delay and the arcs that it uses."""
    for number, (source, to, wire, time) in enumerate(of.arcs):
        if source == node:
            there = so_far + wire + time
            if to == END:
                yield there, (*used, number)
            else:
                yield from paths(of, to, there, (*used, number))


def graph_of(of: Wires) -> Graph:
    steps = [Step(number, to, time) for number, (_, to, _, time) in enumerate(of.arcs)]
    starts = [*of.starts, *[NEVER] * of.gates]
    return Graph(starts, [arc[0] for arc in of.arcs], [arc[2] for arc in of.arcs], steps)


@settings(max_examples=200, deadline=None)
@given(wires(), st.integers(1, 3000))
def test_slack_is_that_of_the_longest_path(of: Wires, period: int) -> None:
    slack = [period] * len(of.arcs)
    for node, start in enumerate(of.starts):
        for length, used in paths(of, node, start, ()):
            for arc in used:
                slack[arc] = min(slack[arc], period - length)
    graph = graph_of(of)
    assert graph.analyse(period) == min(slack)
    assert graph.slack.tolist() == slack


def test_a_loop_without_a_register_is_refused() -> None:
    steps = [Step(0, 1, 5), Step(1, 0, 5)]
    with pytest.raises(HandshakeError, match=r"^the circuit has a loop of gates without a register$"):
        Graph([0, NEVER], [0, 1], [1, 1], steps)


def test_delays_are_read_as_they_are_written() -> None:
    text = r"""
        (INTERCONNECT a/F b\$x/A (110:120:130) (110:120:140))
  (CELL
    (CELLTYPE "TRELLIS_FF")
    (INSTANCE b\$x)
    (DELAY
      (ABSOLUTE
        (IOPATH CLK Q (430:477:525) (430:477:525))
    (TIMINGCHECK
      (SETUPHOLD (posedge M) (posedge CLK) (-3:0:7) (233:268:303))
      (SETUPHOLD (negedge M) (posedge CLK) (0:0:9) (233:268:303))
"""
    expected = Delays({Pin("b$x", "A"): 130}, [("b$x", "CLK", "Q", 525)], [("b$x", "M", 7)])
    assert read_delays(text.splitlines()) == expected


# -- a circuit on the chip ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chip:
    """A small join after place and route: the folder with nextpnr's files, and the clock that it reported."""

    run: nextpnr._Run
    clock: float

    def read(self) -> tuple[Placed, Delays]:
        with (self.run.folder / "best_delays.sdf").open() as lines:
            delays = read_delays(lines)
        return Placed(json.loads((self.run.folder / "best_placed.json").read_text())), delays

    def again(self, placed: Placed, folder: Path) -> nextpnr.Routed:
        """Give a circuit whose cells have moved to nextpnr, which checks all places; files go to `folder`."""
        (folder / "moved.json").write_text(json.dumps(placed.document))
        return nextpnr._Run(folder, 1, nextpnr.ROUTERS[0], None).nextpnr("moved.json", "--no-pack")


@pytest.fixture(scope="module")
def chip() -> Iterator[Chip]:
    with TemporaryDirectory(prefix="handshake-pnr-", dir=Path.cwd()) as folder:
        run = nextpnr._Run(Path(folder), 1, nextpnr.ROUTERS[0], None)
        design = netlist(HandshakeJoin(papers_condition(), Design(1, 4, 4)))
        (run.folder / "design.json").write_text(design)
        (only,) = run.rounds(run.nextpnr("design.json"), 0)
        yield Chip(run, only.clock)


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="handshake-pnr-", dir=Path.cwd()) as folder:
        yield Path(folder)


def clock_of(timing: Timing) -> float:
    return 1e6 / (10_000 - timing.analyse(10_000))


def connections(placed: Placed) -> dict[str, Any]:
    return {name: (c.kind, dict(c.nets), dict(c.parameters)) for name, c in placed.cells.items()}


def test_the_clock_is_that_which_nextpnr_reports(chip: Chip) -> None:
    assert clock_of(Timing(*chip.read())) == pytest.approx(chip.clock, rel=1e-5)


@pytest.mark.soak
def test_random_exchanges_are_taken_by_nextpnr(chip: Chip, folder: Path) -> None:
    placed, _ = chip.read()
    before, tiles, rng, kinds = (
        connections(placed),
        Tiles(placed),
        random.Random(5),
        Counter[tuple[What, int]](),
    )
    assert all(tiles.is_valid(tile) for tile in tiles.all)
    names, spots = sorted(placed.cells), sorted(Spot(*tile, nth) for tile in tiles.all for nth in range(8))
    moved = set[str]()
    for _ in range(800):
        unit = tiles.unit(rng.choice(names))
        gone = tiles.exchange(unit, rng.choice(spots)) if unit is not None else None
        if unit is not None and gone:
            kinds[unit.what, unit.span] += 1
            moved.update(gone)
    assert {(What.TABLE, 1), (What.REGISTER, 1), (What.BOTH, 1), (What.BOTH, 2)} <= set(kinds)
    assert min(kinds.values()) > 1
    assert connections(placed) == before
    lie = [(c.kind == "TRELLIS_FF", c.spot) for c in placed.cells.values() if c.spot is not None]
    assert len(set(lie)) == len(lie)
    placed.move(moved)
    chip.again(placed, folder)  # placed and routed without an error
    again = Placed(json.loads((folder / "placed.json").read_text()))
    assert connections(again).keys() == before.keys()
    assert {n: c.spot for n, c in again.cells.items()} == {n: c.spot for n, c in placed.cells.items()}


def test_an_exchange_is_taken_back(chip: Chip) -> None:
    placed, _ = chip.read()
    tiles, rng = Tiles(placed), random.Random(6)
    names, spots = sorted(placed.cells), sorted(Spot(*tile, nth) for tile in tiles.all for nth in range(8))
    before, done = {name: cell.spot for name, cell in placed.cells.items()}, 0
    while done < 200:
        unit, spot = tiles.unit(rng.choice(names)), rng.choice(spots)
        if unit is not None and tiles.exchange(unit, spot):
            tiles.take_back(unit, spot)
            done += 1
            assert {name: cell.spot for name, cell in placed.cells.items()} == before


WRONG = ("enable", "RAM", "multiplexer")


@pytest.mark.parametrize("rule", WRONG)
def test_wrong_places_are_refused(chip: Chip, rule: str) -> None:
    _misplace(chip, rule)


@pytest.mark.parametrize("rule", [WRONG[0], *(pytest.param(r, marks=pytest.mark.soak) for r in WRONG[1:])])
def test_wrong_places_are_refused_by_nextpnr(chip: Chip, folder: Path, rule: str) -> None:
    with pytest.raises(HandshakeError, match="Placing design failed"):
        chip.again(_misplace(chip, rule), folder)


def _misplace(chip: Chip, rule: str) -> Placed:
    """Return the circuit with a cell where one rule forbids it, which an exchange refuses."""
    placed, _ = chip.read()
    tiles = Tiles(placed)
    unit, spot = next(_wrong(placed, tiles, rule))
    assert tiles.exchange(unit, spot) is None
    moved = tiles._swap(unit, spot)
    assert not tiles.is_valid(spot.tile)
    placed.move(moved)
    return placed


def _wrong(placed: Placed, tiles: Tiles, rule: str) -> Iterator[tuple[Unit, Spot]]:
    """Yield moves of one cell to an empty spot where one rule forbids it."""
    wired = [(s, n) for s, n in tiles.registers.items() if "M" in placed.cells[n].nets]
    if rule == "enable":  # into a slice whose register is always enabled
        for spot, name in wired:
            for there, other in tiles.registers.items():
                beside = there._replace(nth=there.nth ^ 1)
                if (
                    "CE" in placed.cells[name].nets
                    and "CE" not in placed.cells[other].nets
                    and "LSR" not in placed.cells[name].nets
                    and beside not in tiles.registers
                    and spot.tile != there.tile
                ):
                    yield Unit(spot, What.REGISTER), beside
    elif rule == "RAM":  # a table into the slice that writes
        for there, name in tiles.tables.items():
            if placed.cells[name].mode == "RAMW_BLOCK":
                for spot, other in tiles.tables.items():
                    if tiles.unit(other) == Unit(spot, What.TABLE):
                        yield Unit(spot, What.TABLE), there
    else:  # a register by wire, where a multiplexer has its choice by that wire
        for there, name in tiles.tables.items():
            if "F1" in placed.cells[name].nets and there not in tiles.registers:
                yield from (
                    (Unit(spot, What.REGISTER), there) for spot, _ in wired if spot.tile == there.tile
                )
                yield from ((Unit(spot, What.REGISTER), there) for spot, _ in wired)


@pytest.mark.soak
def test_a_cell_far_away_is_brought_back(chip: Chip, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    placed, delays = chip.read()
    timing, tiles = Timing(placed, delays), Tiles(placed)
    timing.analyse(4000)
    strays = sorted(range(len(timing.pins)), key=lambda arc: timing.slack[arc])
    units = (tiles.unit(timing.pins[arc].cell) for arc in strays)
    unit = next(each for each in units if each is not None and each.what is not What.REGISTER)
    far = max(tiles.all, key=lambda tile: abs(tile[0] - unit.spot.x) + abs(tile[1] - unit.spot.y))
    moved = next(m for nth in range(8) if (m := tiles.exchange(unit, Spot(*far, nth))))
    placed.move(moved)
    strayed = chip.again(placed, folder)
    assert strayed.clock < 0.92 * chip.clock
    monkeypatch.setattr(nextpnr, "GOAL", 0.95 * chip.clock)
    monkeypatch.setattr(nextpnr, "STRIDE", 2)
    run = nextpnr._Run(folder, 1, nextpnr.ROUTERS[0], None)
    *_, best = run.rounds(strayed, 2)
    assert best.clock > 0.95 * chip.clock


def test_time_that_is_up_ends_the_rounds(chip: Chip, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in nextpnr._FILES:
        copy(chip.run.folder / f"best_{name}", folder / name)
    monkeypatch.setattr(nextpnr, "GOAL", 2 * chip.clock)
    placed = nextpnr.Routed(chip.clock, {}, [])
    late = nextpnr._Run(folder, 1, nextpnr.ROUTERS[0], end=monotonic())
    assert list(late.rounds(placed, 3)) == [placed]
    with pytest.raises(TimeoutExpired):
        late.nextpnr(nextpnr._FILES[0])


def test_rounds_that_would_have_gone_on() -> None:
    tries = len(nextpnr.CAUTION + nextpnr.WALK)
    assert nextpnr.went_on([200.0, 210.0, *[205.0] * (tries - 1)])
    assert not nextpnr.went_on([200.0, 210.0, *[205.0] * tries])
    assert not nextpnr.went_on([200.0, nextpnr.GOAL])
    assert nextpnr.went_on([200.0, 210.0], 2)
    assert not nextpnr.went_on([200.0, 210.0, 220.0], 2)
    assert not nextpnr.went_on([200.0], 0)
