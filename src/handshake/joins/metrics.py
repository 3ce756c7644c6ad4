"""The figures of a join: what it has done, and what it holds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isinf
from typing import Any

import pyarrow as pa

from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, StreamDriver
from handshake.joins.latency import Latencies, Latency

__all__ = [
    "CoreMetrics",
    "Metrics",
    "MultiMetrics",
    "StepMetrics",
    "Stopwatch",
    "StreamMetrics",
    "collect_metrics",
    "with_latency",
]


@dataclass(frozen=True)
class StreamMetrics:
    """One stream: its rows by what became of them, and its window."""

    name: str
    rows: int
    """Rows taken in; shed ones are not among them."""
    late: int
    no_time: int
    unmatchable: int
    """Rows that can match nothing; they are not stored."""
    window_rows: int = 0
    order: tuple[str, ...] = ()
    """With more than two streams: the windows that its rows go through."""
    shed: int = 0
    """Rows that were dropped because the join was behind (`overload="shed"`)."""

    @property
    def shed_share(self) -> float:
        """The share of the stream that was shed."""
        return self.shed / (self.rows + self.shed) if self.shed else 0.0


@dataclass(frozen=True)
class StepMetrics:
    """One step of a join order: combinations of `joined` that probed the window of `target`."""

    joined: tuple[str, ...]
    target: str
    method: str
    probed: int
    comparisons: int
    found: int


@dataclass(frozen=True)
class CoreMetrics:
    """One core's share."""

    results: int
    comparisons: int
    left_window_rows: int = 0
    right_window_rows: int = 0
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
    """The most batches of results that have waited."""
    held_back: int = 0
    """How often the core had to wait for the caller to take results."""
    latency: Latency = field(default_factory=Latency)


@dataclass(frozen=True)
class Metrics:
    """The figures of a join of two streams."""

    streams: tuple[StreamMetrics, ...]
    results: int
    comparisons: int
    basic_windows: int
    state_bytes: int
    expired: int
    """Rows that have left a window; a row that is held in two ways counts twice."""
    elapsed: float
    """Seconds spent in the engine."""
    algorithm: str
    cores: tuple[CoreMetrics, ...]
    skipped: int = 0
    """Basic windows that no probe had to search."""
    waiting_rows: int = 0
    """Rows that wait at the gate now, if there is one."""
    most_waiting_rows: int = 0
    latency: Latency = field(default_factory=Latency)
    core_counts: tuple[tuple[float, int], ...] = ()
    """With `adapt`: seconds since the start, and the number of cores from then on."""
    steps: tuple[StepMetrics, ...] = ()
    replans: int = 0
    """How often a join order was changed for a better one."""

    @property
    def rows(self) -> int:
        """Rows of all streams."""
        return sum(stream.rows for stream in self.streams)

    @property
    def late(self) -> int:
        """Late rows of all streams."""
        return sum(stream.late for stream in self.streams)

    @property
    def no_time(self) -> int:
        """Rows of all streams that had no time."""
        return sum(stream.no_time for stream in self.streams)

    @property
    def unmatchable(self) -> int:
        """Rows of all streams that can match nothing."""
        return sum(stream.unmatchable for stream in self.streams)

    @property
    def shed(self) -> int:
        """Rows of all streams that were shed."""
        return sum(stream.shed for stream in self.streams)

    @property
    def left_rows(self) -> int:
        """Rows of the first stream."""
        return self.streams[0].rows

    @property
    def right_rows(self) -> int:
        """Rows of the second stream."""
        return self.streams[1].rows

    @property
    def left_late(self) -> int:
        """Late rows of the first stream."""
        return self.streams[0].late

    @property
    def right_late(self) -> int:
        """Late rows of the second stream."""
        return self.streams[1].late

    @property
    def left_shed(self) -> int:
        """Shed rows of the first stream."""
        return self.streams[0].shed

    @property
    def right_shed(self) -> int:
        """Shed rows of the second stream."""
        return self.streams[1].shed

    @property
    def left_window_rows(self) -> int:
        """Rows in the window of the first stream."""
        return self.streams[0].window_rows

    @property
    def right_window_rows(self) -> int:
        """Rows in the window of the second stream."""
        return self.streams[1].window_rows

    @property
    def shed_shares(self) -> tuple[float, ...]:
        """The share of each stream that was shed."""
        return tuple(stream.shed_share for stream in self.streams)

    @property
    def imbalance(self) -> float:
        """The largest core's share of the window rows over the mean share; 1 is even."""
        return _uneven([core.left_window_rows + core.right_window_rows for core in self.cores])

    @property
    def load_imbalance(self) -> float:
        """The busiest core's comparisons over the mean; 1 is even."""
        return _uneven([core.comparisons for core in self.cores])

    def with_windows(self, rows: Iterable[int]) -> Metrics:
        """Return these figures with the numbers of rows that the windows hold."""
        pairs = zip(self.streams, rows, strict=True)
        return replace(self, streams=tuple(replace(stream, window_rows=held) for stream, held in pairs))

    def with_gate(self, shed: Iterable[int], waiting: int, most_waiting: int) -> Metrics:
        """Return these figures with those of the gate before the join."""
        pairs = zip(self.streams, shed, strict=True)
        streams = tuple(replace(stream, shed=rows) for stream, rows in pairs)
        return replace(self, streams=streams, waiting_rows=waiting, most_waiting_rows=most_waiting)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values that JSON has; infinite bounds are None."""
        figures = _plain(self)
        for name in ("streams", "steps", "replans"):
            del figures[name]
        for name in _OF_BOTH:
            figures[name] = getattr(self, name)
        left, right = self.shed_shares
        return figures | {"left_shed_share": left, "right_shed_share": right}


_OF_BOTH = (
    "left_rows", "right_rows", "late", "left_late", "right_late", "no_time", "unmatchable", "left_shed",
    "right_shed", "left_window_rows", "right_window_rows", "imbalance", "load_imbalance",
)  # fmt: skip


class MultiMetrics(Metrics):
    """The figures of a join of several named streams; `to_dict` has a report per stream and step."""

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values that JSON has; infinite bounds are None."""
        figures = _plain(self)
        del figures["skipped"]
        for stream, one in zip(figures["streams"], self.streams, strict=True):
            stream["shed_share"] = one.shed_share
        kept = ("results", "comparisons", "batches", "deepest_queue")
        figures["cores"] = [{name: core[name] for name in kept} for core in figures["cores"]]
        return figures | {
            "late": self.late, "no_time": self.no_time, "shed": self.shed,
            "load_imbalance": self.load_imbalance,
        }  # fmt: skip


