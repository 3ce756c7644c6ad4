"""The shared parts of all running joins.

An arrangement says how rows enter (`_push`), how waiting work is finished (`_finish`), how rows expire, and
where the windows are. Taking rows, delivering results, measuring time and figures are the same for all.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa

from handshake.joins.arrangements.channels import Monitor
from handshake.joins.arrangements.crew import Clock, Crew
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, OnLate, Seen, StreamDriver
from handshake.joins.latency import Latencies
from handshake.joins.matches import Finals
from handshake.joins.metrics import Metrics, Stopwatch, collect_metrics, with_latency, with_matches
from handshake.joins.multiway.spec import ManySpec
from handshake.joins.pieces import coalesce
from handshake.joins.segment import Segment
from handshake.joins.spec import SIDES, JoinSpec


class RunningJoin(ABC):
    """A join at work: an arrangement of join cores for two streams, or an `MJoin` for more.

    All arrangements give the same results; they differ in when and on which core.
    """

    spec: JoinSpec | ManySpec
    driver: StreamDriver
    latencies: Latencies
    """Histograms of how long results took, per core."""
    watch: Stopwatch
    prompt: ClassVar[bool] = False
    """Whether results of a push without `more` are passed on as they come, and not put together."""

    def push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None = None,
        came: float | None = None, *, more: bool = False, deferred: bool = False,
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Take rows of one stream and yield the results that are ready.

        The iterator must be exhausted, and always from the same thread.

        Args:
            stream: The number of the stream; of two streams, 0 is the left one.
            batch: The rows.
            seen: Per row, how many rows of each other stream came before it; None if all pushed so far did.
            came: When the rows came, in seconds of `perf_counter`; None for now.
            more: Whether further batches follow at once; if not, the caller waits for these results.
            deferred: Whether the caller records latencies later: it takes `latencies.take_notes()` with each
                batch, and passes them to `latencies.record` when it delivers the batch.
        """
        results = self._push(stream, batch, seen, time.perf_counter() if came is None else came, more)
        return self._deliver(results if self.prompt and not more else self._coalesce(results), deferred)

    def drain(self, *, deferred: bool = False, last: bool = False) -> Iterator[pa.RecordBatch]:
        """Wait until everything pushed so far is joined; yields the remaining results.

        Rows without a match that have become final are among them, in outer and anti joins.

        Args:
            deferred: As for `push`.
            last: Whether no row will come any more, so that all rows are final.
        """
        if last or not self._is_at_rest():
            yield from self._deliver(self._coalesce(self._finish(None)), deferred)
            yield from self._coalesce(self.watch.time(self._finalise(last)))
        self.watch.stop()

    def push_and_drain(self, stream: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Take rows of one stream, wait until they are joined, and return all results."""
        return [*self.push(stream, batch), *self.drain()]

    def settle(
        self, until: Callable[[], bool] | None = None, *, deferred: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Wait until the cores are at rest, or until `until` holds; yields results as they come.

        Unlike `drain`, this leaves tuples that drift towards each other where they are.
        """
        yield from self._deliver(self._finish(until or (lambda: False)), deferred)
        if self._is_idle():
            self.watch.stop()

    def _deliver(self, results: Iterator[pa.RecordBatch], deferred: bool) -> Iterator[pa.RecordBatch]:
        return results if deferred else self.latencies.time_delivery(results)

    def _coalesce(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return coalesce(results, self.spec.tuning.coalesced_rows)

    @abstractmethod
    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        """Take rows as `push` does; notes the latency of the results that it yields."""

    @abstractmethod
    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        """Finish what waits, as `settle` does; as `drain` does if `until` is None."""

    def _finalise(self, last: bool) -> Iterator[pa.RecordBatch]:
        """Yield the results for rows without a match that have become final; the join is at rest."""
        return iter(())

    def _is_idle(self) -> bool:
        return True

    def _is_at_rest(self) -> bool:
        """Return whether nothing waits and no result is held back; False if that takes long to find out."""
        return False

    def wake(self) -> None:  # noqa: B027  (a join without threads has nothing to do)
        """Make a running `settle` call `until` again; any thread may call this."""

    def expire(self) -> None:  # noqa: B027  (nor has one whose tuples never expire)
        """Drop tuples that no future tuple can join."""

    def counts(self) -> tuple[tuple[int, ...], int]:
        """Return the rows of each stream and the results so far, as `metrics` has them."""
        found = self._count_results()
        if found is not None:
            return tuple(count.rows for count in self.driver.counts), found
        figures = self.metrics()
        return tuple(stream.rows for stream in figures.streams), figures.results

    def _count_results(self) -> int | None:
        """Return the number of results so far; None if that takes as long as all other figures."""
        return None

    @abstractmethod
    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""

    def close(self) -> None:  # noqa: B027
        """Stop and end all threads."""


@dataclass
class Arrangement(RunningJoin):
    """A running join of two streams, of any kind: join cores, and how they are connected."""

    name: ClassVar[str]
    """The name in the registry, and in metrics."""
    threads: ClassVar[bool] = True
    """Whether it has threads of its own; otherwise it has one core, which is not pinned."""
    adapts: ClassVar[bool] = False
    """Whether its number of cores can follow the load."""

    spec: JoinSpec
    lateness: int | None = 0
    """The allowed lateness in whole units; None if rows are never late (see `StreamDriver`)."""
    cores: int = 1
    """The number of cores; with `adapt`, the most."""
    adapt: bool = False
    cpus: tuple[int, ...] = ()
    """The processor of each core's thread; empty if threads are not pinned."""
    on_late: OnLate | None = None
    driver: Driver = field(init=False)

    _cores: list[JoinCore] = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Driver(self.spec, self.lateness, self.on_late)
        self.watch = Stopwatch()
        self._expired = 0

    @cached_property
    def _finals(self) -> tuple[Finals | None, ...]:
        tracked = enumerate(self.driver.tracked)
        return tuple(None if rows is None else Finals(self.spec, side, rows) for side, rows in tracked)

    def _finalise(self, last: bool) -> Iterator[pa.RecordBatch]:
        for side, finals in enumerate(self._finals):
            oldest = self.driver.oldest(side)
            if finals is not None:
                known = last or oldest is not None
                windows = [*self._take_departed(side), *self.held_windows(side)] if known else []
                yield from finals.take(windows, None if last else oldest)

    def _segments(self, side: int) -> list[Segment]:
        """Return the segments that hold the window of a side."""
        return [core.segments[side] for core in self._cores]

    def held_windows(self, side: int) -> list[BasicWindow]:
        """Return the basic windows of a side. Rows in them may have expired."""
        return [window for segment in self._segments(side) for window in tuple(segment.windows)]

    def _take_departed(self, side: int) -> list[BasicWindow]:
        """Return the basic windows of a tracked side that were dropped since the last call."""
        return [window for segment in self._segments(side) for window in segment.take_departed()]

    @abstractmethod
    def fill(self, side: int, batch: pa.RecordBatch) -> None:
        """Put tuples into their window without joining them; to be called when drained."""

    def _count_results(self) -> int | None:
        return None if any(self.driver.tracked) else sum(core.results for core in self._cores)

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        segments = (self._segments(0), self._segments(1))
        figures = collect_metrics(
            self.driver, self._cores, segments, self.name, self._expired, self.watch.seconds
        )
        return with_latency(with_matches(figures, self.driver), self.latencies)


@dataclass(frozen=True)
class Task:
    """Tuples that a core searches a window with."""

    piece: BasicWindow
    arrived: float

    def describe(self) -> str:
        """Return what an error calls the task."""
        return f"a batch of {self.piece.rows} tuples of the {SIDES[self.piece.spec.side]} input"


T = TypeVar("T", bound=Task)


@dataclass
class CrewJoin(Arrangement, Generic[T]):
    """A join of two streams whose cores are a crew of threads."""

    crew: Crew[T] = field(init=False)

    def _start_crew(self, monitor: Monitor, active: int = 0, clock: Clock = time.perf_counter) -> None:
        self.crew = Crew(
            self.cores, self._work, Task.describe, lambda task: task.arrived, monitor, active, self.cpus,
            clock,
        )  # fmt: skip
        self.latencies = self.crew.latencies

    @abstractmethod
    def _work(self, k: int, task: T) -> Iterator[pa.RecordBatch]:
        """Do a task on core `k`."""

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        return self.crew.drain(until)

    def _is_idle(self) -> bool:
        return self.crew.idle()

    def wake(self) -> None:
        """Make a running `settle` call `until` again; any thread may call this."""
        self.crew.monitor.wake_all()

    def close(self) -> None:
        """Stop and end all threads."""
        self.watch.stop()
        self.crew.close()

    def metrics(self) -> Metrics:
        """Return counts and sizes so far, with the queues before and behind each core."""
        figures = super().metrics()
        queues = zip(figures.cores, self.crew.inboxes, self.crew.outboxes, strict=True)
        cores = tuple(
            replace(
                core, queue=len(inbox), deepest_queue=inbox.deepest, results_waiting=len(outbox),
                deepest_results=outbox.deepest, held_back=outbox.waits,
            )
            for core, inbox, outbox in queues
        )  # fmt: skip
        return replace(figures, cores=cores)
