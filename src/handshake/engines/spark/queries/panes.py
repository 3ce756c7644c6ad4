"""Time windows from panes: source tasks aggregate panes of their partition, one task combines them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from handshake.engines.spark.batches import large_pieces
from handshake.engines.spark.queries.blobs import Blob
from handshake.operators.chunk import (
    BEGINNING,
    EARLIEST,
    END,
    Array,
    Chunk,
    Flow,
    Trace,
    concat_chunks,
    empty,
)
from handshake.operators.panes import Panes, Table, stack_tables
from handshake.operators.pipeline import Pipeline
from handshake.operators.sources import Needs, SourceOperator
from handshake.operators.windows import Spans, WindowOperator
from handshake.plan.aggregates import AGGREGATES
from handshake.plan.algebra import Node, Output, Sliding, Source, Windowing, chain
from handshake.plan.panes import PaneShape, pane_shape
from handshake.schema import UNITS, arrow_of, concat_batches

_BATCH_ROWS = 1 << 17
"""Rows per batch for compiled code; Spark's batches have 10,000."""


@dataclass(frozen=True)
class PaneWindow:
    """A plan of the form source, simple steps, time window of algebraic aggregates, simple steps.

    The aggregates do not depend on the order of the rows.
    """

    window: Windowing
    source: Source
    below: list[Node]
    """The steps between the source and the window."""
    above: list[Node]
    shape: PaneShape

    @classmethod
    def of(cls, output: Output) -> PaneWindow | None:
        """Recognise the form; None if the plan has another one."""
        window, above = chain(output.input)
        # source tasks must know where windows lie, whatever the rows are
        if not isinstance(window, Windowing) or not isinstance(window.window, Sliding):
            return None
        if window.window.kind != "time" or window.window.offset is None:
            return None
        source, below = chain(window.input)
        shape = pane_shape(window.body, window.parameter)
        if not isinstance(source, Source) or shape is None:
            return None
        if any(AGGREGATES[aggregate.function].ordered for aggregate in shape.aggregates):
            return None  # partitions are reduced one by one, and not in the order of arrival
        return cls(window, source, below, above, shape)

    @property
    def spans(self) -> Spans:
        """The places of windows, in units of their clock."""
        assert isinstance(self.window.window, Sliding)
        return Spans.of(self.window.window, UNITS[self.window.clock.unit])


@dataclass(frozen=True)
class PartitionPanes:
    """The panes of one partition's tuples, before any of them is known to be late."""

    table: Table | None
    keys: list[pa.Array]
    clock: int
    """The source's clock after these tuples."""
    firsts: Array
    counts: Array
    """`counts[n]` tuples have `firsts[n]` as their first window."""
    no_time: int
    rows: int


class _SharedPanes(Panes):
    """Panes that a source task takes out and the query's task adds."""

    def take_all(self) -> tuple[Table | None, list[pa.Array]]:
        """Return all panes, and the keys of their groups by number."""
        return (stack_tables(self._waiting) if self._waiting else None), self._index.keys

    def put(self, table: Table, keys: list[pa.Array], opened: int) -> None:
        """Add panes of a later partition; windows before `opened` had already ended."""
        first = np.maximum(table.first, opened)
        rows = np.flatnonzero(first <= table.last)
        if self._shape.keys is not None:
            table = self._renumber(table, keys)
        self._waiting.append(replace(table, first=first).take(rows))

    def _renumber(self, table: Table, keys: list[pa.Array]) -> Table:
        """Translate group numbers and first arrivals of a partition to those of the whole query."""
        numbers = self._index.numbers(keys)
        arrivals, there = table.parts[-1]
        latest = int((~arrivals).max(initial=-1)) + 1
        moved = (~(~arrivals + self._seen), there)
        self._seen += latest
        return replace(table, groups=numbers[table.groups], parts=(*table.parts[:-1], moved))


class _SharedWindows(WindowOperator):
    """A window operator whose two halves, taking tuples and closing windows, run in different tasks."""

    def take(self, chunk: Chunk) -> None:
        """Add tuples to their panes."""
        self._take_by_time(chunk)

    def close_windows(self, flow: Flow) -> list[Chunk]:
        """Return the results of windows that have ended."""
        return list(self._results(flow))


