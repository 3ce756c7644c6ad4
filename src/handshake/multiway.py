"""Joins of three and more streams: a table each, or pushed as they come."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.driver import times_of
from handshake.cores.mjoin import MJoin
from handshake.cores.mjoin_explain import explain_many
from handshake.cores.mjoin_metrics import MultiMetrics
from handshake.cores.mjoin_ordering import ManyInOrder
from handshake.cores.mjoin_plan import ManySpec, StreamSpec, many_spec
from handshake.cores.placement import placement
from handshake.errors import (
    HandshakeError,
    InputError,
    SchemaError,
    UnsupportedError,
    WindowError,
    suggest,
)
from handshake.frames import conform, kind_of, plain_schema, restored, schema_of, table_of
from handshake.plan.build import E
from handshake.planning import cores_of, lateness_of, predicate_of
from handshake.schema import Schema
from handshake.window import Spec, Window, windows_of

__all__ = [
    "MultiJoin",
    "MultiMetrics",
    "MultiPlan",
    "MultiReplay",
    "explain_streams",
    "join_streams",
    "prepare_streams",
]

Array = np.ndarray[Any, Any]
_SLICES = (1 << 12, 1 << 16)
"""Tuples of all streams that a replay pushes together: few at first, so that orders can be improved early."""
_SAMPLE = 256
"""Tuples of each table that are looked at beforehand."""


@dataclass(frozen=True)
class MultiPlan:
    """A join of several streams that is checked and planned but not running."""

    spec: ManySpec
    lateness: int
    cores: int
    ordered: bool
    cpus: tuple[int, ...] = ()
    """The processors that cores are pinned to; none: they are not."""

    def ordering(self) -> ManyInOrder | None:
        """What puts results in order, if that was asked for."""
        return ManyInOrder(self.spec) if self.ordered else None

    def start(self) -> MJoin:
        """Arrange the cores and let them run."""
        return MJoin(self.spec, self.lateness, self.cores, self.cpus)

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results: all of each stream's, in the order of the streams."""
        return self.spec.output


def prepare_streams(
    streams: Mapping[str, pa.Schema],
    on: str | E | None = None,
    *,
    window: Spec = None,
    windows: Mapping[str, Spec] | None = None,
    time: str | Mapping[str, str] | None = None,
    cores: int | None = None,
    lateness: str | None = None,
    ordered: bool = False,
    pin: bool = False,
) -> MultiPlan:
    """Check and plan a join of several streams; everything that can be wrong about it is found here.

    >>> import pyarrow as pa
    >>> schema = pa.schema([("x", pa.int32())])
    >>> prepare_streams({"a": schema, "b": schema, "c": schema}, "a.x = b.x").output_schema.names
    ['x', 'x_b', 'x_c']
    """
    sizes, times = _windows(streams, window, windows), _times(streams, time)
    specs = [StreamSpec(n, plain_schema(s), sizes[n], times[n]) for n, s in streams.items()]
    spec = many_spec(specs, predicate_of(on))
    count = cores_of("cell", cores)
    plan = MultiPlan(spec, lateness_of(lateness, spec.unit), count, ordered, _cpus(count) if pin else ())
    plan.ordering()  # refuses what has no order
    return plan


def _cpus(cores: int) -> tuple[int, ...]:
    if cores == 1:
        raise UnsupportedError(
            "one core runs in the caller's thread, which is not pinned; ask for more cores, or leave pin out"
        )
    return placement(cores)


def _named(streams: Any) -> Mapping[str, Any]:
    if not isinstance(streams, Mapping) or not all(isinstance(name, str) for name in streams):
        raise SchemaError(
            f"streams are given by name, such as {{'a': …, 'b': …, 'c': …}}, not as {type(streams).__name__}"
        )
    return streams


def _check_known(given: Iterable[str], streams: Mapping[str, Any], what: str) -> None:
    for name in given:
        if name not in streams:
            raise WindowError(
                f"{what} for '{name}', but the streams are {_listed(streams)}{suggest(name, streams)}"
            )


def _listed(streams: Iterable[str]) -> str:
    return ", ".join(streams)


def _windows(
    streams: Mapping[str, Any], window: Spec, windows: Mapping[str, Spec] | None
) -> dict[str, Window | None]:
    """The window of each stream: its own, or the one for all."""
    if windows is not None and not isinstance(windows, Mapping):
        raise WindowError(
            f"windows= takes one for each stream, by name; for one window for all, window={windows!r}"
        )
    own = windows or {}
    _check_known(own, streams, "a window is given")
    return {name: _window(own.get(name, window), name) for name in streams}


def _window(spec: Spec, name: str) -> Window | None:
    both = windows_of(spec)
    if both.left != both.right:
        raise WindowError(f"the window of stream '{name}' has a left and a right size; give it one")
    return both.left


