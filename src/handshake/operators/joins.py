"""⋈: the window join of two or more streams, run by the join engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.metrics import StreamMetrics
from handshake.joins.spec import FirstPairs
from handshake.kernels.columns import as_array
from handshake.kinds import INNER
from handshake.operators.chunk import BEGINNING, END, Array, Chunk, Flow, Trace, check_results, empty
from handshake.operators.join_asof import AsOfKind
from handshake.operators.join_engines import JoinEngine
from handshake.operators.join_kinds import JoinStep, KindOfJoin
from handshake.operators.union import Clocks, in_unit
from handshake.plan.algebra import MEMBER_TIME, Source, WindowJoin, chain
from handshake.schema import arrow_of
from handshake.windows import Windows, is_late

_CLOCK, _PLACE, POSITION = "\0clock", "\0place", "\0position"
_NONE = np.empty(0, np.int64)


class JoinOperator:
    """A join engine that is fed with rows in the order of their arrival.

    Stamps decide which rows are late, so the way in which streams are cut into batches does not matter.
    """

    def __init__(self, node: WindowJoin, cores: int, kind: KindOfJoin | None = None) -> None:
        self._node, self._unit, self._cores = node, node.clock.unit, cores
        self._timed = Windows(*node.windows).timed
        ties = not all(isinstance(chain(child)[0], Source) for child in node.inputs)
        if kind is None and node.kind != INNER:
            kind = AsOfKind(node, cores) if node.match else KindOfJoin(node)
        self._kind = kind
        self._numbered = ties or self._kind is not None
        """True if positions tell rows apart: several of an input may come at one place, or may match."""
        self._units = [child.clock.unit for child in node.inputs]
        self._clocks = Clocks(len(node.inputs))
        self._arrived = [0] * len(node.inputs)
        self._schemas = [self._schema(k) for k in range(len(node.inputs))]
        self._engine = None if node.match else self._start_engine()
        """The engine that finds pairs; an as-of join finds them when left rows are final."""
        self.late = self.no_time = 0
        self.late_of = [0] * len(node.inputs)
        """The late rows of each input; states of queries that earlier releases wrote begin anew."""

    def __getstate__(self) -> dict[str, Any]:
        """Save rows and counts; the engine is created again."""
        kept = ("_node", "_cores", "_clocks", "_arrived", "_kind", "late", "late_of", "no_time")
        held = None if self._engine is None else self._engine.save()
        return {**{name: getattr(self, name) for name in kept}, "held": held}

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = state.pop("held")
        JoinOperator.__init__(self, state["_node"], state["_cores"], state["_kind"])
        self.__dict__.update(state)
        if self._engine is not None:
            self._engine.refill(held)

    def _start_engine(self) -> JoinEngine:
        return JoinEngine(self._node, self._schemas, self._timed, self._cores, self._firsts())

    def _firsts(self) -> FirstPairs | None:
        """Return which pairs the engine has to find; None for all."""
        if self._kind is None or self._kind.states is None:
            return None
        left, right = (f"{name}.{POSITION}" for name in self._node.names)
        return FirstPairs(self._node.kind.shown.index(True), (left, right), self._kind.states)

    def _schema(self, k: int) -> pa.Schema:
        name = self._node.names[k]
        own = [(f"{name}.{f.name}", arrow_of(f.type)) for f in self._node.inputs[k].schema]
        hidden = [(MEMBER_TIME, pa.timestamp(self._unit)), (_CLOCK, pa.int64()), (_PLACE, pa.int64())]
        hidden += [(POSITION, pa.int64())] if self._numbered else []
        return pa.schema([*own, *((f"{name}.{h}", kind) for h, kind in hidden)])

    def step(self, flows: list[Flow]) -> Flow:
        """Join the rows that have come on all inputs."""
        flows = [in_unit(flow, own, self._unit) for flow, own in zip(flows, self._units, strict=True)]
        before, trace = self._clocks.least, self._clocks.step(flows)
        given = chunks = [flow.chunk for flow in flows]
        if self._timed:
            for chunk in chunks:
                check_results(chunk)
            chunks = [self._keep_timely(k, chunk, trace, before) for k, chunk in enumerate(chunks)]
        arrived, ended = list(self._arrived), all(flow.ended for flow in flows)
        if self._kind is not None:
            self._kind.expect(chunks)
        found = [] if self._engine is None else self._find_pairs(self._engine, chunks, flows)
        for k, chunk in enumerate(chunks):
            self._arrived[k] += chunk.rows
        results = self._results([batch for batch in found if batch.num_rows], chunks[0].times is not None)
        if self._kind is None:
            return Flow(results.chunk, trace, ended)
        timeless = [_without_time(chunk) if self._timed else chunk.take(_NONE) for chunk in given]
        step = JoinStep(chunks, timeless, arrived, trace, before, ended)
        return Flow(self._kind.step(step, results.chunk, results.positions), trace, ended)

    def _find_pairs(self, engine: JoinEngine, chunks: list[Chunk], flows: list[Flow]) -> list[pa.RecordBatch]:
        found: list[pa.RecordBatch] = []
        for k, chunk in enumerate(chunks):
            if chunk.rows:
                found += engine.push(k, self._batch(k, chunk), self._count_before(k, chunks))
        engine.meet_all()
        for k, flow in enumerate(flows):
            last = flow.trace.last
            if self._timed and last is not None and BEGINNING < last < END:
                engine.advance(k, last)
        return found

    def _keep_timely(self, k: int, chunk: Chunk, trace: Trace, before: int) -> Chunk:
        """Keep rows of an input that have a time and were not late for the clock of the join.

        Rows that are not older than their own clock are never late: it is not behind that of the join.
        """
        assert chunk.times is not None
        assert chunk.places is not None
        if chunk.timed is None and np.all(chunk.times >= chunk.clocks):
            return chunk
        shown = np.concatenate([[before], trace.clocks])[np.searchsorted(trace.places, chunk.places, "left")]
        timed = np.ones(chunk.rows, np.bool_) if chunk.timed is None else chunk.timed
        stays = timed & ~is_late(chunk.times, shown)
        late = int(np.count_nonzero(timed & ~stays))
        self.no_time += int(np.count_nonzero(~timed))
        self.late += late
        self.late_of[k] += late
        return chunk if stays.all() else chunk.take(np.flatnonzero(stays))

    def _batch(self, k: int, chunk: Chunk) -> pa.RecordBatch:
        """Return rows with their stamps in columns of their own."""
        assert chunk.places is not None
        zeros = np.zeros(chunk.rows, np.int64)
        times = zeros if chunk.times is None else chunk.times
        missing = None if chunk.timed is None else ~chunk.timed
        stamps = [
            pa.array(times, mask=missing).view(pa.timestamp(self._unit)),
            pa.array(zeros if chunk.clocks is None else chunk.clocks),
            pa.array(chunk.places),
        ]
        if self._numbered:
            stamps.append(pa.array(np.arange(self._arrived[k], self._arrived[k] + chunk.rows)))
        columns = [chunk.columns[f.name] for f in self._node.inputs[k].schema]
        return pa.RecordBatch.from_arrays([*columns, *stamps], schema=self._schemas[k])

    def _count_before(self, k: int, chunks: list[Chunk]) -> dict[int, Array] | None:
        """Count the rows of each other stream before each row of this one; ties in the order of streams.

        None if no other stream has rows in this step.
        """
        if sum(chunk.rows > 0 for chunk in chunks) < 2:
            return None
        here = chunks[k].places
        assert here is not None
        return {
            j: self._arrived[j] + np.searchsorted(chunk.places, here, "right" if j < k else "left")
            for j, chunk in enumerate(chunks)
            if j != k and chunk.places is not None and self._counts(j)
        }

    def _counts(self, j: int) -> bool:
        window = self._node.windows[j]
        return len(self._node.inputs) == 2 or (window is not None and window.counted)

    def _results(self, batches: list[pa.RecordBatch], timed: bool) -> FoundPairs:
        """Sort results by the arrival of their last rows, then of the others."""
        if not batches:
            none = _NONE if timed else None
            nothing = Chunk(empty(self._node.schema), 0, none, None, none, _NONE)
            return FoundPairs(nothing, np.empty((len(self._node.inputs), 0), np.int64))
        table = pa.Table.from_batches(batches).combine_chunks()
        places, times, clocks = (self._stamps(table, h) for h in (_PLACE, MEMBER_TIME, _CLOCK))
        positions = self._stamps(table, POSITION) if self._numbered else places[:0]
        order = np.lexsort((*positions[::-1], *places[::-1], places.max(axis=0)))
        rows = pa.array(order)
        columns = {f.name: as_array(table.column(f.name)).take(rows) for f in self._node.schema}
        chunk = Chunk(columns, len(order), places=places.max(axis=0)[order])
        if timed:
            known = times.max(axis=0)[order]
            timed_rows = None if np.all(known > BEGINNING) else known > BEGINNING
            chunk = chunk._replace(times=known, timed=timed_rows, clocks=clocks.max(axis=0)[order])
        return FoundPairs(chunk, positions[:, order])

    def _stamps(self, table: pa.Table, what: str) -> Array:
        arrays = [as_array(table.column(f"{name}.{what}")) for name in self._node.names]
        return np.stack([np.asarray(a.cast(pa.int64()).fill_null(BEGINNING)) for a in arrays])

    def close(self) -> None:
        """Stop the engine."""
        if self._engine is not None:
            self._engine.close()

    # About its rows.

    @property
    def node(self) -> WindowJoin:
        """The join in the plan that runs."""
        return self._node

    @property
    def timed(self) -> bool:
        """True if a window needs times."""
        return self._timed

    @property
    def mark(self) -> int | None:
        """The clock of the join; None before it has moved."""
        return self._clocks.least if self._clocks.least > BEGINNING else None

    def counts(self, k: int) -> StreamMetrics:
        """Return how many rows of an input took part, and how many were late."""
        return StreamMetrics(self._node.names[k], self._arrived[k], self.late_of[k], 0, 0)

    @property
    def engine(self) -> JoinEngine | None:
        """The engine that finds pairs; None for an as-of join."""
        return self._engine

    @property
    def kind(self) -> KindOfJoin | None:
        """The rows that wait for a match, and their counts; None for an inner join."""
        return self._kind


@dataclass(frozen=True)
class FoundPairs:
    """The pairs of a step, and the positions of their rows, one array per stream."""

    chunk: Chunk
    positions: Array


def _without_time(chunk: Chunk) -> Chunk:
    return chunk.take(_NONE if chunk.timed is None else np.flatnonzero(~chunk.timed))
