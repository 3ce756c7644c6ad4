"""Tables replayed as several streams: as fast as the join takes them, or at a pace."""

from __future__ import annotations

import time as clock
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.cores.admission import OnShed
from handshake.cores.driver import times_of
from handshake.cores.mjoin import MJoin
from handshake.cores.mjoin_explain import explain_many
from handshake.cores.mjoin_gate import ManyGate
from handshake.cores.mjoin_metrics import MultiMetrics
from handshake.errors import HandshakeError, UnsupportedError, WindowError
from handshake.frames import conform
from handshake.multiplan import MultiPlan
from handshake.schema import UNITS

__all__ = ["MultiReplay"]

Array = np.ndarray[Any, Any]
_SLICES = (1 << 12, 1 << 16)
"""Tuples of all streams that a replay pushes together: few at first, so that orders can be improved early."""
_SAMPLE = 256
"""Tuples of each table that are looked at beforehand."""
_TICK = 0.005
"""Seconds of the clock between two pushes of a paced replay."""


class _Cut(NamedTuple):
    """Tuples of a stream in a tick, counts of streams with tuple windows for each, and the first's row."""

    batch: pa.RecordBatch
    seen: dict[int, Array]
    start: int


class MultiReplay:
    """Tables replayed as streams; iterating yields results in Arrow batches.

    Tuples arrive by time, ties in the order of the streams, then of rows; without time columns, streams take
    turns. With a `pace`, they arrive when their time columns say so, that many times as fast. The join can
    then be behind, and the plan's `overload` says what happens: streams wait, or tuples are shed.
    """

    def __init__(
        self, plan: MultiPlan, tables: Mapping[str, pa.Table], *, pace: float | None = None,
        on_shed: OnShed | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self._pace, self._on_shed = _checked_pace(plan, pace), on_shed
        self._tables = [conform(tables[s.name], s.schema, s.name) for s in plan.spec.streams]
        self.total = sum(table.num_rows for table in self._tables)
        self.done = 0
        self._engine: MJoin | ManyGate | None = None
        self._last: MultiMetrics | None = None

    def explain(self) -> str:
        """The plan to begin with, for people."""
        engine = self._foreseen(MJoin(self.plan.spec, self.plan.lateness))
        text = explain_many(engine.spec, engine.orders, engine.statistics, self.plan.cores)
        return "\n".join((text, *self.plan.remarks()))

    def _foreseen(self, engine: MJoin) -> MJoin:
        """Let an engine see a sample of the tables."""
        engine.foresee([_sample(table) for table in self._tables], self._window_rows())
        return engine

    def _window_rows(self) -> list[int]:
        """How many tuples each window is going to hold."""
        return [self._held(k, table.num_rows) for k, table in enumerate(self._tables)]

    def _held(self, k: int, rows: int) -> int:
        stream = self.plan.spec.streams[k]
        if stream.window is None or not rows:
            return rows
        if stream.counted:
            return min(stream.window.size, rows)
        times, valid = self._time(k)
        known = times if valid is None else times[valid]
        span = int(known.max()) - int(known.min()) if len(known) else 0
        return min(rows, rows * (self.plan.spec.reach(k) + 1) // max(span, 1))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self.plan.overload == "shed" and self._pace is None:
            raise UnsupportedError(
                "overload='shed' needs a clock that the join can fall behind, and a replay without a pace "
                "waits for the join; give a pace (1 is the speed of the time columns), or push into a "
                "MultiJoin"
            )
        try:
            engine = self._foreseen(self.plan.start())
            self._engine = engine
            yield from self._in_order(engine) if self._pace is None else self._paced(engine, self._pace)
        finally:
            self._close()

    def _in_order(self, engine: MJoin) -> Iterator[pa.RecordBatch]:
        ordering = self.plan.ordering()
        for k, piece, seen in self._slices():
            results = engine.push(k, piece, seen)
            if ordering is None:
                yield from results
            else:
                ordering.add([*results, *engine.drain()])
                yield from ordering.release(engine.driver.mark())
        if ordering is None:
            yield from engine.drain()
        else:
            yield from ordering.release(None, all_of_them=True)

    def _paced(self, engine: MJoin, pace: float) -> Iterator[pa.RecordBatch]:
        ordering = self.plan.ordering()
        self._engine = gate = self.plan.gate(engine, self._on_shed)
        for batch in self._feed(gate, pace):
            if ordering is None:
                yield batch
            else:
                ordering.add([batch])
                yield from ordering.release(gate.mark())
        if ordering is not None:
            yield from ordering.release(None, all_of_them=True)

    def _feed(self, gate: ManyGate, pace: float) -> Iterator[pa.RecordBatch]:
        """Push each tick's tuples when it is over; they arrive then, even if the feeder itself is late."""
        began = clock.perf_counter()
        for tick, cuts in self._ticks(pace):
            due = began + tick * _TICK
            yield from gate.until(due)
            for k, piece, seen in _kept(gate, cuts, self.plan.overload == "shed"):
                yield from gate.admit(k, piece, seen, due)
            self.done += sum(cut.batch.num_rows for cut in cuts.values())
        yield from gate.drain()

    def _ticks(self, pace: float) -> Iterator[tuple[int, dict[int, _Cut]]]:
        """The ticks in which tuples come, and those of each stream."""
        rows, places = self._arrivals()
        tables = [_taken(table, row) for table, row in zip(self._tables, rows, strict=True)]
        ticks = self._tick_numbers(rows, pace)
        for tick in np.unique(np.concatenate(ticks)):
            cuts: dict[int, _Cut] = {}
            for k, table in enumerate(tables):
                low, high = (int(n) for n in np.searchsorted(ticks[k], [tick, tick + 1]))
                if low < high:
                    cuts[k] = _Cut(table.slice(low, high - low), self._seen(k, places, low, high), low)
            yield int(tick), cuts

    def _tick_numbers(self, rows: list[Array], pace: float) -> list[Array]:
        """For each tuple, in arrival order, the number of ticks after which it has come."""
        columns = [self._time(k) for k in range(len(rows))]
        known = np.concatenate([times if valid is None else times[valid] for times, valid in columns])
        first, last = (known.min(), known.max()) if len(known) else (0, 0)
        units = UNITS[self.plan.spec.unit] / 1e9 / pace / _TICK
        found = []
        for order, (times, valid) in zip(rows, columns, strict=True):
            dated = times if valid is None else np.where(valid, times, last)  # without a time: at the end
            found.append(np.ceil((dated[order].astype(np.float64) - float(first)) * units).astype(np.int64))
        return found

    def _seen(self, k: int, places: list[Array], low: int, high: int) -> dict[int, Array]:
        """How many of each stream with a tuple window have come before these tuples of a stream."""
        counted = [j for j, stream in enumerate(self.plan.spec.streams) if stream.counted and j != k]
        return {j: np.searchsorted(places[j], places[k][low:high]) for j in counted}

    def _close(self) -> None:
        if self._engine is not None:
            self._last = self._engine.metrics()
            self._engine.close()
            self._engine = None

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, dict[int, Array]]]:
        """All streams in arrival order, cut alike: (stream, tuples, counts of streams with tuple windows)."""
        rows, places = self._arrivals()
        tables = [_taken(table, row) for table, row in zip(self._tables, rows, strict=True)]
        start, size = 0, _SLICES[0]
        while start < self.total:
            for k, table in enumerate(tables):
                low, high = (int(n) for n in np.searchsorted(places[k], [start, start + size]))
                if low < high:
                    yield k, table.slice(low, high - low), self._seen(k, places, low, high)
            start, size = start + size, min(2 * size, _SLICES[1])
            self.done = min(start, self.total)

    def _arrivals(self) -> tuple[list[Array], list[Array]]:
        """For each stream, its rows in the order in which they arrive, and their places among all."""
        sizes = [table.num_rows for table in self._tables]
        streams = np.repeat(np.arange(len(sizes)), sizes)
        rows = np.concatenate([np.arange(size) for size in sizes])
        if self.plan.spec.streams[0].time is None:
            order = np.lexsort((streams, rows))
        else:
            pairs = [self._time(k) for k in range(len(sizes))]
            times = np.concatenate([times for times, _ in pairs])
            missing = np.concatenate([np.zeros(len(t), np.bool_) if v is None else ~v for t, v in pairs])
            order = np.lexsort((rows, streams, times, missing))
        places = [np.flatnonzero(streams[order] == k) for k in range(len(sizes))]
        return [rows[order[place]] for place in places], places

    def _time(self, k: int) -> tuple[Array, Array | None]:
        stream = self.plan.spec.streams[k]
        assert stream.time is not None
        return times_of(self._tables[k].column(stream.time), self.plan.spec.unit, stream.time, stream.name)

    def metrics(self) -> MultiMetrics:
        """Counts and sizes so far; after the end, the last ones."""
        if self._engine is not None:
            return self._engine.metrics()
        if self._last is None:
            raise HandshakeError("the replay has not begun; iterate over it first")
        return self._last


