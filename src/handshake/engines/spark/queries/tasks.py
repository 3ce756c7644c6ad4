"""The functions that run inside of Spark's tasks for a continuous query."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from handshake.engines.spark.queries.state import Arrived, Stateful, load, reduce_panes
from handshake.engines.spark.tables import carrier
from handshake.engines.spark.workers import settle
from handshake.operators.chunk import BEGINNING, END, beyond
from handshake.operators.pipeline import Pipeline
from handshake.operators.sources import arrow_schema, times_in
from handshake.plan.algebra import Node, Output, Source
from handshake.schema import UNITS, Schema, arrow_of

__all__ = [
    "BLOBS",
    "FIGURES",
    "HELD",
    "TOLD",
    "chained",
    "finishing",
    "in_arrow",
    "in_message",
    "reducing",
    "sending",
    "stepping",
    "telling",
    "unpacking",
]

BLOBS = "slot int, source int, partition int, part int, data binary"
"""What source tasks send to the one task that has the query's state."""
FIGURES = ("rows", "late", "no_time", "results")
TOLD = "data binary, " + ", ".join(f"{name} bigint" for name in FIGURES)
_BLOB = pa.schema(
    [
        ("slot", pa.int32()),
        ("source", pa.int32()),
        ("partition", pa.int32()),
        ("part", pa.int32()),
        ("data", pa.binary()),
    ]
)

HELD = "data binary"
"""The state of a query: itself, in bytes."""

Batches = Iterator[pa.RecordBatch]
Stepping = Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]
Task = Callable[[Batches], Batches]
Pack = Callable[[pa.RecordBatch], bytes]


def _partition() -> int:
    task: Any = TaskContext.get()
    return int(task.partitionId())


def _blob(source: int, part: int, data: bytes) -> pa.RecordBatch:
    columns = [[0], [source], [_partition()], [part], [data]]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, _BLOB, strict=True)], schema=_BLOB
    )


def in_arrow(frame: DataFrame, task: Task, kind: StructType | str) -> DataFrame:
    """A task on a DataFrame's columns by place: `mapInArrow` does not find names with a dot in them."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns)))).mapInArrow(task, kind)


def conformed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Tuples in the types of the declaration; Spark has carried them in its own."""
    columns = [_back(column, f.type) for column, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _back(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp(kind.unit, column.type.tz)).view(pa.int64()).view(kind)
    return column.cast(kind)


def carried(schema: Schema) -> pa.Schema:
    """The types in which Spark carries columns."""
    return pa.schema([(f.name, carrier(arrow_of(f.type))) for f in schema])


def chained(below: Schema, nodes: list[Node], result: Schema) -> Task:
    """Projections, selections and operations, computed by Arrow and compiled kernels."""

    def run_chain(batches: Batches) -> Batches:
        settle()
        pipeline = Pipeline(below.fields, nodes)
        expected = pa.schema([(f.name, arrow_of(f.type)) for f in below])
        target = carried(result)
        for batch in batches:
            given = conformed(batch, expected)
            columns, rows, _ = pipeline.run(
                dict(zip(given.schema.names, given.columns, strict=True)), batch.num_rows
            )
            if rows:
                yield pa.RecordBatch.from_arrays(
                    [columns[f.name].cast(f.type) for f in target], schema=target
                )

    return run_chain


def reducing(output: Output, source: Source) -> Task:
    """A partition's tuples to panes."""

    def reduce_partition(batches: Batches) -> Batches:
        settle()
        schema = arrow_schema(source)
        reduced = reduce_panes(output, (conformed(batch, schema) for batch in batches))
        if reduced.rows:
            yield _blob(0, 0, pickle.dumps(reduced))

    return reduce_partition


def sending(at: int, source: Source) -> Task:
    """A partition's tuples as they are, in few and large pieces."""

    def send_tuples(batches: Batches) -> Batches:
        settle()
        schema = arrow_schema(source)
        for part, batch in enumerate(batches):
            if batch.num_rows:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, schema) as writer:
                    writer.write_batch(conformed(batch, schema))
                yield _blob(at, part, sink.getvalue().to_pybytes())

    return send_tuples


