"""Helper threads that share the compiled calls of another thread.

The caller offers a job and starts it. Helpers steal chunks, so a slow helper never delays the job.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Protocol

from handshake.joins.arrangements.placement import pin_to


class Job(Protocol):
    """Something that several threads can do together."""

    def help(self, k: int) -> None:
        """Do a part of it as core `k`; returns at once if nothing is left."""


@dataclass
class Helpers:
    """Helpers for cores 1 to `cores - 1`; their threads begin with the first job."""

    cores: int
    cpus: tuple[int, ...] = ()
    """The processor of each core; empty if threads are not pinned."""
    error: BaseException | None = field(default=None, init=False)
    """The error that ended a helper; callers that offer jobs must check it."""

    def __post_init__(self) -> None:
        self._job: Job | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._locks = [threading.Lock() for _ in range(1, self.cores)]
        self._threads: list[threading.Thread] = []

    def offer(self, job: Job) -> None:
        """Wake those who are not awake; to be called from one thread."""
        self._job = job
        if not self._threads:
            self._start()
        self._wake()

    def withdraw(self) -> None:
        """Forget the finished job and free its windows; helpers that wake now have nothing to do."""
        self._job = None

    def _start(self) -> None:
        with self._lock:
            for k, lock in enumerate(self._locks if not self._closed else (), start=1):
                lock.acquire()
                thread = threading.Thread(target=self._run, args=(k,), name=f"join helper {k}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _wake(self) -> None:
        for lock in self._locks:
            if lock.locked():  # else the helper is awake and will look for the newest job
                lock.release()

    def _run(self, k: int) -> None:
        try:
            if self.cpus:
                pin_to(self.cpus[k])
            while True:
                self._locks[k - 1].acquire()
                if self._closed:
                    return
                job = self._job
                if job is not None:
                    job.help(k)
                del job
        except BaseException as error:
            self.error = error

    def close(self) -> None:
        """End all threads."""
        with self._lock:
            self._closed = True
        self._wake()
        for thread in self._threads:
            thread.join()
