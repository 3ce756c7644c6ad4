"""The functions that Spark's tasks run for joins with a finite input: two batches, or a static side."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.routing import home_rows
from handshake.engines.spark.joins.segment import SegmentStep
from handshake.engines.spark.joins.tasks import blobs_of, packed_chunk, store_of
from handshake.engines.spark.state.pack import PackedChunk
from handshake.engines.spark.workers import freeze_libraries
from handshake.joins.basic_window import BasicWindow, seal
from handshake.joins.nearest import Chooser

_BLOB = pa.schema([("blob", pa.binary())])

Batches = Iterator[pa.RecordBatch]


def join_task(definition: Definition) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that joins all rows of the segments in one partition."""

    def join_segments(batches: Batches) -> Batches:
        freeze_libraries()
        chunks: dict[int, list[PackedChunk]] = {}
        for batch in batches:
            for row in batch.to_pylist():
                chunks.setdefault(row["segment"], []).append(packed_chunk(row, definition))
        for key, packed in chunks.items():
            segment = definition.keys.index(key)
            store = store_of(definition)
            step = SegmentStep(definition, segment, None, packed, None, store, 0, "", lasting=False)
            yield from _blob_batches(step)

    return join_segments


def _blob_batches(step: SegmentStep) -> Batches:
    results = step.results()
    if step.definition.ranking is not None:
        results = _choose_best(step.definition, results)
    for blob in blobs_of(results):
        yield pa.RecordBatch.from_arrays([pa.array([blob], pa.binary())], schema=_BLOB)


def _choose_best(definition: Definition, results: Batches) -> Batches:
    """Yield the best pairs of each left row of a segment, from all pairs and all left rows."""
    assert definition.ranking is not None
    width = len(definition.left) - 1
    left, right = (pa.schema(list(schema)[:-1]) for schema in (definition.left, definition.right))
    chooser = Chooser(definition.ranking, left, right)
    places: dict[int, int] = {}
    # small numbers of rows, from 0 up
    for batch in results:
        columns, encoded = batch.columns, batch.column(width).dictionary_encode()
        dense = [places.setdefault(number, len(places)) for number in encoded.dictionary.to_pylist()]
        columns[width] = pa.array(np.array(dense, np.int64)[np.asarray(encoded.indices)])
        yield from chooser.choose([pa.RecordBatch.from_arrays(columns, schema=batch.schema)])


def probe_task(definition: Definition, streaming: int) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that joins streamed chunks with all static ones."""

    def probe_static(pairs: Batches) -> Batches:
        freeze_libraries()
        store = store_of(definition)
        for batch in pairs:
            for row in batch.to_pylist():
                segment = definition.keys.index(row["segment"])
                held: tuple[list[BasicWindow], list[BasicWindow]] = ([], [])
                for each in row["held"] or ():
                    held[1 - streaming].append(_static(definition, packed_chunk(each, definition), segment))
                moving = [packed_chunk(row["moving"], definition)]
                step = SegmentStep(
                    definition, segment, None, moving, None, store, 0, "", lasting=False, held=held
                )
                yield from _blob_batches(step)

    return probe_static


def _static(definition: Definition, chunk: PackedChunk, segment: int) -> BasicWindow:
    """Return the part of a static chunk that a segment holds: all of it if the stream is anchored."""
    folder = chunk.ref.name.rpartition("/")[0]
    if _static_folders.setdefault(definition.identity, folder) != folder:  # the side has been read again
        _static_folders[definition.identity] = folder
        _static_parts.clear()
    key = (definition.identity, chunk.ref.name, None if any(definition.anchored) else segment)
    if key not in _static_parts:
        if len(_static_parts) >= _STATIC_PARTS:
            del _static_parts[next(iter(_static_parts))]
        _static_parts[key] = _read_static(definition, chunk, key[-1])
    return _static_parts[key]


_STATIC_PARTS = 256
_static_parts: dict[tuple[str, str, int | None], BasicWindow] = {}
"""The indexed parts of static chunks, by definition, chunk and segment."""
_static_folders: dict[str, str] = {}
"""By definition, the folder of the static chunks that this worker has read last."""


def _read_static(definition: Definition, chunk: PackedChunk, segment: int | None) -> BasicWindow:
    """Return the indexed part of a static chunk whose home is a segment."""
    spec, store = definition.spec.sides[chunk.side], store_of(definition)
    if segment is None:
        return seal(BasicWindow(spec, chunk.rows(store).batch()))
    span = segment / definition.segments, (segment + 1) / definition.segments
    start, stop = home_rows(chunk.offsets, span)
    read = chunk.rows(store, [(start, stop)])
    batch = read.batch()
    first = start - read.ranges[0][0] if read.ranges else 0
    return seal(BasicWindow(spec, batch.slice(first, stop - start)))
