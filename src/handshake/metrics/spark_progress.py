"""Snapshots of streaming queries on Spark, from the progress that Spark reports; no Spark is imported."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from handshake.metrics.registry import names, select_exported
from handshake.metrics.snapshot import Part, Snapshot, StreamPart, uneven

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
        for report in new_reports(self._query, self._seen):
            self._add(report)
        state = "failed" if failure is not None else "running" if active else "ended"
        error = "" if failure is None else _plain_error(str(failure))
        found = [self._join(name, sums) for name, sums in self._joins.items()] or [self._plain()]
        return [each.with_state(state, error) for each in found]

    def _add(self, report: Mapping[str, Any]) -> None:
        self._seen, seconds = report["batchId"], batch_milliseconds(report) / 1e3
        self._last = {**report, "seconds": seconds}
        self._busy, self._batches = self._busy + seconds, self._batches + 1
        sources = report.get("sources") or []
        sides = ("left", "right") if len(sources) == 2 else None
        for number, source in enumerate(sources):
            self._rows[sides[number] if sides else f"source {number}"] += source.get("numInputRows") or 0
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
            **self._times(),
        }
        if last["watermark"]:
            gauges["watermark_seconds"] = last["watermark"] / 1e3
        if last["newest"]:
            finished = datetime.fromisoformat(self._last["timestamp"]).timestamp() + self._last["seconds"]
            gauges["lag_seconds"] = finished - last["newest"] / 1e3
        return Snapshot(
            title, "spark", "running", "segments", streams, {"join": sums.results},
            {**sums.counters, **gauges}, sums.parts,
        )  # fmt: skip

    def _times(self) -> dict[str, float]:
        return {"busy_seconds": self._busy, "batches": self._batches, "batch_seconds": self._last["seconds"]}

    def _plain(self) -> Snapshot:
        """Return the snapshot of a query without a join of ours, or before its first micro-batch."""
        if not self._last:
            return Snapshot(self._name, "spark", "running", "segments")
        streams = tuple(StreamPart(name, rows) for name, rows in self._rows.items())
        figures = {**self._counts, **self._gauges, **self._times()}
        return Snapshot(self._name, "spark", "running", "query", streams, {}, figures)


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


def new_reports(query: Any, seen: int) -> Iterator[Mapping[str, Any]]:
    """Yield a query's reports of micro-batches after `seen`; ask Spark for all only if some were missed."""
    last = query.lastProgress
    if last is None or last["batchId"] <= seen:
        return
    for report in [last] if last["batchId"] == seen + 1 else query.recentProgress:
        if report["batchId"] > seen:
            seen = report["batchId"]
            yield report


def batch_milliseconds(report: Mapping[str, Any]) -> int:
    """Return the duration of a micro-batch."""
    return report.get("batchDuration") or (report.get("durationMs") or {}).get("triggerExecution") or 0


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
