"""Figures that the papers state in their text. Their curves are pictures, which are not copied here.

`handshake`: Teubner and Müller, How soccer players would do stream joins, SIGMOD 2011 (48 Opteron cores).
`cell`: Gedik, Yu, Bordawekar, CellJoin, VLDB Journal 2009 (Cell processor, 8 SPEs).
`pim_tree`: Shahvarani and Jacobsen, Parallel Index-based Stream Join on a Multicore CPU, SIGMOD 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CELL_BATCH_BYTES", "CELL_RATES", "CELL_SUBOPTIMAL", "HIT_RATE", "PIM_TREE_CORES", "PIM_TREE_GAIN",
    "POINTS", "SIMD_GAIN", "Point", "outputs",
]  # fmt: skip

HIT_RATE = 1 / 250_000
"""Matches per pair (handshake join 5.2)."""
SIMD_GAIN = 2.0
"""Handshake join 5.3: SIMD code sustains more than double the load of scalar code."""
CELL_RATES = {"SIMD": 1000.0, "SIMD-Noopt": 750.0, "No-SIMD": 500.0}
"""CellJoin 8.2.1: highest rates without drops, in tuples/s/stream; 8 SPEs, 15-minute windows."""
CELL_BATCH_BYTES = 128
"""CellJoin 8.2.3: batches beyond that bring insignificant gains."""
CELL_SUBOPTIMAL = 1.10
"""CellJoin 8.2.4: a basic window of the wrong size costs up to 10 %."""
PIM_TREE_GAIN, PIM_TREE_CORES = 5.5, 8
"""PIM-Tree, abstract: the most that throughput grows over one thread, and the cores that it takes."""


@dataclass(frozen=True)
class Point:
    """A sustained rate that a paper states."""

    system: str
    cores: int
    minutes: int
    rate: float


POINTS = (
    Point("handshake join, 8 Opteron cores", 8, 15, 1400.0),
    Point("CellJoin, 8 SPEs", 8, 15, 1000.0),
    Point("CellJoin without unrolling, 8 SPEs", 8, 15, 750.0),
)
"""Handshake join 5.4."""


def outputs(rate: float, window: float) -> float:
    """Results per second of two streams at `rate` with windows of `window` seconds, nothing being dropped."""
    return 2 * rate * rate * window * HIT_RATE
