"""Low-latency handshake join: tuples pass all cores at once and settle at one of them.

Every batch goes to every core that holds tuples, in one order for all. A core probes its segment of the other
window with the whole batch, then keeps its share of it. So a pair meets exactly once: on the core where the
earlier tuple has settled, when the later one passes. No core waits for another, and no result for its tuples
to drift together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Task
from handshake.joins.arrangements.channels import Monitor
from handshake.joins.arrangements.gathering import Bounds, Buffer, GatheringJoin
from handshake.joins.arrangements.low_latency.look_ups import FEW
from handshake.joins.arrangements.low_latency.shared_scan import SharedScan, Visit
from handshake.joins.arrangements.placement import pin_to, pinned_to
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.driver import Seen
from handshake.joins.metrics import Metrics
from handshake.joins.pieces import pieces
from handshake.joins.segment import SMALL

_WHOLE = 64
"""Smaller shares are not worth cutting: such a batch settles whole, on each core in turn."""
_UNINTERRUPTED = 1 << 30
"""Pairs that are joined where they come in one call, about a tenth of a second."""

_LARGEST = 1 << 20
"""Tuples of the largest batch."""


Shares = Sequence[BasicWindow | None]
"""The part of a piece that each core keeps."""


@dataclass(frozen=True)
class _Task(Task):
    outer: Outer
    shares: Shares
    oldest: Bounds


@dataclass
class LowLatency(GatheringJoin[_Task]):
    """A running join on `cores` threads.

    A small batch is joined at once if all cores are idle. If more follow, tuples gather.
    """

    name: ClassVar[str] = "low_latency"
    prompt: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        monitor = Monitor()
        tracked = self.driver.tracked
        self._cores = [
            JoinCore(self.spec, tracked, aside=True, check=monitor.check) for _ in range(self.cores)
        ]
        self._gone = [0] * self.cores
        """Expired tuples, by core."""
        self._turn, self._tuning = 0, self.spec.tuning
        self._buffers = (Buffer(_LARGEST), Buffer(_LARGEST))
        self._holds = [False] * self.cores
        self._recent, self._seen = 0.0, 0.0
        self._shared = SharedScan(self.spec, self._cores, tracked, self.cpus)
        self._start_crew(monitor)

    def _work(self, k: int, task: _Task) -> Iterator[pa.RecordBatch]:
        core = self._cores[k]
        yield from core.probe(task.piece, outer=task.outer)
        share = task.shares[k]
        if share is not None:
            core.insert(share)
        self._expire(k, task.oldest)

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        buffer = self._gather(stream, batch, seen, came)
        while buffer.rows >= self._tuning.gathered_rows or (not more and self._waiting() and self._may_go()):
            yield from self._next_batch(at_once=not more)
        yield from self.crew.ready()

    def _may_go(self) -> bool:
        """Return whether to start the waiting batches now. Quick ones wait until all cores are idle."""
        return self.crew.idle() if self._is_quick(self._most_waiting()) else not self._is_busy()

    def push_and_drain(self, stream: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take rows, and return all results. A batch that is quick is joined at once, in this thread."""
        if self._waiting() or not (self.crew.at_rest() and self._is_quick(batch.num_rows)):
            return super().push_and_drain(stream, batch)
        came = time.perf_counter()
        self.watch.start()
        results = list(self._join_here([(piece, came) for piece in self._admit(stream, batch)]))
        self.latencies.record(self.latencies.take_notes())
        self.watch.stop()
        return [*results, *self.drain()] if any(self.driver.tracked) else results

    def _admit(self, side: int, batch: pa.RecordBatch) -> Iterable[BasicWindow]:
        """Admit rows that are joined at once."""
        if self.driver.plain[side] and batch.num_rows <= SMALL:
            piece = BasicWindow(self.spec.sides[side], batch)
            if self.driver.admits_all(side, piece.arrival):
                return (piece,)
        return pieces(self.spec, side, self.driver.admit(side, batch))

    def _join_waiting(self) -> Iterator[pa.RecordBatch]:
        """Join all waiting tuples in the caller's thread."""
        arrivals = []
        for side, buffer in enumerate(self._buffers):
            if buffer.rows:
                batch, arrived = buffer.take()
                arrivals += [(piece, arrived) for piece in pieces(self.spec, side, batch)]
        return self._join_here(arrivals)

    def _join_here(self, arrivals: Sequence[tuple[BasicWindow, float]]) -> Iterator[pa.RecordBatch]:
        """Join tuples, with the times when they came, by one scan that idle cores share."""
        if not arrivals:
            return
        visits: list[Visit] = []
        settled: list[tuple[int, Shares]] = []
        for piece, arrived in arrivals:
            held = self._windows_of(1 - piece.spec.side, piece.rows, settled)
            visits.append(Visit(piece, held, self._cores[0].outer(piece), arrived))
            settled.append((piece.spec.side, self._shares(piece, self._active(piece))))
        oldest = (self._oldest(0), self._oldest(1))
        results = self.crew.do(Task(*arrivals[0]).describe, self._shared.search(visits))
        yield from self._on_first_processor(results) if self.cpus else results
        for _, shares in settled:
            for core, share in zip(self._cores, shares, strict=True):
                if share is not None:
                    core.insert(share)
        for k in range(self.cores):
            self._expire(k, oldest)

    def _on_first_processor(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Keep the caller's thread where core 0 is pinned, away from the helpers' processors."""
        allowed = pinned_to()
        pin_to(self.cpus[0])
        try:
            yield from results
        finally:
            pin_to(*allowed)

    def _windows_of(self, side: int, rows: int, before: list[tuple[int, Shares]]) -> list[list[BasicWindow]]:
        """Return each core's basic windows of a side, with its shares of the pieces `before` this one."""
        held = [core.segments[side].ready(rows, together=rows <= FEW) for core in self._cores]
        for of, shares in before:
            if of == side:
                for windows, share in zip(held, shares, strict=True):
                    if share is not None:
                        windows.append(share)
        return held

    def _expire(self, k: int, oldest: Bounds) -> None:
        for side, at in enumerate(oldest):
            if at is not None:
                self._gone[k] += self._cores[k].segments[side].expire(at)

    def _next_batch(self, *, at_once: bool) -> Iterator[pa.RecordBatch]:
        """Join both sides' waiting tuples here if they are quick, or hand those of the longer side out."""
        if at_once and self._is_quick(self._most_waiting()) and self.crew.idle():
            yield from self._join_waiting()
            return
        side = int(self._buffers[1].rows > self._buffers[0].rows)
        batch, arrived = self._buffers[side].take()
        cut = list(pieces(self.spec, side, batch))
        for position, piece in enumerate(cut):
            # Only after the last piece: those before it may still ask for what the whole batch has outdated.
            last = position == len(cut) - 1
            oldest = (self._oldest(0), self._oldest(1)) if last else (None, None)
            shares = self._shares(piece, self._active(piece))
            # Found here, and not by each core again.
            outer = self._cores[0].outer(piece).prepare()
            yield from self._hand_out(_Task(piece, arrived, outer, shares, oldest))

    def _hand_out(self, task: _Task) -> Iterator[pa.RecordBatch]:
        """To every core that holds tuples, or is to: the others have nothing that could join."""
        if self.crew.idle():
            self._holds = [any(segment.windows for segment in core.segments) for core in self._cores]
        self._holds = [
            held or share is not None for held, share in zip(self._holds, task.shares, strict=True)
        ]
        for k, holds in enumerate(self._holds):
            if holds:
                yield from self.crew.hand(k, task)

    def _most_waiting(self) -> int:
        return max(buffer.rows for buffer in self._buffers)

    def _is_quick(self, rows: int) -> bool:
        """Return whether a number of tuples takes so little time that the caller's thread joins them."""
        if self._recent > self._tuning.at_once_seconds or self.spec.prepared.doubtful:
            return False
        return rows <= _WHOLE or rows * sum(s.rows for c in self._cores for s in c.segments) < _UNINTERRUPTED

    def _active(self, piece: BasicWindow) -> int:
        """Return how many cores a piece settles on: all of them if there is enough work to share."""
        work = sum(core.work for core in self._cores)
        self._recent, self._seen = 0.7 * self._recent + 0.3 * (work - self._seen), work
        tuning = self._tuning
        shared = piece.rows >= tuning.shared_rows or self._recent > tuning.shared_seconds
        return self.cores if shared else 1

    def _shares(self, piece: BasicWindow, active: int) -> Shares:
        """Cut a piece into equal shares, or give a small one to each core in turn."""
        if piece.rows < active * _WHOLE:
            self._turn = (self._turn + 1) % active
            whole: list[BasicWindow | None] = [None] * self.cores
            whole[self._turn] = piece
            return whole
        cuts = [piece.rows * min(k, active) // active for k in range(self.cores + 1)]
        return [
            BasicWindow(piece.spec, piece.batch.slice(start, stop - start)) if start < stop else None
            for start, stop in pairwise(cuts)
        ]

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them; to be called when drained."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
            for k, share in enumerate(self._shares(piece, self.cores)):
                if share is not None:
                    self._holds[k] = True
                    self._cores[k].insert(share)
                    self._cores[k].settle()

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        while self._waiting():
            if not self._may_go() and self._is_quick(self._most_waiting()):
                yield from self.crew.drain(until)
                if not self.crew.idle():
                    return
            yield from self._next_batch(at_once=True)
        yield from self.crew.drain(until)

    def _is_at_rest(self) -> bool:
        return not (any(self.driver.tracked) or self._waiting()) and self.crew.at_rest()

    def expire(self) -> None:
        """Drop tuples that no future tuple can join; to be called when drained."""
        for k in range(self.cores):
            self._expire(k, (self.driver.oldest(0), self.driver.oldest(1)))

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        return replace(super().metrics(), expired=sum(self._gone))

    def close(self) -> None:
        """Stop and end all threads."""
        super().close()
        self._shared.close()
        for core in self._cores:
            core.settle()
