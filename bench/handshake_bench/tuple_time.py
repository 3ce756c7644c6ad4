"""Average time to process a tuple in `cell`, for a fixed size of batches and of basic windows.

`handshake bench batches` varies the largest batch (CellJoin, figure 12), `handshake bench windows` the size
of basic windows (figure 13). As there, streams have 500 tuples/s, and all cores are used.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from handshake.joins.arrangements.cell.cell import Cell
from handshake.joins.arrangements.cell.cost import CostModel, cost_model
from handshake.joins.plan import usable_cores
from handshake_bench.paced import fill
from handshake_bench.search import band_plan, warm
from handshake_bench.workload import Streams

__all__ = ["ROW_BYTES", "TupleTime", "chosen_rows"]

RATE = 500.0
ROW_BYTES = 8
"""Bytes of join attributes in a tuple: an int and a float."""
_STEP = 2048


@dataclass(frozen=True)
class _Fixed(CostModel):
    """A cost model with a fixed choice."""

    rows: int = 0

    def best_rows(self, rate: float, window_seconds: float, batch: int = 16) -> int:
        """Return the fixed number of rows."""
        return self.rows


@dataclass
class TupleTime:
    """Measurements with windows of `window` seconds."""

    window: float
    seconds: float

    def __post_init__(self) -> None:
        self.plan = band_plan("cell", usable_cores(), self.window)
        warm(self.plan, self.window)

    def measure(self, blocks: int, rows: int | None = None) -> float:
        """Return seconds per tuple for batches of `blocks` unit blocks and basic windows of `rows` tuples."""
        engine = Cell(self.plan.spec, 0, self.plan.cores, blocks=blocks)
        try:
            if rows is not None:
                engine.model = _Fixed(1.0, 1.0, 1.0, rows)
                for window in engine.windows:
                    window.segment.largest = rows
            streams, filled = Streams(RATE), int(RATE * self.window)
            fill(engine, streams, filled)
            return self._time_pushes(engine, streams, filled)
        finally:
            engine.close()

    def _time_pushes(self, engine: Cell, streams: Streams, filled: int) -> float:
        """Push until the time is up; the first step fills caches and is not counted."""
        step = min(_STEP, max(64, int(self.window * RATE) // 8))
        done, start = -1, time.perf_counter()
        while done < 1 or time.perf_counter() - start < self.seconds:
            for side, make in enumerate((streams.left, streams.right)):
                for _ in engine.push(side, make(filled, step)):
                    pass
            for _ in engine.drain():
                pass
            filled, done = filled + step, done + 1
            if done == 0:
                start = time.perf_counter()
        return (time.perf_counter() - start) / (done * 2 * step)


def chosen_rows(window: float, batch: int) -> int:
    """Return the size chosen by CellJoin's cost model with constants measured on this machine."""
    return cost_model().best_rows(RATE, window, batch)
