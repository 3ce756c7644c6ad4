"""Joins whose left rows wait until they are final, and then take their best matches among the right rows.

A left row is final once the watermark says that no better right row can come. It is joined once, by an
algorithm for tables (`BestMatch`), with all right rows in its reach, so results are those of the tables. The
windows of the `JoinSpec` hold rows that long: the left one reaches as far as a row looks ahead, the right one
as far as it looks back and ahead. Left rows that have left their window are final; right rows that have left
theirs are wanted by no row that waits or comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.io.frames import plain_table
from handshake.joins.arrangements.arrangement import RunningJoin
from handshake.joins.driver import Driver, OnLate, Seen, Tracked, stored_column
from handshake.joins.latency import Latencies
from handshake.joins.matches import lone_rows
from handshake.joins.metrics import (
    CoreMetrics,
    Metrics,
    Stopwatch,
    stream_metrics,
    with_latency,
    with_matches,
)
from handshake.joins.plan import PlannedJoin
from handshake.joins.spec import ROW, TIME, JoinSpec
from handshake.joins.tuning import TUNING, Tuning
from handshake.kernels.columns import integers
from handshake.kinds import JoinKind, kind_of_best
from handshake.plan.expr import Expr
from handshake.schema import UNITS, concat_batches
from handshake.windows import TimeWindow, Windows

Array = np.ndarray[Any, Any]
_LEAST, _MOST = -(2**63), 2**63 - 1

EdgeRows = Callable[[pa.RecordBatch, bool], Array | None]
"""Returns the numbers of the right rows that count for left rows before (True) or after all; None for all."""


class Found(NamedTuple):
    """The result of a join of left rows with their best matches."""

    table: pa.Table
    matched: Array
    """Which left rows have a match."""


@dataclass(frozen=True)
class BestMatch(ABC):
    """A join of left rows with their best matches, of inputs with these columns.

    It is checked when its columns are known and it is first used.
    """

    called: ClassVar[str]
    options: ClassVar[type]

    left: pa.Schema
    right: pa.Schema
    on: Any
    """An expression, or None; before the columns are known, also what users may write."""
    by: Any
    """Keys of an as-of join, or the ranking of a nearest join."""
    how: str = field(default="left", kw_only=True)
    suffix: str = field(default="_right", kw_only=True)
    aliases: tuple[str, str] | None = field(default=None, kw_only=True)
    cores: int | None = field(default=None, kw_only=True)

    @property
    def kind(self) -> JoinKind:
        """The kind of the join."""
        return kind_of_best(self.how, self.called)

    @property
    def output(self) -> pa.Schema | None:
        """The columns of results; None if they are those of both sides."""
        return None

    def find(self, left: pa.Table, right: pa.Table) -> Found:
        """Return the results for left rows, in their order, and all right rows in their reach."""
        left, right = (plain_table(table).combine_chunks() for table in (left, right))
        if not (left.schema.equals(self.left) and right.schema.equals(self.right)):
            return replace(self, left=left.schema, right=right.schema).find(left, right)
        return self._find(left, right)

    @abstractmethod
    def _find(self, left: pa.Table, right: pa.Table) -> Found:
        """Find matches in tables of exactly these columns."""

    @abstractmethod
    def edge_rows(self, right: pa.Table, *, forward: bool) -> Array | None:
        """Return the numbers of the right rows that count for left rows on one side of them; None for all.

        Args:
            right: Right rows.
            forward: Whether left rows are earlier than all of them; else they are later than all.
        """

    @property
    def replaces(self) -> bool:
        """True if right rows replace earlier ones of their keys for all left rows to come."""
        return self.edge_rows(self.right.empty_table(), forward=False) is not None

    @abstractmethod
    def condition(self) -> Expr:
        """Return what must hold for a pair, apart from times."""

    @abstractmethod
    def describe(self) -> str:
        """Return the join in a line of text."""

    @property
    @abstractmethod
    def search(self) -> str:
        """How tables are searched."""

    @abstractmethod
    def describe_waiting(self) -> tuple[str, str]:
        """Return when a left row at time t is final, and how long right rows are held, as texts."""

    @abstractmethod
    def held_windows(self) -> Windows:
        """Return windows that hold rows of streams as long as left rows wait."""


def explain_waiting(best: BestMatch) -> str:
    """Describe how long rows of streams wait."""
    final, held = best.describe_waiting()
    until = ", unless later ones of their keys replace them" if best.replaces else ""
    when = f"final       left rows at t, when the watermark is {final}"
    return f"{when}\nheld        right rows, for {held}{until}"


def explain_best(best: BestMatch) -> str:
    """Describe a join that chooses best matches."""
    return f"join        {best.describe()}\nkind        {best.kind.name}: {best.kind.help}"


def waiting_windows(unit: str, back: int, ahead: int) -> Windows:
    """Return windows that hold rows as long as left rows wait, which look back and ahead this many units.

    >>> [window.reach("s") for window in waiting_windows("s", 60, 5)]
    [5, 65]
    """
    return Windows(*(TimeWindow((reach + 1) * UNITS[unit]) for reach in (ahead, back + ahead)))


@dataclass(slots=True)
class _Run:
    """Rows in the order of time."""

    batch: pa.RecordBatch
    times: Array
    firsts: pa.RecordBatch | None = None
    """The rows that count for left rows before all of them, if they have been looked for."""

    def slice(self, start: int, stop: int) -> _Run:
        return _Run(self.batch.slice(start, stop - start), self.times[start:stop])

    def place(self, time: int, side: str = "left") -> int:
        """Return the number of rows before a time (`left`), or up to it (`right`)."""
        if not _LEAST <= time <= _MOST:
            return 0 if time < _LEAST else len(self.times)
        return int(np.searchsorted(self.times, np.int64(time), side))  # type: ignore[call-overload]


class TimedRows:
    """Rows of a stream in a few runs: each in the order of time, together in the order of arrival."""

    # states of queries that earlier releases wrote have no values of their own
    _merged_run, _reduced_from = TUNING.merged_run, TUNING.reduced_from

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.runs: list[_Run] = []
        self._merged_run, self._reduced_from = tuning.merged_run, tuning.reduced_from

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(len(run.times) for run in self.runs)

    @property
    def nbytes(self) -> int:
        """The memory of the rows and their times."""
        return sum(int(run.batch.nbytes) + run.times.nbytes for run in self.runs)

    def add(self, batch: pa.RecordBatch, times: Array) -> None:
        """Add rows and their times."""
        if len(times):
            self.runs.append(_in_order(batch, times))
            while len(self.runs) > 1 and self._are_small(*self.runs[-2:]):
                last = self.runs.pop()
                self.runs[-1] = _merge([self.runs[-1], last])

    def _are_small(self, first: _Run, second: _Run) -> bool:
        sizes = len(first.times), len(second.times)
        return sizes[0] < 2 * sizes[1] and sum(sizes) <= self._merged_run

    def put_first(self, batch: pa.RecordBatch, times: Array) -> None:
        """Put rows in the order of time before all others."""
        self.runs.insert(0, _Run(batch, times))

    def count_before(self, time: int) -> int:
        """Return the number of rows before a time."""
        return sum(run.place(time) for run in self.runs)

    def take_before(self, time: int) -> _Run | None:
        """Remove and return the rows before a time, in the order of time and arrival; None for no rows."""
        places = [run.place(time) for run in self.runs]
        if not any(places):
            return None
        taken = [run.slice(0, place) for run, place in zip(self.runs, places, strict=True) if place]
        self.runs = [
            run.slice(place, len(run.times)) if place else run
            for run, place in zip(self.runs, places, strict=True)
            if place < len(run.times)
        ]
        return _merge(taken)

    def between(
        self, first: int, last: int, firsts: Callable[[pa.RecordBatch], pa.RecordBatch], after: int
    ) -> list[pa.RecordBatch]:
        """Return the rows from a time to another one, inclusive.

        Args:
            first: The first time.
            last: The last time.
            firsts: Returns the rows that count, of rows that are all later than `after`.
            after: See `firsts`.
        """
        parts = []
        for run in self.runs:
            if after < run.times[0] <= last and len(run.times) > self._reduced_from:
                if run.firsts is None:
                    run.firsts = firsts(run.batch)
                parts.append(run.firsts)
            else:
                parts.append(run.slice(run.place(first), run.place(last, "right")).batch)
        return [part for part in parts if part.num_rows]


class Candidates:
    """The right rows that left rows can still find."""

    _reduced_from = TUNING.reduced_from

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self.rows, self._reduced_from = TimedRows(tuning), tuning.reduced_from
        self._reduced = 0
        """Rows that were left after the last reduction."""

    def within(self, first: int, last: int, reach: tuple[int, int], edge: EdgeRows) -> list[pa.RecordBatch]:
        """Return the rows that left rows between two times can find.

        Args:
            first: The time of the first left row.
            last: The time of the last left row.
            reach: How far left rows look back and ahead.
            edge: Returns the numbers of the rows that count for left rows on one side of them.
        """

        def firsts(batch: pa.RecordBatch) -> pa.RecordBatch:
            rows = edge(batch, True)
            return batch if rows is None else batch.take(pa.array(rows))

        return self.rows.between(first - reach[0], last + reach[1], firsts, last)

    def drop(self, first: int, back: int, edge: EdgeRows) -> int:
        """Drop rows that no left row from a time on can find; return their number.

        Args:
            first: The time of the first left row that waits or comes.
            back: How far left rows look back.
            edge: See `within`.
        """
        expired = self.rows.take_before(first - back)
        gone = 0 if expired is None else len(expired.times)
        if self.rows.count_before(first) <= max(2 * self._reduced, self._reduced_from):
            return gone
        taken = self.rows.take_before(first)
        assert taken is not None
        batch, times = taken.batch, taken.times
        rows = edge(batch, False)
        if rows is not None:
            rows = np.sort(rows)
            gone += len(times) - len(rows)
            batch, times = batch.take(pa.array(rows)), times[rows]
        self._reduced = len(times)
        self.rows.put_first(batch, times)
        return gone


def _in_order(batch: pa.RecordBatch, times: Array) -> _Run:
    if not (times[1:] < times[:-1]).any():
        return _Run(batch, times)
    order = np.argsort(times, kind="stable")
    return _Run(batch.take(pa.array(order)), times[order])


def _merge(runs: list[_Run]) -> _Run:
    if len(runs) == 1:
        return runs[0]
    return _in_order(concat_batches([run.batch for run in runs]), np.concatenate([run.times for run in runs]))


class Joined(NamedTuple):
    """The results of final left rows."""

    batches: list[pa.RecordBatch]
    pairs: int
    """The number of results that are not rows without a match."""


def join_finals(
    spec: JoinSpec, best: BestMatch, tracked: Tracked, left: list[pa.RecordBatch], right: list[pa.RecordBatch]
) -> Joined:
    """Join final left rows with all right rows in their reach, and record which ones have a match."""
    found = best.find(show_columns(spec, 0, left), show_columns(spec, 1, right))
    numbers = np.concatenate([integers(batch.column(ROW)) for batch in left])
    tracked.states.mark(numbers[found.matched])
    alone = int(tracked.states.leave(numbers).sum())
    tracked.states.forget()
    pairs = found.table.num_rows - (alone if tracked.preserved else 0)
    return Joined(found.table.cast(best.output or spec.output).combine_chunks().to_batches(), pairs)


def show_columns(spec: JoinSpec, side: int, batches: list[pa.RecordBatch]) -> pa.Table:
    """Return rows of a side without hidden columns."""
    schema = spec.sides[side].schema
    columns = [each.columns[: len(schema)] for each in batches]
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(each, schema=schema) for each in columns], schema
    )


@dataclass
class WaitingJoin(RunningJoin):
    """A running join in the caller's thread: rows wait, and final left rows take their best matches."""

    spec: JoinSpec
    best: BestMatch
    lateness: int = 0
    on_late: OnLate | None = None

    def __post_init__(self) -> None:
        self.driver: Driver = Driver(self.spec, self.lateness, self.on_late)
        self.latencies, self.watch = Latencies(1), Stopwatch()
        self._left, self._right = TimedRows(self.spec.tuning), Candidates(self.spec.tuning)
        self._found = self._expired = self._batches = 0

    def _push(
        self, stream: int, batch: pa.RecordBatch, seen: Seen | None, came: float, more: bool
    ) -> Iterator[pa.RecordBatch]:
        self.watch.start()
        admitted = self.driver.admit(stream, batch, seen)
        times = integers(stored_column(admitted, self.spec.sides[stream], TIME))
        (self._left, self._right.rows)[stream].add(admitted, times)
        self._batches += 1
        self.watch.stop()
        return iter(())

    def _finish(self, until: Callable[[], bool] | None) -> Iterator[pa.RecordBatch]:
        return iter(())

    def _finalise(self, last: bool) -> Iterator[pa.RecordBatch]:
        tracked = self.driver.tracked[0]
        assert tracked is not None
        for batch in tracked.take_alone():
            yield lone_rows(self.spec, 0, batch, None)
        final = _MOST + 1 if last else self.driver.oldest(0)
        taken = None if final is None else self._left.take_before(final)
        if taken is not None:
            yield from self._join(taken)
        self._drop()

    def _join(self, final: _Run) -> Iterator[pa.RecordBatch]:
        """Yield the results of final left rows."""
        first, last = int(final.times[0]), int(final.times[-1])
        right = self._right.within(first, last, self._reach, self._edge_rows)
        tracked = self.driver.tracked[0]
        assert tracked is not None
        found = join_finals(self.spec, self.best, tracked, [final.batch], right)
        self._found += found.pairs
        yield from found.batches

    @property
    def _reach(self) -> tuple[int, int]:
        """How far left rows look back and ahead."""
        ahead, both = self.spec.reach(0), self.spec.reach(1)
        assert ahead is not None
        assert both is not None
        return both - ahead, ahead

    def _drop(self) -> None:
        """Drop right rows that no left row to come can find."""
        first = self.driver.oldest(0)
        if first is not None and self.driver.oldest(1) is not None:
            self._expired += self._right.drop(first, self._reach[0], self._edge_rows)

    def _edge_rows(self, batch: pa.RecordBatch, forward: bool) -> Array | None:
        return self.best.edge_rows(show_columns(self.spec, 1, [batch]), forward=forward)

    def held_rows(self, side: int) -> list[pa.RecordBatch]:
        """Return the rows of a side that are held, with their hidden columns."""
        return [run.batch for run in (self._left, self._right.rows)[side].runs]

    def metrics(self) -> Metrics:
        """Return counts and sizes so far."""
        sides = self._left, self._right.rows
        figures = Metrics(
            stream_metrics(self.driver, (side.rows for side in sides)),
            results=self._found,
            comparisons=0,
            basic_windows=sum(len(side.runs) for side in sides),
            state_bytes=sum(side.nbytes for side in sides),
            expired=self._expired,
            elapsed=self.watch.seconds,
            algorithm="waiting",
            cores=(CoreMetrics(self._found, 0, self._left.rows, self._right.rows.rows, self._batches),),
        )
        return with_latency(with_matches(figures, self.driver), self.latencies)


@dataclass(frozen=True)
class WaitingPlan(PlannedJoin[JoinSpec]):
    """A join of left rows with their best matches that is checked and planned but not running."""

    best: BestMatch = field(kw_only=True)

    @property
    def preserves(self) -> bool:
        """True: left rows that wait are results to come."""
        return True

    def start(self, on_late: OnLate | None = None) -> WaitingJoin:
        """Start a join without rows, in the caller's thread."""
        return WaitingJoin(self.spec, self.best, self.lateness or 0, on_late)

    def explain(self) -> str:
        """Describe the plan."""
        return f"{explain_best(self.best)}\n{explain_waiting(self.best)}"
