"""The past of a page: the figures of the last hour, one point per second, and the last errors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from handshake.metrics.snapshot import Snapshot

SECONDS = 3600
_MOST_ERRORS, _LONGEST_ERROR = 50, 2000
Value = float | None
Point = dict[str, Value]
Columns = dict[str, list[Value]]
"""The points by the name of a figure; `t` has their times."""


class History:
    """One point per second and query. Counts stay counts: the page takes the differences."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=SECONDS)
        self._buckets: dict[Any, int] | None = None
        self.count = 0
        """The number of points so far, of which the last hour's are held."""

    def add(self, snapshot: Snapshot, now: float) -> bool:
        """Add a point unless this second has one; return true if it was added."""
        if snapshot.state == "waiting":
            self._buckets = {}  # all results are still to come
            return False
        if int(now) <= int(self._last):
            return False
        self._append({"t": round(now, 2), **self._point(snapshot)})
        return True

    def extend(self, points: Iterable[Point]) -> None:
        """Add the points of another page that are later than all of these."""
        for point in points:
            if (point["t"] or 0.0) > self._last:
                self._append(point)

    def after(self, count: int) -> list[Point]:
        """Return the points after the first `count`, as far as they are held."""
        wanted = min(self.count - count, len(self._points))
        return list(self._points)[-wanted:] if wanted > 0 else []

    def columns(self) -> Columns:
        """Return all points by name; a figure that a point lacks is None."""
        points = list(self._points)
        names = dict.fromkeys(["t", *(name for point in points for name in point)])
        return {name: [point.get(name) for point in points] for name in names}

    @property
    def _last(self) -> float:
        """The time of the last point."""
        return (self._points[-1]["t"] or 0.0) if self._points else 0.0

    def _append(self, point: Point) -> None:
        self._points.append(point)
        self.count += 1

    def _point(self, snapshot: Snapshot) -> Point:
        point: Point = {"results": sum(snapshot.results.values())}
        for stream in snapshot.streams:
            point |= {f"rows {stream.name}": stream.rows, f"window {stream.name}": stream.window_rows}
        figures = ("state_bytes", "imbalance", "lag_seconds", "batch_seconds")
        point |= {name: snapshot.figures.get(name) for name in figures}
        point["late"] = snapshot.figures.get("late_rows", 0) + sum(
            each.late or 0 for each in snapshot.streams
        )
        point["shed"] = sum(each.shed or 0 for each in snapshot.streams)
        return {**point, **self._latency(snapshot)}

    def _latency(self, snapshot: Snapshot) -> Point:
        """Return the percentiles of the results since the last point; none without a point before."""
        if snapshot.latency is None:
            return {"p50": None, "p99": None}
        buckets, before = dict(snapshot.latency.buckets), self._buckets
        self._buckets = buckets
        if before is None:
            return {"p50": None, "p99": None}
        new = {bound: count - before.get(bound, 0) for bound, count in buckets.items()}
        if any(count < 0 for count in new.values()):  # the query was started again
            new = buckets
        return {"p50": _percentile(new, 0.5), "p99": _percentile(new, 0.99)}


class Errors:
    """The last errors of all queries."""

    def __init__(self) -> None:
        self._last: deque[dict[str, Any]] = deque(maxlen=_MOST_ERRORS)
        self.count = 0
        """The number of errors so far."""

    def note(self, query: str, error: str) -> None:
        """Add an error of a query; its text is cut if it is long."""
        self._last.append({"t": time.time(), "query": query, "error": error[:_LONGEST_ERROR]})
        self.count += 1

    def last(self) -> list[dict[str, Any]]:
        """Return the last errors, the newest at the end."""
        return list(self._last)


def points_of(columns: Columns) -> list[Point]:
    """Return the points that columns hold."""
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _percentile(buckets: dict[Any, int], share: float) -> float | None:
    total, seen = sum(buckets.values()), 0
    for bound in sorted(buckets):
        seen += buckets[bound]
        if total and seen >= share * total:
            return float(bound)
    return None
