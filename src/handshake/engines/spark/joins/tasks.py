"""The functions that Spark's tasks run for a join; `state.pack` and `segment` do the work."""

from __future__ import annotations

import json
import platform
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle, TimerValues

from handshake.engines.spark.batches import large_pieces, to_stream
from handshake.engines.spark.joins.changes import Change, postpone, prepare_change
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.files import WrittenFile
from handshake.engines.spark.joins.segment import SegmentStep
from handshake.engines.spark.private import batch_number, query_id, run_id
from handshake.engines.spark.state.blocks import Layout, block_edges
from handshake.engines.spark.state.chunks import ChunkRef
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PackedChunk, pack, record_once
from handshake.engines.spark.state.store import Chunks, KeptChunks, StateError, Store, open_store
from handshake.engines.spark.types import spark_schema
from handshake.engines.spark.workers import freeze_libraries
from handshake.errors import HandshakeError, UnsupportedError
from handshake.joins.spec import SIDES
from handshake.metrics import names
from handshake.schema import UNITS, concat_batches

REFERENCES = pa.schema(
    [
        ("segment", pa.int32()), ("side", pa.int32()), ("partition", pa.int32()), ("part", pa.int32()),
        ("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("check", pa.int64()),
        ("cells", pa.binary()), ("oldest", pa.int64()), ("newest", pa.int64()), ("no_time", pa.int64()),
        ("unmatchable", pa.int64()), ("layout", pa.binary()), ("inline", pa.binary()),
    ]
)  # fmt: skip
FIGURES = names("micro_batch")
"""The figures of a segment's micro-batch; the last two are times in milliseconds."""
RESULTS = spark_schema(
    pa.schema([("blob", pa.binary()), ("segment", pa.string()), *((name, pa.int64()) for name in FIGURES)])
)
"""The columns of output rows: results as bytes, and one row per segment with its figures."""
_PARTITION = 1 << 40
"""Rows of a partition are fewer than this, so numbers of different partitions differ."""
_BLOB_ROWS, _BLOB_BYTES = 1 << 16, 1 << 24
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)

Batches = Iterator[pa.RecordBatch]


# Source tasks


def pack_task(definition: Definition, side: int, *, finite: bool) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that writes a partition's tuples to files and yields references."""

    def pack_tuples(batches: Batches) -> Batches:
        freeze_libraries()
        task = _task()
        store = store_of(definition) if definition.options.state == "directory" else None
        folder = _batch_folder(definition, task, finite)
        if folder is None:
            # a static side that is packed again later gets another stage, and so another folder
            folder = f"{definition.scratch}/{task.stageId()}" if definition.refresh else definition.scratch
        elif store is not None and task.partitionId() == 0:
            _remove_old_batches(store, folder)
        if definition.ranking is not None:
            batches = _add_hidden(definition, side, batches, task.partitionId())
        # a segment that has lost its share of a static side asks for it again, in another stage
        shared = finite and definition.spread and definition.refresh != 0 and not any(definition.anchored)
        packed = pack(definition, side, batches, store, folder, task.partitionId(), in_any_order=shared)
        if store is None:
            for chunk in packed:
                for key in definition.keys:
                    yield references(chunk, definition, (key,))
            return
        # equal in all attempts at a stage, and in no other run of the query
        attempt = f"{definition.identity}-{run_id(task)}-{task.stageId()}"
        record = f"{folder}/{SIDES[side]}-{task.partitionId()}-{attempt}.packed"
        found = (references(chunk, definition, definition.keys[:1]) for chunk in packed)
        for row in record_once(store, record, found):
            yield references(packed_chunk(row.to_pylist()[0], definition), definition, definition.keys)

    pack_tuples.__name__ = f"pack_{SIDES[side]}"
    return pack_tuples


def _add_hidden(definition: Definition, side: int, batches: Batches, partition: int) -> Batches:
    """Add numbers to the rows of a left partition of a nearest join, and marks to those of a right one."""
    schema, count = (definition.left, definition.right)[side], partition * _PARTITION
    for batch in batches:
        rows = batch.num_rows
        hidden: Any = np.ones(rows, np.bool_) if side else np.arange(count, count + rows)
        count += rows
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(hidden)], schema=schema)


def _batch_folder(definition: Definition, task: TaskContext, finite: bool) -> str | None:
    """Return the folder of chunks that only one micro-batch reads; None for others."""
    if query_id(task) is None and (finite or definition.spread):
        return None
    folder = f"{_query(definition, task)}/batch/{batch_number(task)}"
    if finite and not definition.spread:  # a join of batches in `foreachBatch`
        return f"{definition.scratch.rpartition('/')[0]}/{folder}"
    return folder if not finite or definition.refresh == 0 else None


