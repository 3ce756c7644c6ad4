"""A segment: one side's window as basic windows, oldest first."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from handshake.joins.access import ACCESS_METHODS
from handshake.joins.basic_window import BasicWindow, Span, indexable, merge_windows, seal, worth_an_index
from handshake.joins.spec import JoinSpec

Array = np.ndarray[Any, Any]
SHARE = 8
"""A basic window spans at most this fraction of the window, so little that has expired is still held."""
SMALL = 1024
"""Neighbours of up to this many tuples are merged, however much time they span."""
MEDIUM, MEDIUM_SHARE = 1 << 14, 3
"""Neighbours of up to `MEDIUM` tuples may span more: each basic window costs a probe some microseconds if it
is scanned, and 0.1 ms if it is looked up, whatever is in it."""


@dataclass
class Segment:
    """`insert`, `expire`, and the basic windows to `probe`. Sizes grow geometrically, so there are few."""

    spec: JoinSpec
    side: int
    windows: list[BasicWindow] = field(default_factory=list)
    largest: int | None = None
    """The most tuples of a merged basic window; by default that depends on the method."""
    lazy: bool = False
    """Cluster what has been asked for often enough (see `asked`), not all that is inserted."""
    aside: bool = False
    """Do large merges in another thread, so that no batch waits for them."""
    departed: list[BasicWindow] = field(default_factory=list)
    """Basic windows that were dropped, if rows of the side are tracked; `take_departed` empties this."""

    def __post_init__(self) -> None:
        side = self.spec.sides[self.side]
        self._lazily_indexed = self.lazy and bool(side.hashed or side.attributes)
        self._reach, self._tuning = self.spec.reach(self.side), self.spec.tuning
        self.tiny_batches, self.merged_at_once = self._tuning.tiny_batches, self._tuning.merged_at_once
        """Tiny batches that are merged together, and tuples that are merged at once."""
        self._lock = threading.Lock()
        self._compaction: Compaction | None = None
        self.complete = 0
        """The number of the oldest basic windows that are not merged any more (see `close`)."""
        self._held_until: int | None = None
        """No basic window is to be dropped up to this stamp, where that is known."""
        self.scan_rows = ScanRows()
        self._all_clustered: bool | None = None
        """Whether no basic window is left that could be clustered; None after a change."""

    @property
    def rows(self) -> int:
        """The number of tuples in the segment."""
        return sum(w.rows for w in tuple(self.windows))  # other threads may read this

    @property
    def nbytes(self) -> int:
        """The memory of its basic windows in bytes."""
        return sum(w.nbytes for w in tuple(self.windows))

    def insert(self, window: BasicWindow, largest: int | None = None) -> None:
        """Add the newest tuples, merge basic windows of similar size up to `largest`, and cluster them."""
        if window.rows == 0:
            return
        self.windows.append(window)
        if indexable(window):
            self._all_clustered = None
        if self._held_until is not None:
            self._held_until = min(self._held_until, self._newest(window))
        self._take_in()
        group = [window]
        if window.rows > self._tuning.tiny or self._many_tiny():
            group = self._group(window, largest or self.largest or ACCESS_METHODS[self.spec.method].largest)
        if len(group) > 1 and self.aside and sum(w.rows for w in group) > self.merged_at_once:
            self._compact(group)
        elif len(group) > 1 and (made := put_together(group)) is not None:
            self._replace(*made)
            window = made[1]
        if not self.lazy:
            self._seal(window)

    def _many_tiny(self) -> bool:
        """Return whether there are enough tiny batches to merge them."""
        return len(self.windows) >= self.tiny_batches and (
            self.windows[-self.tiny_batches].rows <= self._tuning.tiny
        )

    def _compact(self, group: list[BasicWindow]) -> None:
        """Merge in another thread; first cluster windows that are probed often, for probes until then."""
        wanted = any(window.demand.asked >= self._tuning.clustered_after for window in group)
        self._compaction = Compaction([self._seal(w) for w in group] if wanted else group, wanted)

    def _seal(self, window: BasicWindow) -> BasicWindow:
        """Replace a basic window by a clustered one, and return that."""
        if window.cells is not None or not indexable(window):
            return window
        clustered = window.demand.answer = seal(window)
        self._replace([window], clustered)
        return clustered

    def _group(self, newest: BasicWindow, most: int) -> list[BasicWindow]:
        """Return the newest basic window and the older ones to merge with it: each has less than twice the
        tuples of all that come after it."""
        busy = self._compaction.group if self._compaction is not None else ()
        most = min(most, self.merged_at_once) if busy else most
        group, rows, near = [newest], newest.rows, len(self.windows) - 2
        span = self._stamps(newest)
        for at in range(near, self.complete - 1, -1):
            older = self.windows[at]
            if older.rows >= 2 * rows or older.rows + rows > most or any(older is w for w in busy):
                continue
            stamps = self._stamps(older)
            if self._near_in_time(stamps, span, rows + older.rows, neighbours=at == near):
                group.append(older)
                rows, near, span = rows + older.rows, at - 1, _union(stamps, span)
        return group[::-1]

    def _near_in_time(self, older: Span, group: Span, rows: int, *, neighbours: bool) -> bool:
        reach = self._reach
        if reach is None or (rows <= SMALL and neighbours):
            return True
        share = MEDIUM_SHARE if rows <= MEDIUM else SHARE
        span = _length(_union(older, group))
        if span <= reach // share:
            return True
        # Disorder makes both wide; what counts is how much longer than the other one either is then held.
        return span - min(_length(older), _length(group)) <= reach // (2 * share)

    def close(self) -> None:
        """Merge the open basic windows into one, if one array can hold it, and complete it."""
        made = put_together(self.windows[self.complete :])
        if made is not None:
            self._replace(*made)
        self.complete = len(self.windows)

    def coarsen(self, rows: int) -> bool:
        """Merge complete neighbours up to this many tuples; return whether there were any."""
        before, group = len(self.windows), list[BasicWindow]()
        for window in self.windows[: self.complete]:
            if group and sum(w.rows for w in group) + window.rows > rows:
                self._merge_complete(group)
                group = []
            group.append(window)
        self._merge_complete(group)
        return len(self.windows) < before

    def _merge_complete(self, group: list[BasicWindow]) -> None:
        before, made = len(self.windows), put_together(group)
        if made is not None:
            self._replace(*made)
            self.complete -= before - len(self.windows)

    def _take_in(self) -> None:
        """Use the result of a compaction, if it is ready and nothing of it has expired."""
        compaction = self._compaction
        if compaction is None or not compaction.done:
            return
        self._compaction = None
        if compaction.error is not None:
            raise compaction.error
        if compaction.made is not None:
            self._replace(*compaction.made)

    def _replace(self, group: list[BasicWindow], together: BasicWindow) -> None:
        """Replace a group of basic windows by one, if all of the group are still here."""
        gone = {id(window) for window in group}
        if sum(id(window) in gone for window in self.windows) < len(gone):
            return
        for window in group:
            together.demand.asked = max(together.demand.asked, window.demand.asked)
        oldest = next(window for window in self.windows if id(window) in gone)
        self.windows = [
            together if window is oldest else window
            for window in self.windows
            if window is oldest or id(window) not in gone
        ]
        self._all_clustered = None
        self.scan_rows.forget(self.windows)

    def ready(self, rows: int, together: bool = False) -> list[BasicWindow]:
        """Return the basic windows for a probe with `rows` tuples, clustered if that pays by now.

        It pays sooner if all clustered ones are looked up `together`.
        """
        self._take_in()
        windows = list(self.windows)
        if self._all_clustered is None:
            self._all_clustered = not self._lazily_indexed or not any(map(_is_unclustered, windows))
        if self._all_clustered:
            return windows
        return [
            self._ask(w, rows) if _is_unclustered(w) and (together or worth_an_index(rows, w)) else w
            for w in windows
        ]

    def _ask(self, window: BasicWindow, rows: int) -> BasicWindow:
        with self._lock:
            demand = window.demand
            if demand.answer is not None:  # another core has come first
                return demand.answer
            demand.asked += rows
            if demand.asked < self._tuning.clustered_after:
                return window
            if not self.aside or rows >= self._tuning.clustered_after or window.rows <= self.merged_at_once:
                return self._seal(window)
            if self._compaction is None:
                self._compaction = Compaction([window], cluster=True)
            return window

    def expire(self, oldest: int) -> int:
        """Drop basic windows whose stamps are all below `oldest`; return the number of dropped tuples."""
        if self._held_until is not None and oldest <= self._held_until:
            return 0
        self.complete = sum(self._newest(w) >= oldest for w in self.windows[: self.complete])
        kept = [w for w in self.windows if self._newest(w) >= oldest]
        if self.spec.kind.tracked[self.side]:
            self.departed += [w for w in self.windows if self._newest(w) < oldest]
        gone = self.rows - sum(w.rows for w in kept) if len(kept) < len(self.windows) else 0
        self.windows = kept
        self.scan_rows.forget(kept)
        self._held_until = min(map(self._newest, kept), default=None)
        return gone

    def take_departed(self) -> list[BasicWindow]:
        """Return the basic windows of a tracked side that were dropped since the last call."""
        departed, self.departed = self.departed, []
        return departed

    def _newest(self, window: BasicWindow) -> int:
        """Return the newest of the stamps that its tuples expire by."""
        return self._stamps(window)[1]

    def _stamps(self, window: BasicWindow) -> Span:
        """Return the extremes of the stamps that its tuples expire by."""
        return window.second if self.side == 0 else window.first

    def settle(self) -> None:
        """Wait for a running compaction."""
        if self._compaction is not None:
            self._compaction.wait()

    def __iter__(self) -> Iterator[BasicWindow]:
        return iter(self.windows)


def _union(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])


def _length(span: Span) -> int:
    return span[1] - span[0]


def _is_unclustered(window: BasicWindow) -> bool:
    return window.cells is None and indexable(window)


def put_together(group: list[BasicWindow]) -> tuple[list[BasicWindow], BasicWindow] | None:
    """Merge a group, oldest first, into one basic window, or as many of its newest as one can hold."""
    while len(group) > 1:
        together = merge_windows(*group)
        if together is not None:
            return group, together
        group = group[1:]
    return None


@dataclass
class Compaction:
    """A thread that merges and clusters basic windows, which serve on until the result is ready."""

    group: list[BasicWindow]
    cluster: bool
    """Whether what comes of it is clustered."""
    made: tuple[list[BasicWindow], BasicWindow] | None = field(default=None, init=False)
    """Which of the group have been put together, and what came of it."""
    error: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name="compaction", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            made = (self.group, self.group[0]) if len(self.group) == 1 else put_together(self.group)
            if made is not None:
                together = seal(made[1]) if self.cluster else made[1]
                if any(window.has_codes for window in made[0]):
                    together.codes()
                self.made = (made[0], together)
        except BaseException as error:  # raised when the result is used
            self.error = error

    @property
    def done(self) -> bool:
        """True if the thread has ended."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join()


