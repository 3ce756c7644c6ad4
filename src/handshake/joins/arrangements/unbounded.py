"""Joins without windows: one side is held, the other passes by, dealt out to the cores.

The held side no longer changes, so all cores read the same basic windows, and each batch visits one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from handshake.joins.arrangements.arrangement import CrewJoin, Task
from handshake.joins.arrangements.channels import Monitor
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, Seen
from handshake.joins.metrics import Metrics, collect_metrics
from handshake.joins.pieces import pieces
from handshake.joins.segment import Segment
from handshake.joins.spec import JoinSpec

_DEAL = 1 << 18
"""Tuples dealt to a core at once: enough to sort probes well, few enough that all cores have some."""


@dataclass
class Unbounded(CrewJoin[Task]):
    """A running join without windows: `hold` the right side, then `push` the left."""

    spec: JoinSpec
    cores: int = 1
    cpus: tuple[int, ...] = ()
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.spec)
        self._held_right = Segment(self.spec, 1, lazy=True)
        self._cores = [JoinCore(self.spec, self.driver.tracked) for _ in range(self.cores)]
        self._passed: list[BasicWindow] = []
        """Left tuples since the last drain, if they are tracked."""
        self._start_crew(Monitor())
        self.watch.start()

    def _work(self, k: int, task: Task) -> Iterator[pa.RecordBatch]:
        return self._cores[k].probe(task.piece, self._held_right)

    def hold(self, batch: pa.RecordBatch) -> None:
        """Keep tuples of the right side."""
        for piece in pieces(self.spec, 1, self.driver.admit(1, batch)):
            self._held_right.insert(piece)

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        admitted = self.driver.admit(stream, batch, seen)
        deal = max(1, min(_DEAL, -(-admitted.num_rows // self.cores)))
        for start in range(0, admitted.num_rows, deal):
            piece = BasicWindow(self.spec.sides[stream], admitted.slice(start, deal))
            if self.driver.tracked[stream] is not None:
                self._passed.append(piece)
            yield from self.crew.hand(self.crew.least_busy(), Task(piece, came))

    def _finalise(self, last: bool) -> Iterator[pa.RecordBatch]:
        """Yield left rows once they have passed: all of the right side is there."""
        left, right = self._finals
        if left is not None:
            yield from left.take(self._passed, None)
            self._passed = []
        if right is not None and last:
            yield from right.take(self._list_windows(1), None)

    def held_windows(self, side: int) -> list[BasicWindow]:
        """Return the basic windows of a side. Rows in them may have expired."""
        return list(self._held_right) if side else list(self._passed)

    def _take_departed(self, side: int) -> list[BasicWindow]:
        return self._held_right.take_departed() if side else []

    def expire(self) -> None:
        """Do nothing: without windows no tuple expires."""

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        figures = collect_metrics(self.driver, self._cores, "unbounded", 0, self.watch.seconds)
        held = self._held_right
        return self._with_queues(
            replace(
                figures.with_windows((0, held.rows)), basic_windows=len(held.windows), state_bytes=held.nbytes
            )
        )
