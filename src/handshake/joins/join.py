"""Joins on the cores of this machine: rows are pushed in batch by batch, or tables are joined whole."""

from __future__ import annotations

import threading
import time as clock
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

import pyarrow as pa

from handshake.errors import (
    HandshakeError,
    InputError,
    SchemaError,
    WindowError,
    suggest,
)
from handshake.html import card
from handshake.io.frames import conform, kind_of, restore, schema_of, table_of
from handshake.joins.arrangements.arrangement import Arrangement, RunningJoin
from handshake.joins.driver import times_of
from handshake.joins.gate import Gate, OnShed
from handshake.joins.late import LateRows, LateStream, LateTo
from handshake.joins.metrics import Metrics, MultiMetrics
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.plan import (
    ALGORITHMS,
    JoinOptions,
    JoinPlan,
    MultiPlan,
    StreamOptions,
    named_streams,
    prepare,
    prepare_streams,
)
from handshake.joins.replay import MultiReplay, Replay
from handshake.joins.spec import SIDES
from handshake.joins.waiting import WaitingPlan
from handshake.joins.why.answer import Why
from handshake.joins.why.presence import explain_in_join
from handshake.joins.why.rows import conform_pair, rows_by_name
from handshake.joins.why.streams import explain_in_streams
from handshake.options import check_names
from handshake.plan.build import Expression

__all__ = [
    "ALGORITHMS",
    "Join",
    "JoinPlan",
    "Metrics",
    "MultiJoin",
    "MultiMetrics",
    "MultiPlan",
    "MultiReplay",
    "Replay",
    "TwoStreamPush",
    "explain_streams",
    "join_streams",
    "prepare",
    "prepare_streams",
]

PlanT = TypeVar("PlanT", bound=JoinPlan | MultiPlan | WaitingPlan)


