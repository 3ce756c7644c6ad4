"""Which paths of a circuit are late: when signals arrive, when they must have, and what is left between.

A *node* is a pin that drives a net, an *arc* the wire from it to one pin, and behind an arc are *steps*:
through a look-up table to another node, or into a register, where the path ends. Times are in picoseconds.
All registers have one clock, as in `Pinned`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from handshake.errors import HandshakeError
from handshake_synth.ecp5.delays import Delays
from handshake_synth.ecp5.placed import Pin, Placed

__all__ = ["Graph", "Step", "Timing"]

END = -1
_NEVER = -(10**9)
_CLOCKS = ("CLK", "WCK")
"""How names of clock ports begin: those of registers, RAM of tables, block RAM, clock buffers."""
# The write port of a RAM hands its inputs on to the look-up tables that are the RAM.
_WRITE_PORT = {
    "A0": "WADO3", "A1": "WDO1", "B0": "WADO1", "B1": "WDO3", "C0": "WADO2", "C1": "WDO0", "D0": "WADO0",
    "D1": "WDO2",
}  # fmt: skip


class Step(NamedTuple):
    """Behind an arc: the node that it leads to, or END, and the time this takes, or a register asks for."""

    arc: int
    node: int
    time: int


class Graph:
    """Arcs and steps, and the slack of every arc for a period.

    `starts` holds when signals leave each node that a register drives (others: a large negative number),
    `sources` the node that each arc comes from.

    >>> path = Graph([100, -10**9], [0, 1], [50, 30], [Step(0, 1, 20), Step(1, END, 5)])
    >>> path.analyse(200)
    -5
    """

    def __init__(
        self, starts: Iterable[int], sources: Iterable[int], delays: Iterable[int], steps: Iterable[Step]
    ) -> None:
        self._starts = np.array(list(starts), np.int64)
        self.sources = np.array(list(sources), np.int64)
        self.delays = np.array(list(delays), np.int64)
        self._arcs, self._nodes, self._times = np.array(list(steps), np.int64).reshape(-1, 3).T
        self._levels = list(self._by_level())
        self.arrival = self.required = self.slack = np.zeros(0, np.int64)

    def _by_level(self) -> Iterator[NDArray[np.int64]]:
        """Yield steps, first those whose source depends on no other step."""
        sources, inner = self.sources[self._arcs], self._nodes != END
        level = np.zeros(len(self._starts), np.int64)
        for _ in range(len(level) + 1):
            deeper = level.copy()
            np.maximum.at(deeper, self._nodes[inner], level[sources[inner]] + 1)
            if (deeper == level).all():
                break
            level = deeper
        else:
            raise HandshakeError("the circuit has a loop of gates without a register")
        of_step = level[sources]
        order = np.argsort(of_step, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(of_step[order])) + 1)

    def analyse(self, period: int) -> int:
        """Compute `arrival` and `required` of nodes and `slack` of arcs; return the least slack."""
        self.arrival, self.required = self._starts.copy(), np.full(len(self._starts), -_NEVER)
        self.slack = np.full(len(self.delays), period, np.int64)
        for steps in self._levels:
            arcs, inner = self._arcs[steps], self._nodes[steps] != END
            there = self.arrival[self.sources[arcs]] + self.delays[arcs] + self._times[steps]
            np.maximum.at(self.arrival, self._nodes[steps][inner], there[inner])
        for steps in reversed(self._levels):
            arcs, nodes = self._arcs[steps], self._nodes[steps]
            limit = (
                np.where(nodes == END, period, self.required[nodes]) - self._times[steps] - self.delays[arcs]
            )
            np.minimum.at(self.required, self.sources[arcs], limit)
            np.minimum.at(self.slack, arcs, limit - self.arrival[self.sources[arcs]])
        return int(self.slack.min(initial=period))


class Timing(Graph):
    """The graph of a placed circuit, with the delays that its routing has."""

    def __init__(self, placed: Placed, delays: Delays) -> None:
        self.nodes = {pin: index for index, pin in enumerate(placed.drivers.values())}
        joined = [(pin, placed.drivers[net]) for net in placed.drivers for pin in placed.sinks.get(net, ())]
        self.pins = [pin for pin, _ in joined]
        self._arc_of = {pin: arc for arc, pin in enumerate(self.pins)}
        self.cells = [pin.cell for pin in self.nodes]
        steps = list(self._steps(placed, delays))
        super().__init__(
            self._first(delays),
            (self.nodes[source] for _, source in joined),
            (delays.wires.get(pin, 0) for pin, _ in joined),
            steps,
        )
        self._lists(steps)

    def _first(self, delays: Delays) -> list[int]:
        starts = [_NEVER] * len(self.nodes)
        for cell, port, to, time in delays.paths:
            if port.startswith(_CLOCKS) and (node := self.nodes.get(Pin(cell, to))) is not None:
                starts[node] = time
        return starts

    def _steps(self, placed: Placed, delays: Delays) -> Iterator[Step]:
        through = [path for path in delays.paths if not path[1].startswith(_CLOCKS)]
        for name, cell in placed.cells.items():
            if cell.kind == "TRELLIS_RAMW":
                through += [(name, port, to, 0) for port, to in _WRITE_PORT.items()]
        for name, port, to, time in through:
            arc, node = self._arc_of.get(Pin(name, port)), self.nodes.get(Pin(name, to))
            if arc is not None and node is not None:
                yield Step(arc, node, time)
        for name, port, time in delays.setups:
            if (arc := self._arc_of.get(Pin(name, port))) is not None:
                yield Step(arc, END, time)

    def _lists(self, steps: Iterable[Step]) -> None:
        """Keep the arrays as lists too, which are faster for a few cells."""
        self.of_cell: defaultdict[str, list[int]] = defaultdict(list)
        self._leaving: defaultdict[int, list[int]] = defaultdict(list)
        for arc, pin in enumerate(self.pins):
            source = int(self.sources[arc])
            self._leaving[source].append(arc)
            for cell in {pin.cell, self.cells[source]}:
                self.of_cell[cell].append(arc)
        self._behind: defaultdict[int, list[Step]] = defaultdict(list)
        self._into: defaultdict[int, list[Step]] = defaultdict(list)
        for step in steps:
            self._behind[step.arc].append(step)
            self._into[step.node].append(step)

    def worst(self, arcs: Iterable[int], delays: Mapping[int, int], nodes: Iterable[int], period: int) -> int:
        """Return the least slack of `arcs` if some arcs had other delays, which change the times of `nodes`.

        Times of other nodes are taken as they are: a node or two further on the error is found by `analyse`.
        """
        arrival, required = dict[int, int](), dict[int, int]()
        for _ in range(3):  # some of the nodes may follow each other
            for node in nodes:
                before = (self._there(step, delays, arrival) for step in self._into[node])
                arrival[node] = max(before, default=int(self.arrival[node]))
                after = (step for arc in self._leaving[node] for step in self._behind[arc])
                limits = (self._limit(step, delays, required, period) for step in after)
                required[node] = min(limits, default=-_NEVER)
        return min(
            (
                self._limit(step, delays, required, period) - self._leaves(step.arc, arrival)
                for arc in arcs
                for step in self._behind[arc]
            ),
            default=period,
        )

    def _leaves(self, arc: int, arrival: Mapping[int, int]) -> int:
        source = int(self.sources[arc])
        return arrival[source] if source in arrival else int(self.arrival[source])

    def _there(self, step: Step, delays: Mapping[int, int], arrival: Mapping[int, int]) -> int:
        return self._leaves(step.arc, arrival) + self._delay(step.arc, delays) + step.time

    def _limit(self, step: Step, delays: Mapping[int, int], required: Mapping[int, int], period: int) -> int:
        """Return when a signal must leave the source of the step's arc."""
        node = step.node
        end = period if node == END else required[node] if node in required else int(self.required[node])
        return end - step.time - self._delay(step.arc, delays)

    def _delay(self, arc: int, delays: Mapping[int, int]) -> int:
        return delays[arc] if arc in delays else int(self.delays[arc])
