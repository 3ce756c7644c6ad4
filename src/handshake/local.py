"""The in-process back end: joins on the cores of this machine, batch by batch or table by table."""

from __future__ import annotations

import contextlib
import threading
import time as clock
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.admission import Gate, OnShed
from handshake.cores.arrangement import Arrangement
from handshake.cores.driver import times_of
from handshake.cores.metrics import Metrics
from handshake.cores.spec import SIDES
from handshake.cores.unbounded import Unbounded
from handshake.errors import HandshakeError, InputError, UnsupportedError, WindowError
from handshake.frames import conform, schema_of
from handshake.plan.build import E
from handshake.planning import ALGORITHMS, JoinPlan, prepare
from handshake.schema import UNITS
from handshake.window import Spec

__all__ = ["ALGORITHMS", "Join", "JoinPlan", "Metrics", "Replay", "prepare"]

_SLICE = 1 << 16
"""Tuples of both sides that a replay pushes between two looks at the windows."""
_FIRST, _HELD = 1 << 12, 1 << 20
"""Where results are put in order: the tuples of the first slice, and about how many results one may give."""
_TICK = 0.005
"""Seconds of the clock between two pushes of a paced replay."""
Array = np.ndarray[Any, Any]
Cut = tuple[pa.RecordBatch, Array, int]
"""Tuples of a tick, for each how many of the other side came before it, and how many of its own."""


