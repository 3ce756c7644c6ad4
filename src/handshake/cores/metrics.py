"""What a join has done and holds, as numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from handshake.cores.core import JoinCore
from handshake.cores.driver import Driver

__all__ = ["CoreMetrics", "Metrics", "Stopwatch", "gathered"]


@dataclass(frozen=True)
class CoreMetrics:
    """One core's share."""

    results: int
    comparisons: int
    left_window_rows: int
    right_window_rows: int
    batches: int = 0
    forwarded: int = 0
    """Batches passed on to a neighbour, or to the driver at the far end."""
    acknowledged: int = 0
    """Acknowledgements that made this core drop a batch it had forwarded."""
    deepest_queue: int = 0
    """The most messages that have waited for this core in one queue."""


@dataclass(frozen=True)
class Metrics:
    """What a join has done and holds."""

    left_rows: int
    right_rows: int
    results: int
    late: int
    no_time: int
    unmatchable: int
    comparisons: int
    skipped: int
    left_window_rows: int
    right_window_rows: int
    basic_windows: int
    state_bytes: int
    expired: int
    elapsed: float
    """Seconds spent in the engine."""
    algorithm: str = "three_step"
    cores: tuple[CoreMetrics, ...] = ()

    @property
    def imbalance(self) -> float:
        """The largest core's share of the window tuples over the mean share; 1 is even."""
        held = [core.left_window_rows + core.right_window_rows for core in self.cores]
        return max(held) * len(held) / sum(held) if any(held) else 1.0


@dataclass
class Stopwatch:
    """Seconds between the first push and the end of a drain, pauses of an idle join left out."""

    began: float | None = None
    past: float = 0.0

    def start(self) -> None:
        """Go, unless it runs already."""
        if self.began is None:
            self.began = time.perf_counter()

    def stop(self) -> None:
        """Stand still until the next start."""
        self.past, self.began = self.seconds, None

    @property
    def seconds(self) -> float:
        """So far."""
        return self.past + (time.perf_counter() - self.began if self.began is not None else 0.0)


def gathered(driver: Driver, cores: list[JoinCore], algorithm: str, expired: int, elapsed: float) -> Metrics:
    """The figures of an arrangement whose windows are in its cores' segments."""
    left, right = driver.counts
    a, b = ([core.segments[side] for core in cores] for side in (0, 1))
    return Metrics(
        left_rows=left.rows, right_rows=right.rows, results=sum(c.results for c in cores),
        late=left.late + right.late, no_time=left.no_time + right.no_time,
        unmatchable=left.unmatchable + right.unmatchable,
        comparisons=sum(c.comparisons for c in cores), skipped=sum(c.skipped for c in cores),
        left_window_rows=sum(s.rows for s in a), right_window_rows=sum(s.rows for s in b),
        basic_windows=sum(len(s.windows) for s in (*a, *b)), state_bytes=sum(s.nbytes for s in (*a, *b)),
        expired=expired, elapsed=elapsed, algorithm=algorithm,
        cores=tuple(
            CoreMetrics(c.results, c.comparisons, c.segments[0].rows, c.segments[1].rows, c.batches)
            for c in cores
        ),
    )  # fmt: skip
