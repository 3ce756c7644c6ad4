"""The figures of a join: what it has done, and what it holds.

`handshake.metrics.REPORTS` lists the figures of each report, what they mean and how those of parts combine.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from handshake.html import card
from handshake.joins.core import JoinCore
from handshake.joins.driver import Driver, StreamDriver
from handshake.joins.latency import Latencies, Latency, together
from handshake.joins.segment import Segment
from handshake.metrics import metric, names
from handshake.metrics.snapshot import uneven


@dataclass(frozen=True)
class StreamMetrics:
    """One stream: its rows by what became of them, and its window."""

    name: str
    rows: int
    late: int
    no_time: int
    unmatchable: int
    window_rows: int = 0
    order: tuple[str, ...] = ()
    shed: int = 0

    @property
    def shed_share(self) -> float:
        """The share of the stream that was shed."""
        return self.shed / (self.rows + self.shed) if self.shed else 0.0


N = TypeVar("N", int, float)


class _StreamFigure(Generic[N]):
    """A figure of one stream of a join, or of all of them together, as an attribute of `Metrics`."""

    def __init__(self, name: str, stream: int | None = None) -> None:
        self._metric, self._stream = metric("stream", name), stream
        self.__doc__ = self._metric.help

    def __get__(self, metrics: Metrics, owner: type[Metrics]) -> N:
        streams = metrics.streams if self._stream is None else [metrics.streams[self._stream]]
        figure: N = self._metric.combine([getattr(stream, self._metric.name) for stream in streams])
        return figure


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
    acknowledged: int = 0
    deepest_queue: int = 0
    queue: int = 0
    results_waiting: int = 0
    deepest_results: int = 0
    held_back: int = 0
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
    elapsed: float
    algorithm: str
    cores: tuple[CoreMetrics, ...]
    skipped: int = 0
    waiting_rows: int = 0
    most_waiting_rows: int = 0
    latency: Latency = field(default_factory=Latency)
    core_counts: tuple[tuple[float, int], ...] = ()
    steps: tuple[StepMetrics, ...] = ()
    replans: int = 0
    matched: int = 0
    unmatched: int = 0
    pending: int = 0
    finalised: int = 0

    rows = _StreamFigure[int]("rows")
    late = _StreamFigure[int]("late")
    no_time = _StreamFigure[int]("no_time")
    unmatchable = _StreamFigure[int]("unmatchable")
    shed = _StreamFigure[int]("shed")
    left_rows, right_rows = _StreamFigure[int]("rows", 0), _StreamFigure[int]("rows", 1)
    left_late, right_late = _StreamFigure[int]("late", 0), _StreamFigure[int]("late", 1)
    left_shed, right_shed = _StreamFigure[int]("shed", 0), _StreamFigure[int]("shed", 1)
    left_shed_share = _StreamFigure[float]("shed_share", 0)
    right_shed_share = _StreamFigure[float]("shed_share", 1)
    left_window_rows = _StreamFigure[int]("window_rows", 0)
    right_window_rows = _StreamFigure[int]("window_rows", 1)

    @property
    def shed_shares(self) -> tuple[float, ...]:
        """The share of each stream that was shed."""
        return tuple(stream.shed_share for stream in self.streams)

    @property
    def imbalance(self) -> float:
        """The largest core's share of the window rows over the mean share; 1 is even."""
        return uneven([core.left_window_rows + core.right_window_rows for core in self.cores])

    @property
    def load_imbalance(self) -> float:
        """The busiest core's comparisons over the mean; 1 is even."""
        return uneven([core.comparisons for core in self.cores])

    def with_windows(self, rows: Iterable[int]) -> Metrics:
        """Return these figures with the numbers of rows that the windows hold."""
        pairs = zip(self.streams, rows, strict=True)
        return replace(self, streams=tuple(replace(stream, window_rows=held) for stream, held in pairs))

    def with_gate(self, shed: Iterable[int], waiting: int, most_waiting: int) -> Metrics:
        """Return these figures with those of the gate before the join."""
        pairs = zip(self.streams, shed, strict=True)
        streams = tuple(replace(stream, shed=rows) for stream, rows in pairs)
        return replace(self, streams=streams, waiting_rows=waiting, most_waiting_rows=most_waiting)

    def facts(self) -> list[tuple[str, object]]:
        """Return the main figures, for people."""
        streams: list[tuple[str, object]] = [
            (s.name, f"{s.rows:,} rows, {s.window_rows:,} in the window, {s.late:,} late" + _shed_text(s))
            for s in self.streams
        ]
        latency = f"p50 {1e3 * self.latency.p50:,.1f} ms, p99 {1e3 * self.latency.p99:,.1f} ms"
        timed = [("latency", latency)] if self.latency.results else []
        return [
            *streams, ("results", self.results), *timed, ("state", f"{self.state_bytes / 1e6:,.1f} MB"),
            ("cores", f"{len(self.cores)}, {self.algorithm}"),
        ]  # fmt: skip

    def _repr_html_(self) -> str:
        return card("Figures of a join", self.facts())

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values that JSON has; infinite bounds are None."""
        return _report(self, "join")


class MultiMetrics(Metrics):
    """The figures of a join of several named streams; `to_dict` has a report per stream and step."""

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values that JSON has; infinite bounds are None."""
        kept = ("results", "comparisons", "batches", "deepest_queue")
        figures = _report(self, "multijoin")
        figures["streams"] = [{name: getattr(s, name) for name in names("stream")} for s in self.streams]
        figures["cores"] = [{name: core[name] for name in kept} for core in figures["cores"]]
        return figures


