"""One core, Kang's procedure: probe the other window, insert into one's own, expire."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.basic_window import BasicWindow
from handshake.cores.core import JoinCore
from handshake.cores.driver import Driver, stored
from handshake.cores.segment import SHARE, SMALL
from handshake.cores.spec import JoinSpec
from handshake.kernels.columns import integers

__all__ = ["Metrics", "ThreeStep"]

_PIECE = 1 << 20
_COALESCE, _COALESCE_BYTES = 1 << 15, 1 << 25


@dataclass(frozen=True)
class Metrics:
    """What a join has done and holds."""

    left_rows: int
    right_rows: int
    results: int
    late: int
    no_time: int
    unmatchable: int
    comparisons: int
    skipped: int
    left_window_rows: int
    right_window_rows: int
    basic_windows: int
    state_bytes: int
    expired: int
    elapsed: float
    """Seconds spent in the engine."""


@dataclass
class ThreeStep:
    """A running join on one core."""

    spec: JoinSpec
    lateness: int = 0
    core: JoinCore = field(init=False)
    driver: Driver = field(init=False)
    expired: int = 0
    elapsed: float = 0.0

    def __post_init__(self) -> None:
        self.core = JoinCore(self.spec)
        self.driver = Driver(self.spec, self.lateness)

    def push(
        self, side: int, batch: pa.RecordBatch, other: np.ndarray[Any, Any] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take a batch of one side's tuples; yields the results that they complete."""
        return _coalesced(self._timed(self._push(side, batch, other)))

    def _timed(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the time spent here, not in whoever consumes the results."""
        while True:
            start = time.perf_counter()
            batch = next(results, None)
            self.elapsed += time.perf_counter() - start
            if batch is None:
                return
            yield batch

    def _push(
        self, side: int, batch: pa.RecordBatch, other: np.ndarray[Any, Any] | None
    ) -> Iterator[pa.RecordBatch]:
        admitted = self.driver.admit(side, batch, other)
        for piece in self._pieces(side, admitted):
            yield from self.core.probe(piece)
            self.core.insert(piece)
        self.expire()

    def probe_only(self, side: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Join tuples with what is held, without keeping them: for the last input of a finite join."""

        def results() -> Iterator[pa.RecordBatch]:
            for piece in self._pieces(side, self.driver.admit(side, batch)):
                yield from self.core.probe(piece)

        return _coalesced(self._timed(results()))

    def expire(self) -> None:
        """Drop what no tuple to come can join."""
        for side in (0, 1):
            progress = self._progress(side)
            reach = self.spec.reach(side)
            if reach is not None and progress is not None:
                self.expired += self.core.expire(side, progress - reach)

    def _progress(self, side: int) -> int | None:
        """A lower bound on the stamps with which tuples to come will ask for this side's tuples."""
        window = (self.spec.windows.left, self.spec.windows.right)[side]
        if window is None:
            return None
        return self.driver.mark() if window.kind == "time" else self.driver.met[1 - side]

    def _pieces(self, side: int, batch: pa.RecordBatch) -> Iterator[BasicWindow]:
        """Cut a batch so that no piece spans much of the window: then extremes skip what cannot join."""
        if batch.num_rows == 0:
            return
        spec = self.spec.sides[side]
        stamp = spec.stamps.second if side == 0 else spec.stamps.first
        reach = self.spec.reach(side)
        if stamp is None or reach is None:
            cuts = list(range(0, batch.num_rows, _PIECE))
        else:
            stamps = integers(stored(batch, spec, stamp.name))
            if len(stamps) > SMALL and np.any(stamps[1:] < stamps[:-1]):
                order = np.argsort(stamps, kind="stable")
                batch, stamps = batch.take(pa.array(order)), stamps[order]
            cuts = _cuts(stamps, max(reach // SHARE, 1))
        for start, stop in zip(cuts, [*cuts[1:], batch.num_rows], strict=True):
            yield BasicWindow(spec, batch.slice(start, stop - start))

    def metrics(self) -> Metrics:
        """Counts and sizes so far."""
        left, right = self.driver.counts
        a, b = self.core.segments
        return Metrics(
            left_rows=left.rows, right_rows=right.rows, results=self.core.results,
            late=left.late + right.late, no_time=left.no_time + right.no_time,
            unmatchable=left.unmatchable + right.unmatchable,
            comparisons=self.core.comparisons, skipped=self.core.skipped, left_window_rows=a.rows,
            right_window_rows=b.rows, basic_windows=len(a.windows) + len(b.windows),
            state_bytes=a.nbytes + b.nbytes, expired=self.expired, elapsed=self.elapsed,
        )  # fmt: skip


def _cuts(stamps: np.ndarray[Any, Any], span: int) -> list[int]:
    """Starts of pieces of `SMALL` to `_PIECE` tuples, spanning at most `span` where that allows it."""
    cuts, start = [], 0
    while start < len(stamps):
        cuts.append(start)
        end = int(stamps[start]) + span
        within = int(np.searchsorted(stamps[start : start + _PIECE], end, "right")) if end < 2**63 else _PIECE
        start += max(min(within, _PIECE), SMALL)
    return cuts


def _coalesced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Few large batches instead of many small ones."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _COALESCE or size >= _COALESCE_BYTES:
            yield from _concatenated(waiting)
            waiting, rows, size = [], 0, 0
    yield from _concatenated(waiting)


def _concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch of several, where one can hold them (see `merged`)."""
    if len(batches) < 2:
        return batches
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowInvalid:
        return batches
