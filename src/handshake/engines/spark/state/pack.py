"""The source side: tuples of a partition become chunk files, and only references to them go on."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.definition import Definition
from handshake.engines.spark.state.chunks import Ref, write_chunk
from handshake.engines.spark.state.store import Store
from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import derived, extended, lies_ready, matchable, times_of
from handshake.joins.spec import SIDES, TIME
from handshake.kernels.prepare import HIDDEN
from handshake.kernels.sorting import order_of

__all__ = ["PLACE", "Arrival", "canonical", "once", "pack"]

Array = np.ndarray[Any, Any]
PLACE = HIDDEN + "place"
"""A tuple's position in its partition, for windows that count tuples."""
_ROWS, _BYTES = 1 << 20, 1 << 28
"""How large a chunk gets at most."""


@dataclass(frozen=True)
class Arrival:
    """A chunk of new tuples, sorted by cell."""

    side: int
    partition: int
    part: int
    ref: Ref
    offsets: Array
    """Where each cell's tuples begin, and the end."""
    oldest: int
    newest: int
    """Extremes of time, where windows look at it."""
    no_time: int
    unmatchable: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """Source order."""
        return self.side, self.partition, self.part


def pack(
    definition: Definition, side: int, batches: Iterable[pa.RecordBatch], store: Store, folder: str,
    partition: int = 0,
) -> Iterator[Arrival]:  # fmt: skip
    """Write a partition's tuples into chunk files under a folder."""
    start = 0
    for part, table in enumerate(_pieces(batches, (definition.left, definition.right)[side])):
        yield _packed(definition, side, table, store, folder, (partition, part), start)
        start += table.num_rows


def once(store: Store, record: str, references: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """References as they were recorded the first time; later ones are not even asked for.

    Spark packs a partition again when the references to it are lost, and after a shuffle its rows may come in
    another order then. Segments with the first chunks and segments with later ones would not agree on who
    keeps which tuple.
    """
    if store.exists(record):
        yield from pa.ipc.open_stream(store.read(record))
        return
    batches = list(references)
    if batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        yield from pa.ipc.open_stream(store.publish(record, sink.getvalue()))


def _pieces(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(canonical(batch, schema))
        if sum(b.num_rows for b in held) >= _ROWS or sum(b.nbytes for b in held) >= _BYTES:
            yield pa.concat_batches(held)
            held = []
    if any(b.num_rows for b in held):
        yield pa.concat_batches(held)


def canonical(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch of the types that the join was defined with; zones and offsets follow settings of Spark."""
    if batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _packed(
    definition: Definition, side: int, batch: pa.RecordBatch, store: Store, folder: str,
    at: tuple[int, int], start: int,
) -> Arrival:  # fmt: skip
    spec = definition.spec
    counted, rows = spec.windows.counted, batch.num_rows
    hidden: dict[str, pa.Array] = {}
    if counted:
        hidden[PLACE] = pa.array(np.arange(start, start + rows))
    batch, times = _timed(definition, side, batch, hidden)
    no_time = rows - batch.num_rows
    full = derived(extended(batch, hidden), spec.sides[side])
    kept = (
        full if counted else matchable(full, spec.sides[side])
    )  # one that matches nothing counts all the same
    unmatchable = full.num_rows - kept.num_rows
    cells = definition.routing.of(kept, side)
    offsets = np.zeros(definition.routing.cells + 1, np.int64)
    np.cumsum(np.bincount(cells, minlength=definition.routing.cells), out=offsets[1:])
    if definition.routing.cells > 1:
        kept = kept.take(pa.array(order_of(cells.astype(np.int64))))
    name = f"{folder}/{SIDES[side]}-{at[0]}-{at[1]}-{uuid.uuid4().hex}.chunk"
    ref = write_chunk(store, name, BasicWindow(spec.sides[side], kept))
    oldest, newest = (int(times.min()), int(times.max())) if times is not None and len(times) else (0, 0)
    return Arrival(side, *at, ref, offsets, oldest, newest, no_time, unmatchable)


def _timed(
    definition: Definition, side: int, batch: pa.RecordBatch, hidden: dict[str, pa.Array]
) -> tuple[pa.RecordBatch, Array | None]:
    """Without tuples that have no time, if a window asks for it; and the times."""
    spec = definition.spec
    name = spec.sides[side].time
    if name is None:
        return batch, None
    times, valid = times_of(batch.column(name), spec.unit, name, SIDES[side])
    if valid is not None and spec.windows.timed:
        batch, times = batch.filter(pa.array(valid)), times[valid]
        for key, column in hidden.items():
            hidden[key] = column.filter(pa.array(valid))
    elif valid is not None:
        hidden[TIME] = pa.array(
            np.where(valid, times, np.iinfo(np.int64).max)
        )  # those without a time come last
    if TIME not in hidden and not lies_ready(batch.schema.field(name).type, spec.unit):
        hidden[TIME] = pa.array(times)
    return batch, times
