"""Places of rows in whole inputs that are replayed as streams, by which windows of tuples count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.joins.driver import times_of

Array = np.ndarray[Any, Any]
_LAST = np.iinfo(np.int64).max


class Stream(NamedTuple):
    """A whole input that is replayed."""

    rows: pa.Table
    time: str | None
    """The time column; without one, streams take turns."""
    name: str


class _Arrivals(NamedTuple):
    """When the rows of a stream arrive."""

    times: Array
    arrives: Array
    """Which rows arrive: those without a time do not, under windows of time."""


def places_of(
    streams: Sequence[Stream], numbers: Sequence[int], unit: str, *, timed: bool
) -> list[list[int]]:
    """Return, for a row of each stream, how many rows of each stream come before it.

    Args:
        streams: The streams.
        numbers: The number of the row of each stream.
        unit: The unit of times.
        timed: Whether a window needs times.
    """
    arrivals = [_arrivals(stream, unit, timed=timed) for stream in streams]
    return [
        [_count_before(arrivals, k, number, j) for j in range(len(streams))]
        for k, number in enumerate(numbers)
    ]


def _arrivals(stream: Stream, unit: str, *, timed: bool) -> _Arrivals:
    rows = stream.rows.num_rows
    if stream.time is None:
        return _Arrivals(np.arange(rows), np.ones(rows, np.bool_))
    column = stream.rows.column(stream.time).combine_chunks()
    times, valid = times_of(column, unit, stream.time, stream.name)
    if valid is None:
        return _Arrivals(times, np.ones(len(times), np.bool_))
    # rows without a time come last, or never
    return _Arrivals(np.where(valid, times, _LAST), valid if timed else np.ones(len(times), np.bool_))


def _count_before(arrivals: Sequence[_Arrivals], k: int, number: int, j: int) -> int:
    """Count the rows of stream `j` before a row of stream `k`; of ties, the first stream is first."""
    at, other = arrivals[k].times[number], arrivals[j]
    if k == j:
        before = (other.times < at) | ((other.times == at) & (np.arange(len(other.times)) < number))
    else:
        before = other.times <= at if j < k else other.times < at
    return int((before & other.arrives).sum())
