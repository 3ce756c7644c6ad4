"""CellJoin: a coordinator keeps both windows, and cores search their parts of them.

Each batch goes to all cores, and each core searches its run of the other window's basic windows with it
(3.1, window partitioning). The coordinator is the caller's thread. Basic windows are immutable, and a
core is handed the very ones that are there when the batch comes; so the batch can enter its own window,
and others expire, while the cores still work, and the next batch need not wait for the slowest core.

Equality and band joins need no buckets of their own (7.2): a sealed basic window is clustered by hash or
by band (kernels.cluster), so that a core looks only at the cells that a tuple can match.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.adapt import Clock, Load
from handshake.cores.basic_window import BasicWindow
from handshake.cores.channels import Stopped
from handshake.cores.core import JoinCore
from handshake.cores.cost import UNIT_BLOCK, CostModel, measured
from handshake.cores.crew import Crew
from handshake.cores.driver import Driver
from handshake.cores.metrics import Metrics, Stopwatch, gathered
from handshake.cores.partition import Partition
from handshake.cores.pieces import coalesced, pieces
from handshake.cores.segment import Segment
from handshake.cores.spec import SIDES, JoinSpec

__all__ = ["Cell"]

Array = np.ndarray[Any, Any]
Bounds = tuple[int | None, int | None]
_FITTED_FROM = 1 << 15
"""Windows of fewer tuples are not worth a cost model."""


@dataclass(frozen=True)
class _Job:
    """What a core is told (4.2): the input batch, and the basic windows to search."""

    piece: BasicWindow
    run: tuple[BasicWindow, ...]


def _describe(job: _Job) -> str:
    return f"a batch of {job.piece.rows} tuples of the {SIDES[job.piece.spec.side]} input"


@dataclass
class _Window:
    """A window in the coordinator's hands: its basic windows, and whose they are."""

    segment: Segment
    partition: Partition

    def insert(self, piece: BasicWindow) -> None:
        """Equation 2 balances numbers of basic windows, so none may be larger than the others can get."""
        most = self.segment.largest or piece.rows
        for start in range(0, piece.rows, most):
            part = piece if most >= piece.rows else BasicWindow(piece.spec, piece.batch.slice(start, most))
            self._insert(part)

    def _insert(self, part: BasicWindow) -> None:
        before = len(self.segment.windows)
        self.segment.insert(part)
        self.partition.add()
        for _ in range(before + 1 - len(self.segment.windows)):
            self.partition.merge_newest()

    def expire(self, oldest: int) -> int:
        before = len(self.segment.windows)
        gone = self.segment.expire(oldest)
        for _ in range(before - len(self.segment.windows)):
            self.partition.remove_oldest()
        return gone

    def runs(self) -> list[tuple[BasicWindow, ...]]:
        """What each core has to search."""
        partition = self.partition
        return [tuple(self.segment.windows[partition.run(core)]) for core in range(partition.cores)]


@dataclass
class _Buffer:
    """Stamped tuples of one stream that wait for the cores (4.2.2), in batches no larger than `most`."""

    most: int
    rows: int = 0
    batches: list[tuple[pa.RecordBatch, Bounds]] = field(default_factory=list)

    def put(self, batch: pa.RecordBatch, bounds: Bounds) -> None:
        """Cut at whole unit blocks. `bounds` say what its tuples may still ask of the windows."""
        self.rows += batch.num_rows
        for start in range(0, batch.num_rows, self.most):
            self.batches.append((batch.slice(start, self.most), bounds))

    def take(self) -> pa.RecordBatch:
        """As many of the oldest tuples as one batch may have."""
        count, rows = 0, 0
        while count < len(self.batches) and rows + self.batches[count][0].num_rows <= self.most:
            rows += self.batches[count][0].num_rows
            count += 1
        batch, count = _together([b for b, _ in self.batches[:count]])
        del self.batches[:count]
        self.rows -= batch.num_rows
        return batch


def _together(batches: list[pa.RecordBatch]) -> tuple[pa.RecordBatch, int]:
    """One batch of as many as it can hold (see `basic_window.merged`), and of how many it is."""
    try:
        return (pa.concat_batches(batches), len(batches)) if len(batches) > 1 else (batches[0], 1)
    except pa.ArrowInvalid:
        return batches[0], 1


