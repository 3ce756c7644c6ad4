"""A crew: threads that take tasks from bounded queues and return results through bounded queues.

The caller hands out tasks and takes results from one thread. While a queue is full it is given results to
take, so that a slow consumer holds back the source, and threads never wait in a circle.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from handshake.errors import HandshakeError, core_error
from handshake.joins.arrangements.channels import Channel, Merger, Monitor, Stopped
from handshake.joins.arrangements.placement import pin_to
from handshake.joins.latency import Latencies, Note

T = TypeVar("T")
Clock = Callable[[], float]
_WAITING, _RESULTS = 8, 16
"""Tasks that may wait before a worker, and result batches behind it."""
_HISTORY = 1000
"""Changes in the number of threads that are remembered."""
HIGH, LOW = 0.85, 0.6
"""Busier than `HIGH`, another core is added; one is released if the others would be busy less than `LOW`."""


class _Found(NamedTuple):
    """Results on their way to the caller."""

    core: int
    arrived: float
    batch: pa.RecordBatch


@dataclass
class Crew(Generic[T]):
    """Up to `size` threads that run `work(k, task)`; `describe` names a task in error messages."""

    size: int
    work: Callable[[int, T], Iterator[pa.RecordBatch]]
    describe: Callable[[T], str]
    arrival: Callable[[T], float]
    """Returns when the tuples of a task came, for latencies."""
    monitor: Monitor = field(default_factory=Monitor)
    active: int = 0
    """How many threads run; to begin with, 0 stands for all."""
    cpus: tuple[int, ...] = ()
    """The processor of each thread; empty if threads are not pinned."""
    clock: Clock = time.perf_counter
    inline: bool = False
    """Whether there are no threads: `hand` does the task in the caller's thread."""

    def __post_init__(self) -> None:
        self._conditions = [self.monitor.own_condition() for _ in range(self.size)]
        self.inboxes = [Channel[T](self.monitor, _WAITING, condition=own) for own in self._conditions]
        self.outboxes = [Channel[_Found](self.monitor, _RESULTS) for _ in range(self.size)]
        self.latencies = Latencies(self.size)
        self._results = Merger(self.outboxes)
        self._open = 0
        self._failure: tuple[BaseException, str] | None = None
        """The error that ended a worker, and the task that it was at."""
        self._wanted, self._runs = [False] * self.size, [False] * self.size
        self._threads: list[threading.Thread] = []
        self.busy = [0.0] * self.size
        """Seconds that each thread has worked, without those spent waiting for room for its results."""
        self._born = time.perf_counter()
        self.active = self.active or self.size
        self.history = deque([(0.0, self.active)], _HISTORY)
        """Seconds since the start, and the number of threads from then on."""
        if not self.inline:
            self._use(self.active)

    def resize(self, size: int) -> None:
        """Let the first `size` workers run; the threads of the others end when they have done what waits."""
        if size != self.active:
            self.active = size
            self.history.append((time.perf_counter() - self._born, size))
            self._use(size)

    def _use(self, size: int) -> None:
        with self.monitor.condition:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._wanted = [k < size for k in range(self.size)]
            for k in range(size):
                if not self._runs[k]:
                    self._start(k)
            for condition in self._conditions:
                condition.notify_all()

    def _start(self, k: int) -> None:
        thread = threading.Thread(target=self._run, args=(k,), name=f"join core {k}", daemon=True)
        self._runs[k] = True
        self._threads.append(thread)
        thread.start()

    def running(self) -> int:
        """Return the number of threads that have not ended."""
        return sum(thread.is_alive() for thread in self._threads)

    def _run(self, k: int) -> None:
        task: T | None = None
        try:
            if self.cpus:
                pin_to(self.cpus[k])
            while (task := self._next(k)) is not None:
                arrived, results = self.arrival(task), self.work(k, task)
                while (batch := self._next_result(k, results)) is not None:
                    self.outboxes[k].put(_Found(k, arrived, batch))
                self._finish_task()
        except Stopped:
            pass
        except BaseException as error:
            at = "its start" if task is None else self.describe(task)
            self._failure = self._failure or (error, at)
            self.monitor.stop()

    def _next_result(self, k: int, results: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        start = self.clock()
        batch = next(results, None)
        self.busy[k] += self.clock() - start
        return batch

    def _next(self, k: int) -> T | None:
        """Wait for the next task; returns None if the worker is no longer wanted."""
        inbox = self.inboxes[k]
        with self.monitor.condition:
            self.monitor.wait_for(lambda: bool(len(inbox)) or not self._wanted[k], at=self._conditions[k])
            if not len(inbox):
                self._runs[k] = False
            return inbox.poll()

    def _finish_task(self) -> None:
        with self.monitor.condition:
            self._open -= 1
            if self._open == 0:
                self.monitor.condition.notify_all()

    def hand(self, k: int, task: T) -> Iterator[pa.RecordBatch]:
        """Give worker `k` a task; yields results while its queue is full."""
        if self.inline:
            yield from self._do_inline(k, task)
            return
        inbox = self.inboxes[k]
        with self.monitor.condition:
            self._open += 1
        while not self._checked_call(lambda: inbox.offer(task)):
            yield from self.ready()
            self._checked_call(
                lambda: self.monitor.wait_for(lambda: len(inbox) < inbox.capacity or self._any_results())
            )

    def _do_inline(self, k: int, task: T) -> Iterator[pa.RecordBatch]:
        for batch in self.work(k, task):
            self.latencies.note(k, batch.num_rows, self.arrival(task))
            yield batch

    def do(
        self, describe: Callable[[], str], results: Iterator[tuple[pa.RecordBatch, list[Note]]]
    ) -> Iterator[pa.RecordBatch]:
        """Let the caller's thread do what all workers would, while they are idle; yields its results.

        Each batch comes with the numbers of its results per core. Errors name what `describe` returns.
        """
        self._check()
        try:
            for batch, notes in results:
                self.latencies.note_all(notes)
                yield batch
        except Stopped:
            self._check()
            raise
        except Exception as error:
            self._failure = (error, describe())
            self._check()

    def least_busy(self) -> int:
        """Return the worker that may run and has the shortest queue."""
        return min(range(self.active), key=lambda k: len(self.inboxes[k]))

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Yield results that are there now."""
        self._check()
        while (found := self._results.poll()) is not None:
            self.latencies.note(found.core, found.batch.num_rows, found.arrived)
            yield found.batch

    def drain(self, until: Callable[[], bool] | None = None) -> Iterator[pa.RecordBatch]:
        """Wait until every task is done, or `until` holds; yields results as they come."""
        until = until or (lambda: False)
        while not (self.idle() or until()):
            yield from self.ready()
            self._checked_call(
                lambda: self.monitor.wait_for(lambda: self.idle() or self._any_results() or until())
            )
        yield from self.ready()

    def idle(self) -> bool:
        """Return whether no task is waiting or being worked on."""
        return self._open == 0

    def at_rest(self) -> bool:
        """Return whether there is no task and no result, and no worker has failed."""
        return self._open == 0 and self._failure is None and not self._any_results()

    def _any_results(self) -> bool:
        return any(len(outbox) for outbox in self.outboxes)

    def _checked_call(self, action: Callable[[], bool]) -> bool:
        """Call `action`; raise the error of a worker that has failed."""
        self._check()
        try:
            return action()
        except Stopped:
            self._check()
            raise

    def _check(self) -> None:
        if self._failure is not None:
            error, at = self._failure
            self.close()
            raise core_error(error, at) from error
        if self.monitor.stopped:
            raise HandshakeError("this join is closed; make a new one to push more tuples")

    def close(self) -> None:
        """End all threads; unfinished tasks are dropped."""
        self.monitor.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


@dataclass
class Load:
    """How many cores the load asks for (CellJoin 7.3), by how busy they were in the last `interval` batches.

    A core that waits for someone to take its results is not busy: more cores would not help.
    """

    most: int
    active: int = 1
    clock: Clock = time.perf_counter
    interval: int = 8
    marks: deque[tuple[float, float]] = field(default_factory=deque)
    """Arrival times of batches, and the seconds that all cores together had worked by then."""

    def note(self, busy: float) -> int:
        """Return how many cores to use for the next batch, after `busy` seconds of work on all cores."""
        self.marks.append((self.clock(), busy))
        if len(self.marks) > self.interval:
            share = self._share()
            self.marks.popleft()
            if share is not None:
                self._decide(share)
        return self.active

    def _share(self) -> float | None:
        (then, before), (now, after) = self.marks[0], self.marks[-1]
        return (after - before) / ((now - then) * self.active) if now > then else None

    def _decide(self, share: float) -> None:
        if share > HIGH and self.active < self.most:
            self._change(1)
        elif self.active > 1 and share * self.active / (self.active - 1) < LOW:
            self._change(-1)

    def _change(self, by: int) -> None:
        """Change the number of cores and start measuring again, so that changes are not too frequent."""
        self.active += by
        self.marks.clear()