def _operator(found: PaneWindow) -> tuple[_SharedWindows, _SharedPanes]:
    panes = _SharedPanes(found.window, found.shape)
    return _SharedWindows(found.window, panes), panes


# In source tasks


def reduce_panes(output: Output, batches: Iterable[pa.RecordBatch]) -> PartitionPanes:
    """Aggregate the tuples of one partition into panes."""
    found = PaneWindow.of(output)
    assert found is not None
    source = found.source
    never_late = replace(source, lateness=(END - BEGINNING) * UNITS[source.clock.unit])
    stamps = SourceOperator(never_late, Needs(True, False), lambda: 0)
    steps = Pipeline(source.fields.fields, found.below) if found.below else None
    operator, panes = _operator(found)
    clock, behind = BEGINNING, source.lateness // UNITS[source.clock.unit]
    counts = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for batch in map(concat_batches, large_pieces(batches, _BATCH_ROWS)):
        flow = stamps.step(batch, np.arange(batch.num_rows))
        chunk = flow.chunk if steps is None else steps.apply(flow.chunk)
        assert flow.chunk.times is not None
        assert chunk.times is not None
        latest = int(flow.chunk.times.max(initial=BEGINNING))  # also of tuples that a filter drops
        clock = max(clock, latest - behind) if latest > BEGINNING else clock
        first, last = found.spans.first(chunk.times), found.spans.last(chunk.times)
        inside = last >= first if chunk.timed is None else (last >= first) & chunk.timed
        counts.append(np.unique(first[inside], return_counts=True))
        operator.take(chunk)
    table, keys = panes.take_all()
    firsts = [np.concatenate(column) for column in zip(*counts, strict=True)]
    return PartitionPanes(table, keys, clock, firsts[0], firsts[1], operator.no_time, stamps.rows)


# In the query's task


class PaneQuery:
    """A query of time windows on a source, from the panes of the source's partitions."""

    def __init__(self, output: Output) -> None:
        self.output = output
        found = PaneWindow.of(output)
        assert found is not None
        self._operator, self._panes = _operator(found)
        self._spans = found.spans
        self._above = Pipeline(found.window.schema.fields, found.above) if found.above else None
        none = np.empty(0, np.int64)
        self._empty = Chunk(empty(found.window.input.schema), 0, none, None, none)
        self._clock = BEGINNING
        self.late = self.no_time = self.rows = 0

    def step(self, blobs: Iterable[Blob], ended: bool) -> list[pa.RecordBatch]:
        """Add the panes of a micro-batch and return the results of windows that it completes."""
        pieces: list[PartitionPanes] = [pickle.loads(blob.data) for blob in sorted(blobs)]
        opened = int(self._spans.first(np.array([self._clock]))[0]) if self._clock > BEGINNING else EARLIEST
        for piece in pieces:
            self.rows, self.no_time = self.rows + piece.rows, self.no_time + piece.no_time
            self.late += int(piece.counts[piece.firsts < opened].sum())
            if piece.table is not None:
                self._panes.put(piece.table, piece.keys, opened)
        self._clock = max([self._clock, *(piece.clock for piece in pieces)])
        clock = END if ended else self._clock
        if clock == BEGINNING:
            return []
        trace = Trace(np.array([0]), np.array([clock]))
        return self._batches(self._operator.close_windows(Flow(self._empty, trace, ended)))

    @property
    def figures(self) -> tuple[int, ...]:
        """The figures so far, as `tasks.FIGURES` names them, without the number of results; none of joins."""
        return self.rows, self.late, self.no_time, 0, 0, 0, 0

    def _batches(self, chunks: Sequence[Chunk]) -> list[pa.RecordBatch]:
        if not chunks:
            return []
        chunk = concat_chunks(list(chunks))
        columns, rows = chunk.columns, chunk.rows
        if self._above is not None:
            columns, rows, _ = self._above.run(columns, rows)
        if not rows:
            return []
        schema = pa.schema([(f.name, arrow_of(f.type)) for f in self.output.schema])
        return [pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)]
