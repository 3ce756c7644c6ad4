"""Arrow tables as DataFrames, results as Arrow batches, and joins of tables by Spark's batch mode.

Rows travel as files under a directory that every executor reaches, so they never fill the driver's memory.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from handshake.engines.spark.batches import large_pieces, to_stream
from handshake.engines.spark.cluster import Cluster
from handshake.engines.spark.joins.frames import JoinRequest, join_frames
from handshake.engines.spark.joins.inputs import session_zone
from handshake.engines.spark.private import batch_number
from handshake.engines.spark.state.store import Store, open_store
from handshake.engines.spark.types import arrow_type, from_spark_types, spark_schema, to_spark_types
from handshake.joins.spec import SIDES
from handshake.options import Options

_FILE_BYTES = 1 << 26
"""Bytes per file, roughly."""
_BATCH_ROWS = 1 << 16

Batches = Iterator[pa.RecordBatch]


def table_frame(session: SparkSession, table: pa.Table, store: Store, folder: str) -> DataFrame:
    """Return a DataFrame of a table's rows, in order; the table must have types of Spark's."""
    cores = int(session.sparkContext.defaultParallelism)
    parts = max(min(cores, table.num_rows), table.nbytes // _FILE_BYTES, 1)
    edges = [table.num_rows * part // parts for part in range(parts + 1)]
    for part, (start, stop) in enumerate(pairwise(edges)):
        _write(store, f"{folder}/{part}.arrow", table.slice(start, stop - start))
    numbers = session.range(0, parts, 1, parts)
    return numbers.mapInArrow(_reader(store.root, folder), spark_schema(table.schema))


def _write(store: Store, name: str, table: pa.Table) -> None:
    store.write(name, [to_stream(table.schema, table.to_batches(_BATCH_ROWS))])


def _reader(root: str, folder: str) -> Callable[[Batches], Batches]:
    def read_rows(parts: Batches) -> Batches:
        for batch in parts:
            for part in batch.column(0).to_pylist():
                yield from pa.ipc.open_stream(open_store(root).read(f"{folder}/{part}.arrow"))

    return read_rows


def write_results(frame: DataFrame, store: Store, folder: str) -> list[str]:
    """Run a query, write its rows to files and return their names."""
    written = frame.mapInArrow(_writer(store.root, folder), "name string").collect()
    return [row["name"] for row in written]


def _writer(root: str, folder: str) -> Callable[[Batches], Batches]:
    def write_rows(batches: Batches) -> Batches:
        task: Any = TaskContext.get()
        for number, piece in enumerate(large_pieces(batches, size=_FILE_BYTES)):
            name = f"{folder}/{task.partitionId()}-{task.taskAttemptId()}-{number}.arrow"
            _write(open_store(root), name, pa.Table.from_batches(piece))
            yield pa.RecordBatch.from_pydict({"name": [name]})

    return write_rows


def keep_batches(frame: DataFrame, folder: str) -> DataFrame:
    """Return a stream without rows, whose tasks write those of another stream to Arrow files.

    A file is named by micro-batch and partition, so a repeated micro-batch replaces its files.
    """
    zone = session_zone(frame)
    schema = pa.schema([(field.name, arrow_type(field.dataType, zone)) for field in frame.schema])
    return frame.mapInArrow(_keeper(folder, schema), "rows bigint")


def _keeper(folder: str, schema: pa.Schema) -> Callable[[Batches], Batches]:
    def keep_rows(batches: Batches) -> Batches:
        task: Any = TaskContext.get()
        path = f"{folder}/{batch_number(task):06}-{task.partitionId():04}.arrow"
        draft = f"{path}.{task.taskAttemptId()}"
        with pa.OSFile(draft, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
        os.replace(draft, path)
        yield pa.RecordBatch.from_pydict({"rows": pa.array([], pa.int64())})

    return keep_rows


def joined_tables(
    cluster: Cluster, tables: tuple[pa.Table, pa.Table], request: JoinRequest, options: Options,
    output: pa.Schema, title: str,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Join two tables on a cluster as if they were streams, and yield the results.

    Args:
        cluster: Where the join runs.
        tables: The inputs.
        request: The join.
        options: Its options; `state_dir` is set.
        output: The columns of results, with the types of the tables.
        title: The description of the job.
    """
    store, folder = open_store(str(options.state_dir)), f"join-{uuid.uuid4().hex}"

    def run() -> list[str]:
        cluster.session.sparkContext.setJobDescription(title)
        left, right = (
            table_frame(cluster.session, to_spark_types(table, side), store, f"{folder}/{side}")
            for table, side in zip(tables, SIDES, strict=True)
        )
        return write_results(join_frames(left, right, request, options), store, f"{folder}/results")

    try:
        shown = zip(tables, request.kind.shown, strict=True)
        origins = [column for table, is_shown in shown if is_shown for column in table.columns]
        for name in cluster.run(run):
            for batch in pa.ipc.open_stream(store.read(name)):
                yield from_spark_types(batch, output, origins)
    finally:
        store.remove_folder(folder)