class Join:
    """A running join that tuples are pushed into; each push returns the results that it completes.

    With `overload="shed"` a push never waits for the join: it returns what is ready, `take` gives what comes
    later, and `finish` the rest. When `room` tuples of a side wait, the newest batch of that side is shed:
    counted in the metrics, and given to `on_shed(side, batch)`.

    >>> import pyarrow as pa
    >>> trades = pa.schema([("t", pa.timestamp("us")), ("price", pa.int64())])
    >>> with Join(left=trades, right=trades, on="l.price < r.price", window="1 minute", time="t") as join:
    ...     _ = join.push_left({"t": [0], "price": [10]})
    ...     [batch.num_rows for batch in join.push_right({"t": [1], "price": [11]})]
    [1]
    """

    def __init__(
        self,
        *,
        left: Any,
        right: Any,
        on: str | E | None = None,
        window: Spec = None,
        left_window: Spec = None,
        right_window: Spec = None,
        time: str | None = None,
        left_time: str | None = None,
        right_time: str | None = None,
        method: str = "auto",
        algorithm: str = "low_latency",
        cores: int | None = None,
        suffix: str = "_right",
        lateness: str | None = None,
        ordered: bool = False,
        aliases: tuple[str, str] | None = None,
        overload: str = "block",
        room: int | None = None,
        on_shed: OnShed | None = None,
        adapt: bool = False,
        pin: bool = False,
    ) -> None:
        self._schemas = (schema_of(left, "left"), schema_of(right, "right"))
        self.plan = prepare(
            *self._schemas, on, window, left_window=left_window, right_window=right_window, time=time,
            left_time=left_time, right_time=right_time, method=method, algorithm=algorithm, cores=cores,
            suffix=suffix, lateness=lateness, ordered=ordered, aliases=aliases, overload=overload, room=room,
            adapt=adapt, pin=pin,
        )  # fmt: skip
        self._ordering = self.plan.ordering()
        shedding = self.plan.overload == "shed"
        self._engine: Arrangement | Gate | None = self.plan.gate(on_shed) if shedding else self.plan.start()
        # The threads of the cores keep the engine alive, not this object; when nobody holds it, they end.
        self._forgotten = weakref.finalize(self, _let_go, self._engine)
        self._forgotten.atexit = False
        self._last: Metrics | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Join:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            held = self._ordering.rows if self._ordering is not None and self._engine is not None else 0
            self.close()
        if held and kind is None:
            raise HandshakeError(f"{held} results were held back and not taken; call finish() before leaving")

    def push_left(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push tuples of the left stream: an Arrow batch or table, a frame, a dict of lists, some dicts."""
        return self._push(0, tuples)

    def push_right(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push tuples of the right stream."""
        return self._push(1, tuples)

    def _push(self, side: int, tuples: Any) -> list[pa.RecordBatch]:
        with self._lock:
            engine = self._running()
            batch = conform(tuples, self._schemas[side], SIDES[side])
            with self._closing_on_failure():
                results = list(engine.push(side, batch))
                if not isinstance(engine, Gate):
                    results += engine.drain()
                return self._in_order(results, _mark(engine))

    def take(self, wait: float = 0.0) -> list[pa.RecordBatch]:
        """Results that have come since the last push, and that come within `wait` seconds.

        Only where tuples may be shed: otherwise every push has returned all its results.
        """
        with self._lock:
            engine = self._running()
            if not isinstance(engine, Gate):
                return []
            with self._closing_on_failure():
                return self._in_order(list(engine.until(clock.perf_counter() + wait)), engine.mark())

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Half a batch may have been joined: going on could lose or double results."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _in_order(
        self, results: list[pa.RecordBatch], mark: int | None, *, last: bool = False
    ) -> list[pa.RecordBatch]:
        if self._ordering is None:
            return results
        self._ordering.add(results)
        return self._ordering.release(mark, all_of_them=last)

    def finish(self) -> list[pa.RecordBatch]:
        """Say that no more tuples will come; returns results that were held back, and closes the join."""
        with self._lock, self._closing_on_failure():
            results = self._in_order(list(self._running().drain()), None, last=True)
            self.close()
            return results

    def advance(self, *, left: Any = None, right: Any = None) -> list[pa.RecordBatch]:
        """Say that no tuple older than this will come on a side: a value as its time column has them.

        A stream that has fallen silent then no longer holds back the watermark. Returns results that were
        held back for their order and may go now.
        """
        with self._lock:
            engine = self._running()
            for side, time in enumerate((left, right)):
                if time is not None:
                    receiver = engine if isinstance(engine, Gate) else engine.driver
                    receiver.advance(side, self._instant(side, time))
            if isinstance(engine, Gate):
                return self.take()
            engine.expire()
            return self._in_order([], engine.driver.mark())

    def _instant(self, side: int, time: Any) -> int:
        """One time in the unit that stamps have."""
        name = self.plan.spec.sides[side].time
        if name is None:
            raise WindowError(f"no time column is named for the {SIDES[side]} input, so it cannot advance")
        batch = conform({name: [time]}, pa.schema([self._schemas[side].field(name)]), SIDES[side])
        times, valid = times_of(batch.column(0), self.plan.spec.unit, name, SIDES[side])
        if valid is not None:
            raise InputError(f"{time!r} is not a time to advance the {SIDES[side]} input to")
        return int(times[0])

    def explain(self) -> str:
        """The plan, for people."""
        return self.plan.explain()

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results."""
        return self.plan.output_schema

    def metrics(self) -> Metrics:
        """Counts and sizes so far; after closing, the last ones."""
        with self._lock:
            if self._engine is not None:
                return self._engine.metrics()
            assert self._last is not None
            return self._last

    def close(self) -> None:
        """Free the windows. What was pushed has been joined already."""
        with self._lock:
            if self._engine is not None:
                self._last = self._engine.metrics()
                self._forgotten.detach()
                self._engine.close()
                self._engine = None

    def _running(self) -> Arrangement | Gate:
        if self._engine is None:
            raise HandshakeError("this join is closed; make a new one to push more tuples")
        return self._engine


def _mark(engine: Arrangement | Gate) -> int | None:
    """The watermark up to which all results are there."""
    return engine.mark() if isinstance(engine, Gate) else engine.driver.mark()


def _let_go(engine: Arrangement | Gate) -> None:
    """Close an engine from a thread of its own: the collector may call this on one of the engine's."""
    threading.Thread(target=engine.close, daemon=True).start()


