"""CellJoin's windows: basic windows of one size, and whose they are.

Equation 2 deals out equal numbers of basic windows, which is equal work only if they are equally large. So a
basic window is complete when it has exactly as many tuples as it should, and is not merged any more; tuples
that come fill the newest one, which is open, whatever the sizes of the batches that bring them. An open basic
window is in parts, merged as they come, and counts as one.
"""

from __future__ import annotations

from dataclasses import dataclass

from handshake.joins.arrangements.cell.partition import Partition
from handshake.joins.basic_window import BasicWindow
from handshake.joins.segment import Segment

__all__ = ["Slots"]

_RUNS, _SMALLEST = 10, 1024
"""Basic windows that a core should have, so that one more is no more than a tenth of its work; and how small
they may get for that."""


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
