"""How long results take: from the arrival of their later tuple until they are delivered.

Counted per batch of results, not per row: all results of a batch stem from tuples that came together, or are
taken to have come with the first of them. Buckets are fixed, so histograms of cores and of runs add up.
"""

from __future__ import annotations

import itertools
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

__all__ = ["Histogram", "Latencies", "Latency", "Note"]

Note = tuple[int, int, float]
"""A core, a number of its results, and when their later tuples came."""

LEAST, PER_DECADE, DECADES = 1e-6, 100, 9
"""Buckets reach from a microsecond to a thousand seconds, each 2.3 % wider than the one before."""
_BOUNDS = tuple(LEAST * 10 ** (k / PER_DECADE) for k in range(PER_DECADE * DECADES + 1))


@dataclass(frozen=True)
class Latency:
    """A histogram in figures, in seconds. A percentile is the upper bound of its bucket, so never too low."""

    results: int = 0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    longest: float = 0.0
    buckets: tuple[tuple[float, int], ...] = ()
    """Upper bound and number of results of each bucket that has some; the last bound may be infinite."""


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
        """Return the percentiles and the buckets that are not empty."""
        held = sorted(pair for pair in self.counts.copy().items() if pair[1])
        if not held:
            return Latency()
        seen = tuple(itertools.accumulate(count for _, count in held))
        p50, p90, p99 = (
            min(_bound(held[bisect_left(seen, share * seen[-1])][0]), self.longest)
            for share in (0.5, 0.9, 0.99)
        )
        buckets = tuple((_bound(bucket), count) for bucket, count in held)
        return Latency(seen[-1], p50, p90, p99, self.longest, buckets)


def together(histograms: Sequence[Histogram]) -> Histogram:
    """Add histograms up."""
    counts: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.counts.copy().items():
            counts[bucket] = counts.get(bucket, 0) + count
    return Histogram(counts, max((h.longest for h in histograms), default=0.0))


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

    def merge(self) -> Histogram:
        """Add up the histograms of all cores."""
        return together(self.cores)
