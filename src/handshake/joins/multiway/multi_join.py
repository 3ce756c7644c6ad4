"""Joins of three and more streams: a table each, or pushed as they come."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Unpack

import pyarrow as pa

from handshake.errors import SchemaError, suggest
from handshake.io.frames import kind_of, restore, schema_of, table_of
from handshake.joins.gate import OnShed
from handshake.joins.multiway.explain import explain_many
from handshake.joins.multiway.metrics import MultiMetrics
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.multi_plan import MultiPlan, StreamOptions, listed, named, prepare_streams
from handshake.joins.multiway.multi_replay import MultiReplay
from handshake.joins.running import PushedJoin, Stream
from handshake.plan.build import Expression
from handshake.windows import Spec

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
    on: str | Expression | None = None,
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
    return restore(pa.Table.from_batches(batches, plan.output_schema), kinds)


def _report_shed(metrics: MultiMetrics, on_shed: OnShed | None) -> None:
    """Nothing is lost without a word: who did not ask to be told is warned."""
    if on_shed is None and metrics.shed:
        shed = ", ".join(f"{stream.shed:,} of {stream.name}" for stream in metrics.streams)
        warnings.warn(f"the join was behind and shed tuples: {shed}", RuntimeWarning, stacklevel=3)


def explain_streams(
    streams: Mapping[str, Any], on: str | Expression | None = None, **options: Unpack[StreamOptions]
) -> str:
    """How a join of these streams would be run, going by a sample of them; options as of `prepare_streams`.

    >>> tables = {"a": {"x": [1, 2]}, "b": {"y": [2, 3]}, "c": {"x": [20, 30]}}
    >>> print(explain_streams(tables, "a.x = b.y AND c.x = 10 * b.y", cores=1).splitlines()[-4])
    from c      c -> b -> a: about 0.044 us a tuple; c -> a -> b would take 0.0801 us
    """
    tables = {name: table_of(value) for name, value in named(streams).items()}
    plan = prepare_streams({name: table.schema for name, table in tables.items()}, on, **options)
    return MultiReplay(plan, tables).explain()


class MultiJoin(PushedJoin[MultiMetrics]):
    """A running join of several streams; each push returns the results that it completes.

    With `overload="shed"` a push never waits for the join: it returns what is ready, `take` gives what comes
    later, and `finish` the rest. When `room` tuples of a stream wait, its newest batch is shed: counted in
    the metrics, and given to `on_shed(stream, batch)`. With `adapt`, there are as many cores as the load asks
    for, up to `cores`. The options are those of `prepare_streams`.

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
        on_shed: OnShed | None = None, **options: Unpack[StreamOptions],
    ) -> None:  # fmt: skip
        schemas = {name: schema_of(value, name) for name, value in named(streams).items()}
        self.plan = plan = prepare_streams(schemas, on, **options)
        self._numbers = {name: k for k, name in enumerate(schemas)}
        ordering = plan.ordering()
        self._join: MJoin | None = plan.start()
        engine = plan.gate(self._join, on_shed) if plan.overload == "shed" else self._join
        pushed = [Stream(stream.name, stream.schema, stream.time) for stream in plan.spec.streams]
        super().__init__(engine, pushed, plan.spec.unit, ordering)
        self._explained = ""

    def push(self, stream: str, tuples: Any) -> list[pa.RecordBatch]:
        """Push tuples of a stream: an Arrow batch or table, a frame, a dict of lists, some dicts."""
        with self._lock:
            self._running()
            return self._push(self._number(stream), tuples)

    def advance(self, stream: str, time: Any) -> list[pa.RecordBatch]:
        """Say that no tuple of a stream older than this will come: a value as its time column has them.

        A stream that has fallen silent then no longer holds back the watermark. Returns results that were
        held back for their order and may go now.
        """
        with self._lock:
            self._running()
            return self._advance({self._number(stream): time})

    def explain(self) -> str:
        """The plan as it is now, for people: orders change with what the streams turn out to be like."""
        with self._lock:
            text = _explained(self._join) if self._join is not None else self._explained
            return "\n".join((text, *self.plan.remarks()))

    @property
    def output_schema(self) -> pa.Schema:
        """The columns of results."""
        return self.plan.output_schema

    def close(self) -> None:
        """Free the windows. What was pushed has been joined already."""
        with self._lock:
            if self._join is not None:
                self._explained, self._join = _explained(self._join), None
            super().close()

    def _number(self, stream: str) -> int:
        if stream not in self._numbers:
            known = listed(self._numbers)
            raise SchemaError(f"no stream '{stream}' ({known}){suggest(str(stream), self._numbers)}")
        return self._numbers[stream]


def _explained(engine: MJoin) -> str:
    return explain_many(engine.spec, engine.orders, engine.statistics, engine.cores)
