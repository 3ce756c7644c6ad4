"""The in-process back end: joins on the cores of this machine, batch by batch or table by table."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.arrangement import Arrangement
from handshake.cores.cell import Cell
from handshake.cores.driver import times_of
from handshake.cores.handshake import Handshake
from handshake.cores.low_latency import LowLatency
from handshake.cores.metrics import Metrics
from handshake.cores.ordering import InOrder
from handshake.cores.spec import SIDES, JoinSpec, join_spec
from handshake.cores.three_step import ThreeStep
from handshake.cores.unbounded import Unbounded
from handshake.errors import ExpressionError, HandshakeError, InputError, UnsupportedError, WindowError
from handshake.frames import conform, plain_schema, schema_of
from handshake.plan.build import E
from handshake.plan.expr import Expr, Literal
from handshake.plan.parse import parse
from handshake.schema import BOOL, UNITS, Schema
from handshake.window import Duration, Spec, windows_of

__all__ = ["Join", "JoinPlan", "Metrics", "Replay", "prepare"]

_SLICE = 1 << 16
"""Tuples of both sides that a replay pushes between two looks at the windows."""


ALGORITHMS = ("three_step", "cell", "handshake", "low_latency")


class JoinPlan:
    """A join that is checked and planned but not running."""

    def __init__(
        self, spec: JoinSpec, *, lateness: int, algorithm: str, cores: int, ordered: bool = False
    ) -> None:
        self.spec = spec
        self.lateness = lateness
        self.algorithm = algorithm
        self.cores = cores
        self.ordered = ordered
        self.ordering()  # refuses what has no order

    def ordering(self) -> InOrder | None:
        """What puts results in order, if that was asked for."""
        return InOrder(self.spec) if self.ordered else None

    @property
    def runs_as(self) -> str:
        """Where the tuples meet: without windows, one side is held and the other dealt out to the cores."""
        windows = self.spec.windows
        return "unbounded" if windows.left is None and windows.right is None else self.algorithm

    def start(self) -> Arrangement:
        """Arrange the cores and let them run."""
        match self.algorithm:
            case "three_step":
                return ThreeStep(self.spec, self.lateness)
            case "cell":
                return Cell(self.spec, self.lateness, self.cores)
            case "handshake":
                return Handshake(self.spec, self.cores, self.lateness)
        return LowLatency(self.spec, self.lateness, self.cores)

    @property
    def method(self) -> str:
        """The access method: scan, hash or band."""
        return self.spec.method

    @property
    def why(self) -> str:
        """Why that method."""
        return self.spec.why

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results: all of the left input's, then all of the right's."""
        return self.spec.output

    def explain(self) -> str:
        """The plan, for people."""
        return f"{self.spec.explain()}\nalgorithm   {self.runs_as}, cores: {self.cores}"


def prepare(
    left: pa.Schema,
    right: pa.Schema,
    on: str | E | None = None,
    window: Spec = None,
    *,
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
) -> JoinPlan:
    """Check and plan a join; everything that can be wrong about it is found here.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("x", pa.int32())])
    >>> prepare(schema, schema, "ABS(l.x - r.x) <= 10").method
    'band'
    """
    left, right = plain_schema(left), plain_schema(right)
    windows = windows_of(window, left_window, right_window)
    times = (left_time or time, right_time or time)
    if (times[0] is None) != (times[1] is None):
        raise WindowError("a time column is named for one input only; name one for both, or for neither")
    for name, schema, stream in zip(times, (left, right), SIDES, strict=True):
        if name is not None:
            Schema.from_arrow(schema, stream).get(name)
    spec = join_spec(
        left, right, _predicate(on), windows, times=times, method=method, suffix=suffix, aliases=aliases
    )
    return JoinPlan(
        spec,
        lateness=_lateness(lateness, spec.unit),
        algorithm=algorithm,
        cores=_cores(algorithm, cores),
        ordered=ordered,
    )