def _query(definition: Definition, task: TaskContext) -> str:
    """Return the id of the streaming query, which names the files of a join."""
    found = query_id(task)
    files = (definition.root, definition.options.late_to, definition.options.results_to)
    if found is None and any(files):
        raise UnsupportedError(
            "the files of a join of streams are named by query and micro-batch, and Spark does not say here "
            'which they are; foreachBatch with Spark Connect is such a case: pass state="store" and neither '
            "late_to nor results_to, write to a format of Spark's instead, or use a classic session"
        )
    return found or "query"


def _remove_old_batches(store: Store, folder: str) -> None:
    """Remove chunks of earlier micro-batches than that of a folder; they read their own only."""
    folders, _, batch = folder.rpartition("/")
    for old in store.list(folders):
        if old.isdigit() and int(old) < int(batch) - 1:
            store.remove_folder(f"{folders}/{old}")


def references(chunk: PackedChunk, definition: Definition, keys: tuple[int, ...]) -> pa.RecordBatch:
    """Return references to a chunk, one per key of a segment."""
    ref, cells = chunk.ref, np.diff(chunk.offsets).astype("<i4").tobytes()
    given = (definition.left, definition.right)[chunk.side]
    row = (
        chunk.side, chunk.partition, chunk.part, ref.name, ref.rows, ref.bytes, ref.check,
        zlib.compress(cells, 1), chunk.oldest, chunk.newest, chunk.no_time, chunk.unmatchable,
        chunk.layout.dump(given), chunk.inline,
    )  # fmt: skip
    columns = [list(keys), *([value] * len(keys) for value in row)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, REFERENCES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REFERENCES)


def packed_chunk(row: Any, definition: Definition) -> PackedChunk:
    """Return the chunk of a reference."""
    counts = np.frombuffer(zlib.decompress(row["cells"]), "<i4")
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    ref = ChunkRef(row["name"], row["rows"], row["bytes"], row["check"], 0)
    given = (definition.left, definition.right)[row["side"]]
    edges = block_edges(offsets, ref.rows, definition.segments, given)
    return PackedChunk(
        row["side"], row["partition"], row["part"], ref, offsets,
        row["oldest"], row["newest"], row["no_time"], row["unmatchable"],
        Layout.load(row["layout"], given, edges), row["inline"],
    )  # fmt: skip


# The segments of a streaming join


