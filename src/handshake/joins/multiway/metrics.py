"""What a join of several streams has done and holds, as numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from math import isinf
from typing import Any

from handshake.joins.latency import Latency

__all__ = ["MultiMetrics", "StepMetrics", "StreamMetrics", "WorkerMetrics"]


@dataclass(frozen=True)
class StreamMetrics:
    """One stream: its tuples by fate, and its window."""

    name: str
    rows: int
    late: int
    no_time: int
    unmatchable: int
    """Tuples that conditions on their stream alone have ruled out."""
    window_rows: int
    order: tuple[str, ...]
    """The windows that its tuples go through."""
    shed: int = 0
    """Tuples that were dropped because the join was behind; they are not among `rows`."""

    @property
    def shed_share(self) -> float:
        """The share of the stream that was shed."""
        return self.shed / (self.rows + self.shed) if self.shed else 0.0


@dataclass(frozen=True)
class StepMetrics:
    """Combinations of `joined` that went into the window of `target`, and how many came out."""

    joined: tuple[str, ...]
    target: str
    method: str
    probed: int
    comparisons: int
    found: int


@dataclass(frozen=True)
class WorkerMetrics:
    """One core's share."""

    results: int
    comparisons: int
    batches: int
    deepest_queue: int = 0
    """The most batches that have waited for this core."""


@dataclass(frozen=True)
class MultiMetrics:
    """What a join of several streams has done and holds."""

    streams: tuple[StreamMetrics, ...]
    steps: tuple[StepMetrics, ...]
    results: int
    late: int
    no_time: int
    comparisons: int
    expired: int
    """Tuples that have left a window; one that is held in two ways counts twice."""
    basic_windows: int
    state_bytes: int
    replans: int
    """How often a join order was changed for a better one."""
    elapsed: float
    """Seconds spent in the engine."""
    cores: tuple[WorkerMetrics, ...] = ()
    latency: Latency = field(default_factory=Latency)
    algorithm: str = "mjoin"
    core_counts: tuple[tuple[float, int], ...] = ()
    """Under adaptation: how many cores there were, and since how many seconds after the start."""
    waiting_rows: int = 0
    most_waiting_rows: int = 0
    """Tuples that wait before the join, where they may, and the most that have."""

    @property
    def rows(self) -> int:
        """Tuples of all streams."""
        return sum(stream.rows for stream in self.streams)

    @property
    def shed(self) -> int:
        """Tuples of all streams that were shed."""
        return sum(stream.shed for stream in self.streams)

    @property
    def load_imbalance(self) -> float:
        """The busiest core's comparisons over the mean; 1 is even."""
        loads = [core.comparisons for core in self.cores]
        return max(loads) * len(loads) / sum(loads) if any(loads) else 1.0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON has; infinite bounds are None."""
        figures = asdict(self)
        buckets = [[None if isinf(bound) else bound, count] for bound, count in self.latency.buckets]
        figures["latency"]["buckets"] = buckets
        for stream, one in zip(figures["streams"], self.streams, strict=True):
            stream["shed_share"] = one.shed_share
        return figures | {"load_imbalance": self.load_imbalance, "shed": self.shed}
