"""What one task does for a whole query: it adds a micro-batch's panes, or tuples, to those that it holds.

Source tasks send what they have as blobs. Inside of a micro-batch tuples arrive by time, wherever they lie:
partitions of a source, such as Kafka's, are side by side in time, and not one after the other.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.jvm.pane_blobs import read_panes
from handshake.engines.spark.queries.clocks import ToldSource, patient
from handshake.engines.spark.queries.panes import Reduced, SharedPanes, SharedWindows
from handshake.errors import HandshakeError
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
from handshake.operators.pipeline import Pipeline, chain
from handshake.operators.query import Query
from handshake.operators.sources import Needs, SourceOperator, instants
from handshake.operators.windows import Spans
from handshake.plan.algebra import Output, Plan, Source, Windowing
from handshake.plan.panes import pane_shape
from handshake.schema import UNITS, arrow_of

__all__ = ["Arrived", "PaneQuery", "Reduced", "TupleQuery", "load"]

_ROWS = 1 << 17


@dataclass(frozen=True)
class Arrived:
    """A blob, and where it stands in the order of arrival."""

    source: int
    partition: int
    part: int
    data: bytes


def _ordered(blobs: Iterable[Arrived]) -> list[Arrived]:
    return sorted(blobs, key=lambda blob: (blob.source, blob.partition, blob.part))


# Windows from panes: source tasks aggregate, this puts their panes together.


def _window(output: Output) -> tuple[Windowing, Source, list[Any], list[Any]]:
    """⊞ on a source: the window, its source, the steps between them, and those after the window."""
    window, above = chain(output.input)
    assert isinstance(window, Windowing)
    source, between = chain(window.input)
    assert isinstance(source, Source)
    return window, source, between, above


def reduce_panes(output: Output, batches: Iterable[pa.RecordBatch]) -> Reduced:
    """The panes of one partition."""
    window, source, between, _ = _window(output)
    stamps = SourceOperator(patient(source), Needs(True, False), lambda: 0)
    steps = Pipeline(source.fields.fields, between) if between else None
    operator, panes = _operator(window)
    spans, tally = _spans(window), _Tally(source.lateness // UNITS[source.clock.unit])
    for batch in _larger(batches):
        flow = stamps.step(batch, np.arange(batch.num_rows))
        chunk = flow.chunk if steps is None else steps.apply(flow.chunk)
        tally.look(flow.chunk)
        tally.add(chunk, spans)
        operator.take(chunk)
    table, keys = panes.taken()
    return Reduced(table, keys, tally.clock, *tally.firsts(), operator.no_time, stamps.rows)


def _larger(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Few and large batches: Spark's have ten thousand rows, which is little for compiled code."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.num_rows for one in held) >= _ROWS:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _operator(window: Windowing) -> tuple[SharedWindows, SharedPanes]:
    shape = pane_shape(window.body, window.parameter)
    assert shape is not None
    panes = SharedPanes(window, shape)
    return SharedWindows(window, panes), panes


def _spans(window: Windowing) -> Spans:
    unit = UNITS[window.clock.unit]
    return Spans(window.window.size // unit, window.window.advance // unit)


@dataclass
class _Tally:
    """The clock, and first windows of tuples, to tell later how many of them an earlier one made late."""

    behind: int
    clock: int = BEGINNING
    pieces: list[tuple[Array, Array]] = field(default_factory=list)

    def look(self, chunk: Chunk) -> None:
        """Selections do not keep a clock from what it shows."""
        assert chunk.times is not None
        latest = int(chunk.times.max(initial=BEGINNING))
        if latest > BEGINNING:
            self.clock = max(self.clock, latest - self.behind)

    def add(self, chunk: Chunk, spans: Spans) -> None:
        assert chunk.times is not None
        first, last = spans.first(chunk.times), spans.last(chunk.times)
        inside = last >= first if chunk.timed is None else (last >= first) & chunk.timed
        self.pieces.append(np.unique(first[inside], return_counts=True))

    def firsts(self) -> tuple[Array, Array]:
        if not self.pieces:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return tuple(np.concatenate(column) for column in zip(*self.pieces, strict=True))  # type: ignore[return-value]


class PaneQuery:
    """A window on a source, from panes that the source's tasks have made."""

    def __init__(self, output: Output) -> None:
        self.output = output
        window, _, _, above = _window(output)
        self._operator, self._panes = _operator(window)
        self._spans = _spans(window)
        self._above = Pipeline(window.schema.fields, above) if above else None
        self._empty = Chunk(empty(window.input.schema), 0, *_no_stamps())
        self._clock = BEGINNING
        self.late = self.no_time = self.rows = 0

    def step(self, blobs: Iterable[Arrived], ended: bool) -> list[pa.RecordBatch]:
        """Take what has come, and give what it completes."""
        pieces = [self._read(blob.data) for blob in _ordered(blobs)]
        opened = int(self._spans.first(np.array([self._clock]))[0]) if self._clock > BEGINNING else EARLIEST
        for piece in pieces:
            self._take(piece, opened)
        self._clock = max([self._clock, *(piece.clock for piece in pieces)])
        clock = END if ended else self._clock
        trace = Trace(np.array([0]), np.array([clock]))
        if clock == BEGINNING:
            return []
        return self._batches(self._operator.closing(Flow(self._empty, trace, ended)))

    def _read(self, data: bytes) -> Reduced:
        """Panes as Java has written them, or Python."""
        found = read_panes(data, self._panes, _window(self.output)[1])
        return pickle.loads(data) if found is None else found

    def _take(self, got: Reduced, opened: int) -> None:
        """Windows before `opened` had ended when the micro-batch began."""
        self.rows, self.no_time = self.rows + got.rows, self.no_time + got.no_time
        self.late += int(got.counts[got.firsts < opened].sum())
        if got.table is not None:
            self._panes.put(got.table, got.keys, opened)

    def _batches(self, chunks: Sequence[Chunk]) -> list[pa.RecordBatch]:
        if not chunks:
            return []
        chunk = concat_chunks(list(chunks))
        columns, rows = chunk.columns, chunk.rows
        if self._above is not None:
            columns, rows, _ = self._above.run(columns, rows)
        return [_batch(self.output, columns)] if rows else []


