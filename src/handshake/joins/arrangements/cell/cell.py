"""CellJoin: a coordinator keeps both windows, and cores search their parts of them.

Each batch goes to all cores, and each core searches its run of the other window's basic windows with it
(3.1, window partitioning). The coordinator is the caller's thread. Basic windows are immutable, and a
core is handed the very ones that are there when the batch comes; so the batch can enter its own window,
and others expire, while the cores still work, and the next batch need not wait for the slowest core.

Equality and band joins need no buckets of their own (7.2): a sealed basic window is clustered by hash or
by band (kernels.cluster), so that a core looks only at the cells that a tuple can match. An index finds more
the larger a basic window is, and then there are too few to deal out evenly; all cores share one memory here,
so each of them searches the whole window, with its share of the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.arrangement import Task
from handshake.joins.arrangements.cell.cost import UNIT_BLOCK, CostModel, measure_costs
from handshake.joins.arrangements.cell.partition import DealtWindow
from handshake.joins.arrangements.channels import Monitor
from handshake.joins.arrangements.crew import Clock, Load
from handshake.joins.arrangements.gathering import Buffer, GatheringJoin
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Seen
from handshake.joins.metrics import Metrics
from handshake.joins.pieces import coalesce, pieces
from handshake.joins.segment import Segment

Array = np.ndarray[Any, Any]
_SHARE = 64
"""The fewest tuples of a share of a batch, if the batch is shared out."""
_USUAL = 32
"""Batches whose average size basic windows are fitted to: in bursts it changes from one to the next."""


@dataclass(frozen=True)
class _Job(Task):
    """The input batch of a core, and the basic windows that it searches (4.2)."""

    run: tuple[BasicWindow, ...]


@dataclass
class Cell(GatheringJoin[_Job]):
    """A running join on up to `cores` threads; with `adapt`, on as many of them as the load asks for.

    A batch is searched at once when no core has another waiting. Otherwise tuples gather, up to `blocks`
    unit blocks, and the next `push` or `drain` hands them on: so batches are small when streams are slow,
    and grow with the rates (4.2.2). Unlike the paper's, a batch may end in part of a unit block: kernels
    can search with any number of tuples, and a tuple should not wait for fifteen others that may never
    come.
    """

    name: ClassVar[str] = "cell"
    adapts: ClassVar[bool] = True

    blocks: int = 4096
    clock: Clock = time.perf_counter
    model: CostModel | None = None
    """The costs of scans; measured when a window is large, unless they are given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.load = Load(self.cores, 1 if self.adapt else self.cores, self.clock)
        active = self.load.active
        self._is_dealt = self.spec.method == "scan"
        left, right = (DealtWindow(Segment(self.spec, side), active, self._is_dealt) for side in (0, 1))
        self.windows = (left, right)
        self._buffers = (Buffer(self.blocks * UNIT_BLOCK), Buffer(self.blocks * UNIT_BLOCK))
        self._turn, self._next_core = 0, 0
        self._usual = float(UNIT_BLOCK)
        """Average number of tuples in the last batches."""
        monitor = Monitor()
        self._cores = [
            JoinCore(self.spec, self.driver.tracked, check=monitor.check) for _ in range(self.cores)
        ]
        self._start_crew(monitor, active, self.clock)

    # On the cores.

    def _work(self, k: int, job: _Job) -> Iterator[pa.RecordBatch]:
        """Results go back while the join runs, a buffer at a time (4.3)."""
        return coalesce(self._cores[k].probe(job.piece, job.run))

    # On the coordinator.

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        buffer = self._gather(stream, batch, seen, came)
        while buffer.rows >= buffer.most or (self._waiting() and not self._is_busy()):
            yield from self._next_batch()
        self.expire()
        yield from self.crew.ready()

    def _next_batch(self) -> Iterator[pa.RecordBatch]:
        """Hand out the next batch; the streams take turns."""
        self._turn = 1 - self._turn
        side = self._turn if self._buffers[self._turn].rows else 1 - self._turn
        batch, arrived = self._buffers[side].take()
        for piece in pieces(self.spec, side, batch):
            yield from self._hand_out(piece, arrived)
            self.windows[side].insert(piece)
            self._fit(side, piece.rows)

    def _hand_out(self, piece: BasicWindow, arrived: float) -> Iterator[pa.RecordBatch]:
        if self.adapt:
            self._resize(self.load.note(sum(self.crew.busy)))
        window = self.windows[1 - piece.spec.side]
        if self._is_dealt:
            jobs = [(k, piece, run) for k, run in enumerate(window.runs())]
        else:
            whole = tuple(window.segment.windows)
            jobs = [(k, part, whole) for k, part in self._deal(piece)]
        for k, part, run in jobs:
            if run:
                yield from self.crew.hand(k, _Job(part, arrived, run))

    def _deal(self, piece: BasicWindow) -> Iterator[tuple[int, BasicWindow]]:
        """Cut a batch into equal shares for different cores, starting with each core in turn."""
        parts = max(1, min(self.crew.active, piece.rows // _SHARE))
        for start, stop in pairwise(piece.rows * n // parts for n in range(parts + 1)):
            self._next_core = (self._next_core + 1) % self.crew.active
            batch = piece.batch.slice(start, stop - start)
            yield self._next_core, piece if parts == 1 else BasicWindow(piece.spec, batch)

    def _resize(self, cores: int) -> None:
        """Deal the windows out to this many cores, from the next batch on.

        Threads of cores that are released end when they have searched what they were given before.
        """
        self.crew.resize(cores)
        for window in self.windows:
            window.cores = cores

    def _fit(self, side: int, batch: int) -> None:
        """Let basic windows of scans be as large as the cost model says for what the window holds (6).

        The cost of a clustered basic window hardly grows with its size, so those stay as large as they can
        be. A predicate that calls Python is not called for a measurement.
        """
        segment, others = self.windows[side].segment, self.windows[1 - side].segment
        held = segment.rows
        if not self._is_dealt or self.spec.prepared.doubtful or held < self.spec.tuning.fitted_from:
            return
        if self.model is None and others.windows:
            largest = max(segment.windows, key=lambda window: window.rows)
            self.model = measure_costs(self.spec, others.windows[-1], largest)
        if self.model is not None:
            self._usual += (batch - self._usual) / _USUAL
            segment.largest = self.model.best_rows(held, 1.0, round(self._usual))

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them; to be called when drained."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
            self.windows[side].insert(piece)

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        while self._waiting():
            yield from self._next_batch()
        self.expire()
        yield from self.crew.drain(until)

    def _segments(self, side: int) -> list[Segment]:
        return [self.windows[side].segment]

    def expire(self) -> None:
        """Drop tuples that no waiting or future tuple can join."""
        for side, window in enumerate(self.windows):
            oldest = self._oldest(side)
            if oldest is not None:
                self._expired += window.segment.expire(oldest)

    def metrics(self) -> Metrics:
        """Return counts and sizes so far. Windows are held centrally: a core's share is what it searches."""
        figures = super().metrics()
        shares = zip(figures.cores, self._shares(0), self._shares(1), strict=True)
        return replace(
            figures,
            cores=tuple(
                replace(core, left_window_rows=left, right_window_rows=right) for core, left, right in shares
            ),
            core_counts=tuple(self.crew.history) if self.adapt else (),
        )

    def _shares(self, side: int) -> list[int]:
        window = self.windows[side]
        rows = [sum(part.rows for part in run) for run in window.runs()]
        if not self._is_dealt:  # all cores search all of it: each counts for as much as any other
            held, cores = window.segment.rows, self.crew.active
            rows = [held * (k + 1) // cores - held * k // cores for k in range(cores)]
        return rows + [0] * (self.cores - len(rows))