def _shed_text(stream: StreamMetrics) -> str:
    return f", {stream.shed:,} shed" if stream.shed else ""


def _report(metrics: Metrics, report: str) -> dict[str, Any]:
    held = asdict(metrics)
    held["latency"] = metrics.latency.to_dict()
    for plain, core in zip(held["cores"], metrics.cores, strict=True):
        plain["latency"] = core.latency.to_dict()
    return {name: held[name] if name in held else getattr(metrics, name) for name in names(report)}


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
        if self.began is not None:
            self.past, self.began = self.past + time.perf_counter() - self.began, None

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
        past, began = self.past, self.began  # another thread may stop the watch now
        return past + (time.perf_counter() - began if began is not None else 0.0)


def stream_metrics(driver: StreamDriver, windows: Iterable[int]) -> tuple[StreamMetrics, ...]:
    """Return the counts of each stream, and the rows in its window."""
    held = zip(driver.streams, driver.counts, windows, strict=True)
    return tuple(
        StreamMetrics(stream.name, c.rows, c.late, c.no_time, c.unmatchable, rows) for stream, c, rows in held
    )


def collect_metrics(
    driver: Driver, cores: list[JoinCore], windows: tuple[list[Segment], list[Segment]], algorithm: str,
    expired: int, elapsed: float,
) -> Metrics:  # fmt: skip
    """Return the figures of an arrangement; `windows` are the segments that hold the window of each side."""
    segments = [*windows[0], *windows[1]]
    return Metrics(
        stream_metrics(driver, [sum(segment.rows for segment in side) for side in windows]),
        basic_windows=sum(len(segment.windows) for segment in segments),
        state_bytes=sum(segment.nbytes for segment in segments),
        expired=expired,
        elapsed=elapsed,
        algorithm=algorithm,
        cores=tuple(
            CoreMetrics(
                core.results, core.comparisons, core.segments[0].rows, core.segments[1].rows, core.batches
            )
            for core in cores
        ),
        results=sum(core.results for core in cores),
        comparisons=sum(core.comparisons for core in cores),
        skipped=sum(core.skipped for core in cores),
    )


def with_matches(figures: Metrics, driver: Driver) -> Metrics:
    """Add the rows with and without a match, of which results of semi and anti joins consist."""
    held = [tracked.states for tracked in driver.tracked if tracked is not None]
    if not held:
        return figures
    matched, pending = sum(s.matched for s in held), sum(s.pending for s in held)
    unmatched = sum(s.unmatched for s in held) if driver.spec.kind.preserves else 0
    finalised = matched + sum(s.unmatched for s in held)
    found = figures.results
    pairs = {"all": found, "first": matched, "best": found, "none": 0}[driver.spec.kind.pairs]
    return replace(
        figures, matched=matched, unmatched=unmatched, pending=pending, finalised=finalised,
        results=pairs + unmatched, state_bytes=figures.state_bytes + sum(s.nbytes for s in held),
    )  # fmt: skip


def with_latency(figures: Metrics, latencies: Latencies) -> Metrics:
    """Add how long results took, of all cores together and of each."""
    cores = tuple(
        replace(core, latency=histogram.figures())
        for core, histogram in zip(figures.cores, latencies.cores, strict=True)
    )
    return replace(figures, cores=cores, latency=together([core.latency for core in cores]))
