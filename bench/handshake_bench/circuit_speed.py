"""`handshake bench circuit_speed`: simulated cycles per second of the join circuit, by wall clock.

The compiled simulator on the FPGA paper's workload, built once, then run several times per match rate.
Waiting cores cost little, so a match rate at which all cores scan is slower to simulate than one at which
results queue up. The result is the median of the slowest match rate.
"""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

from handshake.engines.circuit.join.arrivals import feed_of
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.join import HandshakeJoin
from handshake.engines.circuit.simulation.simulate import Feed, Simulation
from handshake_bench.circuit_workload import SEGMENT, keys, papers_condition
from handshake_bench.report import progress, result, table

__all__ = ["run"]

MATCH_RATES = (0.0, 0.01, 0.1, 1.0)
QUEUEING = 60
"""Factor of cycles per tuple if results queue up; fewer tuples are enough then."""


class _Round(NamedTuple):
    rate: float
    cycles: int
    wall: float
    processor: float

    @property
    def speed(self) -> float:
        return self.cycles / self.wall


def run(cores: int = 64, tuples: int = 8192, rounds: int = 5, engine: str = "cxxrtl") -> None:
    """Build, run, and print a line for each round."""
    condition, window = papers_condition(), SEGMENT * cores
    began = time.perf_counter()
    simulation = Simulation(HandshakeJoin(condition, Design(cores, window, window)), engine)
    built = time.perf_counter() - began
    progress(f"built in {built:.1f} s")
    measured = [
        _round(simulation, rate, fed)
        for rate in MATCH_RATES
        for fed in [_feed(max(1, round(tuples / (1 + QUEUEING * rate))), rate)]
        for _ in range(rounds)
    ]
    _show(cores, built, measured)


def _round(simulation: Simulation, rate: float, fed: Feed) -> _Round:
    wall, processor = time.perf_counter(), time.process_time()
    cycles = simulation.run({"arrivals": fed}).cycles
    return _Round(rate, cycles, time.perf_counter() - wall, time.process_time() - processor)


def _feed(tuples: int, rate: float) -> Feed:
    condition = papers_condition()
    pairs = enumerate(keys(tuples, rate))
    return feed_of(
        condition, [(condition.left.pack((a, i)), condition.right.pack((b, i))) for i, (a, b) in pairs]
    )


def _show(cores: int, built: float, measured: list[_Round]) -> None:
    table(
        f"Simulation of the join circuit, {cores} cores",
        ("match rate", "cycles", "seconds", "processor seconds", "cycles/s"),
        [
            (f"{r.rate:g}", f"{r.cycles:,}", f"{r.wall:.2f}", f"{r.processor:.2f}", f"{r.speed:,.0f}")
            for r in measured
        ],
    )
    medians = {
        rate: statistics.median(each.speed for each in measured if each.rate == rate) for rate in MATCH_RATES
    }
    result(
        cycles_per_second=min(medians.values()),
        **{f"match_rate_{rate:g}": speed for rate, speed in medians.items()},
        best=max(each.speed for each in measured),
        processor=sum(each.cycles for each in measured) / sum(each.processor for each in measured),
        built_seconds=built,
    )
