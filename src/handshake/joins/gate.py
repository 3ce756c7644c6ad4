"""The gate: a bounded queue of rows before a join, emptied by a thread of its own.

The caller does not wait for the join. A stream that has `room` rows waiting is ahead of the join: the gate
then either makes its source wait (`block`) or sheds the newest batch (`shed`). A batch is taken whole or shed
whole, so the result is exactly the join of the batches taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from handshake.errors import HandshakeError
from handshake.joins.arrangements.arrangement import RunningJoin
from handshake.joins.arrangements.channels import Channel, Monitor, Stopped
from handshake.joins.driver import Seen
from handshake.joins.latency import Note
from handshake.joins.metrics import Metrics

ROOM = 1 << 14
"""Rows of a stream that may wait by default."""
_RESULTS = 16
OnShed = Callable[[str, pa.RecordBatch], None]


class _Arrival(NamedTuple):
    stream: int
    batch: pa.RecordBatch
    seen: Seen | None
    at: float


class _Advance(NamedTuple):
    stream: int
    time: int


class _Drain(NamedTuple):
    last: bool


_Step = _Arrival | _Advance | _Drain


class _Found(NamedTuple):
    batch: pa.RecordBatch
    notes: list[Note]


class _Mark(NamedTuple):
    """Punctuation: every result up to the watermark is before this."""

    mark: int | None
    last: bool


class Gate:
    """A running join behind a queue; use it from one thread, like the join.

    Args:
        engine: The join.
        names: The names of its streams.
        shed: Drop a batch that finds no room, instead of waiting for room.
        room: Rows of a stream that may wait.
        on_shed: Called with the stream's name and each batch that is dropped.
        punctuated: Report the watermark after each batch, for results in order.
    """

    def __init__(
        self, engine: RunningJoin, names: Sequence[str], *, shed: bool = False, room: int = ROOM,
        on_shed: OnShed | None = None, punctuated: bool = False,
    ) -> None:  # fmt: skip
        self.engine, self.names, self.room = engine, names, room
        self.shed_rows = [0] * len(names)
        self._sheds, self._on_shed, self._punctuated = shed, on_shed, punctuated
        self._monitor = Monitor()
        self._inbox: deque[_Step] = deque()
        self._waiting, self._most = [0] * len(names), 0
        self._settling = False
        self._outbox = Channel[_Found | _Mark](self._monitor, _RESULTS)
        self._error: BaseException | None = None
        self._mark: int | None = None
        self._thread = threading.Thread(target=self._feed, name="join gate", daemon=True)
        self._thread.start()

    def metrics(self) -> Metrics:
        """Return the join's figures, with the rows that wait here or were shed."""
        return self.engine.metrics().with_gate(self.shed_rows, sum(self._waiting), self._most)

    # The caller's side.

    def push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None = None, at: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take rows, or shed them, and yield results that are ready. Wait for room unless rows may be shed.

        Args:
            stream: The number of the stream.
            batch: The rows.
            seen: Counts of the other streams, if the order of arrival is not the order of the calls.
            at: When the rows came, in seconds of `perf_counter`; None for now.
        """
        if self._sheds and not self.has_room(stream):
            self.shed(stream, batch)
            return self.ready()
        return self.admit(stream, batch, seen, time.perf_counter() if at is None else at)

    def admit(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, at: float
    ) -> Iterator[pa.RecordBatch]:
        """Take rows, after waiting for room if rows may not be shed; yield results that are ready."""
        while not self._sheds and not self.has_room(stream):
            yield from self.ready()
            self._wait(lambda: self.has_room(stream) or len(self._outbox) > 0)
        self._put(_Arrival(stream, batch, seen, at), stream, batch.num_rows)
        yield from self.ready()

    def has_room(self, stream: int) -> bool:
        """Return whether a batch of this stream would be taken now; only `push` takes room away."""
        return self._waiting[stream] < self.room

    def shed(self, stream: int, batch: pa.RecordBatch) -> None:
        """Drop a batch and count it."""
        self.shed_rows[stream] += batch.num_rows
        if self._on_shed is not None:
            self._on_shed(self.names[stream], batch)

    def advance(self, stream: int, time: int) -> None:
        """Record that no row of this stream older than `time` will come."""
        self._put(_Advance(stream, time))

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Yield the results that are there now."""
        self._check()
        while (item := self._outbox.poll()) is not None:
            if isinstance(item, _Mark):
                self._mark = item.mark
            else:
                self.engine.latencies.record(item.notes)
                yield item.batch

    def until(self, moment: float) -> Iterator[pa.RecordBatch]:
        """Yield results as they come, until a moment of `perf_counter`."""
        while True:
            yield from self.ready()
            left = moment - time.perf_counter()
            if left <= 0:
                return
            self._wait(lambda: len(self._outbox) > 0, left)

    def drain(self, *, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Wait for everything pushed so far; yield the rest of its results.

        Args:
            last: Whether no row will come any more (see `RunningJoin.drain`).
        """
        self._put(_Drain(last))
        while True:
            self._check()
            item = self._outbox.poll()
            if item is None:
                self._wait(lambda: len(self._outbox) > 0)
            elif isinstance(item, _Mark):
                self._mark = item.mark
                if item.last:
                    return
            else:
                self.engine.latencies.record(item.notes)
                yield item.batch

    def mark(self) -> int | None:
        """Return the watermark up to which all results have been taken."""
        return self._mark

    def close(self) -> None:
        """Stop; all threads end. Rows that still wait are dropped."""
        self._monitor.stop()
        self.engine.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, step: _Step, stream: int = 0, rows: int = 0) -> None:
        with self._monitor.condition:
            self._inbox.append(step)
            self._waiting[stream] += rows
            self._most = max(self._most, sum(self._waiting))
            self._monitor.condition.notify_all()
        if self._settling:
            self.engine.wake()

    def _wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        try:
            self._monitor.wait_for(ready, timeout)
        except Stopped:
            self._check()
            raise

    def _check(self) -> None:
        if self._error is not None:
            error = self._error
            self.close()
            raise error
        if self._monitor.stopped:
            raise HandshakeError("this join is closed; make a new one to push more tuples")

    # The thread behind the gate.

    def _feed(self) -> None:
        try:
            while True:
                self._pass_on(self._next())
        except Stopped:
            pass
        except BaseException as error:
            if not self._monitor.stopped:  # closing the join makes it raise, which is no error
                self._error = error
                self._monitor.stop()

    def _next(self) -> _Step:
        with self._monitor.condition:
            self._monitor.wait_for(lambda: bool(self._inbox))
            step = self._inbox.popleft()
            if isinstance(step, _Arrival):
                self._waiting[step.stream] -= step.batch.num_rows
                self._monitor.condition.notify_all()
            return step

    def _pass_on(self, step: _Step) -> None:
        if isinstance(step, _Arrival):
            more = bool(self._inbox)
            results = self.engine.push(step.stream, step.batch, step.seen, step.at, more=more, deferred=True)
            self._deliver(results)
        elif isinstance(step, _Advance):
            self.engine.driver.advance(step.stream, step.time)
            self._deliver(self.engine.settle(deferred=True))
            self.engine.expire()
        if isinstance(step, _Drain) or self._punctuated:
            asked = isinstance(step, _Drain)
            self._deliver(self.engine.drain(deferred=True, last=isinstance(step, _Drain) and step.last))
            self._outbox.put(_Mark(self.engine.driver.mark(), asked))
        elif not self._inbox:
            self._settling = True  # from now on `_put` wakes the join
            self._deliver(self.engine.settle(lambda: bool(self._inbox), deferred=True))
            self._settling = False

    def _deliver(self, results: Iterator[pa.RecordBatch]) -> None:
        for batch in results:
            self._outbox.put(_Found(batch, self.engine.latencies.take_notes()))
