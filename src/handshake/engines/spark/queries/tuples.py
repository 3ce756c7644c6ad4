"""Queries that run in one task on the tuples themselves, with the operators of continuous queries.

In a micro-batch, tuples arrive by time whatever their partition: partitions of a source such as Kafka run in
parallel in time, not one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from handshake.engines.spark.queries.blobs import Blob
from handshake.operators.chunk import BEGINNING, END, Array, Flow, Trace
from handshake.operators.query import Query
from handshake.operators.sources import Needs, SourceOperator, arrival_places, instants
from handshake.plan.algebra import Output, Plan, Source


class ClockedSource(SourceOperator):
    """A source of join results, whose clock is the slowest clock of the join's inputs.

    Tuples of a micro-batch have the clock of the micro-batch before: windows close between micro-batches.
    """

    def __init__(self, source: Source, clocks: int) -> None:
        super().__init__(source, Needs(True, False), time.time_ns)
        self._shown = [BEGINNING] * clocks

    def set_clock(self, which: int, clock: int) -> None:
        """Set the clock of one input of the join, in units of this source's clock."""
        self._shown[which] = max(self._shown[which], clock)

    def step(self, batch: pa.RecordBatch, places: Array, *, ended: bool = False) -> Flow:
        """Stamp results that have arrived; then advance the clock."""
        flow = super().step(batch, places, ended=ended)
        self._clock = max(self._clock, min(self._shown))
        trace = Trace(places[-1:], np.array([END if ended else self._clock]))
        return Flow(flow.chunk, trace, ended)

    def _clocks(self, times: Array) -> Array:
        return np.full(len(times), self._clock)


class TupleQuery:
    """A query that is held in the state of a Spark query and gets all tuples.

    With `clocks`, its one source holds the results of a join; blobs of later sources hold the clocks of that
    many inputs of the join. Sources named in `timeless` have no order of their own in time.
    """

    def __init__(
        self, output: Output, sources: tuple[Source, ...], clocks: int = 0,
        timeless: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.output = output
        self._sources = tuple(replace(source, demux=None) for source in sources)
        self._ordering = tuple(replace(s, time=None) if s.name in timeless else s for s in self._sources)
        self._query = Query(Plan(self._sources, (output,)), optimised=False)
        self._clocked: ClockedSource | None = None
        if clocks:
            self._clocked = ClockedSource(self._sources[0], clocks)
            self._query.stamp_by(self._clocked)
        self._count = 0

    def step(self, blobs: Iterable[Blob], ended: bool) -> list[pa.RecordBatch]:
        """Push the tuples of a micro-batch, by time, and return the results."""
        blobs, sources = list(blobs), len(self._sources)
        tables = self._tables(sorted(blob for blob in blobs if blob.source < sources))
        places = self._places(tables)
        given = {self._sources[at].name: (table, places[at]) for at, table in tables.items()}
        if self._clocked is not None:
            for blob in blobs:
                if blob.source >= sources:
                    self._clocked.set_clock(blob.source - sources, int.from_bytes(blob.data, signed=True))
        results = self._query.push_together(given)[self.output.name] if blobs else []
        return [*results, *(self._query.finish()[self.output.name] if ended else [])]

    def _tables(self, blobs: list[Blob]) -> dict[int, pa.Table]:
        """Return the tuples of each source, sorted by time if it has one; tuples without a time come last."""
        found: dict[int, pa.Table] = {}
        for at in sorted({blob.source for blob in blobs}):
            parts = [pa.ipc.open_stream(blob.data).read_all() for blob in blobs if blob.source == at]
            table, source = pa.concat_tables(parts), self._ordering[at]
            seconds, rest = instants(source, table)
            order = np.lexsort((rest, seconds))
            table = table if np.all(order[1:] > order[:-1]) else table.take(pa.array(order))
            found[at] = table
        return found

    def _places(self, tables: dict[int, pa.Table]) -> dict[int, Array]:
        """Number the tuples in their order of arrival."""
        if not tables:
            return {}
        known = [instants(self._ordering[at], table) for at, table in tables.items()]
        places = [place + self._count for place in arrival_places(known)]
        self._count += sum(map(len, places))
        return dict(zip(tables, places, strict=True))

    @property
    def figures(self) -> tuple[int, ...]:
        """The figures so far, as `tasks.FIGURES` names them, without the number of results."""
        found = self._query.metrics()
        joined = found.matched, found.unmatched, found.finalised, found.pending
        return sum(found.rows.values()), found.late, found.no_time, *joined
