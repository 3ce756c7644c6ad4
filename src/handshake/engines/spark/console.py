"""A live view of a streaming join in the terminal; otherwise, a line per micro-batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from handshake.engines.spark.failures import join_error
from handshake.engines.spark.progress import JoinProgress, joins_in
from handshake.metrics.spark_progress import new_reports

_RECENT = 6
"""Micro-batches over which rates are computed."""
_EVERY = 0.25


class JoinView:
    """The figures of one join so far."""

    def __init__(self) -> None:
        self._recent: deque[JoinProgress] = deque(maxlen=_RECENT)
        self.rows = self.results = self.late = 0

    @property
    def last(self) -> JoinProgress | None:
        """The figures of the last micro-batch."""
        return self._recent[-1] if self._recent else None

    def add(self, join: JoinProgress) -> bool:
        """Add the figures of a micro-batch; return False if they are known."""
        if self.last is not None and join.batch <= self.last.batch:
            return False
        self._recent.append(join)
        self.rows, self.results = self.rows + join.rows, self.results + join.results
        self.late += join.late
        return True

    def rate(self, of: str) -> float:
        """Return rows or results per second over the last micro-batches."""
        counts = [int(getattr(join, of)) for join in self._recent]
        if len(counts) < 2:
            return sum(counts) / max(sum(join.duration.total_seconds() for join in self._recent), 1e-3)
        span = (self._recent[-1].finished - self._recent[0].finished).total_seconds()
        return sum(counts[1:]) / max(span, 1e-3)

    def facts(self) -> list[tuple[str, str]]:
        """Return names and values to show."""
        last = self.last
        if last is None:
            return [("batch", "waiting for the first")]
        return [
            ("batch", f"{last.batch}, took {_seconds(last.duration)}"),
            ("rows", f"{self.rows:,}  {self.rate('rows'):,.0f}/s"),
            ("results", f"{self.results:,}  {self.rate('results'):,.0f}/s"),
            ("windows", f"{last.held_left:,} + {last.held_right:,} rows"),
            ("state", f"{_bytes(last.state_bytes)} in {last.chunks} files"),
            ("late", f"{self.late:,}"),
            ("lag", "" if last.lag is None else _seconds(last.lag)),
            ("watermark", "" if last.behind is None else f"{_seconds(last.behind)} behind the newest"),
        ]

    def line(self) -> str:
        """Return the view as one line."""
        return "  ".join(f"{name} {value}" for name, value in self.facts() if value)

    def table(self) -> Group:
        """Return the view as tables, with a row per segment."""
        facts = Table(show_header=False, box=None)
        for name, value in self.facts():
            facts.add_row(Text(name, "bold"), value)
        return Group(facts, self._segments())

    def _segments(self) -> Table:
        table = Table(title=None)
        for name in ("segment", "rows", "visits", "comparisons", "results", "left", "right", "state"):
            table.add_column(name, justify="right")
        for s in self.last.segments if self.last is not None else ():
            counts = (s.segment, s.rows, s.visits, s.comparisons, s.results, s.held_left, s.held_right)
            table.add_row(*(f"{count:,}" for count in counts), _bytes(s.state_bytes))
        return table


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():.1f} s"


def _bytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def watch(
    query: Any,
    seconds: float | None = None,
    *,
    console: Console | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Show the joins of a streaming query until it ends.

    The query continues if the view ends earlier.

    Args:
        query: The streaming query.
        seconds: Seconds after which the view ends.
        console: The console to write to; standard output by default.
        until: A function that returns True to end the view.

    Raises:
        HandshakeError: The query failed.
    """
    console = console or Console()
    views: dict[str, JoinView] = {}
    if console.is_terminal:
        with Live(_draw(views), console=console, refresh_per_second=4) as live:
            for _ in _follow(query, seconds, until, views):
                live.update(_draw(views))
    else:
        for name in _follow(query, seconds, until, views):
            line = views[name].line() if len(views) == 1 else f"{name}  {views[name].line()}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
            console.file.flush()
    failure = query.exception()
    if failure is not None:
        raise join_error(failure)


def _draw(views: dict[str, JoinView]) -> Group:
    if not views:
        return Group(*(Text(value) for _, value in JoinView().facts()))
    parts: list[Any] = []
    for name, view in views.items():
        parts += [Text(name, "bold"), view.table()] if len(views) > 1 else [view.table()]
    return Group(*parts)


def _follow(
    query: Any, seconds: float | None, until: Callable[[], bool], views: dict[str, JoinView]
) -> Iterator[str]:
    """Yield the names of joins whose views have changed, until the query ends."""
    ends = None if seconds is None else time.monotonic() + seconds
    seen = -1
    while True:
        active = query.isActive
        reports = list(new_reports(query, seen))
        for join in (join for report in reports for join in joins_in(report)):
            if views.setdefault(join.join, JoinView()).add(join):
                yield join.join
        seen = max([seen, *(report["batchId"] for report in reports)])
        if not active or until() or (ends is not None and time.monotonic() >= ends):
            return
        time.sleep(_EVERY)