def _cores(algorithm: str, cores: Any) -> int:
    if algorithm not in ALGORITHMS:
        raise UnsupportedError(f"no algorithm '{algorithm}'; choose one of {', '.join(ALGORITHMS)}")
    if cores is not None and (not isinstance(cores, int) or cores < 1):
        raise UnsupportedError(f"cores is a whole number from 1 up, or None for all; {cores!r} was given")
    if algorithm == "three_step":
        return 1
    return usable_cores() if cores is None else int(cores)


def usable_cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _predicate(on: str | E | None) -> Expr:
    if on is None:
        return Literal(True, type=BOOL)
    if isinstance(on, str):
        return parse(on)
    if isinstance(on, E):
        return on.expr
    raise ExpressionError(
        f"the predicate must be SQL text or a built expression, not {type(on).__name__}; "
        "wrap a Python function as handshake.call(function, left.x, right.a)"
    )


def _lateness(lateness: str | None, unit: str) -> int:
    if lateness is None:
        return 0
    if not isinstance(lateness, str):
        raise WindowError(f"lateness is a length of time such as '5 seconds', not {lateness!r}")
    length = Duration.parse(lateness).nanoseconds
    if length < 0:
        raise WindowError(f"lateness cannot be negative; '{lateness}' is")
    return length // UNITS[unit]


class Join:
    """A running join that tuples are pushed into; each push returns the results that it completes.

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
    ) -> None:
        self._schemas = (schema_of(left, "left"), schema_of(right, "right"))
        self.plan = prepare(
            *self._schemas, on, window, left_window=left_window, right_window=right_window, time=time,
            left_time=left_time, right_time=right_time, method=method, algorithm=algorithm, cores=cores,
            suffix=suffix, lateness=lateness, ordered=ordered, aliases=aliases,
        )  # fmt: skip
        self._ordering = self.plan.ordering()
        self._engine: Arrangement | None = self.plan.start()
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
                results = [*engine.push(side, batch), *engine.drain()]
                return self._in_order(results, engine.driver.mark())

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
                    engine.driver.advance(side, self._instant(side, time))
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

    def _running(self) -> Arrangement:
        if self._engine is None:
            raise HandshakeError("this join is closed; make a new one to push more tuples")
        return self._engine


def _let_go(engine: Arrangement) -> None:
    """Close an engine from a thread of its own: the collector may call this on one of the engine's."""
    threading.Thread(target=engine.close, daemon=True).start()


class Replay:
    """Two tables replayed as streams; iterating yields results in Arrow batches."""

    def __init__(self, plan: JoinPlan, left: pa.Table, right: pa.Table) -> None:
        self.plan = plan
        self._engine: Arrangement | Unbounded | None = None
        self._last: Metrics | None = None
        self.total = left.num_rows + right.num_rows
        self.done = 0
        self._tables = tuple(
            conform(table, spec.schema, SIDES[spec.side])
            for table, spec in zip((left, right), plan.spec.sides, strict=True)
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._unbounded() if self.plan.runs_as == "unbounded" else self._in_order()
        finally:
            self._close()

    def _unbounded(self) -> Iterator[pa.RecordBatch]:
        """No windows: hold the right side, and let the left pass by."""
        left, right = self._tables
        self._engine = engine = Unbounded(self.plan.spec, self.plan.cores)
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
                ordering.add([*results, *engine.drain()])
                yield from ordering.release(engine.driver.mark())
        if ordering is None:
            yield from engine.drain()
        else:
            yield from ordering.release(None, all_of_them=True)

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray[Any, Any]]]:
        """Both sides in arrival order, cut alike: (side, tuples, counts of the other side)."""
        tables, others = self._arrivals()
        places = [np.arange(len(other)) + other for other in others]
        for start in range(0, self.total, _SLICE):
            for side, table in enumerate(tables):
                low, high = np.searchsorted(places[side], [start, start + _SLICE])
                if low < high:
                    yield side, table.slice(low, high - low), others[side][low:high]
            self.done = min(start + _SLICE, self.total)

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