class PushJoin(Generic[PlanT]):
    """A running join that rows are pushed into, from one thread at a time."""

    on_results: Callable[[pa.RecordBatch], object] | None = None
    """Called with the last batch of results of a push; for the caller to set."""

    def __init__(self, plan: PlanT, on_shed: OnShed | None, late_to: LateTo | None = None) -> None:
        self.plan = plan
        self.listeners: list[Callable[[pa.RecordBatch], object]] = []
        """Called as `on_results` is; the live page adds its own."""
        self._ordering = plan.ordering()
        self._late = None if late_to is None else LateRows(late_to, self._late_streams())
        self._joined: RunningJoin = plan.start(None if self._late is None else self._late.add)
        engine: RunningJoin | Gate = self._joined
        if plan.overload == "shed":
            engine = plan.gate(on_shed, self._joined)
        self._engine: RunningJoin | Gate | None = engine
        # The threads of the cores keep the engine alive, but not this object. They end when it is collected.
        self._forgotten = weakref.finalize(self, _close_elsewhere, engine)
        self._forgotten.atexit = False
        self._last: Metrics | None = None
        self._lock = threading.RLock()

    def _late_streams(self) -> list[LateStream]:
        """Return the streams with the columns that late rows are reported with."""
        spec = self.plan.spec
        return [LateStream(stream.name, stream.schema, spec.unit) for stream in spec.streams]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            held = self._held_back() if self._engine is not None else 0
            self.close()
        if held and kind is None:
            raise HandshakeError(f"{held} results were held back and not taken; call finish() before leaving")

    def _held_back(self) -> int:
        """Return how many results wait for their order, or because they may yet have a match."""
        ordered = self._ordering.rows if self._ordering is not None else 0
        return ordered + (self.metrics().pending if self.plan.preserves else 0)

    def _push(self, k: int, tuples: Any) -> list[pa.RecordBatch]:
        with self._lock:
            engine = self._running()
            stream = self.plan.spec.streams[k]
            batch = conform(tuples, stream.schema, stream.name)
            try:
                if isinstance(engine, Gate):
                    return self._in_order(list(engine.push(k, batch)), engine)
                return self._in_order(engine.push_and_drain(k, batch), engine)
            except BaseException:  # half a batch may have been joined, so later results could be wrong
                self.close()
                raise

    def take(self, wait: float = 0.0) -> list[pa.RecordBatch]:
        """Return results that have come since the last push, and that come within `wait` seconds.

        There are some only with `overload="shed"`: otherwise every push returns all its results.
        """
        with self._lock:
            engine = self._running()
            if not isinstance(engine, Gate):
                return []
            try:
                return self._in_order(list(engine.until(clock.perf_counter() + wait)), engine)
            except BaseException:
                self.close()
                raise

    def _advance(self, times: Mapping[int, Any]) -> list[pa.RecordBatch]:
        with self._lock:
            engine = self._running()
            receiver = engine if isinstance(engine, Gate) else engine.driver
            for k, time in times.items():
                receiver.advance(k, self._instant(k, time))
            if isinstance(engine, Gate):
                return self.take()
            engine.expire()
            final = list(engine.drain()) if self.plan.tracks else []
            return self._in_order(final, engine)

    def _instant(self, k: int, time: Any) -> int:
        """Return a time in the unit of the stamps."""
        stream = self.plan.spec.streams[k]
        name, column = stream.name, stream.time
        if column is None:
            raise WindowError(f"no time column is named for the {name} input, so it cannot advance")
        batch = conform({column: [time]}, pa.schema([stream.schema.field(column)]), name)
        times, valid = times_of(batch.column(0), self.plan.spec.unit, column, name)
        if valid is not None:
            raise InputError(f"{time!r} is not a time to advance the {name} input to")
        return int(times[0])

    def finish(self) -> list[pa.RecordBatch]:
        """Close the join after its last row; return the results that were held back.

        In outer and anti joins, these are also the rows in the windows that have no match.
        """
        with self._lock:
            try:
                return self._in_order(list(self._running().drain(last=True)), None)
            finally:
                self.close()

    def _in_order(
        self, results: list[pa.RecordBatch], engine: RunningJoin | Gate | None
    ) -> list[pa.RecordBatch]:
        """Return results that may go, in their order if one is kept; all of them without an engine."""
        if self._ordering is not None:
            self._ordering.add(results)
            mark = None if engine is None else _mark(engine)
            results = self._ordering.release(mark, all_of_them=engine is None)
        for listen in (self.on_results, *self.listeners) if results else ():
            if listen is not None:
                listen(results[-1])
        return results

    def metrics(self) -> Metrics:
        """Return counts and sizes so far; after closing, the last ones.

        Any thread may call this. It does not wait for a push that runs, and shows what that has done so far.
        """
        engine = self._engine
        if engine is not None:
            return engine.metrics()
        assert self._last is not None
        return self._last

    def counts(self) -> tuple[tuple[int, ...], dict[str, int]]:
        """Return the rows of each stream and the results so far, as `metrics` has them, but sooner.

        The live page reads them many times per second.
        """
        if self._engine is not None:
            rows, results = self._joined.counts()
        else:
            figures = self.metrics()
            rows, results = tuple(stream.rows for stream in figures.streams), figures.results
        return rows, {"join": results}

    def close(self) -> None:
        """Free the windows. All rows pushed so far have been joined."""
        with self._lock:
            if self._engine is not None:
                self._last = self._engine.metrics()
                self._forgotten.detach()
                self._engine.close()
                self._engine = None
                if self._late is not None:
                    self._late.close()

    @property
    def streams(self) -> dict[str, pa.Schema]:
        """The columns of each stream, by name."""
        return {stream.name: stream.schema for stream in self.plan.spec.streams}

    def explain(self) -> str:
        """Describe the plan."""
        return self.plan.explain()

    def _repr_html_(self) -> str:
        state = "closed" if self.closed else "running"
        return card(f"{type(self).__name__}, {state}", self.metrics().facts(), self.explain())

    @property
    def closed(self) -> bool:
        """True once the join is closed and takes no more rows."""
        return self._engine is None

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results."""
        return self.plan.output_schema

    def _running(self) -> RunningJoin | Gate:
        if self._engine is None:
            raise HandshakeError("this join is closed; make a new one to push more tuples")
        return self._engine


def _mark(engine: RunningJoin | Gate) -> int | None:
    """Return the watermark of the results that have been taken."""
    return engine.mark() if isinstance(engine, Gate) else engine.driver.mark()


def _close_elsewhere(engine: RunningJoin | Gate) -> None:
    """Close an engine in a new thread: the garbage collector may call this on a thread of the engine."""
    threading.Thread(target=engine.close, daemon=True).start()


class TwoStreamPush(PushJoin[PlanT]):
    """A running join of two streams that rows are pushed into."""

    def push_left(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push rows of the left stream: an Arrow batch or table, a frame, a dict of lists, or dicts."""
        return self._push(0, tuples)

    def push_right(self, tuples: Any) -> list[pa.RecordBatch]:
        """Push rows of the right stream, in the same forms."""
        return self._push(1, tuples)

    def advance(self, *, left: Any = None, right: Any = None) -> list[pa.RecordBatch]:
        """Promise that no row older than this will come on a side; a value as in its time column.

        A silent stream then no longer holds back the watermark. Returns results that were held back for their
        order and may go now, and rows that are final now (outer, anti, as-of and nearest joins).
        """
        given = enumerate((left, right))
        return self._advance({side: time for side, time in given if time is not None})


