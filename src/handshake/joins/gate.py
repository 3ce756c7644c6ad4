"""The gate: a bounded queue of tuples before an arrangement, emptied by a thread of its own.

Whoever pushes does not wait for the join. When a side has as many tuples waiting as there is room for, the
join is behind that side's clock, and the gate either holds its source back (`block`) or sheds the newest
batch (`shed`). A batch is taken whole or shed whole: the result is exactly the join of the batches taken.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError
from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.arrangements.channels import Bell, Channel, Stopped
from handshake.joins.latency import Latencies, Note
from handshake.joins.metrics import Metrics
from handshake.joins.spec import SIDES

__all__ = ["OVERLOAD", "ROOM", "AnyGate", "Arrival", "Gate", "OnShed"]

OVERLOAD = ("block", "shed")
ROOM = 1 << 14
"""Tuples of a side that may wait, unless told otherwise."""
_RESULTS = 16
OnShed = Callable[[str, pa.RecordBatch], None]
Array = np.ndarray[Any, Any]
SeenT = TypeVar("SeenT")
"""What comes with a batch about the other streams: how many of their tuples came before each of its own."""
FiguresT = TypeVar("FiguresT")


class _Driver(Protocol):
    def advance(self, stream: int, time: int, /) -> None: ...

    def mark(self) -> int | None: ...


class Engine(Protocol):
    """A running join, as far as a gate knows it."""

    @property
    def driver(self) -> _Driver:
        """What stamps the tuples."""

    @property
    def latencies(self) -> Latencies:
        """How long results took."""

    def settle(self, until: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        """Wait until the cores are at rest, or until `until` holds; yields results as they come."""

    def wake(self) -> None:
        """Let a `settle` under way ask `until` again."""

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Wait for everything pushed so far; yields the rest of its results."""

    def expire(self) -> None:
        """Drop what no tuple to come can join."""

    def close(self) -> None:
        """Stop; all threads end."""


EngineT = TypeVar("EngineT", bound=Engine)


class Arrival(NamedTuple, Generic[SeenT]):
    """A batch of a stream, and when it came."""

    stream: int
    batch: pa.RecordBatch
    seen: SeenT | None
    at: float


class _Advance(NamedTuple):
    stream: int
    time: int


class _Drain(NamedTuple):
    """Make all that came before meet."""


class _Found(NamedTuple):
    batch: pa.RecordBatch
    notes: list[Note]


class _Mark(NamedTuple):
    """Punctuation: every result up to the watermark is before this."""

    mark: int | None
    last: bool


