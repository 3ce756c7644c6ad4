"""Tables replayed as streams: as fast as the join takes them, or at a pace.

Rows arrive by time, ties in the order of the streams, then of rows; rows without a time come last. Without
time columns, the streams take turns.
"""

from __future__ import annotations

import contextlib
import gc
import time as clock
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, UnsupportedError, WindowError
from handshake.html import card
from handshake.io.frames import conform
from handshake.joins.arrangements.arrangement import RunningJoin
from handshake.joins.arrangements.unbounded import Unbounded
from handshake.joins.driver import OnLate, Seen, StreamLike, times_of
from handshake.joins.gate import Gate, OnShed
from handshake.joins.metrics import Metrics
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.plan import JoinPlan, MultiPlan
from handshake.joins.why.answer import Why
from handshake.joins.why.pairs import explain_pair
from handshake.joins.why.rows import conform_pair, rows_by_name
from handshake.joins.why.streams import explain_rows
from handshake.options import Options
from handshake.schema import UNITS

_SAMPLE = 256
"""Rows of each table that are looked at to choose join orders."""
_LAST = np.iinfo(np.int64).max
Array = np.ndarray[Any, Any]
PlanT = TypeVar("PlanT", bound=JoinPlan | MultiPlan)


@contextlib.contextmanager
def spare_old_objects() -> Iterator[None]:
    """Make the garbage collector skip the objects that exist now: libraries, kernels and plans.

    A full collection otherwise visits a hundred thousand objects, a few times a minute, and nothing else runs
    for that tenth of a second. Use it in programs that have the process to themselves.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Dated(NamedTuple):
    """A table in the order of its times; rows without a time come last."""

    table: pa.RecordBatch
    times: Array
    """The times of its rows, in order; the largest number for rows without a time."""
    known: int
    """How many rows have a time."""


class _Cut(NamedTuple):
    """The rows of a stream in a tick."""

    batch: pa.RecordBatch
    seen: Seen | None
    start: int
    """How many rows of the stream came before them."""


class _Measured(Protocol):
    def metrics(self) -> Metrics: ...

    def close(self) -> None: ...


class TableReplay(ABC, Generic[PlanT]):
    """Tables replayed as streams; iterating yields results in Arrow batches."""

    def __init__(
        self, plan: PlanT, tables: Sequence[pa.Table], *, pace: float | None, on_shed: OnShed | None
    ) -> None:
        self.plan = plan
        self._on_shed, self._sheds = on_shed, plan.overload == "shed"
        streams: Sequence[StreamLike] = plan.spec.streams
        self._pace = check_pace(pace, timed=streams[0].time is not None)
        self._tables = [conform(t, s.schema, s.name) for t, s in zip(tables, streams, strict=True)]
        self.total, self.done = sum(table.num_rows for table in self._tables), 0
        self._tuning = plan.spec.tuning
        self._step = self._tuning.slice_rows
        self._engine: _Measured | None = None
        self._last: Metrics | None = None

    def _check_clock(self, pushed: str) -> None:
        """Raise if rows may be shed and nothing can fall behind."""
        if self._sheds and self._pace is None:
            raise UnsupportedError(
                'overload="shed" needs a clock that the join can fall behind, and a replay without a pace '
                "waits for the join; give a pace (1 is the speed of the time columns), or push into a "
                f"{pushed}"
            )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._run()
        finally:
            if self._engine is not None:
                self._last = self._engine.metrics()
                self._engine.close()
                self._engine = None

    def metrics(self) -> Metrics:
        """Return counts and sizes so far; after the end, the last ones."""
        if self._engine is not None:
            return self._engine.metrics()
        if self._last is None:
            raise HandshakeError("the replay has not begun; iterate over it first")
        return self._last

    @property
    def closed(self) -> bool:
        """True once the iteration has ended."""
        return self._engine is None and self._last is not None

    @property
    def streams(self) -> dict[str, pa.Schema]:
        """The columns of each stream, by name."""
        return {stream.name: stream.schema for stream in self.plan.spec.streams}

    def explain(self) -> str:
        """Describe the plan."""
        return self.plan.explain()

    def _repr_html_(self) -> str:
        begun = self._engine is not None or self._last is not None
        state = "running" if self._engine is not None else "ended" if begun else "not begun"
        facts: list[tuple[str, object]] = [("rows joined", f"{self.done:,} of {self.total:,}")]
        facts += self.metrics().facts() if begun else []
        return card(f"{type(self).__name__}, {state}", facts, self.explain())

    def _run(self) -> Iterator[pa.RecordBatch]:
        self._engine = engine = self._start()
        if self._pace is None:
            return self._run_at_full_speed(engine)
        self._engine = gate = self.plan.gate(self._on_shed, engine)
        return self._run_at_pace(gate, self._pace)

    def _start(self) -> RunningJoin:
        return self.plan.start()

    # As fast as the join takes rows.

    def _run_at_full_speed(self, engine: RunningJoin) -> Iterator[pa.RecordBatch]:
        ordering = self.plan.ordering()
        for k, piece, seen in self._slices():
            results = engine.push(k, piece, seen, more=True)
            if ordering is None:
                yield from results
                if self.plan.tracks:
                    yield from engine.drain()
                continue
            found = [*results, *engine.drain()]
            self._step = self._next_step(sum(batch.num_rows for batch in found))
            ordering.add(found)
            yield from ordering.release(engine.driver.mark())
        rest = engine.drain(last=True)
        if ordering is None:
            yield from rest
        else:
            ordering.add(list(rest))
            yield from ordering.release(None, all_of_them=True)

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, Seen | None]]:
        """Yield the streams in arrival order, cut at the same places: (stream, rows, counts of others)."""
        places = [
            np.arange(len(t)) + sum(s.values()) for t, s in zip(self._arriving, self._seen, strict=True)
        ]
        tuning = self._tuning
        few = self.plan.ordered or len(places) > 2  # so that join orders can be improved early
        self._step = min(tuning.first_slice_rows, tuning.slice_rows) if few else tuning.slice_rows
        while self.done < self.total:
            stop = min(self.done + self._step, self.total)
            for k, table in enumerate(self._arriving):
                low, high = (int(n) for n in np.searchsorted(places[k], [self.done, stop]))
                if low < high:
                    yield k, table.slice(low, high - low), self._counts(k, low, high)
            self.done = stop
            if not self.plan.ordered:
                self._step = self._next_step(0)

    def _next_step(self, results: int) -> int:
        """Return the size of the next slice: at most twice this one, with not too many results."""
        step, tuning = self._step, self._tuning
        return max(min(step * tuning.held_results // max(results, 1), 2 * step, tuning.slice_rows), 1)

    # At a pace.

    def _run_at_pace(self, gate: Gate, pace: float) -> Iterator[pa.RecordBatch]:
        ordering, results = self.plan.ordering(), self._feed(gate, pace)
        if ordering is None:
            yield from results
            return
        for batch in results:
            ordering.add([batch])
            yield from ordering.release(gate.mark())
        yield from ordering.release(None, all_of_them=True)

    def _feed(self, gate: Gate, pace: float) -> Iterator[pa.RecordBatch]:
        """Push each tick's rows when the tick is over: they arrive then, even if this loop is late."""
        began = clock.perf_counter()
        for tick, cuts in self._ticks(pace):
            due = began + tick * self._tuning.tick_seconds
            yield from gate.until(due)
            for k, piece, seen in self._drop_shed(gate, cuts):
                yield from gate.admit(k, piece, seen, due)
            self.done += sum(cut.batch.num_rows for cut in cuts.values())
        yield from gate.drain(last=True)

    def _ticks(self, pace: float) -> Iterator[tuple[int, dict[int, _Cut]]]:
        """Yield the ticks in which rows come, with the rows of each stream."""
        length = self._tuning.tick_seconds
        ticks = [np.ceil(seconds / length).astype(np.int64) for seconds in self._moments(pace)]
        for tick in np.unique(np.concatenate(ticks)):
            cuts: dict[int, _Cut] = {}
            for k, table in enumerate(self._arriving):
                low, high = (int(n) for n in np.searchsorted(ticks[k], [tick, tick + 1]))
                if low < high:
                    cuts[k] = _Cut(table.slice(low, high - low), self._counts(k, low, high), low)
            yield int(tick), cuts

    def _moments(self, pace: float) -> list[Array]:
        """Return, per row in arrival order, after how many seconds of the clock it comes."""
        known = [dated.times[: dated.known] for dated in self._dated if dated.known] or [
            np.zeros(1, np.int64)
        ]
        first, last = min(times[0] for times in known), max(times[-1] for times in known)
        seconds = UNITS[self.plan.spec.unit] / 1e9 / pace
        spans = [np.minimum(d.times, last).astype(np.float64) - float(first) for d in self._dated]
        return [span * seconds for span in spans]

    def _drop_shed(
        self, gate: Gate, cuts: dict[int, _Cut]
    ) -> Iterator[tuple[int, pa.RecordBatch, Seen | None]]:
        """Yield the batches of a tick that have room, stamped as if shed rows had never come."""
        before = list(gate.shed_rows)
        gone = {k: cut.start for k, cut in cuts.items() if self._sheds and not gate.has_room(k)}
        for k in gone:
            gate.shed(k, cuts[k].batch)
        for k, cut in cuts.items():
            if k not in gone:
                seen = cut.seen
                if seen is not None:
                    seen = {j: np.minimum(n, gone.get(j, _LAST)) - before[j] for j, n in seen.items()}
                yield k, cut.batch, seen

    # The order of arrival.

    @cached_property
    def _dated(self) -> list[_Dated]:
        """The tables in the order of their times; only for streams with time columns."""
        return [self._by_time(k) for k in range(len(self._tables))]

    def _by_time(self, k: int) -> _Dated:
        table, stream = self._tables[k], self.plan.spec.streams[k]
        assert stream.time is not None
        times, valid = times_of(table.column(stream.time), self.plan.spec.unit, stream.time, stream.name)
        if valid is not None:
            order = np.lexsort((times, ~valid))
            times = np.where(valid, times, _LAST)
            return _Dated(table.take(pa.array(order)), times[order], int(valid.sum()))
        if np.any(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            table, times = table.take(pa.array(order)), times[order]
        return _Dated(table, times, len(times))

    @property
    def _timed(self) -> bool:
        return self.plan.spec.streams[0].time is not None

    @cached_property
    def _arriving(self) -> list[pa.RecordBatch]:
        """The rows of each stream in the order in which they arrive."""
        return [dated.table for dated in self._dated] if self._timed else list(self._tables)

    @cached_property
    def _seen(self) -> list[dict[int, Array]]:
        """Per stream: how many rows of each other stream arrive before each of its rows."""
        streams = range(len(self._tables))
        return [{j: self._rows_before(k, j) for j in streams if j != k} for k in streams]

    def _rows_before(self, k: int, j: int) -> Array:
        rows = self._tables[j].num_rows
        if not self._timed:
            turns: Array = np.minimum(np.arange(self._tables[k].num_rows) + (j < k), rows)
            return turns
        mine, theirs = self._dated[k], self._dated[j]
        seen = np.searchsorted(theirs.times[: theirs.known], mine.times, "right" if j < k else "left")
        seen[mine.known :] = rows if j < k else theirs.known
        return seen

    def _counts(self, k: int, low: int, high: int) -> Seen | None:
        """Return the counts of other streams for some rows, if a window needs them."""
        if not self.plan.spec.windows.counted:
            return None
        return {j: seen[low:high] for j, seen in self._seen[k].items()}


class Replay(TableReplay[JoinPlan]):
    """Two tables replayed as streams; iterating yields results in Arrow batches.

    Args:
        plan: The join.
        left: The rows of the left stream.
        right: The rows of the right stream.
        pace: Let rows arrive when their time columns say so, this many times as fast; 1 is the original
            speed. The join can then be behind, and the plan's `overload` says what happens.
        on_shed: Called with the name of the side and each batch that is shed.
        on_late: Called with the number of the side and rows that are dropped without a time; none is late.
    """

    def __init__(
        self, plan: JoinPlan, left: pa.Table, right: pa.Table, *, pace: float | None = None,
        on_shed: OnShed | None = None, on_late: OnLate | None = None,
    ) -> None:  # fmt: skip
        super().__init__(plan, (left, right), pace=pace, on_shed=on_shed)
        self._on_late = on_late
        self._check_clock("Join")

    def why(self, left_row: Any, right_row: Any) -> Why:
        """Explain why two rows are a pair of this join, or not; see `handshake.why`. No row is late."""
        spec = self.plan.spec
        return explain_pair(spec, conform_pair(spec, left_row, right_row))

    def _start(self) -> RunningJoin:
        return self.plan.start(self._on_late)

    def _run(self) -> Iterator[pa.RecordBatch]:
        if self._pace is None and self.plan.runs_as == "unbounded":
            return self._pass_by()
        return super()._run()

    def _pass_by(self) -> Iterator[pa.RecordBatch]:
        """Hold the right side, and let the left pass by."""
        left, right = self._tables
        self._engine = engine = Unbounded(self.plan.spec, cores=self.plan.cores, cpus=self.plan.cpus)
        engine.fill(1, right)
        self.done = right.num_rows
        rows = 16 * self._tuning.slice_rows
        for start in range(0, left.num_rows, rows):
            piece = left.slice(start, rows)
            yield from engine.push(0, piece)
            if self.plan.tracks:
                yield from engine.drain()
            self.done += piece.num_rows
        yield from engine.drain(last=True)


class MultiReplay(TableReplay[MultiPlan]):
    """Named tables replayed as streams; iterating yields results in Arrow batches.

    Args:
        plan: The join.
        tables: The rows of each stream, by its name.
        pace: As for `Replay`.
        on_shed: Called with the name of the stream and each batch that is shed.
    """

    def __init__(
        self, plan: MultiPlan, tables: Mapping[str, pa.Table], *, pace: float | None = None,
        on_shed: OnShed | None = None,
    ) -> None:  # fmt: skip
        super().__init__(plan, [tables[name] for name in plan.spec.names], pace=pace, on_shed=on_shed)

    def why(self, rows: Mapping[str, Any]) -> Why:
        """Explain why rows, one of each stream, are a result, or not; see `handshake.why_streams`."""
        return explain_rows(self.plan.spec, rows_by_name(rows, self.streams))

    def explain(self) -> str:
        """Describe the plan to begin with, from a sample of the tables."""
        text = self._foresee(MJoin(self.plan.spec, self.plan.lateness)).explain(self.plan.cores)
        return "\n".join((text, *self.plan.remarks()))

    def _run(self) -> Iterator[pa.RecordBatch]:
        self._check_clock("MultiJoin")
        return super()._run()

    def _start(self) -> MJoin:
        return self._foresee(self.plan.start())

    def _foresee(self, engine: MJoin) -> MJoin:
        engine.foresee(
            [_sample(table) for table in self._tables], [*map(self._expect_rows, range(len(self._tables)))]
        )
        return engine

    def _expect_rows(self, k: int) -> int:
        """Return about how many rows a window is going to hold."""
        window, rows = self.plan.spec.streams[k].window, int(self._tables[k].num_rows)
        if window is None or not rows:
            return rows
        if window.capacity is not None:
            return min(window.capacity, rows)
        times = self._dated[k].times[: self._dated[k].known]
        span = int(times[-1]) - int(times[0]) if len(times) else 0
        return min(rows, rows * (self.plan.spec.rule(k).reach + 1) // max(span, 1))


def _sample(table: pa.RecordBatch) -> pa.RecordBatch:
    return table.take(pa.array(np.arange(0, table.num_rows, max(table.num_rows // _SAMPLE, 1))))


def check_pace(pace: Any, *, timed: bool) -> float | None:
    """Return a pace after a check that it is a number above 0, and that there are times to go by."""
    if Options(pace=pace).pace is None:
        return None
    if not timed:
        raise WindowError("a pace goes by time columns, and none is named; name them (time=…)")
    return float(pace)
