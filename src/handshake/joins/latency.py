"""How long results take: from the arrival of their later tuple until they are delivered.

Counted per batch of results, not per row: all results of a batch stem from tuples that came together, or are
taken to have come with the first of them. Buckets are fixed, so histograms of cores and of runs add up.
"""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from handshake.metrics import names

Note = tuple[int, int, float]
"""A core, a number of its results, and when their later tuples came."""

LEAST, PER_DECADE, DECADES = 1e-6, 100, 9
"""Buckets reach from a microsecond to a thousand seconds, each 2.3 % wider than the one before."""
_BOUNDS = tuple(LEAST * 10 ** (k / PER_DECADE) for k in range(PER_DECADE * DECADES + 1))


@dataclass(frozen=True)
class Latency:
    """A histogram at one moment, in seconds. Its figures are worked out when they are asked for."""

    counts: Mapping[int, int] = field(default_factory=dict)
    """Results by the number of their bucket."""
    longest: float = 0.0

    @cached_property
    def results(self) -> int:
        """The number of results."""
        return sum(self.counts.values())

    @property
    def p50(self) -> float:
        """Half of the results took at most this long; the upper bound of a bucket, so never too low."""
        return self._percentiles[0]

    @property
    def p90(self) -> float:
        """90 % of the results took at most this long."""
        return self._percentiles[1]

    @property
    def p99(self) -> float:
        """99 % of the results took at most this long."""
        return self._percentiles[2]

    @cached_property
    def buckets(self) -> tuple[tuple[float, int], ...]:
        """Upper bound and number of results of each bucket that has some; the last bound may be infinite."""
        return tuple((_bound(bucket), count) for bucket, count in sorted(self.counts.items()) if count)

    @cached_property
    def _percentiles(self) -> tuple[float, ...]:
        if not self.buckets:
            return (0.0, 0.0, 0.0)
        seen = tuple(itertools.accumulate(count for _, count in self.buckets))
        places = (bisect_left(seen, share * seen[-1]) for share in (0.5, 0.9, 0.99))
        return tuple(min(self.buckets[place][0], self.longest) for place in places)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values that JSON has; an infinite bound is None."""
        buckets = [[None if math.isinf(bound) else bound, count] for bound, count in self.buckets]
        return {name: getattr(self, name) for name in names("latency")} | {"buckets": buckets}


@dataclass
class Histogram:
    """Numbers of results by how long they took."""

    counts: dict[int, int] = field(default_factory=dict)
    """Results by the number of their bucket; few of the buckets are in use."""
    longest: float = 0.0

    def add(self, seconds: float, count: int) -> None:
        """Count results that took this long."""
        bucket = _bucket(seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.longest = max(self.longest, seconds)

    def figures(self) -> Latency:
        """Return the histogram of this moment."""
        return Latency(self.counts.copy(), self.longest)


def together(latencies: Sequence[Latency]) -> Latency:
    """Return the histogram of several cores together."""
    counts = Counter[int]()
    for latency in latencies:
        counts.update(latency.counts)
    return Latency(counts, max((latency.longest for latency in latencies), default=0.0))


def _bucket(seconds: float) -> int:
    """Return the first bucket whose bound is not below."""
    if seconds <= LEAST:
        return 0
    near = math.ceil(math.log10(seconds / LEAST) * PER_DECADE)
    return min(near, len(_BOUNDS))


def _bound(bucket: int) -> float:
    return _BOUNDS[bucket] if bucket < len(_BOUNDS) else math.inf


class Latencies:
    """Histograms of some cores, written by the thread that delivers results."""

    def __init__(self, cores: int) -> None:
        self.cores = [Histogram() for _ in range(cores)]
        self._noted: list[Note] = []

    def note(self, core: int, rows: int, arrived: float) -> None:
        """Note results of a core that are about to be delivered; their later tuples came at `arrived`."""
        self._noted.append((core, rows, arrived))

    def note_all(self, notes: list[Note]) -> None:
        """Note several results, as `note` does."""
        self._noted += notes

    def time_delivery(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass results on, and record the noted ones as delivered."""
        for batch in results:
            self.record(self.take_notes())
            yield batch

    def take_notes(self) -> list[Note]:
        """Return the notes since the last call."""
        noted, self._noted = self._noted, []
        return noted

    def record(self, notes: list[Note]) -> None:
        """Record that these results are delivered now."""
        now = time.perf_counter()
        for core, rows, arrived in notes:
            self.cores[core].add(now - arrived, rows)

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.cores = [Histogram() for _ in self.cores]

    def figures(self) -> Latency:
        """Return the histogram of all cores together."""
        return together([histogram.figures() for histogram in self.cores])