@dataclass
class Cell:
    """A running join on up to `cores` threads; with `adapt`, on as many of them as the load asks for.

    A batch is searched at once when no core has another waiting. Otherwise tuples gather, up to `blocks`
    unit blocks, and the next `push` or `drain` hands them on: so batches are small when streams are slow,
    and grow with the rates (4.2.2). Unlike the paper's, a batch may end in part of a unit block: kernels
    can search with any number of tuples, and a tuple should not wait for fifteen others that may never
    come.
    """

    spec: JoinSpec
    lateness: int = 0
    cores: int = 1
    adapt: bool = False
    blocks: int = 4096
    clock: Clock = time.perf_counter
    driver: Driver = field(init=False)
    model: CostModel | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.driver = Driver(self.spec, self.lateness)
        self.load = Load(self.cores, 1 if self.adapt else self.cores, self.clock)
        first, second = (_Window(Segment(self.spec, side), Partition(self.load.active)) for side in (0, 1))
        self.windows = (first, second)
        self._buffers = (_Buffer(self.blocks * UNIT_BLOCK), _Buffer(self.blocks * UNIT_BLOCK))
        self._turn = 0
        self._cores = [JoinCore(self.spec) for _ in range(self.cores)]
        self._busy = [0.0] * self.cores
        self._jobs = [0] * self.cores
        self._expired = 0
        self._watch = Stopwatch()
        self.crew = Crew(self.cores, self._work, _describe)

    # On the cores.

    def _work(self, k: int, job: _Job) -> Iterator[pa.RecordBatch]:
        """Results go back while the join runs, a buffer at a time (4.3)."""
        self._jobs[k] += 1
        return coalesced(self._search(k, job))

    def _search(self, k: int, job: _Job) -> Iterator[pa.RecordBatch]:
        for window in job.run:
            if self.crew.bell.stopped:
                raise Stopped
            results = self._cores[k].probe(job.piece, (window,))
            while (batch := self._timed(k, results)) is not None:
                yield batch

    def _timed(self, k: int, results: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """Count a core's time at work, not that spent waiting for room."""
        start = self.clock()
        batch = next(results, None)
        self._busy[k] += self.clock() - start
        return batch

    # On the coordinator.

    def push(self, side: int, batch: pa.RecordBatch, other: Array | None = None) -> Iterator[pa.RecordBatch]:
        """Take tuples; yields results that are ready."""
        return coalesced(self._push(side, batch, other))

    def _push(self, side: int, batch: pa.RecordBatch, other: Array | None) -> Iterator[pa.RecordBatch]:
        self._watch.start()
        # What tuples to come may ask for holds for this batch, too, as long as it is not stamped.
        bounds = (self.driver.oldest(0), self.driver.oldest(1))
        buffer = self._buffers[side]
        buffer.put(self.driver.admit(side, batch, other), bounds)
        while buffer.rows >= buffer.most or (self._waiting() and not self._is_busy()):
            yield from self._next_batch()
        self.expire()
        yield from self.crew.ready()

    def _waiting(self) -> bool:
        return any(buffer.rows for buffer in self._buffers)

    def _is_busy(self) -> bool:
        """Whether a core has a batch to begin with when it is done with the one at hand."""
        return any(len(inbox) for inbox in self.crew.inboxes)

    def _next_batch(self) -> Iterator[pa.RecordBatch]:
        """Let the streams take turns, as far as tuples of them wait."""
        self._turn = 1 - self._turn
        side = self._turn if self._buffers[self._turn].rows else 1 - self._turn
        for piece in pieces(self.spec, side, self._buffers[side].take()):
            yield from self._hand_out(piece)
            self.windows[side].insert(piece)
            self._fit(side, piece.rows)

    def _hand_out(self, piece: BasicWindow) -> Iterator[pa.RecordBatch]:
        if self.adapt:
            self._resize(self.load.note(sum(self._busy)))
        for k, run in enumerate(self.windows[1 - piece.spec.side].runs()):
            if run:
                yield from self.crew.hand(k, _Job(piece, run))

    def _resize(self, cores: int) -> None:
        """From the next batch on, deal the windows out to so many cores; the others end what they have."""
        for window in self.windows:
            if window.partition.cores != cores:
                window.partition.resize(cores)

    def _fit(self, side: int, batch: int) -> None:
        """Let basic windows of scans be as large as the cost model says for what the window holds (6).

        What a clustered basic window costs hardly grows with its size, so those stay as large as they can
        be. A predicate that calls Python is not called for a measurement.
        """
        segment, others = self.windows[side].segment, self.windows[1 - side].segment
        held = segment.rows
        if self.spec.method != "scan" or self.spec.prepared.doubtful or held < _FITTED_FROM:
            return
        if self.model is None and others.windows:
            largest = max(segment.windows, key=lambda window: window.rows)
            self.model = measured(self.spec, others.windows[-1], largest)
        if self.model is not None:
            segment.largest = self.model.best_rows(held, 1.0, batch)

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them; to be called when drained."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
            self.windows[side].insert(piece)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Wait for everything pushed so far; yields the rest of its results."""
        yield from coalesced(self._drain())
        self._watch.stop()

    def _drain(self) -> Iterator[pa.RecordBatch]:
        while self._waiting():
            yield from self._next_batch()
        self.expire()
        yield from self.crew.drain()

    def expire(self) -> None:
        """Drop what no tuple can join, to come or waiting."""
        for side, window in enumerate(self.windows):
            asked = [buffer.batches[0][1][side] for buffer in self._buffers if buffer.batches]
            oldest = [self.driver.oldest(side), *asked]
            known = [bound for bound in oldest if bound is not None]
            if len(known) == len(oldest):
                self._expired += window.expire(min(known))

    def metrics(self) -> Metrics:
        """Counts and sizes so far. Windows are held centrally: a core's are what it searches."""
        figures = gathered(self.driver, self._cores, "cell", self._expired, self._watch.seconds)
        segments = [window.segment for window in self.windows]
        return replace(
            figures,
            left_window_rows=segments[0].rows,
            right_window_rows=segments[1].rows,
            basic_windows=sum(len(segment.windows) for segment in segments),
            state_bytes=sum(segment.nbytes for segment in segments),
            cores=tuple(
                replace(core, left_window_rows=left, right_window_rows=right, batches=jobs)
                for core, left, right, jobs in zip(
                    figures.cores, self._shares(0), self._shares(1), self._jobs, strict=True
                )
            ),
        )

    def _shares(self, side: int) -> list[int]:
        rows = [sum(window.rows for window in run) for run in self.windows[side].runs()]
        return rows + [0] * (self.cores - len(rows))

    def close(self) -> None:
        """Stop; all threads end."""
        self._watch.stop()
        self.crew.close()