class Join(TwoStreamPush[JoinPlan]):
    """A running join of two streams; each push returns the results that it completes.

    With `overload="shed"` a push never waits for the join: it returns the results that are ready, `take`
    returns later ones, and `finish` the rest. When `room` rows of a side wait, the newest batch of that side
    is shed: counted in the metrics, and passed to `on_shed(side, batch)`. See `JoinOptions` for options.

    Late rows are counted. `late_to` keeps them: a function that is called with the side and a batch, or a
    folder, in whose folders `left` and `right` Parquet files appear (see `LateRows`). The rows get a column
    `late_by`, which says how far behind the watermark they were. It is NULL for rows that were dropped
    because they have no time.

    >>> import pyarrow as pa
    >>> trades = pa.schema([("t", pa.timestamp("us")), ("price", pa.int64())])
    >>> with Join(left=trades, right=trades, on="l.price < r.price", window="1 minute", time="t") as join:
    ...     _ = join.push_left({"t": [0], "price": [10]})
    ...     [batch.num_rows for batch in join.push_right({"t": [1], "price": [11]})]
    [1]
    """

    def __init__(
        self, *, left: Any, right: Any, on: str | Expression | None = None, on_shed: OnShed | None = None,
        late_to: LateTo | None = None, **options: Unpack[JoinOptions],
    ) -> None:  # fmt: skip
        check_names(Join, options, JoinOptions)
        plan = prepare(schema_of(left, "left"), schema_of(right, "right"), on, **options)
        kind = plan.spec.kind
        for side, name in enumerate(SIDES):
            if kind.preserved[side] and plan.spec.windows[side] is None:
                raise WindowError(
                    f"a {kind.name} join of streams needs a window on the {name} input: without one, no row "
                    f"without a match is ever final; give it a window ({name}_window=…), or join tables "
                    "(handshake.join)"
                )
        super().__init__(plan, on_shed, late_to)

    def why(self, left_row: Any, right_row: Any) -> Why:
        """Explain why two rows are a pair of this join, or not, by the rows that it holds.

        It says of each row whether the join holds it, and if not, whether it can have expired, was late, was
        shed, or has not come. In joins that track matches, it also says whether the row has matched. See
        `handshake.why`.

        Args:
            left_row: A dict of all values of the row, or a frame of one row.
            right_row: The right row.
        """
        with self._lock:
            engine = self._running()
            assert isinstance(self._joined, Arrangement)
            rows = conform_pair(self.plan.spec, left_row, right_row)
            queued = isinstance(engine, Gate)
            return explain_in_join(self._joined, rows, self.metrics().streams, queued=queued)