class Segments:
    """The segments of a streaming join in one task; their state belongs to `SegmentProcessor`."""

    def __init__(
        self, definition: Definition, name: str, handle: StatefulProcessorHandle, manifest: Any, chunks: Any
    ) -> None:
        freeze_libraries()
        self.definition, self.handle, self.state = definition, handle, manifest
        self.store: Chunks = store_of(definition) if chunks is None else KeptChunks(chunks)
        task = _task()
        self.folder = f"{_query(definition, task)}/join-{quote(name, safe='')}"
        self.batch = batch_number(task)
        # a join checks in its first micro-batch of a run whether it has changed, and always without a run
        self.run = run_id(task) or uuid.uuid4().hex

    def take_rows(self, key: int, rows: Iterator[pd.DataFrame], timer: TimerValues) -> Iterator[pd.DataFrame]:
        """Run one micro-batch of one segment."""
        chunks = [packed_chunk(row, self.definition) for frame in rows for row in frame.to_dict("records")]
        held = self._manifest()
        yield from self._run(key, held, chunks, timer, self._change(held))

    def expire(self, key: int, timer: TimerValues) -> Iterator[pd.DataFrame]:
        """Return tuples without a match that are final now, unless new tuples have led to this already.

        A changed join waits for new tuples, since all its segments have to change in the same micro-batch.
        """
        manifest, mark = self._manifest(), self._watermark(timer)
        if manifest is None or mark is None or mark <= (manifest.watermark or 0):
            return
        # the tuples of a segment that is no more belong to others, or will when the change takes place
        moved = isinstance(self.store, Store) and key not in self.definition.keys
        if moved or self._change(manifest) is not None:
            postpone(self.definition, manifest, store_of(self.definition), self.batch, self.folder, self.run)
            if not moved:
                self.handle.registerTimer(timer.getCurrentWatermarkInMs() + 1)
        else:
            yield from self._run(key, manifest, [], timer)

    def _run(
        self, key: int, manifest: Manifest | None, chunks: list[PackedChunk], timer: TimerValues,
        change: Change | None = None,
    ) -> Iterator[pd.DataFrame]:  # fmt: skip
        definition = self.definition
        segment = definition.keys.index(key)
        if change is not None:
            manifest = change.begin(self.folder, segment, uuid.uuid4().hex[:12])
        step = SegmentStep(
            definition, segment, manifest, chunks, self._watermark(timer), self.store, self.batch,
            self.folder, now=timer.getCurrentProcessingTimeInMs(),
            take_over=None if change is None else change.take_over, run=self.run,
        )  # fmt: skip
        blobs = blobs_of(step.results()) if definition.options.results_to is None else _file_rows(step)
        for blob in blobs:
            yield _frame(blob, None, [0] * len(FIGURES))
        self._set_timer(step, timer)
        self.state.update((step.commit(),))
        yield figures_row(step)

    def _manifest(self) -> Manifest | None:
        held = self.state.get()
        return None if held is None else Manifest.parse(bytes(held[0]))

    def _change(self, held: Manifest | None) -> Change | None:
        return prepare_change(self.definition, self.folder, self.store, self.batch, held, self.run)

    def _set_timer(self, step: SegmentStep, timer: TimerValues) -> None:
        """Ask Spark to call this segment when the next tuple without a match is final."""
        if step.next_final is None:
            return
        # A timer at the watermark expires in this micro-batch, in which there is nothing more to do.
        mark = timer.getCurrentWatermarkInMs()
        wanted = max(-(-step.next_final * UNITS[step.spec.unit] // UNITS["ms"]) - 1, mark + 1)
        known = step.manifest.timer
        if known is not None and known <= mark:
            known = None  # it has expired
        if wanted > 0 and (known is None or wanted < known):
            self.handle.registerTimer(wanted)
            known = wanted
        step.manifest.timer = known

    def _watermark(self, timer: TimerValues) -> int | None:
        """Return the watermark in the unit of the join's times; Spark's is 0 until there is one."""
        if not self.definition.windows.timed:
            return None
        mark = timer.getCurrentWatermarkInMs()
        return mark * UNITS["ms"] // UNITS[self.definition.spec.unit] if mark > 0 else None


def figures_row(step: SegmentStep) -> pd.DataFrame:
    """Return the output row that reports the figures of a segment's micro-batch."""
    times = {"newest": step.tally.newest, "watermark": step.manifest.watermark}
    found = {**step.tally.figures(), **{name: _milliseconds(at, step) for name, at in times.items()}}
    figures = {name: found[name] for name in FIGURES}
    return _frame(None, json.dumps({"segment": step.segment, **figures}), [*figures.values()])


def _milliseconds(time: int | None, step: SegmentStep) -> int:
    return 0 if time is None else time * UNITS[step.spec.unit] // UNITS["ms"]


def _frame(blob: bytes | None, segment: str | None, figures: list[int]) -> pd.DataFrame:
    return pd.DataFrame([[blob, segment, *figures]], columns=["blob", "segment", *FIGURES])


# Results


def blobs_of(results: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Serialise results in few, large pieces.

    They are compressed: Spark copies them several times between its JVM and Python.
    """
    for piece in large_pieces(results, _BLOB_ROWS, _BLOB_BYTES):
        batch = concat_batches(piece)
        yield to_stream(batch.schema, [batch], _COMPRESSED).to_pybytes()


def _file_rows(step: SegmentStep) -> Iterator[bytes]:
    """Write the results to a file, and yield the row of the file as JSON."""
    file: WrittenFile | None = step.write_results()
    if file is not None:
        mark = _milliseconds(step.manifest.watermark, step) or None
        row = {"batch": step.batch, "segment": step.segment, "watermark": mark, **asdict(file)}
        yield json.dumps(row).encode()


def unpack_task(definition: Definition) -> Callable[[Batches], Batches]:
    """Return a function for `mapInArrow` that turns serialised results into rows."""

    def unpack_results(batches: Batches) -> Batches:
        freeze_libraries()
        schema = definition.output
        for batch in batches:
            for blob in batch.column(0):
                for part in pa.ipc.open_stream(blob.as_buffer()):
                    yield pa.RecordBatch.from_arrays(part.columns, schema=schema)

    return unpack_results


# The task's environment


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise HandshakeError("this function runs only in Spark's tasks")
    return task


def store_of(definition: Definition) -> Store:
    """Open the state directory; check that this process sees the same one as the driver."""
    _check_marker(definition.root, definition.marker)
    return open_store(definition.root)


@lru_cache(maxsize=64)
def _check_marker(root: str, marker: str) -> None:
    """Raise if the marker of the driver is missing; one that was there once is there."""
    if not open_store(root).exists(marker):
        raise StateError(
            f"the executor on {platform.node()} does not see the state directory '{root}' that the driver "
            "uses; give one that every executor reaches, such as a shared mount or an object store: "
            'handshake.join(…, state_dir="s3://bucket/state")'
        )
