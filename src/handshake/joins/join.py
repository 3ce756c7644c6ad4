"""The in-process back end: joins on the cores of this machine, batch by batch or table by table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.io.frames import conform, schema_of
from handshake.joins.arrangements.unbounded import Unbounded
from handshake.joins.driver import times_of
from handshake.joins.gate import OnShed
from handshake.joins.metrics import Metrics
from handshake.joins.plan import ALGORITHMS, JoinPlan, prepare
from handshake.joins.running import (
    NEWEST,
    Arrivals,
    PushedJoin,
    Stream,
    TableReplay,
    check_clock,
    checked_pace,
)
from handshake.joins.spec import SIDES
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan.build import Expression
from handshake.schema import UNITS
from handshake.windows import Spec

__all__ = ["ALGORITHMS", "Join", "JoinPlan", "Metrics", "Replay", "prepare"]

Array = np.ndarray[Any, Any]


class Join(PushedJoin[Metrics]):
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
        on: str | Expression | None = None,
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
        tuning: Tuning = TUNING,
    ) -> None:
        schemas = (schema_of(left, "left"), schema_of(right, "right"))
        self.plan = prepare(
            *schemas, on, window, left_window=left_window, right_window=right_window, time=time,
            left_time=left_time, right_time=right_time, method=method, algorithm=algorithm, cores=cores,
            suffix=suffix, lateness=lateness, ordered=ordered, aliases=aliases, overload=overload, room=room,
            adapt=adapt, pin=pin, tuning=tuning,
        )  # fmt: skip
        spec = self.plan.spec
        streams = [Stream(SIDES[k], schemas[k], spec.sides[k].time) for k in (0, 1)]
        engine = self.plan.gate(on_shed) if self.plan.overload == "shed" else self.plan.start()
        super().__init__(engine, streams, spec.unit, self.plan.ordering())

    def push_left(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push tuples of the left stream: an Arrow batch or table, a frame, a dict of lists, some dicts."""
        return self._push(0, tuples)

    def push_right(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push tuples of the right stream."""
        return self._push(1, tuples)

    def advance(self, *, left: Any = None, right: Any = None) -> list[pa.RecordBatch]:
        """Say that no tuple older than this will come on a side: a value as its time column has them.

        A stream that has fallen silent then no longer holds back the watermark. Returns results that were
        held back for their order and may go now.
        """
        given = enumerate((left, right))
        return self._advance({side: time for side, time in given if time is not None})

    def explain(self) -> str:
        """The plan, for people."""
        return self.plan.explain()

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results."""
        return self.plan.output_schema


class Replay(TableReplay[Array, Metrics]):
    """Two tables replayed as streams; iterating yields results in Arrow batches.

    With a `pace`, tuples arrive when their time columns say so, that many times as fast: 1 is as it was. The
    join can then be behind, and the plan's `overload` says what happens: streams wait, or tuples are shed.
    """

    def __init__(
        self, plan: JoinPlan, left: pa.Table, right: pa.Table, *, pace: float | None = None,
        on_shed: OnShed | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        pace, sheds = checked_pace(pace, timed=plan.spec.sides[0].time is not None), plan.overload == "shed"
        check_clock(pace, sheds=sheds, pushed="Join")
        super().__init__(left.num_rows + right.num_rows, pace, sheds=sheds)
        self._on_shed = on_shed
        self._tuning = plan.spec.tuning
        self._step = self._tuning.slice_rows
        self._tables = tuple(
            conform(table, spec.schema, SIDES[spec.side])
            for table, spec in zip((left, right), plan.spec.sides, strict=True)
        )

    def _run(self) -> Iterator[pa.RecordBatch]:
        if self._pace is not None:
            return self._paced(self.plan.gate(self._on_shed), self._pace, self.plan.ordering())
        return self._unbounded() if self.plan.runs_as == "unbounded" else self._in_order()

    def _unbounded(self) -> Iterator[pa.RecordBatch]:
        """No windows: hold the right side, and let the left pass by."""
        left, right = self._tables
        self._engine = engine = Unbounded(self.plan.spec, self.plan.cores, self.plan.cpus)
        engine.hold(right)
        self.done = right.num_rows
        rows = 16 * self._tuning.slice_rows
        for start in range(0, left.num_rows, rows):
            piece = left.slice(start, rows)
            yield from engine.pass_by(piece)
            self.done += piece.num_rows
        yield from engine.drain()

    def _in_order(self) -> Iterator[pa.RecordBatch]:
        ordering = self.plan.ordering()
        self._engine = engine = self.plan.start()
        for side, piece, other in self._slices():
            results = engine.push(side, piece, other, more=True)
            if ordering is None:
                yield from results
            else:
                found = [*results, *engine.drain()]
                self._step = self._next_step(sum(batch.num_rows for batch in found))
                ordering.add(found)
                yield from ordering.release(engine.driver.mark())
        if ordering is None:
            yield from engine.drain()
        else:
            yield from ordering.release(None, all_of_them=True)

    def _next_step(self, results: int) -> int:
        """Choose a slice that gives about as many results as may be held back, after one with `results`."""
        step, tuning = self._step, self._tuning
        return max(min(step * tuning.held_results // max(results, 1), 2 * step, tuning.slice_rows), 1)

    def _arrivals(self, pace: float) -> Arrivals[Array]:
        tables, others = self._by_arrival()
        return Arrivals(tables, self._moments(pace), lambda side, low, high: others[side][low:high])

    def _restamped(self, k: int, seen: Array, most: Mapping[int, int], before: Sequence[int]) -> Array:
        counts: Array = np.minimum(seen, most.get(1 - k, NEWEST)) - before[1 - k]
        return counts

    def _moments(self, pace: float) -> list[Array]:
        """For each tuple, in arrival order, the seconds of the clock after which it comes."""
        columns = [self._by_time(side) for side in (0, 1)]
        known = [times[:count] for _, times, count in columns if count] or [np.zeros(1, np.int64)]
        first, last = min(t[0] for t in known), max(t[-1] for t in known)
        seconds = UNITS[self.plan.spec.unit] / 1e9 / pace
        spans = [np.minimum(times, last).astype(np.float64) - float(first) for _, times, _ in columns]
        return [span * seconds for span in spans]

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray[Any, Any]]]:
        """Both sides in arrival order, cut alike: (side, tuples, counts of the other side)."""
        tables, others = self._by_arrival()
        places = [np.arange(len(other)) + other for other in others]
        tuning = self._tuning
        if self.plan.ordered:
            self._step = min(tuning.first_slice_rows, tuning.slice_rows)
        while self.done < self.total:
            stop = min(self.done + self._step, self.total)
            for side, table in enumerate(tables):
                low, high = np.searchsorted(places[side], [self.done, stop])
                if low < high:
                    yield side, table.slice(low, high - low), others[side][low:high]
            self.done = stop

    def _by_arrival(self) -> tuple[tuple[pa.RecordBatch, pa.RecordBatch], list[np.ndarray[Any, Any]]]:
        """Both sides in arrival order, and for each tuple how many of the other side came before it."""
        left, right = self._tables
        specs = self.plan.spec.sides
        if specs[0].time is None or specs[1].time is None:
            turns = [np.arange(t.num_rows) for t in (left, right)]
            return (left, right), [
                np.minimum(turns[0], right.num_rows), np.minimum(turns[1] + 1, left.num_rows)
            ]  # fmt: skip
        (left, mine, known), (right, theirs, dated) = (self._by_time(side) for side in (0, 1))
        after, before = np.searchsorted(theirs, mine, "left"), np.searchsorted(mine, theirs, "right")
        before[:dated] = np.minimum(before[:dated], known)  # the largest time is not yet "without one"
        after[known:] = dated
        return (left, right), [after, before]

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