def _plain(metrics: Metrics) -> dict[str, Any]:
    figures = asdict(metrics)
    for latency in (figures["latency"], *(core["latency"] for core in figures["cores"])):
        latency["buckets"] = [[None if isinf(b) else b, count] for b, count in latency["buckets"]]
    return figures


def _uneven(loads: Sequence[int]) -> float:
    return max(loads) * len(loads) / sum(loads) if any(loads) else 1.0


@dataclass
class Stopwatch:
    """The seconds that a join works, without the pauses of an idle join or of its caller."""

    began: float | None = None
    past: float = 0.0

    def start(self) -> None:
        """Start, unless the watch runs already."""
        if self.began is None:
            self.began = time.perf_counter()

    def stop(self) -> None:
        """Stop until the next start."""
        self.past, self.began = self.seconds, None

    def time(self, results: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass results on; the watch runs while they are made, not while the caller uses them."""
        while True:
            self.start()
            try:
                batch = next(results, None)
            finally:
                self.stop()
            if batch is None:
                return
            yield batch

    @property
    def seconds(self) -> float:
        """The seconds measured so far."""
        return self.past + (time.perf_counter() - self.began if self.began is not None else 0.0)


def stream_metrics(driver: StreamDriver, names: Sequence[str]) -> tuple[StreamMetrics, ...]:
    """Return the counts of each stream."""
    pairs = zip(names, driver.counts, strict=True)
    return tuple(StreamMetrics(name, c.rows, c.late, c.no_time, c.unmatchable) for name, c in pairs)


def collect_metrics(
    driver: Driver, cores: list[JoinCore], algorithm: str, expired: int, elapsed: float
) -> Metrics:
    """Return the figures of an arrangement whose windows are in its cores' segments."""
    sides = [[core.segments[side] for core in cores] for side in (0, 1)]
    segments = [segment for side in sides for segment in side]
    figures = Metrics(
        stream_metrics(driver, [side.name for side in driver.spec.sides]),
        results=sum(c.results for c in cores),
        comparisons=sum(c.comparisons for c in cores),
        basic_windows=sum(len(segment.windows) for segment in segments),
        state_bytes=sum(segment.nbytes for segment in segments),
        expired=expired,
        elapsed=elapsed,
        algorithm=algorithm,
        cores=tuple(
            CoreMetrics(c.results, c.comparisons, c.segments[0].rows, c.segments[1].rows, c.batches)
            for c in cores
        ),
        skipped=sum(c.skipped for c in cores),
    )
    return figures.with_windows(sum(segment.rows for segment in side) for side in sides)


def with_latency(figures: Metrics, latencies: Latencies) -> Metrics:
    """Add how long results took, of all cores together and of each."""
    cores = tuple(
        replace(core, latency=histogram.figures())
        for core, histogram in zip(figures.cores, latencies.cores, strict=True)
    )
    return replace(figures, cores=cores, latency=latencies.merge().figures())
