"""Dynamic window partitioning (CellJoin 4.1.2): which basic windows of a window belong to which core.

Positions are counted as in the paper, newest first: core 0 has the newest basic windows, the last core
the oldest. Basic windows are numbered as they come; a core's pointer is the number of the first, newest
one of its run. So a basic window that comes or goes moves pointers, never whole runs.

Equation 2 deals out equal numbers of basic windows, which is equal work only if they are equally large. So a
basic window is complete when it has exactly as many tuples as it should, and is not merged any more; tuples
that come fill the newest one, which is open, whatever the sizes of the batches that bring them. An open basic
window is in parts, merged as they come, and counts as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from handshake.joins.basic_window import BasicWindow
from handshake.joins.segment import Segment

_RUNS, _SMALLEST = 10, 1024
"""Basic windows that a core should have, so that one more is no more than a tenth of its work; and how small
they may get for that."""


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


@dataclass
class Slots:
    """A window in the coordinator's hands."""

    segment: Segment
    partition: Partition
    size: int = 0
    """How many tuples a complete basic window has."""

    def _best_size(self) -> int:
        """Return the best size for one core (6), but small enough for all to have some; a power of two."""
        enough = _power(max(self.segment.rows // (_RUNS * self.partition.cores), _SMALLEST))
        return enough if self.segment.largest is None else min(self.segment.largest, enough)

    def insert(self, piece: BasicWindow) -> None:
        """Put tuples into the open basic window, and into new ones where it is full."""
        start, wanted = 0, self._best_size()
        if wanted >= 2 * self.size:
            self._coarsen(wanted)
        if not self.size // 4 < wanted < 2 * self.size:
            self.size = wanted
        while start < piece.rows:
            room = max(self.size - self._open_rows(), 1)
            part = piece
            if start or room < piece.rows:
                part = BasicWindow(piece.spec, piece.batch.slice(start, room), arrived=piece.arrived)
            self._insert(part)
            start += part.rows

    def _insert(self, part: BasicWindow) -> None:
        self.segment.insert(part, self.size)
        if self._open_rows() >= self.size:
            self.segment.close()
        while self.partition.size < self._slots():
            self.partition.add()

    def _coarsen(self, size: int) -> None:
        """Merge neighbours after the window has grown, so that all basic windows have one size again."""
        if self.segment.coarsen(size):
            self.partition = Partition(self.partition.cores, size=self._slots(), steps=self.partition.steps)

    def _open_rows(self) -> int:
        return sum(window.rows for window in self.segment.windows[self.segment.complete :])

    def expire(self, oldest: int) -> int:
        """Drop what has expired, in whole basic windows."""
        gone = self.segment.expire(oldest)
        while self.partition.size > self._slots():
            self.partition.remove_oldest()
        return gone

    def _slots(self) -> int:
        return self.segment.complete + (self.segment.complete < len(self.segment.windows))

    def runs(self) -> list[tuple[BasicWindow, ...]]:
        """Return the basic windows that each core searches."""
        windows, slots = self.segment.windows, self._slots()
        runs = [self.partition.run(core) for core in range(self.partition.cores)]
        return [tuple(windows[run.start : len(windows) if run.stop == slots else run.stop]) for run in runs]


def _power(rows: int) -> int:
    """Return the largest power of two up to `rows`."""
    return 1 << (rows.bit_length() - 1)