class MultiJoin(PushJoin[MultiPlan]):
    """A running join of several named streams; each push returns the results that it completes.

    `StreamOptions` documents the options. With `overload="shed"` a push never waits, as in `Join`. `late_to`
    keeps late rows, as in `Join`.

    >>> import pyarrow as pa
    >>> event = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])
    >>> streams = {"a": event, "b": event, "c": event}
    >>> with MultiJoin(streams, "a.x < b.x AND b.x < c.x", window="1 minute", time="t") as join:
    ...     _ = join.push("a", {"t": [0], "x": [1]}), join.push("c", {"t": [1], "x": [3]})
    ...     [batch.num_rows for batch in join.push("b", {"t": [2], "x": [2]})]
    [1]
    """

    def __init__(
        self, streams: Mapping[str, Any], on: str | Expression | None = None, *,
        on_shed: OnShed | None = None, late_to: LateTo | None = None, **options: Unpack[StreamOptions],
    ) -> None:  # fmt: skip
        check_names(MultiJoin, options, StreamOptions)
        schemas = {name: schema_of(value, name) for name, value in named_streams(streams).items()}
        self._numbers = {name: k for k, name in enumerate(schemas)}
        super().__init__(prepare_streams(schemas, on, **options), on_shed, late_to)

    def push(self, stream: str, tuples: Any) -> list[pa.RecordBatch]:
        """Push rows of a stream: an Arrow batch or table, a frame, a dict of lists, or dicts."""
        with self._lock:
            self._running()
            return self._push(self._number(stream), tuples)

    def why(self, rows: Mapping[str, Any]) -> Why:
        """Explain why rows, one of each stream, are a result of this join, or not, by the rows that it holds.

        Args:
            rows: A row of each stream by its name: a dict of all values, or a frame of one row.
        """
        with self._lock:
            engine = self._running()
            assert isinstance(self._joined, MJoin)
            given = rows_by_name(rows, self.streams)
            queued = isinstance(engine, Gate)
            return explain_in_streams(self._joined, given, self.metrics().streams, queued=queued)

    def advance(self, stream: str, time: Any) -> list[pa.RecordBatch]:
        """Promise that no row of a stream older than this will come; a value as in its time column.

        A silent stream then no longer holds back the watermark. Returns results that were held back for their
        order and may go now.
        """
        with self._lock:
            self._running()
            return self._advance({self._number(stream): time})

    def explain(self) -> str:
        """Describe the plan as it is now: join orders change with the streams."""
        with self._lock:
            assert isinstance(self._joined, MJoin)
            return "\n".join((self._joined.explain(), *self.plan.remarks()))

    def _number(self, stream: str) -> int:
        if stream not in self._numbers:
            known = ", ".join(self._numbers)
            raise SchemaError(f"no stream '{stream}' ({known}){suggest(str(stream), self._numbers)}")
        return self._numbers[stream]


def join_streams(
    streams: Mapping[str, Any],
    on: str | Expression | None = None,
    *,
    pace: float | None = None,
    on_shed: OnShed | None = None,
    **options: Unpack[StreamOptions],
) -> Any:
    """Join any number of tables or frames on any predicate, as if they were streams under sliding windows.

    Args:
        streams: The inputs by name; the predicate says `name.column`.
        on: The predicate: SQL text or a built expression. None joins every combination.
        pace: Let rows arrive this many times as fast as their times say.
        on_shed: Called with the name of a stream and each batch that is shed.
        **options: `window`, `windows`, `time`, `cores`, `ordered`, `pin`, `overload`, `room` and `adapt`;
            `StreamOptions` documents them.

    Returns:
        All columns of each stream, in order, in the kind that was given. A column whose name an earlier
        stream has already gets `_` and the name of its stream.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> join_streams(tables, "a.x = b.y AND c.x = 10 * b.y").to_pylist()
    [{'x': 2, 'y': 2, 'x_c': 20}]
    """
    check_names(join_streams, options, StreamOptions)
    kinds = {kind_of(value) for value in named_streams(streams).values()}
    tables = {name: table_of(value) for name, value in streams.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    plan = prepare_streams(schemas, on, **options)
    replay = MultiReplay(plan, tables, pace=pace, on_shed=on_shed)
    batches = list(replay)
    _report_shed(replay.metrics(), on_shed)
    return restore(pa.Table.from_batches(batches, plan.output_schema), kinds)


def _report_shed(metrics: Metrics, on_shed: OnShed | None) -> None:
    """Warn about shed rows unless the caller passed `on_shed`."""
    if on_shed is None and metrics.shed:
        shed = ", ".join(f"{stream.shed:,} of {stream.name}" for stream in metrics.streams)
        warnings.warn(f"the join was behind and shed tuples: {shed}", RuntimeWarning, stacklevel=3)


def explain_streams(
    streams: Mapping[str, Any], on: str | Expression | None = None, **options: Unpack[StreamOptions]
) -> str:
    """Describe how a join of these streams would run, from a sample of them.

    `StreamOptions` documents the options.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> print(explain_streams(tables, "a.x = b.y AND c.x = 10 * b.y", cores=1).splitlines()[-4])
    from c      c -> b -> a: about 0.044 us a tuple; c -> a -> b would take 0.0801 us
    """
    check_names(explain_streams, options, StreamOptions)
    tables = {name: table_of(value) for name, value in named_streams(streams).items()}
    plan = prepare_streams({name: table.schema for name, table in tables.items()}, on, **options)
    return MultiReplay(plan, tables).explain()
