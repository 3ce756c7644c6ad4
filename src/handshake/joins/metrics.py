"""What a join has done and holds, as numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isinf
from typing import Any

from handshake.joins.arrangements.channels import Channel
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver
from handshake.joins.latency import Latencies, Latency

__all__ = ["CoreMetrics", "Metrics", "Stopwatch", "gathered", "with_crew", "with_latency"]


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
    queue: int = 0
    """Messages that wait for it now."""
    results_waiting: int = 0
    """Batches of results that wait for the caller now."""
    deepest_results: int = 0
    """The most that have."""
    held_back: int = 0
    """How often the core had to wait for the caller to take results."""
    latency: Latency = field(default_factory=Latency)


@dataclass(frozen=True)
class Metrics:
    """What a join has done and holds."""

    left_rows: int
    """Tuples taken in; those shed are not among them."""
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
    left_late: int = 0
    right_late: int = 0
    left_shed: int = 0
    """Tuples dropped because the engine was behind (`overload="shed"`)."""
    right_shed: int = 0
    waiting_rows: int = 0
    """Tuples that wait at the gate now, where there is one."""
    most_waiting_rows: int = 0
    latency: Latency = field(default_factory=Latency)
    core_counts: tuple[tuple[float, int], ...] = ()
    """Under adaptation: seconds since the start, and the number of cores from then on."""

    @property
    def imbalance(self) -> float:
        """The largest core's share of the window tuples over the mean share; 1 is even."""
        return _uneven([core.left_window_rows + core.right_window_rows for core in self.cores])

    @property
    def load_imbalance(self) -> float:
        """The busiest core's comparisons over the mean; 1 is even."""
        return _uneven([core.comparisons for core in self.cores])

    @property
    def shed_shares(self) -> tuple[float, float]:
        """The share of each side's tuples that were shed."""
        pairs = ((self.left_rows, self.left_shed), (self.right_rows, self.right_shed))
        left, right = (shed / (rows + shed) if shed else 0.0 for rows, shed in pairs)
        return left, right

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON has; infinite bounds are None."""
        figures = asdict(self)
        for latency in (figures["latency"], *(core["latency"] for core in figures["cores"])):
            latency["buckets"] = [[None if isinf(b) else b, count] for b, count in latency["buckets"]]
        left, right = self.shed_shares
        figures |= {"imbalance": self.imbalance, "load_imbalance": self.load_imbalance}
        return figures | {"left_shed_share": left, "right_shed_share": right}


def _uneven(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / sum(loads) if any(loads) else 1.0


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
        left_late=left.late, right_late=right.late,
    )  # fmt: skip


def with_latency(figures: Metrics, latencies: Latencies) -> Metrics:
    """Add how long results took, of all and of each core."""
    cores = tuple(
        replace(core, latency=histogram.figures())
        for core, histogram in zip(figures.cores, latencies.cores, strict=True)
    )
    return replace(figures, cores=cores, latency=latencies.merged().figures())


def with_crew(
    figures: Metrics, inboxes: Sequence[Channel[Any]], outboxes: Sequence[Channel[Any]], latencies: Latencies
) -> Metrics:
    """Add the queues before and behind each core, and how long results took."""
    cores = tuple(
        replace(
            core, queue=len(inbox), deepest_queue=inbox.deepest, results_waiting=len(outbox),
            deepest_results=outbox.deepest, held_back=outbox.waits,
        )
        for core, inbox, outbox in zip(figures.cores, inboxes, outboxes, strict=True)
    )  # fmt: skip
    return with_latency(replace(figures, cores=cores), latencies)
