"""The figures of the last hour, one point per second."""

from __future__ import annotations

from collections import deque
from typing import Any

from handshake.metrics.snapshot import Snapshot

__all__ = ["SECONDS", "History"]

SECONDS = 3600
Value = float | None


class History:
    """One point per second and query. Counts stay counts: the page takes the differences."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, dict[str, Value]]] = deque(maxlen=SECONDS)
        self._buckets: dict[Any, int] = {}

    def add(self, snapshot: Snapshot, now: float) -> bool:
        """Add a point unless this second has one; return true if it was added."""
        if snapshot.state == "waiting" or (self._points and int(now) <= int(self._points[-1][0])):
            return False
        self._points.append((now, self._point(snapshot)))
        return True

    def _point(self, snapshot: Snapshot) -> dict[str, Value]:
        point: dict[str, Value] = {"results": sum(snapshot.results.values())}
        for stream in snapshot.streams:
            point |= {f"rows {stream.name}": stream.rows, f"window {stream.name}": stream.window_rows}
        figures = ("state_bytes", "imbalance", "lag_seconds", "batch_seconds")
        point |= {name: snapshot.figures.get(name) for name in figures}
        return {**point, "late": late(snapshot), "shed": shed(snapshot), **self._latency(snapshot)}

    def _latency(self, snapshot: Snapshot) -> dict[str, Value]:
        """Return the percentiles of the results since the last point."""
        if snapshot.latency is None:
            return {"p50": None, "p99": None}
        buckets = dict(snapshot.latency.buckets)
        new = {bound: count - self._buckets.get(bound, 0) for bound, count in buckets.items()}
        if any(count < 0 for count in new.values()):  # the query was started again
            new = buckets
        self._buckets = buckets
        return {"p50": _percentile(new, 0.5), "p99": _percentile(new, 0.99)}

    def columns(self) -> dict[str, list[Value]]:
        """Return all points by name; a figure that a point lacks is None."""
        points = list(self._points)
        names = dict.fromkeys(name for _, point in points for name in point)
        held = {name: [point.get(name) for _, point in points] for name in names}
        return {"t": [round(now, 2) for now, _ in points], **held}

    def extend(self, columns: dict[str, list[Value]]) -> None:
        """Add the points of another page, if this history is empty."""
        if not self._points:
            for at, now in enumerate(columns.get("t", ())):
                point = {name: values[at] for name, values in columns.items() if name != "t"}
                self._points.append((float(now or 0), point))


def late(snapshot: Snapshot) -> float:
    """Return the number of late rows of all streams."""
    return snapshot.figures.get("late_rows", 0) + sum(stream.late or 0 for stream in snapshot.streams)


def shed(snapshot: Snapshot) -> float:
    """Return the number of shed rows of all streams."""
    return sum(stream.shed or 0 for stream in snapshot.streams)


def _percentile(buckets: dict[Any, int], share: float) -> float | None:
    total, seen = sum(buckets.values()), 0
    for bound in sorted(buckets):
        seen += buckets[bound]
        if total and seen >= share * total:
            return float(bound)
    return None
