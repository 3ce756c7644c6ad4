"""Dynamic window partitioning (CellJoin 4.1.2): which basic windows of a window belong to which core.

Positions are counted as in the paper, newest first: core 0 has the newest basic windows, the last core
the oldest. Basic windows are numbered as they come; a core's pointer is the number of the first, newest
one of its run. So a basic window that comes or goes moves pointers, never whole runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Partition"]


@dataclass
class Partition:
    """Consecutive runs of basic windows for `cores` cores, of equal length but for one (equation 2)."""

    cores: int
    oldest: int = 0
    """The number of the oldest basic window."""
    size: int = 0
    starts: list[int] = field(init=False)
    counts: list[int] = field(init=False)
    steps: int = 0
    """Pointers looked at or moved so far."""

    def __post_init__(self) -> None:
        self.resize(self.cores)

    def resize(self, cores: int) -> None:
        """Deal out afresh: only a change in the number of cores needs this (7.3)."""
        share, rest = divmod(self.size, cores)
        self.cores = cores
        self.counts = [share + (j < rest) for j in range(cores)]
        newest = self.oldest + self.size - 1
        self.starts = [newest - sum(self.counts[:j]) for j in range(cores)]

    def add(self) -> None:
        """Add a basic window at the new end; cores up to the one that gains it shift towards it."""
        gains = self._gains()
        self.counts[gains] += 1
        self.size += 1
        self._shift(0, gains + 1, 1)

    def remove_oldest(self) -> None:
        """Remove the oldest basic window; cores behind the one that loses it shift towards the new end."""
        loses = self._loses()
        self.counts[loses] -= 1
        self.size -= 1
        self.oldest += 1
        self._shift(loses + 1, self.cores, 1)

    def merge_newest(self) -> None:
        """Merge the two newest basic windows: the newest goes, and the one before it takes its tuples.

        That is the mirror image of `add`: the core that would lose one to expiry loses one, and those up
        to it shift back.
        """
        loses = self._loses()
        self.counts[loses] -= 1
        self.size -= 1
        self._shift(0, loses + 1, -1)

    def run(self, core: int) -> slice:
        """Return a core's basic windows, as a slice of a list that has the oldest first."""
        stop = self.starts[core] - self.oldest + 1
        return slice(stop - self.counts[core], stop)

    def _gains(self) -> int:
        """max{j : c(j - 1) > c(j)}, where c(0) is infinite."""
        for j in range(self.cores - 1, 0, -1):
            self.steps += 1
            if self.counts[j - 1] > self.counts[j]:
                return j
        return 0

    def _loses(self) -> int:
        """min{j : c(j + 1) < c(j)}, where c(N + 1) is minus infinity."""
        for j in range(self.cores - 1):
            self.steps += 1
            if self.counts[j + 1] < self.counts[j]:
                return j
        return self.cores - 1

    def _shift(self, first: int, stop: int, by: int) -> None:
        for j in range(first, stop):
            self.steps += 1
            self.starts[j] += by
