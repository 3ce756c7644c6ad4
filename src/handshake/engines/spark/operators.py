"""What runs inside Spark's tasks; thin, since the work is done in pack.py and segment.py."""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues

from handshake.engines.spark.definition import Definition
from handshake.engines.spark.routing import home_rows
from handshake.engines.spark.segment import Step, Tally
from handshake.engines.spark.state.chunks import Ref, read_chunk
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import Arrival, once, pack
from handshake.engines.spark.state.store import StateError, Store, open_store
from handshake.engines.spark.workers import settle
from handshake.errors import HandshakeError
from handshake.joins.basic_window import BasicWindow, sealed
from handshake.joins.spec import SIDES
from handshake.schema import UNITS

__all__ = ["FIGURES", "REFERENCES", "RESULTS", "Segments", "joining", "packing", "probing", "unpacking"]

REFERENCES = pa.schema(
    [
        ("segment", pa.int32()), ("side", pa.int32()), ("partition", pa.int32()), ("part", pa.int32()),
        ("name", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64()), ("check", pa.int64()),
        ("cells", pa.binary()), ("oldest", pa.int64()), ("newest", pa.int64()), ("no_time", pa.int64()),
        ("unmatchable", pa.int64()),
    ]
)  # fmt: skip
FIGURES = (
    "rows", "late", "no_time", "unmatchable", "visits", "comparisons", "results", "held_left", "held_right",
    "chunks", "state_bytes", "newest", "watermark",
)  # fmt: skip
"""What each segment tells of a micro-batch; the last two are times in milliseconds."""
RESULTS = "blob binary, segment string, " + ", ".join(f"{name} bigint" for name in FIGURES)
"""Blobs of results, and one row per segment with its figures."""
_BLOB_ROWS, _BLOB_BYTES = 1 << 16, 1 << 24
_BLOB = pa.schema([("blob", pa.binary())])

Batches = Iterator[pa.RecordBatch]


# The source side


