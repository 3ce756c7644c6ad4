"""Inputs: rows as declared, stamped with their times and the clock of their source."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.io.frames import conform
from handshake.kernels.columns import as_array
from handshake.operators.chunk import BEGINNING, END, Array, Chunk, Flow, Trace, beyond, check_times
from handshake.plan.algebra import Plan, Source
from handshake.schema import UNITS
from handshake.windows import is_late

NowNanoseconds = Callable[[], int]
OnLate = Callable[[pa.RecordBatch, Array | None], None]
"""A function of rows that are older than the clock, and by how much; None for rows without a time."""


@dataclass(frozen=True)
class Needs:
    """The stamps that operators of the plan need."""

    times: bool
    places: bool


def arrow_schema(source: Source) -> pa.Schema:
    """Return the Arrow schema of an input."""
    return source.fields.to_arrow()


def times_in(source: Source, columns: dict[str, pa.Array]) -> tuple[Array, Array | None]:
    """Return the times of rows, and whether they have one (None: all have)."""
    assert source.time is not None
    column = columns[source.time]
    valid = np.asarray(column.is_valid()) if column.null_count else None
    what = f"a time in column '{source.time}' of stream {source.name}"
    if pa.types.is_uint64(column.type) and (largest := pc.max(column).as_py() or 0) >= END:
        raise beyond(what, largest)
    whole = column.cast(pa.int64()) if pa.types.is_integer(column.type) else column.view(pa.int64())
    times = np.asarray((whole.fill_null(BEGINNING) if valid is not None else whole).to_numpy())
    check_times(times if valid is None else times[valid], what)
    return times, valid


def arrival_places(instants: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Return the place of each row of each stream among all arrivals, given the instants of its rows.

    Rows arrive by their instants, ties in the order of the streams, then of the rows.
    """
    streams = np.repeat(np.arange(len(instants)), [len(seconds) for seconds, _ in instants])
    seconds, rest = (np.concatenate(parts) for parts in zip(*instants, strict=True))
    order = np.lexsort((streams, rest, seconds))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return [places[streams == k] for k in range(len(instants))]


def instants(source: Source, table: pa.Table | pa.RecordBatch) -> tuple[Array, Array]:
    """Return times as seconds and nanoseconds, to sort rows of all streams; rows without one come last.

    Streams without a time column come before all times, and take turns. Nanoseconds alone would not fit 64
    bits: whole numbers can be times of 62 bits in any unit.
    """
    if source.time is None:
        return np.full(table.num_rows, BEGINNING), np.arange(table.num_rows)
    times, timed = times_in(source, {source.time: as_array(table.column(source.time))})
    unit = UNITS[source.clock.unit]
    seconds, rest = np.divmod(times, UNITS["s"] // unit)
    if timed is None:
        return seconds, rest * unit
    return np.where(timed, seconds, END), np.where(timed, rest * unit, 0)


def instants_in(plan: Plan, source: Source, table: pa.Table | pa.RecordBatch) -> tuple[Array, Array]:
    """Return the `instants` of an input of a plan, which may carry other streams.

    If it has no times itself, a row has the time that the first stream which claims it declares.
    """
    seconds, rest = instants(source, table)
    carried = plan.carried_by(source.name)
    if source.time is None:
        for stream in reversed([s for s in carried if s.time is not None]):
            part, rows = SourceOperator(stream, Needs(True, True), time.time_ns).pick_rows(table)
            seconds[rows], rest[rows] = instants(stream, part)
    return seconds, rest


class SourceOperator:
    """An input: stamps its rows."""

    def __init__(
        self, source: Source, needs: Needs, now: NowNanoseconds, on_late: OnLate | None = None
    ) -> None:
        self.source, self._needs, self._now = source, needs, now
        self.schema = arrow_schema(source)
        self._columns = list(enumerate(self.schema.names))
        self._behind = source.lateness // UNITS[source.clock.unit]
        self._clock = BEGINNING
        self.rows = 0
        self.on_late = on_late

    def read_only(self, names: frozenset[str]) -> None:
        """Pass on no columns but these, since no operator reads others."""
        own = {self.source.time} if self._needs.times else set()
        self._columns = [(at, name) for at, name in self._columns if name in names | own]

    def conform_batch(self, tuples: object) -> pa.RecordBatch:
        """Convert rows to the declared columns and types."""
        if isinstance(tuples, pa.RecordBatch) and tuples.schema.equals(self.schema):
            return tuples
        return conform(tuples, self.schema, self.source.name)

    def pick_rows(self, batch: pa.RecordBatch | pa.Table) -> tuple[pa.RecordBatch, Array]:
        """Return this stream's rows in a batch of the carrying input, and their row numbers."""
        demux = self.source.demux
        assert demux is not None
        field = batch.column(batch.schema.get_field_index(demux.field))
        wanted = pc.is_in(field, pa.array(demux.values, field.type))
        rows = np.flatnonzero(wanted.to_numpy(zero_copy_only=False))
        own = [name for name in self.schema.names if name in batch.schema.names]
        return self.conform_batch(batch.select(own).take(pa.array(rows))), rows

    def step(self, batch: pa.RecordBatch, places: Array, *, ended: bool = False) -> Flow:
        """Stamp rows that have arrived, each with its place among all arrivals."""
        self.rows += batch.num_rows
        columns = {name: batch.column(at) for at, name in self._columns}
        kept = places[: batch.num_rows] if self._needs.places else None
        if not self._needs.times:
            return Flow(Chunk(columns, batch.num_rows, places=kept), _STILL, ended)
        if self.source.time is not None:
            times, timed = times_in(self.source, columns)
        else:
            times = np.full(batch.num_rows, self._now() // UNITS[self.source.clock.unit])
            timed = None
        clocks = self._clocks(times)
        if self.on_late is not None and self.source.time is not None:
            self._pass_on_late(batch, times, timed, clocks)
        trace = Trace(places[: batch.num_rows], clocks)
        if ended:
            trace = Trace(np.append(trace.places, places[-1:]), np.append(clocks, END))
        return Flow(Chunk(columns, batch.num_rows, times, timed, clocks, kept), trace, ended)

    def _pass_on_late(self, batch: pa.RecordBatch, times: Array, timed: Array | None, clocks: Array) -> None:
        assert self.on_late is not None
        late = is_late(times, clocks) if timed is None else is_late(times, clocks) & timed
        if late.any():
            behind = clocks[late].view(np.uint64) - times[late].view(np.uint64)
            self.on_late(batch.filter(pa.array(late)), behind)
        if timed is not None:
            self.on_late(batch.filter(pa.array(~timed)), None)

    def _clocks(self, times: Array) -> Array:
        """Return the clock at each row: the largest time so far minus the lateness."""
        if not len(times):
            return times
        rising = times if np.all(times[1:] >= times[:-1]) else np.maximum.accumulate(times)
        ahead = _subtract(rising, self._behind) if self._behind else rising
        clocks = ahead if ahead[0] >= self._clock else np.maximum(ahead, self._clock)
        self._clock = int(clocks[-1])
        return clocks


def _subtract(times: Array, behind: int) -> Array:
    """Subtract the lateness, but not below the first possible time."""
    if behind <= END:
        return times - behind
    if behind >= END - BEGINNING:
        return np.full(len(times), BEGINNING)
    least: Array = np.maximum(times, BEGINNING + behind)
    return least - behind


_STILL = Trace(np.empty(0, np.int64), np.empty(0, np.int64))
"""The movement of a clock that no operator reads."""
