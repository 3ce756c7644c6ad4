"""Packing: a source task writes the rows of its partition to chunk files and passes on references."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.engines.spark.batches import large_pieces, to_stream
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.state.blocks import Layout, Ranges, block_edges, decode_blocks, encode_blocks
from handshake.engines.spark.state.chunks import ChunkRef
from handshake.engines.spark.state.store import Chunks, Store
from handshake.joins.driver import add_columns, can_match, derive_columns, lies_ready, times_of
from handshake.joins.spec import SIDES, TIME
from handshake.kernels.prepare import HIDDEN
from handshake.kernels.sorting import order_of
from handshake.schema import concat_batches

Array = np.ndarray[Any, Any]
PLACE = HIDDEN + "place"
"""The column with a tuple's position in its partition, for windows that count tuples."""
_BYTES = 1 << 28
"""The largest size of a chunk."""
_INLINE_BYTES = 1 << 23
"""The largest size of a chunk that its references hold."""


@dataclass(frozen=True)
class PackedChunk:
    """A chunk of new tuples, sorted by cell."""

    side: int
    partition: int
    part: int
    ref: ChunkRef
    offsets: Array
    """The first tuple of each cell, and the end; all 0 for tuples that can match nothing."""
    oldest: int
    newest: int
    """The oldest and newest time, if a window is in time."""
    no_time: int
    unmatchable: int
    layout: Layout
    inline: bytes | None = None
    """The chunk itself, if it is small; there is no file then."""

    @property
    def is_lone(self) -> bool:
        """True if its tuples can match nothing; they are results of outer and anti joins."""
        return self.ref.rows > 0 and not self.offsets[-1]

    @property
    def seed(self) -> int:
        """A number that decides how cuts through its cells round; the same in all attempts at its task."""
        return zlib.crc32(self.ref.name.rpartition("-")[0].encode())

    @property
    def rank(self) -> tuple[int, int, int]:
        """The place in source order."""
        return self.side, self.partition, self.part

    def rows(self, store: Chunks, ranges: Ranges | None = None) -> ChunkRows:
        """Begin to read ranges of rows; all rows by default."""
        return ChunkRows(self, store, [(0, self.ref.rows)] if ranges is None else ranges)


class ChunkRows:
    """Rows of a chunk that are being read: those of the blocks that hold given ranges."""

    def __init__(self, chunk: PackedChunk, store: Chunks, ranges: Ranges) -> None:
        self.chunk, self.store = chunk, store
        self.blocks = chunk.layout.cover(ranges)
        self.ranges = chunk.layout.rows_of(self.blocks)
        """The ranges of rows, as they follow each other in the batch."""
        places = chunk.layout.bytes_of(self.blocks)
        self.bytes = sum(stop - start for start, stop in places)
        self._read: Callable[[], list[Any]]
        if chunk.inline is not None:
            data = memoryview(chunk.inline)
            self._read, self.bytes = lambda: [data[start:stop] for start, stop in places], len(data)
        elif places:
            self._read = store.ahead(store.read_ranges, chunk.ref.name, places)
        else:
            self._read = list

    def batch(self) -> pa.RecordBatch:
        """Wait for the rows, verify them and return them."""
        name = self.chunk.ref.name
        return decode_blocks(self.store.path(name), name, self.chunk.layout, self.blocks, self._read())


def pack(
    definition: Definition, side: int, batches: Iterable[pa.RecordBatch], store: Chunks | None, folder: str,
    partition: int = 0, in_any_order: bool = False,
) -> Iterator[PackedChunk]:  # fmt: skip
    """Write a partition's tuples to chunk files; without a store, references hold them.

    Args:
        definition: The join.
        side: The side of the tuples.
        batches: The tuples.
        store: The state directory.
        folder: The folder of the files.
        partition: The number of the partition.
        in_any_order: Whether to give the same chunks in whatever order the tuples come.
    """
    start, schema = 0, (definition.left, definition.right)[side]
    most = definition.tuning.chunk_rows
    cast = (canonical(batch, schema) for batch in batches)
    pieces: Iterator[pa.RecordBatch] = map(concat_batches, large_pieces(cast, most, _BYTES))
    if store is None:
        pieces = _sorted_pieces(pieces, most, _INLINE_BYTES)
    elif in_any_order:
        pieces = _sorted_pieces(pieces, most, _BYTES)
    for part, table in enumerate(pieces):
        yield from _pack_piece(definition, side, table, store, folder, (partition, part), start)
        start += table.num_rows