def packing(definition: Definition, side: int, *, finite: bool) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` that writes a partition's tuples away and passes on references."""

    def pack_tuples(batches: Batches) -> Batches:
        settle()
        task, store = _task(), _store(definition)
        query, batch = _query(task), _batch(task)
        folder = definition.scratch if finite else f"{query}/batch/{batch}"
        if not finite and task.partitionId() == 0:
            _tidy(store, str(query), batch)
        packed = pack(definition, side, batches, store, folder, task.partitionId())
        record = f"{folder}/{SIDES[side]}-{task.partitionId()}-{_run(task, definition)}.packed"
        references = (_references(arrival, definition.keys[:1]) for arrival in packed)
        for row in once(store, record, references):
            yield _references(_arrival(row.to_pylist()[0]), definition.keys)

    pack_tuples.__name__ = f"pack_{SIDES[side]}"
    return pack_tuples


def _tidy(store: Store, query: str, batch: int) -> None:
    """Chunks of new tuples are read by their own micro-batch only."""
    for old in store.list(f"{query}/batch"):
        if old.isdigit() and int(old) < batch - 1:
            store.remove_folder(f"{query}/batch/{old}")


def _references(arrival: Arrival, keys: tuple[int, ...]) -> pa.RecordBatch:
    ref, cells = arrival.ref, np.diff(arrival.offsets).astype("<i4").tobytes()
    row = (
        arrival.side, arrival.partition, arrival.part, ref.name, ref.rows, ref.bytes, ref.check,
        zlib.compress(cells, 1), arrival.oldest, arrival.newest, arrival.no_time, arrival.unmatchable,
    )  # fmt: skip
    columns = [list(keys), *([value] * len(keys) for value in row)]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, REFERENCES, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=REFERENCES)


def _arrival(row: Any) -> Arrival:
    counts = np.frombuffer(zlib.decompress(row["cells"]), "<i4")
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    ref = Ref(row["name"], row["rows"], row["bytes"], row["check"], 0)
    return Arrival(
        row["side"], row["partition"], row["part"], ref, offsets,
        row["oldest"], row["newest"], row["no_time"], row["unmatchable"],
    )  # fmt: skip


# The segments of a streaming join


class Segments(StatefulProcessor):
    """Segments of a streaming join; Spark keeps their manifests and commits them with the batch."""

    def __init__(self, definition: Definition, name: str) -> None:
        self.definition, self.place = definition, f"join-{quote(name, safe='')}"

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        settle()
        self.state = handle.getValueState("manifest", "data binary")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """One micro-batch of one segment."""
        definition, task = self.definition, _task()
        held = self.state.get()
        manifest = None if held is None else Manifest.load(bytes(held[0]), definition)
        arrivals = [_arrival(row) for frame in rows for row in frame.to_dict("records")]
        step = Step(
            definition, definition.keys.index(key[0]), manifest, arrivals, self._watermark(timerValues),
            _store(definition), _batch(task), f"{_query(task)}/{self.place}",
        )  # fmt: skip
        for blob in _blobs(step.results()):
            yield _frame(blob, None, [0] * len(FIGURES))
        self.state.update((step.manifest.dump(),))
        yield _told(step)

    def _watermark(self, timer: TimerValues) -> int | None:
        """In the unit of the join's times; Spark's is 0 until there is one."""
        if not self.definition.windows.timed:
            return None
        mark = timer.getCurrentWatermarkInMs()
        return mark * UNITS["ms"] // UNITS[self.definition.spec.unit] if mark > 0 else None

    def close(self) -> None:
        """Nothing is left open."""


def _told(step: Step) -> pd.DataFrame:
    tally: Tally = step.tally
    figures = [
        sum(tally.rows), sum(tally.late), tally.no_time, tally.unmatchable, tally.visits, tally.comparisons,
        tally.results, *tally.held, tally.chunks, tally.state_bytes,
        *(_milliseconds(at, step) for at in (tally.newest, step.manifest.watermark)),
    ]  # fmt: skip
    segment = {"segment": step.segment, **dict(zip(FIGURES, figures, strict=True))}
    return _frame(None, json.dumps(segment), figures)


def _milliseconds(time: int | None, step: Step) -> int:
    return 0 if time is None else time * UNITS[step.spec.unit] // UNITS["ms"]


def _frame(blob: bytes | None, segment: str | None, figures: list[int]) -> pd.DataFrame:
    return pd.DataFrame([[blob, segment, *figures]], columns=["blob", "segment", *FIGURES])


# The segments of a batch join, and of a stream with a static side


def joining(definition: Definition) -> Callable[[pa.Table], Iterator[pa.RecordBatch]]:
    """A function for `applyInArrow` that joins all that goes to one segment."""

    def join_segment(references: Iterator[pa.RecordBatch]) -> Batches:
        settle()
        arrivals = [row for batch in references for row in batch.to_pylist()]
        segment = definition.keys.index(arrivals[0]["segment"])
        step = Step(
            definition, segment, None, [_arrival(row) for row in arrivals], None, _store(definition), 0, "",
            lasting=False,
        )  # fmt: skip
        for blob in _blobs(step.results()):
            yield pa.RecordBatch.from_arrays([pa.array([blob], pa.binary())], schema=_BLOB)

    return join_segment


def probing(definition: Definition, streaming: int) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow`: pairs of a streamed chunk and a static one."""

    def probe_static(pairs: Batches) -> Batches:
        settle()
        store, core = _store(definition), definition.core
        for batch in pairs:
            for row in batch.to_pylist():
                moving, held = _arrival(row["moving"]), _arrival(row["held"])
                segment = definition.keys.index(row["segment"])
                window = _static(definition, held.ref, tuple(map(int, held.offsets)), 1 - streaming, segment)
                piece = read_chunk(store, moving.ref, definition.spec.sides[streaming])
                for blob in _blobs(core.probe(piece, [window])):
                    yield pa.RecordBatch.from_arrays([pa.array([blob], pa.binary())], schema=_BLOB)

    return probe_static


@lru_cache(maxsize=256)
def _static(
    definition: Definition, ref: Ref, offsets: tuple[int, ...], side: int, segment: int
) -> BasicWindow:
    """The part of a static chunk that is at home in a segment, clustered; kept while the worker lives."""
    window = read_chunk(_store(definition), ref, definition.spec.sides[side])
    span = segment / definition.segments, (segment + 1) / definition.segments
    start, stop = home_rows(np.asarray(offsets), span)
    return sealed(BasicWindow(window.spec, window.batch.slice(start, stop - start)))


# Results


def _blobs(results: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Results in few and large pieces."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in results:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _BLOB_ROWS or size >= _BLOB_BYTES:
            yield pa.concat_batches(held).serialize().to_pybytes()
            held, rows, size = [], 0, 0
    if held:
        yield pa.concat_batches(held).serialize().to_pybytes()


def unpacking(definition: Definition) -> Callable[[Batches], Batches]:
    """A function for `mapInArrow` that turns blobs into rows."""

    def unpack_results(batches: Batches) -> Batches:
        settle()
        schema = definition.spec.output
        for batch in batches:
            for blob in batch.column(0):
                yield pa.ipc.read_record_batch(blob.as_buffer(), schema)

    return unpack_results


# Where tasks are


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise HandshakeError("this runs inside Spark's tasks only")
    return task


def _query(task: TaskContext) -> str | None:
    return task.getLocalProperty("sql.streaming.queryId")


def _run(task: TaskContext, definition: Definition) -> str:
    """The same for all attempts at a stage, and for no other run of the query."""
    run = task.getLocalProperty("spark.jobGroup.id") if _query(task) else ""
    return f"{definition.identity}-{run}-{task.stageId()}"


def _batch(task: TaskContext) -> int:
    return int(task.getLocalProperty("streaming.sql.batchId") or 0)


_visible: set[str] = set()


def _store(definition: Definition) -> Store:
    """The state directory, once it is known that this process sees the same one as the driver."""
    store = open_store(definition.root)
    if definition.marker not in _visible:
        if not store.exists(definition.marker):
            raise StateError(
                f"the executor on {platform.node()} does not see the state directory '{definition.root}' "
                "that the driver uses; give one that every executor reaches, such as a shared mount or an "
                'object store: handshake.join(…, state_dir="s3://bucket/state")'
            )
        _visible.add(definition.marker)
    return store
