"""Sliding windows (⊞): the windows of a row, when they close, and what is then computed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from handshake.operators.chunk import (
    BEGINNING,
    EARLIEST,
    END,
    Array,
    Chunk,
    Flow,
    check_results,
    concat_chunks,
    empty,
)
from handshake.operators.segments import Body, Segments
from handshake.plan.algebra import Sliding, Windowing
from handshake.schema import UNITS

_BLOCK = 1 << 16
"""Windows that are computed together, at most."""
_EXPANDED = 1 << 20
"""About how many tuples, counted once for each of their windows, are computed together."""


@dataclass(frozen=True)
class Spans:
    """The places of windows in units of the clock or in tuples; windows are numbered by their ends.

    Windows start at multiples of `advance`, moved by `offset`. Cumulative ones start at multiples of `size`,
    and end at the following multiples of `advance`.
    """

    size: int
    advance: int
    offset: int = 0
    """Not more than 0 and less than one advance, or size, away: so no sum with a time overflows."""
    cumulative: bool = False

    @classmethod
    def of(cls, window: Sliding, unit: int) -> Spans:
        """Return the spans of a window; lengths count in `unit`."""
        spans = cls(window.size // unit, window.advance // unit, 0, window.cumulative)
        return spans.starting((window.offset or 0) // unit)

    def starting(self, at: int) -> Spans:
        """Return the same spans, one of which starts here."""
        every = self.size if self.cumulative else self.advance
        return replace(self, offset=-(-at % every))

    @property
    def steps(self) -> int:
        """The number of cumulative windows with the same start."""
        return self.size // self.advance

    def first(self, at: Array) -> Array:
        """Return the first window that has not ended at these instants."""
        since = at - self.offset
        return since // self.advance if self.cumulative else (since - self.size) // self.advance + 1

    def last(self, at: Array) -> Array:
        """Return the last window that has begun."""
        since = at - self.offset
        return (since // self.size + 1) * self.steps - 1 if self.cumulative else since // self.advance

    def last_closed(self, clock: int) -> int:
        """Return the last window that has ended at a clock."""
        return (clock - self.offset - (self.advance if self.cumulative else self.size)) // self.advance

    def starts(self, windows: Array) -> Array:
        """Return the first instants of windows."""
        if self.cumulative:
            return windows // self.steps * self.size + self.offset
        return windows * self.advance + self.offset

    def ends(self, windows: Array) -> Array:
        """Return the first instants after windows."""
        return (
            (windows + 1) * self.advance + self.offset
            if self.cumulative
            else self.starts(windows) + self.size
        )


@dataclass(frozen=True)
class Results:
    """The results of windows: columns, and the window of each row."""

    columns: dict[str, pa.Array]
    windows: Array


class Store(Protocol):
    """A store of the rows of open windows."""

    def add(self, chunk: Chunk, first: Array, last: Array) -> None:
        """Add rows, each with its first and its last window."""

    def close(self, windows: Array, starts: Array, ends: Array) -> Results:
        """Compute these windows and forget rows that no later window needs; windows come in order."""

    def spans(self) -> tuple[Array, Array]:
        """Return the first and the last window of each stored entry."""

    def block(self, windows: int) -> int:
        """Return how many windows to compute at a time, so that they fit in memory."""


class Tuples:
    """A store of rows; the sub-plan runs on the rows of each window."""

    def __init__(self, node: Windowing) -> None:
        self._body = Body(node.body, node.parameter)
        self._kept = Chunk(empty(node.input.schema), 0)
        self._first = self._last = np.empty(0, np.int64)

    def add(self, chunk: Chunk, first: Array, last: Array) -> None:
        """Store rows with their first and last windows."""
        self._kept = concat_chunks([self._kept, Chunk(chunk.columns, chunk.rows)])
        self._first = np.concatenate([self._first, first])
        self._last = np.concatenate([self._last, last])

    def spans(self) -> tuple[Array, Array]:
        """Return the first and the last window of each row."""
        return self._first, self._last

    def block(self, windows: int) -> int:
        """Limit the rows that are copied once per window."""
        each = int(np.sum(self._last - self._first + 1)) // windows
        return max(1, min(_BLOCK, _EXPANDED // max(each, 1)))

    def close(self, windows: Array, starts: Array, ends: Array) -> Results:
        """Run the sub-plan on these windows."""
        of, rows = self._members(windows)
        picked = self._kept.take(rows)
        given = Segments(picked.columns, picked.rows, of, np.arange(len(windows)))
        result = self._body.run(given, starts, ends)
        self._forget(int(windows[-1]))
        return Results(result.columns, windows[result.origin[result.of]])

    def _members(self, windows: Array) -> tuple[Array, Array]:
        """Return the rows of each window, window by window, in the order of arrival."""
        if _is_rising(self._first) and _is_rising(self._last):
            begin = np.searchsorted(self._last, windows, "left")
            counts = np.searchsorted(self._first, windows, "right") - begin
            of = np.repeat(np.arange(len(windows)), counts)
            return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(
                begin, counts
            )
        found = [np.flatnonzero((self._first <= w) & (w <= self._last)) for w in windows]
        return np.repeat(np.arange(len(windows)), [len(f) for f in found]), np.concatenate(found)

    def _forget(self, window: int) -> None:
        stays = np.flatnonzero(self._last > window)
        if len(stays) < self._kept.rows:
            self._kept = self._kept.take(stays)
            self._first, self._last = self._first[stays], self._last[stays]


def _is_rising(values: Array) -> bool:
    return bool(np.all(values[1:] >= values[:-1]))


def covered_windows(first: Array, last: Array, low: int, high: int) -> Array:
    """Return the windows from `low` to `high` that contain a row, in order."""
    wanted = (first <= high) & (last >= low)
    if not wanted.any():
        return np.empty(0, np.int64)
    order = np.argsort(first[wanted], kind="stable")
    begin, end = first[wanted][order], np.maximum.accumulate(last[wanted][order])
    new = np.flatnonzero(np.concatenate([[True], begin[1:] > end[:-1] + 1]))
    stop = end[np.concatenate([new[1:] - 1, [len(end) - 1]])]
    spans = zip(np.maximum(begin[new], low), np.minimum(stop, high), strict=True)
    return np.concatenate([np.arange(a, b + 1) for a, b in spans])


class WindowOperator:
    """The operator of a sliding window; results depend on stamps, not on how the stream is cut."""

    def __init__(self, node: Windowing, store: Store) -> None:
        assert isinstance(node.window, Sliding)
        unit = UNITS[node.clock.unit] if node.window.kind == "time" else 1
        self._spans = Spans.of(node.window, unit)
        self._timed = node.window.kind == "time"
        self._anchored = node.window.offset is not None
        """Whether it is known where windows start."""
        self._node, self._store = node, store
        self._lowest = -((node.window.size - 1) // node.window.advance) if node.window.partial else 0
        self._next = EARLIEST if self._timed else self._lowest
        self._count = 0
        self._stamps = _Recent(self._spans)
        self.late = self.no_time = self.windows = 0

    def step(self, flow: Flow) -> Flow:
        """Add a chunk and return the results of the windows that it closes."""
        if self._timed:
            self._take_by_time(flow.chunk)
        else:
            self._take_by_count(flow.chunk)
        found = list(self._results(flow)) or [
            self._stamp(Results(empty(self._node.schema), np.empty(0, np.int64)), flow)
        ]
        if not self._timed:
            self._stamps.forget(self._next * self._spans.advance)
        return Flow(concat_chunks(found), flow.trace, flow.ended)

    def _take_by_time(self, chunk: Chunk) -> None:
        assert chunk.times is not None
        assert chunk.clocks is not None
        check_results(chunk)
        if not self._anchored:
            self._anchor(chunk)
        first, last = self._spans.first(chunk.times), self._spans.last(chunk.times)
        in_order = chunk.clocks is chunk.times  # see `SourceOperator._clocks`
        open_from = first if in_order else self._spans.first(chunk.clocks)
        late = (open_from > first) & (last >= first)
        kept = np.maximum(first, open_from) <= last
        if chunk.timed is not None:
            self.no_time += int(np.count_nonzero(~chunk.timed))
            late, kept = late & chunk.timed, kept & chunk.timed
        self.late += self._count_late(chunk, late)
        first = np.maximum(first, open_from)
        if kept.all():
            self._store.add(chunk, first, last)
        else:
            rows = np.flatnonzero(kept)
            self._store.add(chunk.take(rows), first[rows], last[rows])

    def _count_late(self, chunk: Chunk, late: Array) -> int:
        """Return how many tuples these rows of a chunk stand for."""
        return int(np.count_nonzero(late))

    def _anchor(self, chunk: Chunk) -> None:
        """Let a window start with the first row that has a time."""
        assert chunk.times is not None
        times = chunk.times if chunk.timed is None else chunk.times[chunk.timed]
        if len(times):
            self._spans, self._anchored = self._spans.starting(int(times[0])), True

    def _take_by_count(self, chunk: Chunk) -> None:
        positions = np.arange(self._count, self._count + chunk.rows)
        self._stamps.add(chunk)
        self._count += chunk.rows
        first = np.maximum(self._spans.first(positions), self._lowest)
        last = self._spans.last(positions)
        rows = np.flatnonzero(first <= last)
        if len(rows) < chunk.rows:
            chunk, first, last = chunk.take(rows), first[rows], last[rows]
        self._store.add(chunk, first, last)

    def _results(self, flow: Flow) -> Iterator[Chunk]:
        for windows in self._closing(flow):
            for block in self._blocks(windows):
                starts, ends = self._spans.starts(block), self._spans.ends(block)
                results = self._store.close(block, starts if self._timed else np.maximum(starts, 0), ends)
                self.windows += len(block)
                if len(results.windows):
                    yield self._stamp(results, flow)

    def _closing(self, flow: Flow) -> Iterator[Array]:
        """Yield the windows that have ended, in order."""
        first, last = self._store.spans()
        if self._timed:
            high = flow.trace.last
            if high is None or not len(first):
                return
            until = int(last.max()) if high == END else self._spans.last_closed(high)
            yield covered_windows(first, last, self._next, until)
        else:
            until = (self._count - self._spans.size) // self._spans.advance
            yield np.arange(self._next, until + 1)
        self._next = max(self._next, until + 1)

    def _blocks(self, windows: Array) -> Iterator[Array]:
        """Split windows into blocks that the store takes."""
        step = self._store.block(len(windows)) if len(windows) else 1
        return (windows[at : at + step] for at in range(0, len(windows), step))

    def _stamp(self, results: Results, flow: Flow) -> Chunk:
        """Add times, clocks and places to results."""
        if not self._timed:
            return Chunk(results.columns, len(results.windows), *self._stamps.of(results.windows))
        return stamp_by_end(results.columns, self._spans.ends(results.windows), flow)


def stamp_by_end(columns: dict[str, pa.Array], ends: Array, flow: Flow) -> Chunk:
    """Add times, clocks and places to results, given when the window of each has closed."""
    places = None
    if flow.chunk.places is not None:
        at = np.searchsorted(flow.trace.clocks, ends)
        places = flow.trace.places[np.minimum(at, len(flow.trace.places) - 1)] if len(ends) else ends
    return Chunk(columns, len(ends), ends - 1, None, ends - 1, places)


class _Recent:
    """The stamps of the rows that a tuple window can still contain."""

    def __init__(self, spans: Spans) -> None:
        self._spans, self._from, self._kept = spans, 0, Chunk({}, 0)
        self._begun = False

    def add(self, chunk: Chunk) -> None:
        """Add the stamps of the next rows."""
        bare = Chunk({}, chunk.rows, *chunk.stamps)
        self._kept, self._begun = concat_chunks([self._kept, bare]) if self._begun else bare, True

    def forget(self, position: int) -> None:
        """Forget stamps before this position."""
        gone = min(max(0, position - self._from), self._kept.rows)
        self._kept, self._from = _tail(self._kept, gone), self._from + gone

    def of(self, windows: Array) -> tuple[Array | None, ...]:
        """Return per window its largest time (if any), its largest clock, and its last row's place."""
        kept, starts = self._kept, windows * self._spans.advance - self._from
        times = timed = clocks = places = None
        if kept.times is not None:
            assert kept.clocks is not None
            known = kept.times if kept.timed is None else np.where(kept.timed, kept.times, BEGINNING)
            times, clocks = (self._largest(stamp, starts) for stamp in (known, kept.clocks))
            timed = None if kept.timed is None else times > BEGINNING
        if kept.places is not None:
            places = kept.places[starts + self._spans.size - 1]
        return times, timed, clocks, places

    def _largest(self, values: Array, starts: Array) -> Array:
        """Return the maxima of runs of `size` values by van Herk's algorithm."""
        size = self._spans.size
        padded = np.append(values, np.full(-len(values) % size, BEGINNING)).reshape(-1, size)
        ahead = np.maximum.accumulate(padded, axis=1).ravel()
        behind = np.maximum.accumulate(padded[:, ::-1], axis=1)[:, ::-1].ravel()
        whole, ends = np.maximum(starts, 0), starts + size - 1
        largest: Array = np.maximum(behind[whole], ahead[whole + size - 1])
        if len(starts) and starts[0] < 0:  # windows that are not full start with the first row
            largest = np.where(starts < 0, np.maximum.accumulate(values)[ends], largest)
        return largest


def _tail(chunk: Chunk, start: int) -> Chunk:
    stamps = (None if stamp is None else stamp[start:] for stamp in chunk.stamps)
    return Chunk({}, max(0, chunk.rows - start), *stamps)
