"""New rows of a micro-batch: chunks in memory, and the order in which their rows arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.state.blocks import Ranges
from handshake.engines.spark.state.pack import PLACE, PackedChunk
from handshake.joins.driver import add_columns
from handshake.joins.spec import OTHER, OWN

__all__ = ["NewChunk", "arrival_stamps", "turn_stamps"]

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
    own, other = _count_both(side, counts, order, arrived)
    edges = np.cumsum([len(p) for p in places])[:-1]
    return list(zip(np.split(own, edges), np.split(other, edges), strict=True))


def _concatenate(parts: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _count_both(side: Array, counts: Array, order: Array, arrived: Sequence[int]) -> tuple[Array, Array]:
    is_left, is_right = (side[order] == 0) & counts[order], (side[order] == 1) & counts[order]
    lefts = arrived[0] + np.cumsum(is_left) - is_left
    rights = arrived[1] + np.cumsum(is_right) - is_right
    own, other = np.empty(len(side), np.int64), np.empty(len(side), np.int64)
    own[order] = np.where(side[order] == 0, lefts, rights)
    other[order] = np.where(side[order] == 0, rights, lefts)
    return own, other