class Replay:
    """Two tables replayed as streams; iterating yields results in Arrow batches.

    With a `pace`, tuples arrive when their time columns say so, that many times as fast: 1 is as it was. The
    join can then be behind, and the plan's `overload` says what happens: streams wait, or tuples are shed.
    """

    def __init__(
        self, plan: JoinPlan, left: pa.Table, right: pa.Table, *, pace: float | None = None,
        on_shed: OnShed | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._pace, self._on_shed = _checked_pace(plan, pace), on_shed
        self._engine: Arrangement | Unbounded | Gate | None = None
        self._last: Metrics | None = None
        self.total = left.num_rows + right.num_rows
        self.done = 0
        self._step = _SLICE
        self._tables = tuple(
            conform(table, spec.schema, SIDES[spec.side])
            for table, spec in zip((left, right), plan.spec.sides, strict=True)
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._run()
        finally:
            self._close()

    def _run(self) -> Iterator[pa.RecordBatch]:
        if self._pace is not None:
            return self._paced(self._pace)
        return self._unbounded() if self.plan.runs_as == "unbounded" else self._in_order()

    def _unbounded(self) -> Iterator[pa.RecordBatch]:
        """No windows: hold the right side, and let the left pass by."""
        left, right = self._tables
        self._engine = engine = Unbounded(self.plan.spec, self.plan.cores, self.plan.cpus)
        engine.hold(right)
        self.done = right.num_rows
        for start in range(0, left.num_rows, 16 * _SLICE):
            piece = left.slice(start, 16 * _SLICE)
            yield from engine.pass_by(piece)
            self.done += piece.num_rows
        yield from engine.drain()

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        ordering = self.plan.ordering()
        self._engine = engine = self.plan.start()
        for side, piece, other in self._slices():
            results = engine.push(side, piece, other)
            if ordering is None:
                yield from results
            else:
                found = [*results, *engine.drain()]
                self._step = _fitting(self._step, sum(batch.num_rows for batch in found))
                ordering.add(found)
                yield from ordering.release(engine.driver.mark())
        if ordering is None:
            yield from engine.drain()
        else:
            yield from ordering.release(None, all_of_them=True)

    def _paced(self, pace: float) -> Iterator[pa.RecordBatch]:
        ordering = self.plan.ordering()
        self._engine = gate = self.plan.gate(self._on_shed)
        results = self._feed(gate, pace)
        if ordering is None:
            yield from results
            return
        for batch in results:
            ordering.add([batch])
            yield from ordering.release(gate.mark())
        yield from ordering.release(None, all_of_them=True)

    def _feed(self, gate: Gate, pace: float) -> Iterator[pa.RecordBatch]:
        """Push each tick's tuples when it is over; they arrive then, even if the feeder itself is late."""
        began = clock.perf_counter()
        for tick, cuts in self._ticks(pace):
            due = began + tick * _TICK
            yield from gate.until(due)
            for side, piece, other in _kept(gate, cuts, self.plan.overload == "shed"):
                yield from gate.admit(side, piece, other, due)
            self.done += sum(piece.num_rows for piece, _, _ in cuts.values())
        yield from gate.drain()

    def _ticks(self, pace: float) -> Iterator[tuple[int, dict[int, Cut]]]:
        """The ticks in which tuples come, and those of each side."""
        tables, others = self._arrivals()
        ticks = self._tick_numbers(pace)
        for tick in np.unique(np.concatenate(ticks)):
            cuts: dict[int, Cut] = {}
            for side, table in enumerate(tables):
                low, high = np.searchsorted(ticks[side], [tick, tick + 1])
                if low < high:
                    cuts[side] = (table.slice(low, high - low), others[side][low:high], int(low))
            yield int(tick), cuts

    def _tick_numbers(self, pace: float) -> list[Array]:
        """For each tuple, in arrival order, the number of ticks after which it has come."""
        columns = [self._by_time(side) for side in (0, 1)]
        known = [times[:count] for _, times, count in columns if count] or [np.zeros(1, np.int64)]
        first, last = min(t[0] for t in known), max(t[-1] for t in known)
        units = UNITS[self.plan.spec.unit] / 1e9 / pace / _TICK
        spans = [np.minimum(times, last).astype(np.float64) - float(first) for _, times, _ in columns]
        return [np.ceil(span * units).astype(np.int64) for span in spans]

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray[Any, Any]]]:
        """Both sides in arrival order, cut alike: (side, tuples, counts of the other side)."""
        tables, others = self._arrivals()
        places = [np.arange(len(other)) + other for other in others]
        self._step = min(_FIRST, _SLICE) if self.plan.ordered else _SLICE
        while self.done < self.total:
            stop = min(self.done + self._step, self.total)
            for side, table in enumerate(tables):
                low, high = np.searchsorted(places[side], [self.done, stop])
                if low < high:
                    yield side, table.slice(low, high - low), others[side][low:high]
            self.done = stop

    def _close(self) -> None:
        if self._engine is not None:
            self._last = self._engine.metrics()
            self._engine.close()
            self._engine = None

    def _arrivals(self) -> tuple[tuple[pa.RecordBatch, pa.RecordBatch], list[np.ndarray[Any, Any]]]:
        """Both sides in arrival order, and for each tuple how many of the other side came before it."""
        left, right = self._tables
        specs = self.plan.spec.sides
        if specs[0].time is None or specs[1].time is None:
            turns = [np.arange(t.num_rows) for t in (left, right)]
            return (left, right), [
                np.minimum(turns[0], right.num_rows), np.minimum(turns[1] + 1, left.num_rows)
            ]  # fmt: skip
        (left, mine, known), (right, theirs, dated) = (self._by_time(side) for side in (0, 1))
        before = np.searchsorted(mine, theirs, "right")
        before[:dated] = np.minimum(before[:dated], known)  # the largest time is not yet "without one"
        return (left, right), [np.searchsorted(theirs, mine, "left"), before]

    def _by_time(self, side: int) -> tuple[pa.RecordBatch, np.ndarray[Any, Any], int]:
        """A side sorted by time, ties in row order, rows without a time last; and how many have one."""
        table, spec = self._tables[side], self.plan.spec.sides[side]
        assert spec.time is not None
        times, valid = times_of(table.column(spec.time), self.plan.spec.unit, spec.time, SIDES[side])
        if valid is not None:
            order = np.lexsort((times, ~valid))
            times = np.where(valid, times, np.iinfo(np.int64).max)
            return table.take(pa.array(order)), times[order], int(valid.sum())
        if np.any(times[1:] < times[:-1]):
            order = np.argsort(times, kind="stable")
            table, times = table.take(pa.array(order)), times[order]
        return table, times, len(times)

    def metrics(self) -> Metrics:
        """Counts and sizes so far; after the end, the last ones."""
        if self._engine is not None:
            return self._engine.metrics()
        if self._last is None:
            raise HandshakeError("the replay has not begun; iterate over it first")
        return self._last