class AnyGate(ABC, Generic[EngineT, SeenT, FiguresT]):
    """A join of any streams that is fed through a queue; to be used from one thread, as the join is."""

    def __init__(
        self, engine: EngineT, *, shed: bool = False, room: int = ROOM, on_shed: OnShed | None = None,
        punctuated: bool = False,
    ) -> None:  # fmt: skip
        self.engine, self.room = engine, room
        self.shed_rows = [0] * len(self.names)
        self._sheds, self._on_shed, self._punctuated = shed, on_shed, punctuated
        self._bell = Bell()
        self._inbox: deque[Arrival[SeenT] | _Advance | _Drain] = deque()
        self._waiting, self._most = [0] * len(self.names), 0
        self._settling = False
        self._outbox = Channel[_Found | _Mark](self._bell, _RESULTS)
        self._error: BaseException | None = None
        self._mark: int | None = None
        engine.latencies.deferred = True
        self._thread = threading.Thread(target=self._feed, name="join gate", daemon=True)
        self._thread.start()

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """What the streams are called."""

    @abstractmethod
    def metrics(self) -> FiguresT:
        """The join's figures, and what waits here or was shed."""

    @abstractmethod
    def _arrive(self, came: Arrival[SeenT]) -> Iterator[pa.RecordBatch]:
        """Push a batch into the join; the thread behind the gate does so."""

    # The caller's side.

    def push(
        self, stream: int, batch: pa.RecordBatch, seen: SeenT | None = None, at: float | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Take tuples, or shed them; yields results that are ready. Waits for room unless told to shed.

        `at` is when the tuples came, in seconds of `perf_counter`, where that was before now.
        """
        if self._sheds and not self.has_room(stream):
            self.shed(stream, batch)
            return self.ready()
        return self.admit(stream, batch, seen, time.perf_counter() if at is None else at)

    def admit(
        self, stream: int, batch: pa.RecordBatch, seen: SeenT | None, at: float
    ) -> Iterator[pa.RecordBatch]:
        """Take tuples for which there is room, or wait for it."""
        if not self._sheds:
            yield from self._until(lambda: self.has_room(stream))
        self._put(Arrival(stream, batch, seen, at), stream, batch.num_rows)
        yield from self.ready()

    def has_room(self, stream: int) -> bool:
        """Whether a batch of this stream would be taken now; only `push` takes room away."""
        return self._waiting[stream] < self.room

    def shed(self, stream: int, batch: pa.RecordBatch) -> None:
        """Drop a batch, and count it."""
        self.shed_rows[stream] += batch.num_rows
        if self._on_shed is not None:
            self._on_shed(self.names[stream], batch)

    def advance(self, stream: int, time: int) -> None:
        """Take note that no tuple of this stream older than `time` will come."""
        self._put(_Advance(stream, time))

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Results that are there now."""
        self._check()
        while (item := self._outbox.poll()) is not None:
            if isinstance(item, _Mark):
                self._mark = item.mark
            else:
                self.engine.latencies.record(item.notes)
                yield item.batch

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
            elif isinstance(item, _Mark):
                self._mark = item.mark
                if item.last:
                    return
            else:
                self.engine.latencies.record(item.notes)
                yield item.batch

    def mark(self) -> int | None:
        """The watermark up to which all results have been taken."""
        return self._mark

    def close(self) -> None:
        """Stop; all threads end. What waits is dropped."""
        self._bell.stop()
        self.engine.close()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _put(self, step: Arrival[SeenT] | _Advance | _Drain, stream: int = 0, rows: int = 0) -> None:
        with self._bell.condition:
            self._inbox.append(step)
            self._waiting[stream] += rows
            self._most = max(self._most, sum(self._waiting))
            self._bell.condition.notify_all()
        if self._settling:
            self.engine.wake()

    def _until(self, done: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
        while not done():
            yield from self.ready()
            self._wait(lambda: done() or len(self._outbox) > 0)

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

    def _next(self) -> Arrival[SeenT] | _Advance | _Drain:
        with self._bell.condition:
            self._bell.wait_for(lambda: bool(self._inbox))
            step = self._inbox.popleft()
            if isinstance(step, Arrival):
                self._waiting[step.stream] -= step.batch.num_rows
                self._bell.condition.notify_all()
            return step

    def _pass_on(self, step: Arrival[SeenT] | _Advance | _Drain) -> None:
        if isinstance(step, Arrival):
            self._deliver(self._arrive(step))
        elif isinstance(step, _Advance):
            self.engine.driver.advance(step.stream, step.time)
            self._deliver(self.engine.settle(lambda: False))
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


class Gate(AnyGate[Arrangement, Array, Metrics]):
    """The gate before an arrangement of cores that join two streams."""

    @property
    def names(self) -> Sequence[str]:
        """The two sides."""
        return SIDES

    def metrics(self) -> Metrics:
        """The arrangement's, and what waits here or was shed."""
        return replace(
            self.engine.metrics(), left_shed=self.shed_rows[0], right_shed=self.shed_rows[1],
            waiting_rows=sum(self._waiting), most_waiting_rows=self._most,
        )  # fmt: skip

    def _arrive(self, came: Arrival[Array]) -> Iterator[pa.RecordBatch]:
        return self.engine.push(came.stream, came.batch, came.seen, came.at, more=bool(self._inbox))
