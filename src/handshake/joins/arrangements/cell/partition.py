"""Window partitioning (CellJoin 4.1.2): which basic windows of a window belong to which core.

Equation 2 assigns equal numbers of basic windows, which is equal work only if they are equally large. So a
basic window is complete when it has exactly as many tuples as it should, and is not merged any more. New
tuples fill the newest one, which is open, whatever the sizes of their batches. An open basic window is in
parts, merged as they come, and counts as one.
"""

from __future__ import annotations

from dataclasses import dataclass

from handshake.joins.basic_window import BasicWindow
from handshake.joins.segment import Segment

_RUNS = 10
"""Basic windows that a core should have, so that one more is no more than a tenth of its work."""


def deal(size: int, cores: int) -> list[slice]:
    """Return the run of each core in a list of `size` basic windows, which has the oldest first (equation 2).

    Runs are of equal length but for one. As in the paper, core 0 has the newest basic windows, and the first
    cores have one more. So a basic window that comes or goes moves ends of runs, never whole runs.

    >>> deal(5, 2)
    [slice(2, 5, None), slice(0, 2, None)]
    """
    share, rest = divmod(size, cores)
    runs, stop = [], size
    for core in range(cores):
        start = stop - share - (core < rest)
        runs.append(slice(start, stop))
        stop = start
    return runs


@dataclass
class DealtWindow:
    """A window in the coordinator's hands, whose basic windows are shared by cores if it is scanned."""

    segment: Segment
    cores: int
    is_dealt: bool
    """Whether basic windows have one size, so that cores can share them; else they grow freely."""
    size: int = 0
    """How many tuples a complete basic window has."""

    def insert(self, piece: BasicWindow) -> None:
        """Put tuples into the open basic window, and into new ones where it is full."""
        if not self.is_dealt:
            self.segment.insert(piece)
            return
        start, wanted = 0, self._best_size()
        if wanted >= 2 * self.size:  # the window has grown: all basic windows get one size again
            self.segment.coarsen(wanted)
        if not self.size // 4 < wanted < 2 * self.size:
            self.size = wanted
        while start < piece.rows:
            room = max(self.size - self._open_rows(), 1)
            part = piece
            if start or room < piece.rows:
                part = BasicWindow(piece.spec, piece.batch.slice(start, room), arrived=piece.arrived)
            self.segment.insert(part, self.size)
            if self._open_rows() >= self.size:
                self.segment.close()
            start += part.rows

    def _best_size(self) -> int:
        """Return the best size for one core (6), but small enough for all to have some; a power of two."""
        smallest = self.segment.spec.tuning.dealt_window
        enough = _power(max(self.segment.rows // (_RUNS * self.cores), smallest))
        return enough if self.segment.largest is None else min(self.segment.largest, enough)

    def _open_rows(self) -> int:
        return sum(window.rows for window in self.segment.windows[self.segment.complete :])

    def runs(self) -> list[tuple[BasicWindow, ...]]:
        """Return the basic windows that each core searches."""
        windows, complete = self.segment.windows, self.segment.complete
        slots = complete + (complete < len(windows))
        runs = deal(slots, self.cores)
        return [tuple(windows[run.start : len(windows) if run.stop == slots else run.stop]) for run in runs]


def _power(rows: int) -> int:
    """Return the largest power of two up to `rows`."""
    return 1 << (rows.bit_length() - 1)