def _checked_pace(plan: JoinPlan, pace: Any) -> float | None:
    if pace is None:
        if plan.overload == "shed":
            raise UnsupportedError(
                "overload='shed' needs a clock that the join can fall behind, and a replay without a pace "
                "waits for the join; give a pace (1 is the speed of the time columns), or push into a Join"
            )
        return None
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 < pace < float("inf"):
        raise UnsupportedError(
            f"pace is a number above 0, 1 being the speed of the time columns; {pace!r} was given"
        )
    if plan.spec.sides[0].time is None:
        raise WindowError("a pace goes by time columns, and none is named; name them (time=…, or --time)")
    return float(pace)


def _fitting(step: int, results: int) -> int:
    """The size of the next slice: what is held back to be put in order stays about as large as `_HELD`."""
    return max(min(step * _HELD // max(results, 1), 2 * step, _SLICE), 1)


def _kept(gate: Gate, cuts: dict[int, Cut], sheds: bool) -> Iterator[tuple[int, pa.RecordBatch, Array]]:
    """Those of a tick's batches that there is room for, stamped as if what was shed had never come."""
    before = tuple(gate.shed_rows)
    gone = {side for side in cuts if sheds and not gate.has_room(side)}
    for side in gone:
        gate.shed(side, cuts[side][0])
    for side, (piece, other, _) in cuts.items():
        if side not in gone:
            most = cuts[1 - side][2] if 1 - side in gone else np.iinfo(np.int64).max
            yield side, piece, np.minimum(other, most) - before[1 - side]
