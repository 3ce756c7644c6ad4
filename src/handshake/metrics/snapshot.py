"""The figures of one running thing at one moment, in the same form for every engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from handshake.metrics.families import FAMILIES

__all__ = ["Part", "Sample", "Snapshot", "StreamPart", "of_join", "of_query", "of_report", "uneven"]

Sample = tuple[str, dict[str, str], float]
"""The name of a family, its labels, and a value."""
_STREAM_FAMILIES = {
    "rows": "rows", "late_rows": "late", "untimed_rows": "no_time", "unmatchable_rows": "unmatchable",
    "shed_rows": "shed", "window_rows": "window_rows",
}  # fmt: skip


@dataclass(frozen=True)
class StreamPart:
    """One stream: its rows by what became of them. None: the engine does not count that by stream."""

    name: str
    rows: int | None = None
    late: int | None = None
    no_time: int | None = None
    unmatchable: int | None = None
    shed: int | None = None
    window_rows: int | None = None


@dataclass(frozen=True)
class Part:
    """One join core, or one segment on Spark."""

    results: int
    comparisons: int
    window_rows: tuple[int, ...] = ()
    queue: int | None = None


@dataclass(frozen=True)
class Snapshot:
    """The work of a join or query so far, and the rows that it holds now."""

    name: str
    engine: str
    state: str = "running"
    """`waiting` before the first figures, `running`, `ended` or `failed`."""
    algorithm: str = ""
    streams: tuple[StreamPart, ...] = ()
    results: Mapping[str, int] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
    """The families without labels of their own."""
    parts: tuple[Part, ...] = ()
    latency: Any = None
    """A histogram with `results`, `p50`, `p90`, `p99`, `longest` and `buckets`; None if there is none."""
    error: str = ""

    def with_state(self, state: str, error: str = "") -> Snapshot:
        """Return the same figures in another state."""
        return replace(self, state=state, error=error)

    def samples(self) -> Iterator[Sample]:
        """Yield all samples but those of the histogram, in no particular order."""
        yield "query", {"algorithm": self.algorithm, "state": self.state}, 1
        for family, attribute in _STREAM_FAMILIES.items():
            for stream in self.streams:
                value = getattr(stream, attribute)
                if value is not None:
                    yield family, {"stream": stream.name}, value
        for result, rows in self.results.items():
            yield "results", {"result": result}, rows
        yield from ((name, {}, value) for name, value in self.figures.items())
        if self.parts:
            yield "segments", {}, len(self.parts)
        for number, part in enumerate(self.parts):
            yield from self._part(str(number), part)

    def _part(self, segment: str, part: Part) -> Iterator[Sample]:
        yield "segment_results", {"segment": segment}, part.results
        yield "segment_comparisons", {"segment": segment}, part.comparisons
        if part.queue is not None:
            yield "segment_queue", {"segment": segment}, part.queue
        for stream, rows in zip(self.streams, part.window_rows, strict=False):
            yield "segment_window_rows", {"segment": segment, "stream": stream.name}, rows


def uneven(loads: Sequence[int]) -> float:
    """Return the largest load over the mean.

    >>> uneven([1, 3])
    1.5
    """
    return max(loads) * len(loads) / sum(loads) if any(loads) else 1.0


def of_join(name: str, found: Any) -> Snapshot:
    """Return the snapshot of a join's `Metrics`."""
    streams = tuple(
        StreamPart(s.name, s.rows, s.late, s.no_time, s.unmatchable, s.shed, s.window_rows)
        for s in found.streams
    )
    parts = tuple(
        Part(c.results, c.comparisons, (c.left_window_rows, c.right_window_rows), c.queue)
        if len(streams) == 2
        else Part(c.results, c.comparisons)
        for c in found.cores
    )
    figures = {
        "matched_rows": found.matched, "unmatched_rows": found.unmatched, "pending_rows": found.pending,
        "finalised_rows": found.finalised, "waiting_rows": found.waiting_rows,
        "comparisons": found.comparisons, "basic_windows": found.basic_windows,
        "state_bytes": found.state_bytes, "expired_rows": found.expired,
        "imbalance": found.imbalance, "load_imbalance": found.load_imbalance, "busy_seconds": found.elapsed,
    }  # fmt: skip
    return Snapshot(
        name, "local", "running", found.algorithm, streams, {"join": found.results}, figures, parts,
        found.latency,
    )  # fmt: skip


def of_query(name: str, found: Any) -> Snapshot:
    """Return the snapshot of a query's `QueryMetrics`."""
    streams = tuple(StreamPart(stream, rows) for stream, rows in found.rows.items())
    lost = {"late_rows": found.late, "untimed_rows": found.no_time, "unknown_rows": found.unknown}
    waited = {
        "matched_rows": found.matched, "unmatched_rows": found.unmatched, "pending_rows": found.pending,
        "finalised_rows": found.finalised,
    }  # fmt: skip
    return Snapshot(
        name, "local", "running", "query", streams, dict(found.results),
        {**lost, **waited, "closed_windows": found.windows},
    )  # fmt: skip


def of_report(name: str, found: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot of a report as plain data, such as the figures of a batch join on Spark."""
    rows = {"left": found.get("left_rows"), "right": found.get("right_rows")}
    streams = tuple(StreamPart(stream, count) for stream, count in rows.items() if count is not None)
    results = found.get("results", {})
    names = {
        "late_rows": "late",
        "untimed_rows": "no_time",
        "unknown_rows": "unknown",
        "busy_seconds": "elapsed",
    }
    figures = {family: found[key] for family, key in names.items() if key in found and family in FAMILIES}
    given = results if isinstance(results, Mapping) else {"join": results}
    return Snapshot(
        name, "spark" if "spark" in found else "local", "running", "batch", streams, given, figures
    )
