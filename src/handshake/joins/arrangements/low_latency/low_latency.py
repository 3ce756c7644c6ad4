"""Low-latency handshake join: tuples pass all cores at once and settle at one of them.

Every batch goes to every core that holds tuples, in one order for all. A core probes its segment of the other
window with the whole batch, then keeps its share of it. So a pair meets exactly once: on the core where the
earlier tuple has settled, when the later one passes. No core waits for another, and no result for its tuples
to drift together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Entry
from handshake.joins.arrangements.cell.batching import Buffer, oldest_asked
from handshake.joins.arrangements.channels import Bell
from handshake.joins.arrangements.crew import Crew
from handshake.joins.arrangements.low_latency.look_ups import FEW
from handshake.joins.arrangements.low_latency.shared_scan import SharedScan, Visit
from handshake.joins.arrangements.placement import pin_to, pinned_to
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, Seen
from handshake.joins.latency import Latencies
from handshake.joins.metrics import Metrics, Stopwatch, collect_metrics, with_crew
from handshake.joins.outer import Outer
from handshake.joins.pieces import coalesce, pieces
from handshake.joins.spec import SIDES, JoinSpec

__all__ = ["LOW_LATENCY", "LowLatency"]

_WHOLE = 64
"""Smaller shares are not worth cutting: such a batch settles whole, on each core in turn."""
_UNINTERRUPTED = 1 << 30
"""Pairs that are joined where they come in one call, about a tenth of a second."""

_LARGEST = 1 << 20
"""Tuples of the largest batch."""


@dataclass(frozen=True)
class _Task:
    piece: BasicWindow
    outer: Outer
    shares: tuple[BasicWindow | None, ...]
    oldest: tuple[int | None, int | None]
    arrived: float


def _describe(task: _Task) -> str:
    return f"a batch of {task.piece.rows} tuples of the {SIDES[task.piece.spec.side]} input"


@dataclass
class LowLatency:
    """A running join on `cores` threads."""

    spec: JoinSpec
    lateness: int = 0
    cores: int = 1
    cpus: tuple[int, ...] = ()
    driver: Driver = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.spec, self.lateness)
        bell = Bell()
        self._cores = [JoinCore(self.spec, aside=True, check=bell.check) for _ in range(self.cores)]
        self._gone = [0] * self.cores
        self._turn, self._tuning = 0, self.spec.tuning
        self._buffers = (Buffer(_LARGEST), Buffer(_LARGEST))
        self._holds = [False] * self.cores
        self._recent, self._seen = 0.0, 0.0
        self._watch = Stopwatch()
        self._shared = SharedScan(self.spec, self._cores, self.cpus)
        self.crew = Crew(
            self.cores, self._work, _describe, bell, arrival=lambda task: task.arrived, cpus=self.cpus
        )

    def _work(self, k: int, task: _Task) -> Iterator[pa.RecordBatch]:
        core = self._cores[k]
        yield from core.probe(task.piece, outer=task.outer)
        share = task.shares[k]
        if share is not None:
            core.insert(share)
        self._expire(k, task.oldest)

    def push(
        self, side: int, batch: pa.RecordBatch, seen: Seen | None = None,
        came: float | None = None, *, more: bool = False,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Take tuples; yields results that are ready.

        Without `more`, a small batch is joined at once if all cores are idle. With it, tuples gather.
        """
        results = self._push(side, batch, seen, time.perf_counter() if came is None else came, more)
        return self.crew.latencies.time_delivery(coalesce(results) if more else results)

    def _push(
        self, side: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        self._watch.start()
        # Taken before stamping: these bounds hold for this batch and for all future ones.
        bounds = (self.driver.oldest(0), self.driver.oldest(1))
        buffer = self._buffers[side]
        buffer.put(self.driver.admit(side, batch, seen), bounds, came)
        while buffer.rows >= self._tuning.gathered_rows or (not more and self._waiting() and self._may_go()):
            yield from self._next_batch(at_once=not more)
        yield from self.crew.ready()

    def _waiting(self) -> bool:
        return any(buffer.rows for buffer in self._buffers)

    def _may_go(self) -> bool:
        """Return whether to start the waiting batches now. Quick ones wait until all cores are idle."""
        return self.crew.idle() if self._is_quick() else not self._is_busy()

    def _is_busy(self) -> bool:
        """Return whether a core has another batch waiting."""
        return any(len(inbox) for inbox in self.crew.inboxes)

    def _join_waiting(self) -> Iterator[pa.RecordBatch]:
        """Join all waiting tuples in the caller's thread, by one scan that idle cores share."""
        tasks: list[_Task] = []
        visits: list[Visit] = []
        for side in (0, 1):
            if self._buffers[side].rows:
                batch, arrived = self._buffers[side].take()
                for piece in pieces(self.spec, side, batch):
                    held = self._windows_of(1 - side, piece.rows, tasks)
                    outer, shares = self._cores[0].outer(piece), self._shares(piece, self._active(piece))
                    visits.append(Visit(piece, held, outer, arrived))
                    tasks.append(_Task(piece, outer, shares, (None, None), arrived))
        oldest = (self._oldest(0), self._oldest(1))
        with self._on_first_processor():
            yield from self.crew.do(tasks[0], self._shared.search(visits))
        for task in tasks:
            self._settle(task)
        for k in range(self.cores):
            self._expire(k, oldest)

    @contextlib.contextmanager
    def _on_first_processor(self) -> Iterator[None]:
        """Keep the caller's thread where core 0 is pinned, away from the helpers' processors."""
        if not self.cpus:
            yield
            return
        allowed = pinned_to()
        pin_to(self.cpus[0])
        try:
            yield
        finally:
            pin_to(*allowed)

    def _windows_of(self, side: int, rows: int, before: list[_Task]) -> list[list[BasicWindow]]:
        """Return each core's basic windows of a side, with its shares of the tasks `before` this one."""
        shares = [task.shares for task in before if task.piece.spec.side == side]
        return [
            core.segments[side].ready(rows, together=rows <= FEW)
            + [share for some in shares if (share := some[k]) is not None]
            for k, core in enumerate(self._cores)
        ]

    def _settle(self, task: _Task) -> None:
        for core, share in zip(self._cores, task.shares, strict=True):
            if share is not None:
                core.insert(share)

    def _expire(self, k: int, oldest: tuple[int | None, int | None]) -> None:
        self._gone[k] += sum(self._cores[k].expire(s, at) for s, at in enumerate(oldest) if at is not None)

    def _next_batch(self, *, at_once: bool) -> Iterator[pa.RecordBatch]:
        """Join both sides' waiting tuples here if they are quick, or hand those of the longer side out."""
        if at_once and self._is_quick() and self.crew.idle():
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
            yield from self._hand_out(_Task(piece, outer, shares, oldest, arrived))

    def _oldest(self, side: int) -> int | None:
        return oldest_asked(self.driver, self._buffers, side)

    def _hand_out(self, task: _Task) -> Iterator[pa.RecordBatch]:
        """To every core that holds tuples, or is to: the others have nothing that could join."""
        self._holds = [
            held or share is not None for held, share in zip(self._holds, task.shares, strict=True)
        ]
        for k, holds in enumerate(self._holds):
            if holds:
                yield from self.crew.hand(k, task)

    def _is_quick(self) -> bool:
        """Return whether the waiting tuples take so little time that the caller's thread joins them."""
        if self._recent > self._tuning.at_once_seconds or self.spec.prepared.doubtful:
            return False
        rows = max(buffer.rows for buffer in self._buffers)
        return rows <= _WHOLE or rows * sum(s.rows for c in self._cores for s in c.segments) < _UNINTERRUPTED

    def _active(self, piece: BasicWindow) -> int:
        """Return how many cores a piece settles on: all of them if there is enough work to share."""
        work = sum(core.work for core in self._cores)
        self._recent, self._seen = 0.7 * self._recent + 0.3 * (work - self._seen), work
        if self.crew.idle():
            self._holds = [any(segment.windows for segment in core.segments) for core in self._cores]
        tuning = self._tuning
        shared = piece.rows >= tuning.shared_rows or self._recent > tuning.shared_seconds
        return self.cores if shared else 1

    def _shares(self, piece: BasicWindow, active: int) -> tuple[BasicWindow | None, ...]:
        """Cut a piece into equal shares, or give a small one to each core in turn."""
        if piece.rows < active * _WHOLE:
            self._turn = (self._turn + 1) % active
            return tuple(piece if k == self._turn else None for k in range(self.cores))
        cuts = [piece.rows * min(k, active) // active for k in range(self.cores + 1)]
        return tuple(
            BasicWindow(piece.spec, piece.batch.slice(start, stop - start)) if start < stop else None
            for start, stop in pairwise(cuts)
        )

    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them; to be called when drained."""
        for piece in pieces(self.spec, side, self.driver.admit(side, batch)):
            for k, share in enumerate(self._shares(piece, self.cores)):
                if share is not None:
                    self._holds[k] = True
                    self._cores[k].insert(share)
                    self._cores[k].settle()

    @property
    def latencies(self) -> Latencies:
        """Histograms of how long results took, per core."""
        return self.crew.latencies

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Wait until everything pushed so far is joined; yields the remaining results."""
        yield from self.crew.latencies.time_delivery(coalesce(self._drain()))
        self._watch.stop()

    def _drain(self, until: Callable[[], bool] = lambda: False) -> Iterator[pa.RecordBatch]:
        while self._waiting():
            if not self._may_go() and self._is_quick():
                yield from self.crew.drain(until)
                if not self.crew.idle():
                    return
            yield from self._next_batch(at_once=True)
        yield from self.crew.drain(until)

    def settle(self, until: Callable[[], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Drain with results as they come; ends early once `until` holds."""
        yield from self.crew.latencies.time_delivery(self._drain(until or (lambda: False)))
        if self.crew.idle():
            self._watch.stop()

    def wake(self) -> None:
        """Make a running `settle` call `until` again."""
        self.crew.bell.ring()

    def expire(self) -> None:
        """Drop tuples that no future tuple can join; to be called when drained."""
        for side in (0, 1):
            oldest = self.driver.oldest(side)
            if oldest is not None:
                for k, core in enumerate(self._cores):
                    self._gone[k] += core.expire(side, oldest)

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        figures = collect_metrics(
            self.driver, self._cores, "low_latency", sum(self._gone), self._watch.seconds
        )
        return with_crew(figures, self.crew.inboxes, self.crew.outboxes, self.crew.latencies)

    def close(self) -> None:
        """Stop and end all threads."""
        self._watch.stop()
        self.crew.close()
        self._shared.close()
        for core in self._cores:
            core.settle()


LOW_LATENCY = Entry(
    "low_latency",
    "rows visit all cores at once and settle at one of them",
    lambda plan: LowLatency(plan.spec, plan.lateness, plan.cores, plan.cpus),
)