def _sample(table: pa.RecordBatch) -> pa.RecordBatch:
    return table.take(pa.array(np.arange(0, table.num_rows, max(table.num_rows // _SAMPLE, 1))))


def _taken(table: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """Rows in another order; in the one that they are in, nothing is copied."""
    return table if np.array_equal(rows, np.arange(table.num_rows)) else table.take(pa.array(rows))


def _checked_pace(plan: MultiPlan, pace: Any) -> float | None:
    if pace is None:
        return None
    if isinstance(pace, bool) or not isinstance(pace, int | float) or not 0 < pace < float("inf"):
        raise UnsupportedError(
            f"pace is a number above 0, 1 being the speed of the time columns; {pace!r} was given"
        )
    if plan.spec.streams[0].time is None:
        raise WindowError("a pace goes by time columns, and none is named; name them (time=…, or --time)")
    return float(pace)


def _kept(
    gate: ManyGate, cuts: dict[int, _Cut], sheds: bool
) -> Iterator[tuple[int, pa.RecordBatch, dict[int, Array]]]:
    """Those of a tick's batches that there is room for, stamped as if what was shed had never come."""
    before = list(gate.shed_rows)
    gone = {k for k in cuts if sheds and not gate.has_room(k)}
    for k in gone:
        gate.shed(k, cuts[k].batch)
    for k, cut in cuts.items():
        if k not in gone:
            most = {j: cuts[j].start if j in gone else np.iinfo(np.int64).max for j in cut.seen}
            yield k, cut.batch, {j: np.minimum(n, most[j]) - before[j] for j, n in cut.seen.items()}