def _times(streams: Mapping[str, Any], time: str | Mapping[str, str] | None) -> dict[str, str | None]:
    """The time column of each stream."""
    if not isinstance(time, Mapping):
        named: dict[str, str | None] = dict.fromkeys(streams, time)
    else:
        _check_known(time, streams, "a time column is named")
        named = {name: time.get(name) for name in streams}
        missing = [name for name, column in named.items() if column is None]
        if missing and len(missing) < len(named):
            raise WindowError(
                f"no time column is named for the {missing[0]} input; name one for every stream, or for none"
            )
    return {
        name: None if column is None else Schema.from_arrow(streams[name], name).get(column).name
        for name, column in named.items()
    }


def join_streams(
    streams: Mapping[str, Any],
    on: str | E | None = None,
    *,
    window: Spec = None,
    windows: Mapping[str, Spec] | None = None,
    time: str | Mapping[str, str] | None = None,
    cores: int | None = None,
    ordered: bool = False,
    pin: bool = False,
) -> Any:
    """Join any number of tables or frames on any predicate, as if they were streams under sliding windows.

    `windows` and `time` may be given for each stream by its name; a stream that `windows` does not name has
    `window`, and None is for ever. Columns of results are all of each stream's, in order; a name that a
    stream before has already gets `_` and the stream's name. `pin` keeps each core on a processor of its own
    (Linux). Returns the kind that it was given.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> join_streams(tables, "a.x = b.y AND c.x = 10 * b.y").to_pylist()
    [{'x': 2, 'y': 2, 'x_c': 20}]
    """
    kinds = {kind_of(value) for value in _named(streams).values()}
    tables = {name: table_of(value) for name, value in streams.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    plan = prepare_streams(
        schemas, on, window=window, windows=windows, time=time, cores=cores, ordered=ordered, pin=pin
    )
    return restored(pa.Table.from_batches(list(MultiReplay(plan, tables)), plan.output_schema), kinds)


def explain_streams(streams: Mapping[str, Any], on: str | E | None = None, **options: Any) -> str:
    """How a join of these streams would be run, going by a sample of them; options as of `prepare_streams`.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> print(explain_streams(tables, "a.x = b.y AND c.x = 10 * b.y", cores=1).splitlines()[-4])
    from c      c -> b -> a: about 0.044 us a tuple; c -> a -> b would take 0.0801 us
    """
    tables = {name: table_of(value) for name, value in _named(streams).items()}
    plan = prepare_streams({name: table.schema for name, table in tables.items()}, on, **options)
    return MultiReplay(plan, tables).explain()


class MultiJoin:
    """A running join of several streams; each push returns the results that it completes.

    >>> import pyarrow as pa
    >>> event = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])
    >>> streams = {"a": event, "b": event, "c": event}
    >>> with MultiJoin(streams, "a.x < b.x AND b.x < c.x", window="1 minute", time="t") as join:
    ...     _ = join.push("a", {"t": [0], "x": [1]}), join.push("c", {"t": [1], "x": [3]})
    ...     [batch.num_rows for batch in join.push("b", {"t": [2], "x": [2]})]
    [1]
    """

    def __init__(
        self,
        streams: Mapping[str, Any],
        on: str | E | None = None,
        *,
        window: Spec = None,
        windows: Mapping[str, Spec] | None = None,
        time: str | Mapping[str, str] | None = None,
        cores: int | None = None,
        lateness: str | None = None,
        ordered: bool = False,
        pin: bool = False,
    ) -> None:
        schemas = {name: schema_of(value, name) for name, value in _named(streams).items()}
        self.plan = prepare_streams(
            schemas, on, window=window, windows=windows, time=time, cores=cores, lateness=lateness,
            ordered=ordered, pin=pin,
        )  # fmt: skip
        self._numbers = {name: k for k, name in enumerate(schemas)}
        self._ordering = self.plan.ordering()
        self._engine: MJoin | None = self.plan.start()
        # The threads of the cores keep the engine alive, not this object; when nobody holds it, they end.
        self._forgotten = weakref.finalize(self, _let_go, self._engine)
        self._forgotten.atexit = False
        self._last: tuple[MultiMetrics, str] | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> MultiJoin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            held = self._ordering.rows if self._ordering is not None and self._engine is not None else 0
            self.close()
        if held and kind is None:
            raise HandshakeError(f"{held} results were held back and not taken; call finish() before leaving")

    def push(self, stream: str, tuples: Any) -> list[pa.RecordBatch]:
        """Push tuples of a stream: an Arrow batch or table, a frame, a dict of lists, some dicts."""
        with self._lock:
            engine, k = self._running(), self._number(stream)
            batch = conform(tuples, self.plan.spec.streams[k].schema, stream)
            with self._closing_on_failure():
                results = [*engine.push(k, batch), *engine.drain()]
                return self._in_order(results, engine.driver.mark())

    def advance(self, stream: str, time: Any) -> list[pa.RecordBatch]:
        """Say that no tuple of a stream older than this will come: a value as its time column has them.

        A stream that has fallen silent then no longer holds back the watermark. Returns results that were
        held back for their order and may go now.
        """
        with self._lock:
            engine, k = self._running(), self._number(stream)
            engine.driver.advance(k, self._instant(k, time))
            engine.expire()
            return self._in_order([], engine.driver.mark())

    def _instant(self, k: int, time: Any) -> int:
        """One time in the unit that stamps have."""
        spec = self.plan.spec.streams[k]
        if spec.time is None:
            raise WindowError(f"no time column is named for the {spec.name} input, so it cannot advance")
        batch = conform({spec.time: [time]}, pa.schema([spec.schema.field(spec.time)]), spec.name)
        times, valid = times_of(batch.column(0), self.plan.spec.unit, spec.time, spec.name)
        if valid is not None:
            raise InputError(f"{time!r} is not a time to advance the {spec.name} input to")
        return int(times[0])

    def finish(self) -> list[pa.RecordBatch]:
        """Say that no more tuples will come; returns results that were held back, and closes the join."""
        with self._lock, self._closing_on_failure():
            results = self._in_order(list(self._running().drain()), None, last=True)
            self.close()
            return results

    def _in_order(
        self, results: list[pa.RecordBatch], mark: int | None, *, last: bool = False
    ) -> list[pa.RecordBatch]:
        if self._ordering is None:
            return results
        self._ordering.add(results)
        return self._ordering.release(mark, all_of_them=last)

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        """Half a batch may have been joined: going on could lose or double results."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def explain(self) -> str:
        """The plan as it is now, for people: orders change with what the streams turn out to be like."""
        with self._lock:
            return _explained(self._engine) if self._engine is not None else self._closed()[1]

    def metrics(self) -> MultiMetrics:
        """Counts and sizes so far; after closing, the last ones."""
        with self._lock:
            return self._engine.metrics() if self._engine is not None else self._closed()[0]

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results."""
        return self.plan.output_schema

    def close(self) -> None:
        """Free the windows. What was pushed has been joined already."""
        with self._lock:
            if self._engine is not None:
                self._last = (self._engine.metrics(), _explained(self._engine))
                self._forgotten.detach()
                self._engine.close()
                self._engine = None

    def _closed(self) -> tuple[MultiMetrics, str]:
        assert self._last is not None
        return self._last

    def _running(self) -> MJoin:
        if self._engine is None:
            raise HandshakeError("this join is closed; make a new one to push more tuples")
        return self._engine

    def _number(self, stream: str) -> int:
        if stream not in self._numbers:
            known = _listed(self._numbers)
            raise SchemaError(f"no stream '{stream}' ({known}){suggest(str(stream), self._numbers)}")
        return self._numbers[stream]


def _explained(engine: MJoin) -> str:
    return explain_many(engine.spec, engine.orders, engine.statistics, engine.cores)


def _let_go(engine: MJoin) -> None:
    """Close an engine from a thread of its own: the collector may call this on one of the engine's."""
    threading.Thread(target=engine.close, daemon=True).start()


class MultiReplay:
    """Tables replayed as streams; iterating yields results in Arrow batches.

    Tuples arrive by time, ties in the order of the streams, then of rows; without time columns, streams take
    turns.
    """

    def __init__(self, plan: MultiPlan, tables: Mapping[str, pa.Table]) -> None:
        self.plan = plan
        self._tables = [conform(tables[s.name], s.schema, s.name) for s in plan.spec.streams]
        self.total = sum(table.num_rows for table in self._tables)
        self.done = 0
        self._engine: MJoin | None = None
        self._last: MultiMetrics | None = None

    def explain(self) -> str:
        """The plan to begin with, for people."""
        engine = self._started(1)
        return explain_many(engine.spec, engine.orders, engine.statistics, self.plan.cores)

    def _started(self, cores: int) -> MJoin:
        """An engine that has seen a sample of the tables."""
        engine = MJoin(self.plan.spec, self.plan.lateness, cores, self.plan.cpus if cores > 1 else ())
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
        try:
            ordering = self.plan.ordering()
            self._engine = engine = self._started(self.plan.cores)
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
        finally:
            self._close()

    def _close(self) -> None:
        if self._engine is not None:
            self._last = self._engine.metrics()
            self._engine.close()
            self._engine = None

    def _slices(self) -> Iterator[tuple[int, pa.RecordBatch, dict[int, Array]]]:
        """All streams in arrival order, cut alike: (stream, tuples, counts of streams with tuple windows)."""
        rows, places = self._arrivals()
        tables = [_taken(table, row) for table, row in zip(self._tables, rows, strict=True)]
        counted = [k for k, stream in enumerate(self.plan.spec.streams) if stream.counted]
        start, size = 0, _SLICES[0]
        while start < self.total:
            for k, table in enumerate(tables):
                low, high = np.searchsorted(places[k], [start, start + size])
                if low < high:
                    here = places[k][low:high]
                    seen = {j: np.searchsorted(places[j], here) for j in counted if j != k}
                    yield k, table.slice(low, high - low), seen
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
