"""A live view of a streaming join in the terminal; where there is none, a line per micro-batch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from handshake.engines.spark.failures import told
from handshake.engines.spark.progress import JoinProgress, joins_in

__all__ = ["View", "watch"]

_RECENT = 6
"""Micro-batches that rates are taken over."""
_EVERY = 0.25


class View:
    """One join's figures, as they come."""

    def __init__(self) -> None:
        self._recent: deque[JoinProgress] = deque(maxlen=_RECENT)
        self.rows = self.results = self.late = 0

    @property
    def last(self) -> JoinProgress | None:
        """The newest figures."""
        return self._recent[-1] if self._recent else None

    def add(self, join: JoinProgress) -> bool:
        """Take in figures; False where they are known already."""
        if self.last is not None and join.batch <= self.last.batch:
            return False
        self._recent.append(join)
        self.rows, self.results = self.rows + join.rows, self.results + join.results
        self.late += join.late
        return True

    def rate(self, of: str) -> float:
        """Of rows or results, per second, over the last micro-batches."""
        counts = [int(getattr(join, of)) for join in self._recent]
        if len(counts) < 2:
            return sum(counts) / max(sum(join.duration.total_seconds() for join in self._recent), 1e-3)
        span = (self._recent[-1].finished - self._recent[0].finished).total_seconds()
        return sum(counts[1:]) / max(span, 1e-3)

    def facts(self) -> list[tuple[str, str]]:
        """What is worth seeing, by name."""
        last = self.last
        if last is None:
            return [("batch", "the first is on its way")]
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
        """All of it in one line."""
        return "  ".join(f"{name} {value}" for name, value in self.facts() if value)

    def table(self) -> Group:
        """All of it, and the segments one by one."""
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
    """Show a streaming query's joins until it ends, `seconds` are over or `until` says so.

    It goes on running when the view ends. If it has failed, its error is raised.
    """
    console = console or Console()
    views: dict[str, View] = {}
    if not console.is_terminal:
        _follow(query, seconds, until, views, lambda name: _say(console, _said(name, views)))
    else:
        with Live(_drawn(views), console=console, refresh_per_second=4) as live:
            _follow(query, seconds, until, views, lambda _: live.update(_drawn(views)))
    failure = query.exception()
    if failure is not None:
        raise told(failure)


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    console.file.flush()


def _said(name: str, views: dict[str, View]) -> str:
    return views[name].line() if len(views) == 1 else f"{name}  {views[name].line()}"


def _drawn(views: dict[str, View]) -> Group:
    if not views:
        return Group(*(Text(value) for _, value in View().facts()))
    parts: list[Any] = []
    for name, view in views.items():
        parts += [Text(name, "bold"), view.table()] if len(views) > 1 else [view.table()]
    return Group(*parts)


def _follow(
    query: Any, seconds: float | None, until: Callable[[], bool], views: dict[str, View],
    show: Callable[[str], None],
) -> None:  # fmt: skip
    ends = None if seconds is None else time.monotonic() + seconds
    seen = -1
    while True:
        active = query.isActive
        reports = _news(query, seen)
        for join in (join for report in reports for join in joins_in(report)):
            if views.setdefault(join.join, View()).add(join):
                show(join.join)
        seen = max([seen, *(report["batchId"] for report in reports)])
        if not active or until() or (ends is not None and time.monotonic() >= ends):
            return
        time.sleep(_EVERY)


def _news(query: Any, seen: int) -> list[Any]:
    """Reports of micro-batches after one that was seen; Spark is asked for all that it has only if needed."""
    last = query.lastProgress
    if last is None or last["batchId"] <= seen:
        return []
    return [last] if last["batchId"] == seen + 1 else query.recentProgress
