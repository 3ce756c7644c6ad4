"""⋈: the window join of two or more streams, run by the join engines."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from handshake.local import prepare
from handshake.multiway import prepare_streams
from handshake.plan.algebra import Node, Source, Windowing, WindowJoin, walk
from handshake.plan.build import E
from handshake.plan.expr import Column, Expr, Name, transform
from handshake.queries.chunk import BEGINNING, END, Array, Chunk, Flow, empty
from handshake.queries.union import Clocks, in_unit
from handshake.schema import arrow_of

__all__ = ["JoinOperator"]

_TIME, _CLOCK, _PLACE = "\0time", "\0clock", "\0place"


class _Engine(Protocol):
    """What both kinds of join engine do."""

    def push(self, stream: int, batch: pa.RecordBatch, seen: dict[int, Array]) -> list[pa.RecordBatch]:
        """Tuples of one stream; `seen` counts those of others that came before each."""

    def advance(self, stream: int, clock: int) -> None:
        """No tuple older than this will come on a stream."""

    def close(self) -> None:
        """Free what is held."""


class _Two:
    """Two streams: the join cores."""

    def __init__(
        self, node: WindowJoin, schemas: list[pa.Schema], timed: bool, lateness: str, cores: int, told: bool
    ) -> None:
        times = [f"{name}.{_TIME}" if timed else None for name in node.names]
        plan = prepare(
            schemas[0], schemas[1], E(_named(node)), left_window=node.windows[0],
            right_window=node.windows[1], left_time=times[0], right_time=times[1],
            lateness=lateness if timed else None, cores=cores,
            algorithm="three_step" if cores == 1 else "low_latency", aliases=(node.names[0], node.names[1]),
        )  # fmt: skip
        self._engine = plan.start()
        self._engine.driver.told = told

    def push(self, stream: int, batch: pa.RecordBatch, seen: dict[int, Array]) -> list[pa.RecordBatch]:
        """Join a batch."""
        return [*self._engine.push(stream, batch, seen.get(1 - stream)), *self._engine.drain()]

    def advance(self, stream: int, clock: int) -> None:
        """Let go of what no tuple to come can join."""
        self._engine.driver.advance(stream, clock)
        self._engine.expire()

    @property
    def lost(self) -> tuple[int, int]:
        """Late tuples, and tuples without a time."""
        counts = self._engine.driver.counts
        return sum(c.late for c in counts), sum(c.no_time for c in counts)

    def close(self) -> None:
        """Stop the cores."""
        self._engine.close()


class _Many:
    """Three and more streams."""

    def __init__(
        self, node: WindowJoin, schemas: list[pa.Schema], timed: bool, lateness: str, cores: int, told: bool
    ) -> None:
        plan = prepare_streams(
            dict(zip(node.names, schemas, strict=True)), E(_named(node)),
            windows=dict(zip(node.names, node.windows, strict=True)), cores=cores,
            time={name: f"{name}.{_TIME}" for name in node.names} if timed else None,
            lateness=lateness if timed else None,
        )  # fmt: skip
        self._engine = plan.start()
        self._engine.driver.told = told

    def push(self, stream: int, batch: pa.RecordBatch, seen: dict[int, Array]) -> list[pa.RecordBatch]:
        """Join a batch."""
        return [*self._engine.push(stream, batch, seen or None), *self._engine.drain()]

    def advance(self, stream: int, clock: int) -> None:
        """Let go of what no tuple to come can join."""
        self._engine.driver.advance(stream, clock)
        self._engine.expire()

    @property
    def lost(self) -> tuple[int, int]:
        """Late tuples, and tuples without a time."""
        metrics = self._engine.metrics()
        return metrics.late, metrics.no_time

    def close(self) -> None:
        """Stop the cores."""
        self._engine.close()


def _named(node: WindowJoin) -> Expr:
    """The condition with the names that columns have in the batches of the join."""

    def named(e: Expr) -> Expr:
        if not isinstance(e, Column):
            return e
        return Name((node.names[e.side], f"{node.names[e.side]}.{e.name}"), at=e.at)

    return transform(node.on, named)


def _has_one_clock(node: Node) -> bool:
    """Whether tuples are of one source, or of one window: then none is late because others are ahead."""
    while not isinstance(node, Source | Windowing):
        if len(node.children) > 1:
            return False
        node = node.children[0]
    return True


class JoinOperator:
    """Feeds a join engine with tuples in the order of their arrival."""

    def __init__(self, node: WindowJoin, cores: int) -> None:
        self._node, self._unit = node, node.clock.unit
        self._timed = any(window is not None and window.kind == "time" for window in node.windows)
        told = not all(_has_one_clock(child) for child in node.inputs)
        self._units = [child.clock.unit for child in node.inputs]
        self._clocks = Clocks(len(node.inputs))
        self._arrived = [0] * len(node.inputs)
        self._schemas = [self._schema(k) for k in range(len(node.inputs))]
        sources = (source for source in walk(node) if isinstance(source, Source))
        behind = 0 if told else max(source.lateness for source in sources)
        kind = _Two if len(node.inputs) == 2 else _Many
        self._engine = kind(node, self._schemas, self._timed, f"{behind} ns", cores, told)

    def _schema(self, k: int) -> pa.Schema:
        name = self._node.names[k]
        own = [(f"{name}.{f.name}", arrow_of(f.type)) for f in self._node.inputs[k].schema]
        hidden = [(_TIME, pa.timestamp(self._unit)), (_CLOCK, pa.int64()), (_PLACE, pa.int64())]
        return pa.schema([*own, *((f"{name}.{h}", kind) for h, kind in hidden)])

    def step(self, flows: list[Flow]) -> Flow:
        """Join what has come on all inputs."""
        flows = [in_unit(flow, own, self._unit) for flow, own in zip(flows, self._units, strict=True)]
        chunks = [flow.chunk for flow in flows]
        found: list[pa.RecordBatch] = []
        for k, chunk in enumerate(chunks):
            if chunk.rows:
                found += self._engine.push(k, self._batch(k, chunk), self._seen(k, chunks))
        for k, flow in enumerate(flows):
            self._arrived[k] += flow.chunk.rows
            last = flow.trace.last
            if self._timed and last is not None and BEGINNING < last < END:
                self._engine.advance(k, last)
        results = self._results([batch for batch in found if batch.num_rows], chunks[0].times is not None)
        return Flow(results, self._clocks.step(flows), all(flow.ended for flow in flows))

    def _batch(self, k: int, chunk: Chunk) -> pa.RecordBatch:
        """Tuples with their stamps in columns of their own."""
        assert chunk.places is not None
        zeros = np.zeros(chunk.rows, np.int64)
        times = zeros if chunk.times is None else chunk.times
        missing = None if chunk.timed is None else ~chunk.timed
        stamps = [
            pa.array(times, mask=missing).view(pa.timestamp(self._unit)),
            pa.array(zeros if chunk.clocks is None else chunk.clocks),
            pa.array(chunk.places),
        ]
        columns = [chunk.columns[f.name] for f in self._node.inputs[k].schema]
        return pa.RecordBatch.from_arrays([*columns, *stamps], schema=self._schemas[k])

    def _seen(self, k: int, chunks: list[Chunk]) -> dict[int, Array]:
        """How many tuples of each other stream came before each of this one's; ties in their order."""
        if sum(chunk.rows > 0 for chunk in chunks) < 2:
            return {}
        here = chunks[k].places
        assert here is not None
        return {
            j: self._arrived[j] + np.searchsorted(chunk.places, here, "right" if j < k else "left")
            for j, chunk in enumerate(chunks)
            if j != k and chunk.places is not None and self._counts(j)
        }

    def _counts(self, j: int) -> bool:
        window = self._node.windows[j]
        return len(self._node.inputs) == 2 or (window is not None and window.kind == "tuples")

    def _results(self, batches: list[pa.RecordBatch], timed: bool) -> Chunk:
        """Results by the arrival of their last tuples, then of the others."""
        none = np.empty(0, np.int64)
        if not batches:
            columns = empty(self._node.schema)
            if not timed:
                return Chunk(columns, 0, places=none)
            return Chunk(columns, 0, none, None, none, none)
        table = pa.Table.from_batches(batches).combine_chunks()
        places, times, clocks = (self._stamps(table, h) for h in (_PLACE, _TIME, _CLOCK))
        order = np.lexsort((*places[::-1], places.max(axis=0)))
        rows = pa.array(order)
        columns = {f.name: _array(table.column(f.name)).take(rows) for f in self._node.schema}
        known = times.max(axis=0)[order]
        timed_rows = None if np.all(known > BEGINNING) else known > BEGINNING
        last = places.max(axis=0)[order]
        if not timed:
            return Chunk(columns, len(order), places=last)
        return Chunk(columns, len(order), known, timed_rows, clocks.max(axis=0)[order], last)

    def _stamps(self, table: pa.Table, what: str) -> Array:
        arrays = [_array(table.column(f"{name}.{what}")) for name in self._node.names]
        return np.stack([np.asarray(a.cast(pa.int64()).fill_null(BEGINNING)) for a in arrays])

    @property
    def late(self) -> int:
        """Tuples that came too late to be joined."""
        return self._engine.lost[0]

    @property
    def no_time(self) -> int:
        """Tuples without a time, where one is needed."""
        return self._engine.lost[1]

    def close(self) -> None:
        """Stop the engine."""
        self._engine.close()


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
