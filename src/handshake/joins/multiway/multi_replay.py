"""Tables replayed as several streams: as fast as the join takes them, or at a pace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.io.frames import conform
from handshake.joins.driver import times_of
from handshake.joins.gate import OnShed
from handshake.joins.multiway.explain import explain_many
from handshake.joins.multiway.gate import Seen
from handshake.joins.multiway.metrics import MultiMetrics
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.multi_plan import MultiPlan
from handshake.joins.running import NEWEST, Arrivals, TableReplay, check_clock, checked_pace
from handshake.schema import UNITS

__all__ = ["MultiReplay"]

Array = np.ndarray[Any, Any]
_SLICES = (1 << 12, 1 << 16)
"""Tuples of all streams that a replay pushes together: few at first, so that orders can be improved early."""
_SAMPLE = 256
"""Tuples of each table that are looked at beforehand."""


class MultiReplay(TableReplay[Seen, MultiMetrics]):
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
        self._on_shed = on_shed
        self._tables = [conform(tables[s.name], s.schema, s.name) for s in plan.spec.streams]
        pace = checked_pace(pace, timed=plan.spec.streams[0].time is not None)
        total = sum(table.num_rows for table in self._tables)
        super().__init__(total, pace, sheds=plan.overload == "shed")

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
        if stream.window.capacity is not None:
            return min(stream.window.capacity, rows)
        times, valid = self._time(k)
        known = times if valid is None else times[valid]
        span = int(known.max()) - int(known.min()) if len(known) else 0
        return min(rows, rows * (self.plan.spec.rule(k).reach + 1) // max(span, 1))

    def _run(self) -> Iterator[pa.RecordBatch]:
        check_clock(self._pace, sheds=self._sheds, pushed="MultiJoin")
        self._engine = engine = self._foreseen(self.plan.start())
        if self._pace is None:
            return self._in_order(engine)
        return self._paced(self.plan.gate(engine, self._on_shed), self._pace, self.plan.ordering())

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

    def _arrivals(self, pace: float) -> Arrivals[Seen]:
        rows, places = self._by_arrival()
        tables = [_taken(table, row) for table, row in zip(self._tables, rows, strict=True)]
        moments = self._moments(rows, pace)
        return Arrivals(tables, moments, lambda k, low, high: self._seen(k, places, low, high))

    def _restamped(self, k: int, seen: Seen, most: Mapping[int, int], before: Sequence[int]) -> Seen:
        return {j: np.minimum(n, most.get(j, NEWEST)) - before[j] for j, n in seen.items()}

    def _moments(self, rows: list[Array], pace: float) -> list[Array]:
        """For each tuple, in arrival order, the seconds of the clock after which it comes."""
        columns = [self._time(k) for k in range(len(rows))]
        known = np.concatenate([times if valid is None else times[valid] for times, valid in columns])
        first, last = (known.min(), known.max()) if len(known) else (0, 0)
        seconds = UNITS[self.plan.spec.unit] / 1e9 / pace
        found = []
        for order, (times, valid) in zip(rows, columns, strict=True):
            dated = times if valid is None else np.where(valid, times, last)  # without a time: at the end
            found.append((dated[order].astype(np.float64) - float(first)) * seconds)
        return found

    def _seen(self, k: int, places: list[Array], low: int, high: int) -> dict[int, Array]:
        """How many of each stream with a tuple window have come before these tuples of a stream."""
        counted = [j for j, stream in enumerate(self.plan.spec.streams) if stream.counted and j != k]
        return {j: np.searchsorted(places[j], places[k][low:high]) for j in counted}

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, dict[int, Array]]]:
        """All streams in arrival order, cut alike: (stream, tuples, counts of streams with tuple windows)."""
        rows, places = self._by_arrival()
        tables = [_taken(table, row) for table, row in zip(self._tables, rows, strict=True)]
        start, size = 0, _SLICES[0]
        while start < self.total:
            for k, table in enumerate(tables):
                low, high = (int(n) for n in np.searchsorted(places[k], [start, start + size]))
                if low < high:
                    yield k, table.slice(low, high - low), self._seen(k, places, low, high)
            start, size = start + size, min(2 * size, _SLICES[1])
            self.done = min(start, self.total)

    def _by_arrival(self) -> tuple[list[Array], list[Array]]:
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


def _sample(table: pa.RecordBatch) -> pa.RecordBatch:
    return table.take(pa.array(np.arange(0, table.num_rows, max(table.num_rows // _SAMPLE, 1))))


def _taken(table: pa.RecordBatch, rows: Array) -> pa.RecordBatch:
    """Rows in another order; in the one that they are in, nothing is copied."""
    return table if np.array_equal(rows, np.arange(table.num_rows)) else table.take(pa.array(rows))
