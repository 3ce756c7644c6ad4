"""New rows of a micro-batch: what a segment reads of them, and the order in which they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.routing import home_rows, visit_ranges
from handshake.engines.spark.state.blocks import Ranges
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PLACE, PackedChunk
from handshake.engines.spark.state.store import Chunks
from handshake.joins.driver import add_columns, lies_ready, stored_column
from handshake.joins.spec import OTHER, OWN, TIME
from handshake.kernels.columns import integers
from handshake.windows import is_late

Array = np.ndarray[Any, Any]


@dataclass
class NewChunk:
    """A chunk of new tuples in memory, with their stamps."""

    arrival: PackedChunk
    batch: pa.RecordBatch
    """The rows that were read."""
    ranges: Ranges
    """Which rows of the chunk they are."""
    admitted: Array | None
    """A mask of tuples that are not late; None if no tuple is late."""
    read_bytes: int
    """The bytes that were read."""
    counts: tuple[Array, Array] | None = None
    spare: tuple[str, ...] = ()
    """Hidden columns that only the order of arrival needs."""

    def rows(self, start: int, stop: int) -> tuple[pa.RecordBatch, int]:
        """Return the stamped tuples of a range that are not late, and the number of late tuples."""
        mine = self.place(start, stop)
        batch, length = self.batch.slice(mine.start, stop - start), stop - start
        if self.counts is not None:
            own, other = (pa.array(c[mine]) for c in self.counts)
            kept = [name for name in batch.schema.names if name not in (PLACE, *self.spare)]
            batch = add_columns(batch.select(kept), {OWN: own, OTHER: other})
        if self.admitted is None:
            return batch, 0
        mask = self.admitted[mine]
        return batch.filter(pa.array(mask)), length - int(mask.sum())

    def place(self, start: int, stop: int) -> slice:
        """Return where a range of the chunk's rows is in the batch."""
        before = 0
        for first, last in self.ranges:
            if first <= start and stop <= last:
                return slice(before + start - first, before + stop - first)
            before += last - first
        if start < stop:
            raise AssertionError(f"rows {start} to {stop} of a chunk were not read")
        return slice(0, 0)


class Loader:
    """The reading of new tuples by a segment: those whose home it is, and those that may have matches in it.

    Args:
        definition: The join.
        segment: The number of the segment.
        manifest: Its next manifest, with the cuts of this micro-batch.
        store: Where chunks are.
    """

    def __init__(self, definition: Definition, segment: int, manifest: Manifest, store: Chunks) -> None:
        self._definition, self._segment = definition, segment
        self._manifest, self._store = manifest, store
        self._spec = definition.spec

    def home(self, arrival: PackedChunk) -> tuple[int, int]:
        """Return the range of a chunk's tuples whose home is this segment."""
        span = self._manifest.router.home.span(self._segment)
        return home_rows(arrival.offsets, span, arrival.seed)

    def visits(self, arrival: PackedChunk) -> Ranges:
        """Return the ranges of a chunk's tuples that may have matches in this segment."""
        routing, router = self._definition.routing, self._manifest.router
        return visit_ranges(arrival.offsets, router, routing, self._segment)

    def load(self, arrivals: Sequence[PackedChunk]) -> list[NewChunk]:
        """Read the tuples that this segment needs, all files at the same time."""
        counted = self._spec.windows.counted
        whole = counted and not self._takes_turns  # a stamp depends on the times of all tuples
        reads = [
            arrival.rows(self._store, None if whole else [self.home(arrival), *self.visits(arrival)])
            for arrival in arrivals
        ]
        loaded = []
        for read in reads:
            chunk = NewChunk(read.chunk, read.batch(), read.ranges, None, read.bytes)
            mark = self._manifest.watermark
            if mark is not None and self._spec.windows.timed and is_late(read.chunk.oldest, mark):
                chunk.admitted = ~is_late(self._times(chunk), mark)
            loaded.append(chunk)
        if counted and loaded:
            self._stamp(arrivals, loaded)
        return loaded

    @property
    def _takes_turns(self) -> bool:
        """True if windows count tuples that have no times."""
        return self._spec.windows.counted and any(side.time is None for side in self._spec.sides)

    def _stamp(self, arrivals: Sequence[PackedChunk], loaded: list[NewChunk]) -> None:
        """Stamp tuples for windows that count them."""
        places = [integers(chunk.batch.column(PLACE)) for chunk in loaded]
        if self._takes_turns:
            new = [chunk.arrival.ref.rows for chunk in loaded]
            stamps = turn_stamps(arrivals, places, self._manifest.arrived)
        else:
            masks = [
                np.ones(chunk.batch.num_rows, np.bool_) if chunk.admitted is None else chunk.admitted
                for chunk in loaded
            ]
            new = [int(mask.sum()) for mask in masks]
            sides, times = [chunk.arrival.side for chunk in loaded], list(map(self._times, loaded))
            stamps = arrival_stamps(sides, times, places, masks, self._manifest.arrived)
        for chunk, rows, mine in zip(loaded, new, stamps, strict=True):
            chunk.counts, chunk.spare = mine, self._spare(chunk)
            self._manifest.arrived[chunk.arrival.side] += rows

    def _times(self, chunk: NewChunk) -> Array:
        spec = self._spec.sides[chunk.arrival.side]
        return integers(stored_column(chunk.batch, spec, TIME))

    def _spare(self, chunk: NewChunk) -> tuple[str, ...]:
        """Return the names of time columns that only replace missing times; results do not need them."""
        name, schema = self._spec.sides[chunk.arrival.side].time, chunk.batch.schema
        if name is None or self._spec.windows.timed or TIME not in schema.names:
            return ()
        return (TIME,) if lies_ready(schema.field(name).type, self._spec.unit) else ()