def record_once(store: Store, record: str, references: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Record references in a file, or yield those of an earlier attempt without computing them again.

    Spark packs a partition again if its references are lost, and after a shuffle its rows may come in another
    order. Segments with chunks of different attempts would disagree on which segment keeps which tuple.
    """
    if store.exists(record):
        yield from pa.ipc.open_stream(store.read(record))
        return
    batches = list(references)
    if batches:
        yield from pa.ipc.open_stream(store.publish(record, to_stream(batches[0].schema, batches)))


def _sorted_pieces(
    pieces: Iterable[pa.RecordBatch], rows: int, size: int
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield pieces of rows, sorted by all columns, of as many rows and bytes at most.

    After a shuffle, another attempt may get the rows in another order. Sorted, both attempts pack the same.
    """
    held = list(pieces)
    if not held:
        return
    whole = concat_batches(held)
    keys = {str(n): _sort_key(column) for n, column in enumerate(whole.columns)}
    if keys:
        order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
        whole = whole.take(order)
    step = max(1, min(rows, whole.num_rows * size // pa.ipc.get_record_batch_size(whole)))
    for start in range(0, whole.num_rows, step):
        yield whole.slice(start, step)


def _sort_key(column: pa.Array) -> pa.Array:
    """Return values that differ wherever those of a column do, in types that Arrow sorts."""
    kind = column.type
    if pa.types.is_floating(kind):  # zeros of either sign are equal, and NaNs have no order
        return column.view(f"int{kind.bit_width}")
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    plain = pa.types.is_primitive(kind) and not pa.types.is_interval(kind)
    if plain or pa.types.is_decimal(kind) or any(is_text(kind) for is_text in texts):
        return column
    return pa.array(map(repr, column.to_pylist()), pa.string())


def canonical(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to the types of the definition: time zones and offsets depend on settings of Spark."""
    if batch.schema.types == schema.types:
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
    )


def _pack_piece(
    definition: Definition, side: int, batch: pa.RecordBatch, store: Chunks | None, folder: str,
    at: tuple[int, int], start: int,
) -> Iterator[PackedChunk]:  # fmt: skip
    spec, given = definition.spec, (definition.left, definition.right)[side]
    counted, rows = spec.windows.counted, batch.num_rows
    hidden: dict[str, pa.Array] = {}
    if counted:
        hidden[PLACE] = pa.array(np.arange(start, start + rows))
    batch, times, timeless = _add_times(definition, side, batch, hidden)
    no_time = rows - batch.num_rows
    full = derive_columns(add_columns(batch, hidden), spec.sides[side])
    # tuples that can match nothing still count in windows of tuples
    mask = None if counted else can_match(full, spec.sides[side])
    kept = full if mask is None or mask.all() else full.filter(pa.array(mask))
    unmatchable = full.num_rows - kept.num_rows
    cells = definition.routing.cells_of(kept, side)
    offsets = np.zeros(definition.routing.cells + 1, np.int64)
    np.cumsum(np.bincount(cells, minlength=definition.routing.cells), out=offsets[1:])
    if definition.routing.cells > 1:
        kept = kept.take(pa.array(order_of(cells.astype(np.int64))))
    # a chunk without a file has the same name, and so the same checksum, in all attempts
    attempt = "inline" if store is None else uuid.uuid4().hex
    name = f"{folder}/{SIDES[side]}-{at[0]}-{at[1]}"
    oldest, newest = (int(times.min()), int(times.max())) if times is not None and len(times) else (0, 0)

    def write(
        name: str, batch: pa.RecordBatch, offsets: Array, no_time: int = 0, unmatchable: int = 0
    ) -> PackedChunk:
        """Write a chunk, or keep its bytes if it is small."""
        edges = block_edges(offsets, batch.num_rows, definition.segments, given)
        data, layout, check = encode_blocks(name, batch, edges)
        inline: bytes | None = data
        if store is not None and len(data) >= definition.tuning.inline_bytes:
            store.write(name, [data])
            inline = None
        ref = ChunkRef(name, batch.num_rows, len(data), check, 0)
        return PackedChunk(side, *at, ref, offsets, oldest, newest, no_time, unmatchable, layout, inline)

    yield write(f"{name}-{attempt}.chunk", kept, offsets, no_time, unmatchable)
    preserved = definition.kind.preserved[side]
    if preserved or definition.keeps_late:
        lone = [timeless] if no_time and preserved else []
        lone += [full.filter(pa.array(~mask))] if mask is not None and unmatchable else []
        for number, batch in enumerate(lone):
            yield write(f"{name}-lone{number}-{attempt}.chunk", batch, np.zeros_like(offsets))


def _add_times(
    definition: Definition, side: int, batch: pa.RecordBatch, hidden: dict[str, pa.Array]
) -> tuple[pa.RecordBatch, Array | None, pa.RecordBatch]:
    """Return the tuples, their times, and the tuples that are dropped: a window needs the time they lack."""
    spec = definition.spec
    name, timeless = spec.sides[side].time, batch.slice(0, 0)
    if name is None:
        return batch, None, timeless
    times, valid = times_of(batch.column(name), spec.unit, name, SIDES[side])
    if valid is not None and spec.windows.timed:
        timeless = batch.filter(pa.array(~valid))
        batch, times = batch.filter(pa.array(valid)), times[valid]
        for key, column in hidden.items():
            hidden[key] = column.filter(pa.array(valid))
    elif valid is not None and spec.windows.counted:  # only these go by the order of arrival
        hidden[TIME] = pa.array(np.where(valid, times, np.iinfo(np.int64).max))  # without a time: last
    if TIME not in hidden and not lies_ready(batch.schema.field(name).type, spec.unit):
        hidden[TIME] = pa.array(times)
    return batch, times, timeless