def _no_stamps() -> tuple[Array, None, Array]:
    none = np.empty(0, np.int64)
    return none, None, none


def _batch(output: Output, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    schema = pa.schema([(f.name, arrow_of(f.type)) for f in output.schema])
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


# Any other plan: the in-process engine on the tuples themselves.


class TupleQuery:
    """A query of the in-process engine that lives in the state of a Spark query.

    With `told`, its one source has the results of a join, and blobs after it the clocks of so many inputs.
    """

    def __init__(self, output: Output, sources: tuple[Source, ...], told: int = 0) -> None:
        self.output = output
        self._sources = tuple(replace(source, demux=None) for source in sources)
        self._query = Query(Plan(self._sources, (output,)), optimised=False)
        self._told = _telling(self._query, self._sources[0], told) if told else None
        self._count = 0

    def step(self, blobs: Iterable[Arrived], ended: bool) -> list[pa.RecordBatch]:
        """Push what has come, by time."""
        blobs = list(blobs)
        tables = self._tables(_ordered(blob for blob in blobs if blob.source < len(self._sources)))
        given = {self._sources[at].name: (table, place) for at, (table, place) in tables.items()}
        for blob in blobs:
            if self._told is not None and blob.source >= len(self._sources):
                self._told.tell(blob.source - len(self._sources), int.from_bytes(blob.data, signed=True))
        results = self._query.push_together(given)[self.output.name] if blobs else []
        return [*results, *(self._query.finish()[self.output.name] if ended else [])]

    def _tables(self, blobs: list[Arrived]) -> dict[int, tuple[pa.Table, Array]]:
        found: dict[int, pa.Table] = {}
        for at in sorted({blob.source for blob in blobs}):
            parts = [pa.ipc.open_stream(blob.data).read_all() for blob in blobs if blob.source == at]
            found[at] = _by_time(pa.concat_tables(parts), self._sources[at])
        rows = sum(table.num_rows for table in found.values())
        places = self._places(found)
        self._count += rows
        return {at: (table, places[at]) for at, table in found.items()}

    def _places(self, tables: dict[int, pa.Table]) -> dict[int, Array]:
        """Where tuples stand among all arrivals: by time, ties by declaration; without, in turns."""
        turns = any(source.time is None for source in self._sources)
        if not tables:
            return {}
        keys = [_turns(t) if turns else _instants(t, self._sources[at]) for at, t in tables.items()]
        sources = np.repeat(list(tables), [len(seconds) for seconds, _ in keys])
        seconds, rest = (np.concatenate(parts) for parts in zip(*keys, strict=True))
        order = np.lexsort((sources, rest, seconds))
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order)) + self._count
        return {at: places[sources == at] for at in tables}

    @property
    def late(self) -> int:
        """Tuples that missed a window."""
        return self._query.metrics().late

    @property
    def no_time(self) -> int:
        """Tuples without a time, where one is needed."""
        return self._query.metrics().no_time

    @property
    def rows(self) -> int:
        """Tuples so far."""
        return sum(self._query.metrics().rows.values())


def _telling(query: Query, source: Source, clocks: int) -> ToldSource:
    """Let a query have its source's clock told."""
    operator = ToldSource(source, clocks)
    query.stamp_by(operator)
    return operator


def _turns(table: pa.Table) -> tuple[Array, Array]:
    return np.arange(table.num_rows), np.zeros(table.num_rows, np.int64)


def _instants(table: pa.Table, source: Source) -> tuple[Array, Array]:
    name = str(source.time)
    return instants(source, {name: table.column(name).combine_chunks()})


def _by_time(table: pa.Table, source: Source) -> pa.Table:
    """Tuples of a micro-batch, or of a finite input, as they arrive: by time, those without one last."""
    if source.time is None:
        return table
    seconds, rest = _instants(table, source)
    order = np.lexsort((rest, seconds))
    return table if np.all(order[1:] > order[:-1]) else table.take(pa.array(order))


Stateful = PaneQuery | TupleQuery


def load(state: bytes | None, fresh: Stateful) -> Stateful:
    """The query as it was after the last micro-batch, if there was one."""
    if state is None:
        return fresh
    held: Stateful = pickle.loads(state)
    if held.output != fresh.output:
        raise HandshakeError(
            f"the checkpoint is of another query than '{fresh.output.name}' as it is now: its plan has "
            "changed; use a new checkpoint, or the old text"
        )
    return held
