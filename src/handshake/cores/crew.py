"""A crew: threads that take tasks from bounded queues and give results through a merging tree.

The caller hands out tasks and takes results from one thread. While a queue is full it is given results to
take, so a slow consumer holds back the source, and nobody waits in a circle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from handshake.cores.channels import Bell, Channel, Stopped, merging_tree
from handshake.errors import HandshakeError, failed

__all__ = ["Crew"]

T = TypeVar("T")
_WAITING, _RESULTS = 8, 16
"""Tasks that may wait before a worker, and result batches behind it."""


@dataclass
class Crew(Generic[T]):
    """`size` threads that run `work(k, task)`; `describe` says of a task what an error message needs."""

    size: int
    work: Callable[[int, T], Iterator[pa.RecordBatch]]
    describe: Callable[[T], str]
    bell: Bell = field(default_factory=Bell)

    def __post_init__(self) -> None:
        self.inboxes = [Channel[T](self.bell, _WAITING) for _ in range(self.size)]
        self.outboxes = [Channel[pa.RecordBatch](self.bell, _RESULTS) for _ in range(self.size)]
        self._results = merging_tree(self.outboxes)
        self._open = 0
        self._failure: tuple[BaseException, T] | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(k,), name=f"join core {k}", daemon=True)
            for k in range(self.size)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, k: int) -> None:
        while True:
            try:
                task = self.inboxes[k].take()
            except Stopped:
                return
            try:
                for results in self.work(k, task):
                    self.outboxes[k].put(results)
            except Stopped:
                return
            except BaseException as error:
                self._failure = self._failure or (error, task)
                self.bell.stop()
                return
            with self.bell.condition:
                self._open -= 1
                if self._open == 0:
                    self.bell.condition.notify_all()

    def hand(self, k: int, task: T) -> Iterator[pa.RecordBatch]:
        """Give worker `k` a task; yields results while its queue is full."""
        inbox = self.inboxes[k]
        with self.bell.condition:
            self._open += 1
        while not self._guarded(lambda: inbox.offer(task)):
            yield from self.ready()
            self._guarded(
                lambda: self.bell.wait_for(lambda: len(inbox) < inbox.capacity or self._any_results())
            )

    def least_busy(self) -> int:
        """The worker with the shortest queue."""
        return min(range(self.size), key=lambda k: len(self.inboxes[k]))

    def ready(self) -> Iterator[pa.RecordBatch]:
        """Results that are there now."""
        self._check()
        while (batch := self._results.poll()) is not None:
            yield batch

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Wait until every task is done; yields results as they come."""
        while not self.idle():
            yield from self.ready()
            self._guarded(lambda: self.bell.wait_for(lambda: self.idle() or self._any_results()))
        yield from self.ready()

    def idle(self) -> bool:
        """Whether no task is waiting or being worked on."""
        return self._open == 0

    def _any_results(self) -> bool:
        return any(len(outbox) for outbox in self.outboxes)

    def _guarded(self, action: Callable[[], bool]) -> bool:
        """Act, unless a worker has failed: then say so."""
        self._check()
        try:
            return action()
        except Stopped:
            self._check()
            raise

    def _check(self) -> None:
        if self._failure is not None:
            error, task = self._failure
            self.close()
            raise failed(error, self.describe(task)) from error
        if self.bell.stopped:
            raise HandshakeError("this join is closed; make a new one to push more tuples")

    def close(self) -> None:
        """All threads end; what they had not finished is dropped."""
        self.bell.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
