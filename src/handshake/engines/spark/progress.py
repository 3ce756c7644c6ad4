"""What a streaming join tells of each micro-batch, read from the progress that Spark reports of its query."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from handshake.engines.spark.operators import FIGURES
from handshake.errors import InputError

__all__ = ["JoinListener", "JoinProgress", "SegmentProgress", "joins_in", "progress"]


@dataclass(frozen=True)
class SegmentProgress:
    """One segment's share of a micro-batch, and what it holds after it."""

    segment: int
    rows: int
    """New tuples that it keeps."""
    late: int
    """Tuples that came after the watermark had passed them; they are dropped."""
    visits: int
    """New tuples that it compared with what it holds."""
    comparisons: int
    results: int
    held_left: int
    held_right: int
    """Tuples in its windows."""
    chunks: int
    """Files that they lie in."""
    state_bytes: int

    @property
    def held(self) -> int:
        """Tuples in its windows, both sides together."""
        return self.held_left + self.held_right


@dataclass(frozen=True)
class JoinProgress:
    """One micro-batch of a streaming join; sums over its segments, and the segments one by one."""

    join: str
    """The join's name in its query, as given by `handshake.join(…, name=…)`."""
    query: str | None
    batch: int
    started: datetime
    duration: timedelta
    """How long the micro-batch took, from trigger to commit."""
    rows: int
    late: int
    no_time: int
    """Tuples without a timestamp, which no window in time can hold."""
    unmatchable: int
    """Tuples that can match nothing, since a value that the predicate needs is NULL."""
    visits: int
    comparisons: int
    results: int
    held_left: int
    held_right: int
    chunks: int
    state_bytes: int
    newest: datetime | None
    """The latest event time of the micro-batch; None where windows do not look at time."""
    watermark: datetime | None
    segments: tuple[SegmentProgress, ...]

    @property
    def finished(self) -> datetime:
        """When the micro-batch was done."""
        return self.started + self.duration

    @property
    def lag(self) -> timedelta | None:
        """Age of the newest tuple when its results were there, where times are those of a clock."""
        return None if self.newest is None else self.finished - self.newest

    @property
    def behind(self) -> timedelta | None:
        """How far the watermark is behind the newest tuple."""
        return None if self.newest is None or self.watermark is None else self.newest - self.watermark

    @property
    def imbalance(self) -> float:
        """The largest segment's share of the tuples in the windows over the mean share; 1 is even."""
        held = [segment.held for segment in self.segments]
        return max(held) * len(held) / sum(held) if any(held) else 1.0

    def __str__(self) -> str:
        lag = "" if self.lag is None else f", lag {self.lag.total_seconds():.1f} s"
        return (
            f"{self.join} batch {self.batch}: {self.rows:,} rows in {self.duration.total_seconds():.1f} s, "
            f"{self.results:,} results, windows {self.held_left:,} + {self.held_right:,}, "
            f"state {self.state_bytes / 1e6:,.1f} MB, late {self.late:,}{lag}"
        )


def progress(query: Any) -> tuple[JoinProgress, ...]:
    """The joins of a streaming query after the last micro-batch that brought tuples; none before the first.

    `query` is a `StreamingQuery`, a `StreamingQueryProgress`, or the dict or JSON text of one.
    """
    if not hasattr(query, "lastProgress"):
        return tuple(joins_in(query))
    last = query.lastProgress
    found = () if last is None else tuple(joins_in(last))
    if found or last is None:
        return found
    return next((joins for past in reversed(query.recentProgress) if (joins := tuple(joins_in(past)))), ())


def joins_in(report: Any) -> Iterator[JoinProgress]:
    """The joins in one `StreamingQueryProgress` that had tuples in that micro-batch."""
    told = json.loads(report) if isinstance(report, str) else report
    if not isinstance(told, Mapping):
        raise InputError(
            f"progress is read from a StreamingQuery or a StreamingQueryProgress, not {type(report).__name__}"
        )
    for name, metrics in (told.get("observedMetrics") or {}).items():
        figures = metrics.asDict() if hasattr(metrics, "asDict") else metrics
        if figures.keys() >= {*FIGURES, "segments"} and figures["rows"] is not None:
            yield _join(name, figures, told)


def _join(name: str, figures: Mapping[str, Any], told: Mapping[str, Any]) -> JoinProgress:
    sums = {key: figures[key] for key in FIGURES[:-2]}
    return JoinProgress(
        name, told.get("name"), told["batchId"], datetime.fromisoformat(told["timestamp"]),
        _duration(told), newest=_moment(figures["newest"]), watermark=_moment(figures["watermark"]),
        segments=tuple(sorted(map(_segment, figures["segments"]), key=lambda s: s.segment)), **sums,
    )  # fmt: skip


def _duration(told: Mapping[str, Any]) -> timedelta:
    spent = told.get("batchDuration") or (told.get("durationMs") or {}).get("triggerExecution", 0)
    return timedelta(milliseconds=spent)


def _segment(text: str) -> SegmentProgress:
    figures = json.loads(text)
    return SegmentProgress(**{field.name: figures[field.name] for field in fields(SegmentProgress)})


def _moment(milliseconds: int) -> datetime | None:
    """A time of Spark's; 0 stands for none."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None


class JoinListener(StreamingQueryListener):
    """Calls a function with the `JoinProgress` of every micro-batch of every streaming join of a session."""

    def __init__(self, tell: Callable[[JoinProgress], object]) -> None:
        self._tell = tell

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to tell yet."""

    def onQueryProgress(self, event: Any) -> None:
        """A micro-batch has ended."""
        for join in joins_in(event.progress):
            self._tell(join)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing has come."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing more will come."""
