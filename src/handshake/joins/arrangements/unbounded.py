"""Joins without windows: one side is held, the other passes by, dealt out to the cores.

What is held no longer changes, so all cores read the same basic windows, and each batch visits one core only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from handshake.joins.arrangements.crew import Crew
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver
from handshake.joins.metrics import Metrics, collect_metrics, with_crew
from handshake.joins.pieces import coalesce, pieces
from handshake.joins.segment import Segment
from handshake.joins.spec import SIDES, JoinSpec

__all__ = ["Unbounded"]

_DEAL = 1 << 18
"""Tuples dealt to a core at once: enough to sort probes well, few enough that all cores have some."""


@dataclass(frozen=True)
class _Task:
    piece: BasicWindow
    arrived: float


@dataclass
class Unbounded:
    """`hold` the right side, then let the left `pass_by`."""

    spec: JoinSpec
    cores: int = 1
    cpus: tuple[int, ...] = ()
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.spec)
        self._held = Segment(self.spec, 1, lazy=True)
        self._cores = [JoinCore(self.spec) for _ in range(self.cores)]
        self.crew = Crew(self.cores, self._work, _describe, arrival=lambda task: task.arrived, cpus=self.cpus)
        self._began = time.perf_counter()
        self._elapsed: float | None = None

    def _work(self, k: int, task: _Task) -> Iterator[pa.RecordBatch]:
        return self._cores[k].probe(task.piece, self._held)

    def hold(self, batch: pa.RecordBatch) -> None:
        """Keep tuples of the right side."""
        for piece in pieces(self.spec, 1, self.driver.admit(1, batch)):
            self._held.insert(piece)

    def pass_by(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join tuples of the left side with all that is held; yields results that are ready."""
        came = time.perf_counter()
        return self.crew.latencies.time_delivery(coalesce(self._pass_by(self.driver.admit(0, batch), came)))

    def _pass_by(self, batch: pa.RecordBatch, came: float) -> Iterator[pa.RecordBatch]:
        deal = max(1, min(_DEAL, -(-batch.num_rows // self.cores)))
        for start in range(0, batch.num_rows, deal):
            piece = BasicWindow(self.spec.sides[0], batch.slice(start, deal))
            yield from self.crew.hand(self.crew.least_busy(), _Task(piece, came))

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining results."""
        yield from self.crew.latencies.time_delivery(coalesce(self.crew.drain()))
        self._elapsed = time.perf_counter() - self._began

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        elapsed = self._elapsed if self._elapsed is not None else time.perf_counter() - self._began
        figures = collect_metrics(self.driver, self._cores, "unbounded", 0, elapsed)
        held = self._held
        figures = replace(
            figures.with_windows((0, held.rows)), basic_windows=len(held.windows), state_bytes=held.nbytes
        )
        return with_crew(figures, self.crew.inboxes, self.crew.outboxes, self.crew.latencies)

    def close(self) -> None:
        """Stop and end all threads."""
        self.crew.close()


def _describe(task: _Task) -> str:
    return f"a batch of {task.piece.rows} tuples of the {SIDES[task.piece.spec.side]} input"
