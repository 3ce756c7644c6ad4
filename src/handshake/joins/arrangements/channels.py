"""Bounded queues between threads, and the merger of the cores' results.

All channels of one arrangement share a monitor (a condition), so that a thread can wait for room in
one channel and for a result in another. A full channel holds back its writer; nothing is ever dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


class Stopped(Exception):
    """Raised in a thread that waits on a channel when the arrangement ends."""


@dataclass
class Monitor:
    """The lock of an arrangement, with the conditions that its threads wait on."""

    stopped: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._conditions: list[threading.Condition] = []
        self.condition = threading.Condition(self._lock)

    def own_condition(self) -> threading.Condition:
        """Return a condition for one thread, on the same lock, that is notified separately."""
        made = threading.Condition(self._lock)
        self._conditions.append(made)
        return made

    def wait_for(
        self, ready: Callable[[], bool], timeout: float | None = None, at: threading.Condition | None = None
    ) -> bool:
        """Wait until `ready` (asked under the lock) or the end; raises `Stopped` at the end."""
        condition = at or self.condition
        with condition:
            held = condition.wait_for(lambda: self.stopped or ready(), timeout)
            if self.stopped:
                raise Stopped
            return held

    def check(self) -> None:
        """Raise `Stopped` at the end."""
        if self.stopped:
            raise Stopped

    def wake_all(self) -> None:
        """Wake all threads that have no condition of their own."""
        with self.condition:
            self.condition.notify_all()

    def stop(self) -> None:
        """End all waiting, now and later."""
        with self.condition:
            self.stopped = True
            for condition in (self.condition, *self._conditions):
                condition.notify_all()


@dataclass
class Channel(Generic[T]):
    """A first-in first-out queue that holds up to `capacity` items."""

    monitor: Monitor
    capacity: int
    items: deque[T] = field(default_factory=deque)
    condition: threading.Condition | None = None
    """The condition of its only reader, if that has one of its own."""
    deepest: int = 0
    waits: int = 0
    """How often a writer had to wait for room."""

    def offer(self, item: T) -> bool:
        """Put an item if there is room."""
        with self.monitor.condition:
            if len(self.items) >= self.capacity:
                return False
            self._append(item)
            return True

    def put(self, item: T) -> None:
        """Put an item, waiting for room."""
        with self.monitor.condition:
            if len(self.items) >= self.capacity:
                self.waits += 1
                self.monitor.wait_for(lambda: len(self.items) < self.capacity)
            if self.monitor.stopped:
                raise Stopped
            self._append(item)

    def _append(self, item: T) -> None:
        self.items.append(item)
        self.deepest = max(self.deepest, len(self.items))
        if len(self.items) == 1:  # readers wait for something, never for more of it
            (self.condition or self.monitor.condition).notify_all()

    def _pop(self) -> T:
        if len(self.items) == self.capacity:  # writers wait for room, never for more of it
            self.monitor.condition.notify_all()
        return self.items.popleft()

    def poll(self) -> T | None:
        """Take the oldest item, or None."""
        if not self.items:  # no lock for an empty queue
            return None
        with self.monitor.condition:
            return self._pop() if self.items else None

    def take(self) -> T:
        """Take the oldest item, waiting for one."""
        with self.monitor.condition:
            self.monitor.wait_for(lambda: bool(self.items), at=self.condition)
            return self._pop()

    def __len__(self) -> int:
        return len(self.items)


class Merger(Generic[T]):
    """Several channels, one output: takes from each in turn while it has something (handshake join 6.2)."""

    def __init__(self, sources: Sequence[Channel[T]]) -> None:
        self._sources, self._next = sources, 0

    def poll(self) -> T | None:
        """Take the next item of any channel, or None."""
        for _ in self._sources:
            source = self._sources[self._next]
            self._next = (self._next + 1) % len(self._sources)
            item = source.poll()
            if item is not None:
                return item
        return None
