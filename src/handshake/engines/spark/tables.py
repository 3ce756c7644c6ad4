"""Arrow tables as DataFrames, and results as Arrow batches.

Rows travel as files under a directory that every executor reaches, so they never fill the driver's memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from handshake.engines.spark.batches import large_pieces, to_stream
from handshake.engines.spark.joins.inputs import session_zone
from handshake.engines.spark.private import batch_number
from handshake.engines.spark.state.store import Store, open_store
from handshake.engines.spark.types import arrow_type, spark_schema

_FILE_BYTES = 1 << 26
"""Bytes per file, roughly."""
_BATCH_ROWS = 1 << 16

Batches = Iterator[pa.RecordBatch]


def table_frame(session: SparkSession, table: pa.Table, store: Store, folder: str) -> DataFrame:
    """Return a DataFrame of a table's rows, in order; the table must have types of Spark's."""
    root, cores = store.root, int(session.sparkContext.defaultParallelism)
    parts = max(min(cores, table.num_rows), table.nbytes // _FILE_BYTES, 1)
    edges = [table.num_rows * part // parts for part in range(parts + 1)]
    for part, (start, stop) in enumerate(pairwise(edges)):
        _write(store, f"{folder}/{part}.arrow", table.slice(start, stop - start))

    def read_rows(parts: Batches) -> Batches:
        for batch in parts:
            for part in batch.column(0).to_pylist():
                yield from pa.ipc.open_stream(open_store(root).read(f"{folder}/{part}.arrow"))

    return session.range(0, parts, 1, parts).mapInArrow(read_rows, spark_schema(table.schema))


def _write(store: Store, name: str, table: pa.Table) -> None:
    store.write(name, [to_stream(table.schema, table.to_batches(_BATCH_ROWS))])


def write_results(frame: DataFrame, store: Store, folder: str) -> list[str]:
    """Run a query, write its rows to files and return their names."""
    root = store.root

    def write_rows(batches: Batches) -> Batches:
        task: Any = TaskContext.get()
        for number, piece in enumerate(large_pieces(batches, size=_FILE_BYTES)):
            name = f"{folder}/{task.partitionId()}-{task.taskAttemptId()}-{number}.arrow"
            _write(open_store(root), name, pa.Table.from_batches(piece))
            yield pa.RecordBatch.from_pydict({"name": [name]})

    return [row["name"] for row in frame.mapInArrow(write_rows, "name string").collect()]


def keep_batches(frame: DataFrame, folder: str) -> DataFrame:
    """Return a stream without rows, whose tasks write those of another stream to Arrow files.

    A file is named by micro-batch and partition, so a repeated micro-batch replaces its files.
    """
    zone = session_zone(frame)
    schema = pa.schema([(field.name, arrow_type(field.dataType, zone)) for field in frame.schema])

    def keep_rows(batches: Batches) -> Batches:
        task: Any = TaskContext.get()
        path = f"{folder}/{batch_number(task):06}-{task.partitionId():04}.arrow"
        draft = f"{path}.{task.taskAttemptId()}"
        with pa.OSFile(draft, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        os.replace(draft, path)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([], pa.int64())})

    return frame.mapInArrow(keep_rows, "rows bigint")
