"""The gate before a join of several streams: a bounded queue, emptied by a thread of its own.

Whoever pushes does not wait for the join. When a stream has as many tuples waiting as there is room for, the
gate holds its source back (`block`), or sheds the newest batch (`shed`). A batch is taken whole or shed
whole, and one that is shed has never come: the result is exactly the join of the batches taken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.cores.admission import ROOM, OnShed
from handshake.cores.channels import Bell, Channel, Stopped
from handshake.cores.latency import Note
from handshake.cores.mjoin import MJoin
from handshake.cores.mjoin_metrics import MultiMetrics
from handshake.errors import HandshakeError

__all__ = ["ManyGate"]

Array = np.ndarray[Any, Any]
Seen = Mapping[int, Array]
_RESULTS = 16


class _Arrival(NamedTuple):
    stream: int
    batch: pa.RecordBatch
    seen: Seen | None
    at: float


class _Advance(NamedTuple):
    stream: int
    time: int


class _Drain(NamedTuple):
    """Join all that came before."""


_Step = _Arrival | _Advance | _Drain


class _Found(NamedTuple):
    batch: pa.RecordBatch
    notes: list[Note]


class _Mark(NamedTuple):
    """Punctuation: every result up to the watermark is before this."""

    mark: int | None
    last: bool


class ManyGate:
    """A join that is fed through a queue; to be used from one thread, as the join is."""

    def __init__(
        self, engine: MJoin, *, shed: bool = False, room: int = ROOM, on_shed: OnShed | None = None,
        punctuated: bool = False,
    ) -> None:  # fmt: skip
        self.engine, self.room = engine, room
        streams = len(engine.spec.streams)
        self.shed_rows = [0] * streams
        self._waiting, self._most = [0] * streams, 0
        self._sheds, self._on_shed, self._punctuated = shed, on_shed, punctuated
        self._bell = Bell()
        self._inbox: deque[_Step] = deque()
        self._outbox = Channel[_Found | _Mark](self._bell, _RESULTS)
        self._settling = False
        self._error: BaseException | None = None
        self._mark: int | None = None
        engine.latencies.deferred = True
        self._thread = threading.Thread(target=self._feed, name="join gate", daemon=True)
        self._thread.start()

    # The caller's side.

    def push(self, stream: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take tuples, or shed them; yields results that are ready. Waits for room unless told to shed."""
        if self._sheds and not self.has_room(stream):
            self.shed(stream, batch)
            return self.ready()
        return self.admit(stream, batch, None, time.perf_counter())

    def admit(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, at: float
    ) -> Iterator[pa.RecordBatch]:
        """Take tuples for which there is room, or wait for it; `at` is when they came."""
        while not self._sheds and not self.has_room(stream):
            yield from self.ready()
            self._wait(lambda: self.has_room(stream) or len(self._outbox) > 0)
        self._put(_Arrival(stream, batch, seen, at), stream, batch.num_rows)
        yield from self.ready()

    def has_room(self, stream: int) -> bool:
        """Whether a batch of this stream would be taken now; only `push` takes room away."""
        return self._waiting[stream] < self.room

    def shed(self, stream: int, batch: pa.RecordBatch) -> None:
        """Drop a batch, and count it."""
        self.shed_rows[stream] += batch.num_rows
        if self._on_shed is not None:
            self._on_shed(self.engine.spec.names[stream], batch)

    def advance(self, stream: int, time: int) -> None:
        """Take note that no tuple of this stream older than `time` will come."""
        self._put(_Advance(stream, time))

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Results that are there now."""
        self._check()
        while (item := self._outbox.poll()) is not None:
            yield from self._taken(item)

    def until(self, moment: float) -> Iterator[pa.RecordBatch]:
        """Results that come until a moment of `perf_counter`, as they come."""
        while True:
            yield from self.ready()
            left = moment - time.perf_counter()
            if left <= 0:
                return
            self._wait(lambda: len(self._outbox) > 0, left)

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Wait for everything pushed so far; yields the rest of its results."""
        self._put(_Drain())
        while True:
            self._check()
            item = self._outbox.poll()
            if item is None:
                self._wait(lambda: len(self._outbox) > 0)
                continue
            yield from self._taken(item)
            if isinstance(item, _Mark) and item.last:
                return

    def _taken(self, item: _Found | _Mark) -> Iterator[pa.RecordBatch]:
        if isinstance(item, _Mark):
            self._mark = item.mark
            return
        self.engine.latencies.record(item.notes)
        yield item.batch

    def mark(self) -> int | None:
        """The watermark up to which all results have been taken."""
        return self._mark

    def metrics(self) -> MultiMetrics:
        """The join's, and what waits here or was shed."""
        figures = self.engine.metrics()
        streams = zip(figures.streams, self.shed_rows, strict=True)
        return replace(
            figures, streams=tuple(replace(stream, shed=shed) for stream, shed in streams),
            waiting_rows=sum(self._waiting), most_waiting_rows=self._most,
        )  # fmt: skip

    def close(self) -> None:
        """Stop; all threads end. What waits is dropped."""
        self._bell.stop()
        self.engine.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, step: _Step, stream: int = 0, rows: int = 0) -> None:
        with self._bell.condition:
            self._inbox.append(step)
            self._waiting[stream] += rows
            self._most = max(self._most, sum(self._waiting))
            self._bell.condition.notify_all()
        if self._settling:
            self.engine.wake()

    def _wait(self, ready: Callable[[], bool], timeout: float | None = None) -> None:
        try:
            self._bell.wait_for(ready, timeout)
        except Stopped:
            self._check()
            raise

    def _check(self) -> None:
        if self._error is not None:
            error = self._error
            self.close()
            raise error
        if self._bell.stopped:
            raise HandshakeError("this join is closed; make a new one to push more tuples")

    # The thread behind the gate.

    def _feed(self) -> None:
        try:
            while True:
                self._pass_on(self._next())
        except Stopped:
            pass
        except BaseException as error:
            if not self._bell.stopped:  # what a closed join says is no error of its own
                self._error = error
                self._bell.stop()

    def _next(self) -> _Step:
        with self._bell.condition:
            self._bell.wait_for(lambda: bool(self._inbox))
            step = self._inbox.popleft()
            if isinstance(step, _Arrival):
                self._waiting[step.stream] -= step.batch.num_rows
                self._bell.condition.notify_all()
            return step

    def _pass_on(self, step: _Step) -> None:
        if isinstance(step, _Arrival):
            self._deliver(self.engine.push(step.stream, step.batch, step.seen, step.at))
        elif isinstance(step, _Advance):
            self.engine.driver.advance(step.stream, step.time)
            self.engine.expire()
        if isinstance(step, _Drain) or self._punctuated:
            self._deliver(self.engine.drain())
            self._outbox.put(_Mark(self.engine.driver.mark(), isinstance(step, _Drain)))
        elif not self._inbox:
            self._settling = True  # from now on, whoever puts something into the inbox says so
            self._deliver(self.engine.settle(lambda: bool(self._inbox)))
            self._settling = False

    def _deliver(self, results: Iterator[pa.RecordBatch]) -> None:
        for batch in results:
            self._outbox.put(_Found(batch, self.engine.latencies.noted()))
