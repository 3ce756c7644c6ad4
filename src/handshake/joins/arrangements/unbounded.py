"""Joins without windows: one side is held, the other passes by, dealt out to the cores.

The held side no longer changes, so all cores read the same basic windows, and each batch visits one core.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from handshake.joins.arrangements.arrangement import CrewJoin, Task
from handshake.joins.arrangements.channels import Monitor
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Seen
from handshake.joins.pieces import pieces
from handshake.joins.segment import Segment

_DEAL = 1 << 18
"""Tuples dealt to a core at once: enough to sort probes well, few enough that all cores have some."""


@dataclass
class Unbounded(CrewJoin[Task]):
    """A running join without windows: `fill` the right side, then `push` the left."""

    name: ClassVar[str] = "unbounded"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._held_right = Segment(self.spec, 1, lazy=True)
        self._cores = [JoinCore(self.spec, self.driver.tracked) for _ in range(self.cores)]
        self._passed: list[BasicWindow] = []
        """Left tuples since the last drain, if they are tracked."""
        self._start_crew(Monitor())
        self.watch.start()

    def _work(self, k: int, task: Task) -> Iterator[pa.RecordBatch]:
        return self._cores[k].probe(task.piece, self._held_right)

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Keep tuples of the right side, before the left side passes by."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
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
            yield from right.take(self.held_windows(1), None)

    def _segments(self, side: int) -> list[Segment]:
        return [self._held_right] if side else []

    def held_windows(self, side: int) -> list[BasicWindow]:
        """Return the basic windows of the right side, or the left tuples that have passed."""
        return super().held_windows(1) if side else list(self._passed)