def telling(at: int, source: Source, unit: str) -> Task:
    """What a partition's tuples make their source's clock show, in this unit."""

    def tell_clock(batches: Batches) -> Batches:
        settle()
        own, schema = UNITS[source.clock.unit], arrow_schema(source)
        latest = BEGINNING
        for batch in batches:
            given = conformed(batch, schema)
            times, _ = times_in(source, dict(zip(schema.names, given.columns, strict=True)))
            latest = max(latest, int(times.max(initial=BEGINNING)))
        if latest > BEGINNING:
            clock = (latest - source.lateness // own) * (own // UNITS[unit])
            if clock >= END:
                raise beyond(f"a time in column '{source.time}' of stream {source.name}, in {unit},", clock)
            yield _blob(at, 0, clock.to_bytes(16, signed=True))

    return tell_clock


def stepping(make: Callable[[], Stateful], pack: Pack) -> Stepping:
    """A function for `applyInPandasWithState`: the one task of a streaming query that has its windows.

    Spark commits its state with the batch. `transformWithState` would do as well, but it starts a Python
    process with every query, which fails on a busy machine: Spark waits ten seconds for it, not longer.
    """

    def step_query(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        settle()
        query = load(bytes(state.get[0]) if state.exists else None, make())
        before = (query.rows, query.late, query.no_time)
        blobs = [_arrived(row) for frame in frames for row in frame.to_dict("records")]
        results = [batch for batch in query.step(blobs, ended=False) if batch.num_rows]
        state.update((pickle.dumps(query),))
        after = (query.rows, query.late, query.no_time)
        for batch in results:
            yield _frame(pack(batch), [0, 0, 0, batch.num_rows])
        yield _frame(None, [*(b - a for a, b in zip(before, after, strict=True)), 0])

    return step_query


def _arrived(row: dict[str, Any]) -> Arrived:
    return Arrived(int(row["source"]), int(row["partition"]), int(row["part"]), bytes(row["data"]))


def _frame(data: bytes | None, figures: list[int]) -> pd.DataFrame:
    return pd.DataFrame([[data, *figures]], columns=["data", *FIGURES])


def finishing(make: Callable[[], Stateful], pack: Pack) -> Task:
    """The whole of a finite query in one task: all that came, then the end of the streams."""

    def run_to_the_end(batches: Batches) -> Batches:
        settle()
        blobs = [_arrived(row) for batch in batches for row in batch.to_pylist()]
        query = make()
        for batch in query.step(blobs, ended=True):
            if batch.num_rows:
                yield _told(pack(batch), [0, 0, 0, batch.num_rows])
        yield _told(None, [query.rows, query.late, query.no_time, 0])

    return run_to_the_end


def _told(data: bytes | None, figures: list[int]) -> pa.RecordBatch:
    arrays = [pa.array([data], pa.binary()), *(pa.array([figure], pa.int64()) for figure in figures)]
    return pa.RecordBatch.from_arrays(arrays, names=["data", *FIGURES])


def in_message(batch: pa.RecordBatch) -> bytes:
    """Results as Arrow writes them, for `unpacking`."""
    return bytes(batch.serialize())


def unpacking(output: Output) -> Task:
    """Blobs of results to rows."""

    def unpack_results(batches: Batches) -> Batches:
        settle()
        schema = pa.schema([(f.name, arrow_of(f.type)) for f in output.schema])
        target = carried(output.schema)
        for batch in batches:
            for blob in batch.column(0):
                found = pa.ipc.read_record_batch(blob.as_buffer(), schema)
                yield pa.RecordBatch.from_arrays(
                    [column.cast(f.type) for column, f in zip(found.columns, target, strict=True)],
                    schema=target,
                )

    return unpack_results
