"""The figures of a streaming join's micro-batches, from the progress that Spark reports for its query."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from handshake.engines.spark.joins.tasks import FIGURES
from handshake.errors import InputError
from handshake.html import card
from handshake.metrics.snapshot import uneven
from handshake.metrics.spark_progress import batch_milliseconds, observed_figures


@dataclass(frozen=True)
class SegmentProgress:
    """The figures of one segment in one micro-batch."""

    segment: int
    rows: int
    """New rows that it keeps."""
    late: int
    """Rows older than the watermark; they are dropped."""
    visits: int
    """New rows that it compared with its windows."""
    comparisons: int
    results: int
    pending: int
    """Rows in its windows that have not matched yet, in outer, semi and anti joins."""
    held_left: int
    held_right: int
    """Rows in its windows after the micro-batch."""
    chunks: int
    """Files that contain them."""
    state_bytes: int
    read_bytes: int
    """Bytes of new rows that it has read."""
    written_bytes: int
    """The size of its file of results, if results go to files."""

    @property
    def held(self) -> int:
        """Rows in its windows, both sides together."""
        return self.held_left + self.held_right


@dataclass(frozen=True)
class JoinProgress:
    """The figures of one micro-batch of a streaming join: totals, and each segment's."""

    join: str
    """The name of the join in its query (`handshake.join(…, name=…)`)."""
    query: str | None
    batch: int
    started: datetime
    duration: timedelta
    """The duration of the micro-batch, from trigger to commit."""
    rows: int
    late: int
    no_time: int
    """Rows without a time, which no time window can hold."""
    unmatchable: int
    """Rows that can match nothing, because a value that the predicate needs is NULL."""
    visits: int
    comparisons: int
    results: int
    matched: int
    """Rows that matched for the first time, in outer, semi and anti joins."""
    unmatched: int
    """Rows that came as results without a match, in outer and anti joins."""
    pending: int
    """Rows in the windows that have not matched yet, in outer, semi and anti joins."""
    finalised: int
    """Rows of these joins that wait no more: they matched, or no match can come."""
    held_left: int
    held_right: int
    chunks: int
    state_bytes: int
    read_bytes: int
    """Bytes of new rows that segments have read."""
    written_bytes: int
    """The size of the files of results, if results go to files."""
    newest: datetime | None
    """The latest event time of the micro-batch; None if no window is in time."""
    watermark: datetime | None
    segments: tuple[SegmentProgress, ...]

    @property
    def finished(self) -> datetime:
        """The time at which the micro-batch finished."""
        return self.started + self.duration

    @property
    def lag(self) -> timedelta | None:
        """The age of the newest row when its results were ready, if times are real ones."""
        return None if self.newest is None else self.finished - self.newest

    @property
    def behind(self) -> timedelta | None:
        """The distance of the watermark from the newest row."""
        return None if self.newest is None or self.watermark is None else self.newest - self.watermark

    @property
    def imbalance(self) -> float:
        """The rows in the largest segment relative to the mean; 1 is even."""
        return uneven([segment.held for segment in self.segments])

    def _repr_html_(self) -> str:
        facts = [
            ("batch", f"{self.batch}, {self.duration.total_seconds():.1f} s"),
            ("rows", f"{self.rows:,}, of which {self.late:,} late"),
            ("results", f"{self.results:,}"),
            ("windows", f"{self.held_left:,} + {self.held_right:,} rows"),
            ("state", f"{self.state_bytes / 1e6:,.1f} MB in {self.chunks:,} files"),
            ("lag", "" if self.lag is None else f"{self.lag.total_seconds():.1f} s"),
        ]
        names = ("segment", "rows", "visits", "comparisons", "results", "held_left", "held_right")
        rows = [names, *([getattr(s, name) for name in names] for s in self.segments)]
        return card(f"{self.join}, the last micro-batch", [fact for fact in facts if fact[1]], rows=rows)

    def __str__(self) -> str:
        lag = "" if self.lag is None else f", lag {self.lag.total_seconds():.1f} s"
        return (
            f"{self.join} batch {self.batch}: {self.rows:,} rows in {self.duration.total_seconds():.1f} s, "
            f"{self.results:,} results, windows {self.held_left:,} + {self.held_right:,}, "
            f"state {self.state_bytes / 1e6:,.1f} MB, late {self.late:,}{lag}"
        )


def progress(query: Any) -> tuple[JoinProgress, ...]:
    """Return the joins of a streaming query after the last micro-batch that had rows; none before the first.

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
    """Yield the joins of a `StreamingQueryProgress` that had rows in that micro-batch."""
    found = json.loads(report) if isinstance(report, str) else report
    if not isinstance(found, Mapping):
        raise InputError(
            f"progress is read from a StreamingQuery or a StreamingQueryProgress, not {type(report).__name__}"
        )
    for name, figures in observed_figures(found).items():
        if figures.keys() >= {*FIGURES, "segments"} and figures["rows"] is not None:
            yield _join(name, figures, found)


def _join(name: str, figures: Mapping[str, Any], report: Mapping[str, Any]) -> JoinProgress:
    sums = {key: figures[key] for key in FIGURES[:-2]}
    parts, names = map(json.loads, figures["segments"]), [field.name for field in fields(SegmentProgress)]
    segments = [SegmentProgress(**{name: part[name] for name in names}) for part in parts]
    return JoinProgress(
        name, report.get("name"), report["batchId"], datetime.fromisoformat(report["timestamp"]),
        timedelta(milliseconds=batch_milliseconds(report)),
        newest=_moment(figures["newest"]), watermark=_moment(figures["watermark"]),
        segments=tuple(sorted(segments, key=lambda s: s.segment)), **sums,
    )  # fmt: skip


def _moment(milliseconds: int) -> datetime | None:
    """Convert a time in milliseconds; 0 stands for none."""
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds) if milliseconds else None


class JoinListener(StreamingQueryListener):
    """A listener that passes the `JoinProgress` of every micro-batch of a session's joins to a function."""

    def __init__(self, handle: Callable[[JoinProgress], object]) -> None:
        self._handle = handle

    def onQueryStarted(self, event: Any) -> None:
        """Ignore the event."""

    def onQueryProgress(self, event: Any) -> None:
        """Report the joins of a micro-batch."""
        for join in joins_in(event.progress):
            self._handle(join)

    def onQueryTerminated(self, event: Any) -> None:
        """Ignore the event."""