def turn_stamps(
    arrivals: Sequence[PackedChunk], places: Sequence[Array], arrived: Sequence[int]
) -> list[tuple[Array, Array]]:
    """Return the (own, other) counts of tuples without times: left and right take turns in source order.

    They follow from the tuple's place and the number of tuples in each chunk, so a segment needs its own
    tuples only.

    Args:
        arrivals: All chunks of the micro-batch, in source order.
        places: The places of tuples of each chunk in their partition.
        arrived: The number of tuples of each side before this micro-batch.
    """
    rows = dict.fromkeys(((a.side, a.partition) for a in arrivals), 0)
    for arrival in arrivals:
        rows[arrival.side, arrival.partition] += arrival.ref.rows
    new = [sum(count for (side, _), count in rows.items() if side == each) for each in (0, 1)]
    stamps = []
    for arrival, place in zip(arrivals, places, strict=True):
        side = arrival.side
        earlier = [count for (s, p), count in rows.items() if s == side and p < arrival.partition]
        rank = place.astype(np.int64) + sum(earlier)
        # a left tuple comes before the right one of the same rank
        stamps.append((arrived[side] + rank, arrived[1 - side] + np.minimum(rank + side, new[1 - side])))
    return stamps


def arrival_stamps(
    sides: Sequence[int], times: Sequence[Array], places: Sequence[Array], admitted: Sequence[Array],
    arrived: Sequence[int],
) -> list[tuple[Array, Array]]:  # fmt: skip
    """Return the (own, other) counts of tuples with times, for windows that count tuples.

    Tuples arrive by event time, ties left first, then in source order. Every segment computes the same stamps
    from all tuples of the micro-batch.

    Args:
        sides: The side of each chunk; chunks are in source order.
        times: The times of each chunk's tuples.
        places: The places of each chunk's tuples in their partition.
        admitted: Masks of tuples that are not late; only they count.
        arrived: The number of tuples of each side before this micro-batch.
    """
    chunk = np.repeat(np.arange(len(sides)), [len(p) for p in places])
    side = np.asarray(sides, np.int64)[chunk] if len(chunk) else np.empty(0, np.int64)
    counts = _concatenate(admitted, np.bool_)
    source = np.lexsort((_concatenate(places, np.int64), chunk))
    when = _concatenate(times, np.int64)[source]
    order = source[np.lexsort((side[source], when))]
    is_left, is_right = (side[order] == 0) & counts[order], (side[order] == 1) & counts[order]
    lefts = arrived[0] + np.cumsum(is_left) - is_left
    rights = arrived[1] + np.cumsum(is_right) - is_right
    own, other = np.empty(len(side), np.int64), np.empty(len(side), np.int64)
    own[order] = np.where(side[order] == 0, lefts, rights)
    other[order] = np.where(side[order] == 0, rights, lefts)
    edges = np.cumsum([len(p) for p in places])[:-1]
    return list(zip(np.split(own, edges), np.split(other, edges), strict=True))


def _concatenate(parts: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)
