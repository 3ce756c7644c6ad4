"""Joins of three and more streams: a table each, or pushed as they come."""

from __future__ import annotations

import contextlib
import threading
import time as clock
import warnings
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from handshake.cores.admission import OnShed
from handshake.cores.driver import times_of
from handshake.cores.mjoin import MJoin
from handshake.cores.mjoin_explain import explain_many
from handshake.cores.mjoin_gate import ManyGate
from handshake.cores.mjoin_metrics import MultiMetrics
from handshake.errors import HandshakeError, InputError, SchemaError, WindowError, suggest
from handshake.frames import conform, kind_of, restored, schema_of, table_of
from handshake.multiplan import MultiPlan, listed, named, prepare_streams
from handshake.multireplay import MultiReplay
from handshake.plan.build import E
from handshake.window import Spec

__all__ = [
    "MultiJoin",
    "MultiMetrics",
    "MultiPlan",
    "MultiReplay",
    "explain_streams",
    "join_streams",
    "prepare_streams",
]


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
    pace: float | None = None,
    overload: str = "block",
    room: int | None = None,
    on_shed: OnShed | None = None,
    adapt: bool = False,
) -> Any:
    """Join any number of tables or frames on any predicate, as if they were streams under sliding windows.

    `windows` and `time` may be given for each stream by its name; a stream that `windows` does not name has
    `window`, and None is for ever. Columns of results are all of each stream's, in order; a name that a
    stream before has already gets `_` and the stream's name. `pin` keeps each core on a processor of its own
    (Linux); with `adapt`, there are as many cores as the load asks for, up to `cores`. With a `pace` tuples
    arrive that many times as fast as their times say; a join that is behind holds them back, or sheds them
    with `overload="shed"`. Returns the kind that it was given.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> join_streams(tables, "a.x = b.y AND c.x = 10 * b.y").to_pylist()
    [{'x': 2, 'y': 2, 'x_c': 20}]
    """
    kinds = {kind_of(value) for value in named(streams).values()}
    tables = {name: table_of(value) for name, value in streams.items()}
    schemas = {name: table.schema for name, table in tables.items()}
    plan = prepare_streams(
        schemas, on, window=window, windows=windows, time=time, cores=cores, ordered=ordered, pin=pin,
        overload=overload, room=room, adapt=adapt,
    )  # fmt: skip
    replay = MultiReplay(plan, tables, pace=pace, on_shed=on_shed)
    batches = list(replay)
    _report_shed(replay.metrics(), on_shed)
    return restored(pa.Table.from_batches(batches, plan.output_schema), kinds)


def _report_shed(metrics: MultiMetrics, on_shed: OnShed | None) -> None:
    """Nothing is lost without a word: who did not ask to be told is warned."""
    if on_shed is None and metrics.shed:
        shed = ", ".join(f"{stream.shed:,} of {stream.name}" for stream in metrics.streams)
        warnings.warn(f"the join was behind and shed tuples: {shed}", RuntimeWarning, stacklevel=3)


def explain_streams(streams: Mapping[str, Any], on: str | E | None = None, **options: Any) -> str:
    """How a join of these streams would be run, going by a sample of them; options as of `prepare_streams`.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> print(explain_streams(tables, "a.x = b.y AND c.x = 10 * b.y", cores=1).splitlines()[-4])
    from c      c -> b -> a: about 0.044 us a tuple; c -> a -> b would take 0.0801 us
    """
    tables = {name: table_of(value) for name, value in named(streams).items()}
    plan = prepare_streams({name: table.schema for name, table in tables.items()}, on, **options)
    return MultiReplay(plan, tables).explain()


class MultiJoin:
    """A running join of several streams; each push returns the results that it completes.

    With `overload="shed"` a push never waits for the join: it returns what is ready, `take` gives what comes
    later, and `finish` the rest. When `room` tuples of a stream wait, its newest batch is shed: counted in
    the metrics, and given to `on_shed(stream, batch)`. With `adapt`, there are as many cores as the load asks
    for, up to `cores`.

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
        overload: str = "block",
        room: int | None = None,
        on_shed: OnShed | None = None,
        adapt: bool = False,
    ) -> None:
        schemas = {name: schema_of(value, name) for name, value in named(streams).items()}
        self.plan = prepare_streams(
            schemas, on, window=window, windows=windows, time=time, cores=cores, lateness=lateness,
            ordered=ordered, pin=pin, overload=overload, room=room, adapt=adapt,
        )  # fmt: skip
        self._numbers = {name: k for k, name in enumerate(schemas)}
        self._ordering = self.plan.ordering()
        engine = self.plan.start()
        sheds = self.plan.overload == "shed"
        self._engine: MJoin | ManyGate | None = self.plan.gate(engine, on_shed) if sheds else engine
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
                if isinstance(engine, ManyGate):
                    return self._in_order(list(engine.push(k, batch)), engine.mark())
                results = [*engine.push(k, batch), *engine.drain()]
                return self._in_order(results, engine.driver.mark())

    def take(self, wait: float = 0.0) -> list[pa.RecordBatch]:
        """Results that have come since the last push, and that come within `wait` seconds.

        Only where tuples may be shed: otherwise every push has returned all its results.
        """
        with self._lock:
            engine = self._running()
            if not isinstance(engine, ManyGate):
                return []
            with self._closing_on_failure():
                return self._in_order(list(engine.until(clock.perf_counter() + wait)), engine.mark())

    def advance(self, stream: str, time: Any) -> list[pa.RecordBatch]:
        """Say that no tuple of a stream older than this will come: a value as its time column has them.

        A stream that has fallen silent then no longer holds back the watermark. Returns results that were
        held back for their order and may go now.
        """
        with self._lock:
            engine, k = self._running(), self._number(stream)
            if isinstance(engine, ManyGate):
                engine.advance(k, self._instant(k, time))
                return self.take()
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
            text = _explained(self._engine) if self._engine is not None else self._closed()[1]
            return "\n".join((text, *self.plan.remarks()))

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

    def _running(self) -> MJoin | ManyGate:
        if self._engine is None:
            raise HandshakeError("this join is closed; make a new one to push more tuples")
        return self._engine

    def _number(self, stream: str) -> int:
        if stream not in self._numbers:
            known = listed(self._numbers)
            raise SchemaError(f"no stream '{stream}' ({known}){suggest(str(stream), self._numbers)}")
        return self._numbers[stream]


def _explained(running: MJoin | ManyGate) -> str:
    engine = running.engine if isinstance(running, ManyGate) else running
    return explain_many(engine.spec, engine.orders, engine.statistics, engine.cores)


def _let_go(engine: MJoin | ManyGate) -> None:
    """Close an engine from a thread of its own: the collector may call this on one of the engine's."""
    threading.Thread(target=engine.close, daemon=True).start()
