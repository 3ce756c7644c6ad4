"""The figures of one running thing at one moment, in the same form for every engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from handshake.metrics.registry import REPORTS, select_exported

Sample = tuple[str, dict[str, str], float]
"""The name of a family, its labels, and a value."""


@dataclass(frozen=True)
class StreamPart:
    """One stream: its rows by what became of them. None: the engine does not count that by stream.

    The fields have the names of the figures of a stream in the registry.
    """

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
    """A histogram like `joins.latency.Latency`; None if there is none."""
    error: str = ""

    def with_state(self, state: str, error: str = "") -> Snapshot:
        """Return the same figures in another state."""
        return replace(self, state=state, error=error)

    def samples(self) -> Iterator[Sample]:
        """Yield all samples but those of the histogram, in no particular order."""
        yield "query", {"algorithm": self.algorithm, "state": self.state}, 1
        for stream in self.streams:
            for family, value in select_exported("stream", vars(stream)).items():
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
    kept = [each.name for each in fields(StreamPart)]
    streams = tuple(StreamPart(**{name: getattr(s, name) for name in kept}) for s in found.streams)
    parts = tuple(
        Part(c.results, c.comparisons, (c.left_window_rows, c.right_window_rows), c.queue)
        if len(streams) == 2
        else Part(c.results, c.comparisons)
        for c in found.cores
    )
    return Snapshot(
        name, "local", "running", found.algorithm, streams, {"join": found.results},
        _figures_of("join", found), parts,
        found.latency,
    )  # fmt: skip


def of_query(name: str, found: Any) -> Snapshot:
    """Return the snapshot of a query's `QueryMetrics`."""
    streams = tuple(StreamPart(stream, rows) for stream, rows in found.rows.items())
    figures = _figures_of("query", found)
    return Snapshot(name, "local", "running", "query", streams, dict(found.results), figures)


def _figures_of(report: str, found: object) -> dict[str, Any]:
    """Return the figures of an object that operators see, by family."""
    shown = [metric.name for metric in REPORTS[report] if metric.exported is not None]
    return select_exported(report, {name: getattr(found, name) for name in shown})


def of_report(name: str, found: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot of a report as plain data, such as the figures of a batch join on Spark."""
    rows = {"left": found.get("left_rows"), "right": found.get("right_rows")}
    streams = tuple(StreamPart(stream, count) for stream, count in rows.items() if count is not None)
    results = found.get("results", {})
    figures = {**select_exported("query", found), **select_exported("join", found)}
    given = results if isinstance(results, Mapping) else {"join": results}
    return Snapshot(
        name, "spark" if "spark" in found else "local", "running", "batch", streams, given, figures
    )
