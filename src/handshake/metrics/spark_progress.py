"""Snapshots of streaming queries on Spark, from the progress that Spark reports; no Spark is imported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from handshake.metrics.registry import names, select_exported
from handshake.metrics.snapshot import Part, Snapshot, StreamPart, uneven

__all__ = ["StreamingWatch", "observed_figures"]

_FIGURES = names("micro_batch")


class StreamingWatch:
    """The sums over the micro-batches of a streaming query, and the figures of the last one."""

    def __init__(self, query: Any, name: str | None = None) -> None:
        self._query, self._name = query, name or query.name or str(query.id)
        self._seen = -1
        self._rows: Counter[str] = Counter()
        self._joins: dict[str, _JoinSums] = {}
        self._counts: Counter[str] = Counter()
        self._gauges: dict[str, Any] = {}
        self._busy, self._batches, self._last = 0.0, 0, dict[str, Any]()

    def snapshots(self) -> list[Snapshot]:
        """Return one snapshot per join of the query, or one of the query if it has none."""
        active, failure = self._query.isActive, self._query.exception()
        for report in self._new_reports():
            self._add(report)
        state = "failed" if failure is not None else "running" if active else "ended"
        error = "" if failure is None else _plain_error(str(failure))
        found = [self._join(name, sums) for name, sums in self._joins.items()] or [self._plain()]
        return [each.with_state(state, error) for each in found]

    def _new_reports(self) -> Iterator[Mapping[str, Any]]:
        """Yield the reports since the last look; ask Spark for all that it keeps only if some were missed."""
        last = _plain_report(self._query.lastProgress)
        if last is None or last["batchId"] <= self._seen:
            return
        past: Iterable[Any] = [last] if last["batchId"] == self._seen + 1 else self._query.recentProgress
        for report in map(_plain_report, past):
            if report is not None and report["batchId"] > self._seen:
                self._seen = report["batchId"]
                yield report

    def _add(self, report: Mapping[str, Any]) -> None:
        spent = report.get("batchDuration") or (report.get("durationMs") or {}).get("triggerExecution", 0)
        self._last = {**report, "seconds": spent / 1e3}
        self._busy, self._batches = self._busy + spent / 1e3, self._batches + 1
        sources = report.get("sources") or []
        for source, stream in zip(sources, _stream_names(sources), strict=True):
            self._rows[stream] += source.get("numInputRows") or 0
        for name, figures in observed_figures(report).items():
            if figures.keys() >= {*_FIGURES, "segments"}:
                if figures["rows"] is not None:
                    self._joins.setdefault(name, _JoinSums()).add(figures)
            else:
                found = {name: value or 0 for name, value in figures.items()}
                self._counts.update(select_exported("query", found, "counter"))
                self._gauges = select_exported("query", found, "gauge")

    def _join(self, name: str, sums: _JoinSums) -> Snapshot:
        title = self._name if len(self._joins) == 1 else f"{self._name}: {name}"
        rows = list(self._rows.values()) if len(self._rows) == 2 and len(self._joins) == 1 else [None, None]
        last = sums.last
        held = last["held_left"], last["held_right"]
        streams = tuple(
            StreamPart(side, rows[k], window_rows=held[k]) for k, side in enumerate(("left", "right"))
        )
        if rows[0] is None:
            streams += (StreamPart("both", sums.rows),)
        gauges = {
            **select_exported("micro_batch", last, "gauge"),
            "imbalance": uneven([sum(part.window_rows) for part in sums.parts]),
            "load_imbalance": uneven([part.comparisons for part in sums.parts]),
            **self._times(last),
        }  # fmt: skip
        return Snapshot(
            title, "spark", "running", "segments", streams, {"join": sums.results},
            {**sums.counters, **gauges}, sums.parts,
        )  # fmt: skip

    def _times(self, last: Mapping[str, Any]) -> dict[str, float]:
        times = {"busy_seconds": self._busy, "batches": self._batches, "batch_seconds": self._last["seconds"]}
        if last["watermark"]:
            times["watermark_seconds"] = last["watermark"] / 1e3
        if last["newest"]:
            finished = datetime.fromisoformat(self._last["timestamp"]).timestamp() + self._last["seconds"]
            times["lag_seconds"] = finished - last["newest"] / 1e3
        return times

    def _plain(self) -> Snapshot:
        """Return the snapshot of a query without a join of ours, or before its first micro-batch."""
        if not self._last:
            return Snapshot(self._name, "spark", "running", "segments")
        streams = tuple(StreamPart(name, rows) for name, rows in self._rows.items())
        times = {"busy_seconds": self._busy, "batches": self._batches, "batch_seconds": self._last["seconds"]}
        return Snapshot(
            self._name,
            "spark",
            "running",
            "query",
            streams,
            {},
            {**self._counts, **self._gauges, **times},
        )


class _JoinSums:
    """The sums of one join, and its last micro-batch."""

    def __init__(self) -> None:
        self.rows = self.results = 0
        self.counters: Counter[str] = Counter()
        self._segments: dict[int, Part] = {}
        self.parts: tuple[Part, ...] = ()
        self.last: Mapping[str, Any] = {}

    def add(self, figures: Mapping[str, Any]) -> None:
        """Add a micro-batch."""
        self.rows, self.results = self.rows + figures["rows"], self.results + figures["results"]
        self.counters.update(select_exported("micro_batch", figures, "counter"))
        for segment in map(json.loads, figures["segments"]):
            before = self._segments.get(segment["segment"], Part(0, 0))
            self._segments[segment["segment"]] = Part(
                before.results + segment["results"],
                before.comparisons + segment["comparisons"],
                (segment["held_left"], segment["held_right"]),
            )
        self.parts = tuple(self._segments[number] for number in sorted(self._segments))
        self.last = figures


def observed_figures(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a micro-batch has observed, by name.

    The figures are a row or a mapping. Spark Connect writes a row as its values and its schema.
    """
    return {name: _figures_of(each) for name, each in (report.get("observedMetrics") or {}).items()}


def _figures_of(observed: Any) -> Mapping[str, Any]:
    figures: Mapping[str, Any] = observed.asDict() if hasattr(observed, "asDict") else observed
    if figures.keys() != {"schema", "values"} or not isinstance(figures["schema"], Mapping):
        return figures
    columns = [field["name"] for field in figures["schema"]["fields"]]
    return dict(zip(columns, figures["values"], strict=True))


def _plain_error(text: str) -> str:
    """Return an error of Spark without the stack of the JVM and the plan of the query."""
    lines = text.partition("\n=== Streaming Query ===")[0].splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\tat ", "\t... "))).strip()


def _plain_report(report: Any) -> Mapping[str, Any] | None:
    """Return a progress report as a mapping; its form depends on the version of Spark."""
    if report is None or isinstance(report, Mapping):
        return report
    found: Mapping[str, Any] = json.loads(report.json)
    return found


def _stream_names(sources: list[Any]) -> list[str]:
    if len(sources) == 2:
        return ["left", "right"]
    return [f"source {number}" for number in range(len(sources))]
