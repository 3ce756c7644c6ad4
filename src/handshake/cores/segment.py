"""A segment: one side's window as basic windows, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from handshake.cores.basic_window import BasicWindow, merged, sealed, span_of
from handshake.cores.spec import JoinSpec

__all__ = ["Segment"]

SHARE = 8
"""A basic window spans at most this fraction of the window, so little that has expired is still held."""
SMALL = 1024
"""Basic windows of up to so many tuples are merged whatever they span."""
MEDIUM, MEDIUM_SHARE = 1 << 14, 3
"""Up to so many tuples they may span more: each basic window costs a probe 0.1 ms, whatever is in it."""
LARGEST = {"scan": 1 << 17, "hash": 1 << 21, "band": 1 << 21}


@dataclass
class Segment:
    """`insert`, `expire`, and the basic windows to `probe`. Sizes grow geometrically, so there are few."""

    spec: JoinSpec
    side: int
    windows: list[BasicWindow] = field(default_factory=list)
    largest: int | None = None
    """Basic windows are not merged beyond so many tuples; by default that depends on the method."""

    @property
    def rows(self) -> int:
        """Tuples held."""
        return sum(w.rows for w in self.windows)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(w.nbytes for w in self.windows)

    def insert(self, window: BasicWindow) -> None:
        """Add the newest tuples; merge neighbours of like size, and cluster what came of it."""
        if window.rows == 0:
            return
        self.windows.append(window)
        changed = False
        while len(self.windows) > 1 and self._mergeable(self.windows[-2], self.windows[-1]):
            both = merged(*self.windows[-2:])
            if both is None:
                break
            self.windows[-2:] = [both]
            changed = True
        if changed or self.windows[-1].cells is None:
            self.windows[-1] = sealed(self.windows[-1])

    def _mergeable(self, older: BasicWindow, newer: BasicWindow) -> bool:
        rows = older.rows + newer.rows
        if older.rows >= 2 * newer.rows or rows > (self.largest or LARGEST[self.spec.method]):
            return False
        reach = self.spec.reach(self.side)
        if reach is None or rows <= SMALL:
            return True
        share = MEDIUM_SHARE if rows <= MEDIUM else SHARE
        # Tuples far out of order make every basic window wide: merging two that overlap holds nothing longer.
        widest = max(span_of(self.side, older), span_of(self.side, newer))
        return span_of(self.side, older, newer) <= max(reach // share, widest + widest // 4)

    def expire(self, oldest: int) -> int:
        """Drop basic windows all of whose expiring stamps are below `oldest`; says how many tuples went."""
        kept = [w for w in self.windows if (w.second if self.side == 0 else w.first)[1] >= oldest]
        gone = self.rows - sum(w.rows for w in kept)
        self.windows = kept
        return gone

    def __iter__(self) -> Iterator[BasicWindow]:
        return iter(self.windows)