class ScanRows:
    """The `scan_row`s of some basic windows as one table for shared scans, kept from one job to the next.

    Most basic windows stay the same between two jobs. Reading all of them again would be slow, since a scan
    has just emptied the caches. Rows after the first change are made again.
    """

    def __init__(self) -> None:
        self._windows: list[BasicWindow] = []
        self._table: Array = np.empty((0, 0), np.int64)

    def of(self, windows: list[BasicWindow]) -> Array:
        """Return the table of these basic windows, valid until the next call."""
        self.forget(windows)
        for window in windows[len(self._windows) :]:
            self._append(window)
        return self._table[: len(windows)]

    def _append(self, window: BasicWindow) -> None:
        row, at = window.scan_row, len(self._windows)
        if at == len(self._table):
            grown = np.empty((max(2 * at, 32), len(row)), np.int64)
            if at:
                grown[:at] = self._table
            self._table = grown
        self._table[at] = row
        self._windows.append(window)

    def forget(self, windows: list[BasicWindow]) -> None:
        """Drop all rows from the first one on whose basic window has changed."""
        mine = self._windows
        if mine != windows[: len(mine)]:
            pairs = enumerate(zip(mine, windows, strict=False))
            same = next((place for place, (one, other) in pairs if one is not other), len(windows))
            del mine[same:]
