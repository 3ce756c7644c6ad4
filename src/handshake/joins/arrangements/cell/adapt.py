"""Resource adaptation (CellJoin 7.3): how many cores the load of the last batches asks for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Load"]

Clock = Callable[[], float]
HIGH, LOW = 0.85, 0.6
"""Busier than `HIGH`, another core is added; one is released if the others would be busy less than `LOW`."""


@dataclass
class Load:
    """The share of time that cores are busy, over the last `interval` batches.

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
