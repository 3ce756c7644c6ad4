"""`handshake bench circuit_speed`: simulated cycles per second of the join circuit, by the clock on the wall.

The compiled simulator on the FPGA paper's workload, one tuple in ten matching; built once, then run several
times. The best run says what the simulator can do, the median what it did beside whatever else was running.
"""

from __future__ import annotations

import statistics
import time

from handshake.bench.report import progress, result, table
from handshake.circuit.join.arrivals import feed_of
from handshake.circuit.join.design import Design
from handshake.circuit.join.join import HandshakeJoin
from handshake.circuit.join.workload import SEGMENT, keys, papers_condition
from handshake.circuit.simulate import Feed, Simulation

__all__ = ["run"]

MATCH_RATE = 0.1


def run(cores: int = 64, tuples: int = 8192, rounds: int = 5, engine: str = "cxxrtl") -> None:
    """Build, run, and print a line for each round."""
    condition, window = papers_condition(), SEGMENT * cores
    began = time.perf_counter()
    simulation = Simulation(HandshakeJoin(condition, Design(cores, window, window)), engine)
    built = time.perf_counter() - began
    progress(f"built in {built:.1f} s")
    fed, rows = _feed(tuples), []
    for number in range(1, rounds + 1):
        wall, cpu = time.perf_counter(), time.process_time()
        cycles = simulation.run({"arrivals": fed}).cycles
        rows.append((number, cycles, time.perf_counter() - wall, time.process_time() - cpu))
    _show(cores, built, rows)


def _feed(tuples: int) -> Feed:
    condition = papers_condition()
    pairs = enumerate(keys(tuples, MATCH_RATE))
    return feed_of(
        condition, [(condition.left.pack((a, i)), condition.right.pack((b, i))) for i, (a, b) in pairs]
    )


def _show(cores: int, built: float, rows: list[tuple[int, int, float, float]]) -> None:
    speeds = [cycles / wall for _, cycles, wall, _ in rows]
    table(
        f"Simulation of the join circuit, {cores} cores",
        ("round", "cycles", "seconds", "processor seconds", "cycles/s"),
        [
            (str(n), f"{cycles:,}", f"{wall:.2f}", f"{cpu:.2f}", f"{cycles / wall:,.0f}")
            for n, cycles, wall, cpu in rows
        ],
    )
    result(
        cycles_per_second=statistics.median(speeds),
        best=max(speeds),
        processor=sum(row[1] for row in rows) / sum(row[3] for row in rows),
        built_seconds=built,
    )
