"""The functions that Spark's tasks run for a continuous query."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from handshake.engines.spark.batches import to_stream
from handshake.engines.spark.queries.blobs import Blob, blob_batch
from handshake.engines.spark.queries.panes import PaneQuery, reduce_panes
from handshake.engines.spark.queries.tuples import TupleQuery
from handshake.engines.spark.types import carrier_schema, conform
from handshake.engines.spark.workers import freeze_libraries
from handshake.errors import HandshakeError
from handshake.operators.chunk import BEGINNING, END, beyond
from handshake.operators.pipeline import Pipeline
from handshake.operators.sources import arrow_schema, times_in
from handshake.plan.algebra import Node, Output, Source
from handshake.schema import UNITS, Schema, arrow_of

FIGURES = ("rows", "late", "no_time", "matched", "unmatched", "finalised", "pending", "results")
"""The figures of a query's micro-batch, as in process (`QueryMetrics`)."""
RESULT_COLUMNS = "data binary, " + ", ".join(f"{name} bigint" for name in FIGURES)
STATE_COLUMNS = "data binary"
"""The state of a query: the pickled query."""

Batches = Iterator[pa.RecordBatch]
Task = Callable[[Batches], Batches]
StepTask = Callable[[Any, Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]
HeldQuery = PaneQuery | TupleQuery


def map_columns(frame: DataFrame, task: Task, columns: StructType | str) -> DataFrame:
    """Apply a task to columns by position: `mapInArrow` does not find names with a dot in them."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns)))).mapInArrow(task, columns)


# Source tasks


def chain_task(below: Schema, nodes: list[Node], result: Schema) -> Task:
    """Run projections, filters and operations with Arrow and compiled kernels."""

    def run_chain(batches: Batches) -> Batches:
        freeze_libraries()
        pipeline = Pipeline(below.fields, nodes)
        expected = pa.schema([(f.name, arrow_of(f.type)) for f in below])
        target = carrier_schema(result)
        for batch in batches:
            given = conform(batch, expected)
            columns = dict(zip(given.schema.names, given.columns, strict=True))
            columns, rows, _ = pipeline.run(columns, batch.num_rows)
            if rows:
                arrays = [columns[f.name].cast(f.type) for f in target]
                yield pa.RecordBatch.from_arrays(arrays, schema=target)

    return run_chain


def pane_task(output: Output, source: Source) -> Task:
    """Reduce a partition's tuples to panes."""

    def reduce_partition(batches: Batches) -> Batches:
        freeze_libraries()
        schema = arrow_schema(source)
        reduced = reduce_panes(output, (conform(batch, schema) for batch in batches))
        if reduced.rows:
            yield blob_batch(0, 0, pickle.dumps(reduced))

    return reduce_partition


def tuple_task(at: int, source: Source) -> Task:
    """Send a partition's tuples unchanged."""

    def send_tuples(batches: Batches) -> Batches:
        freeze_libraries()
        schema = arrow_schema(source)
        for part, batch in enumerate(batches):
            if batch.num_rows:
                yield blob_batch(at, part, to_stream(schema, [conform(batch, schema)]).to_pybytes())

    return send_tuples


def clock_task(at: int, source: Source, unit: str) -> Task:
    """Send the clock of a source after a partition's tuples, in this unit."""

    def send_clock(batches: Batches) -> Batches:
        freeze_libraries()
        own, schema = UNITS[source.clock.unit], arrow_schema(source)
        latest = BEGINNING
        for batch in batches:
            given = conform(batch, schema)
            times, _ = times_in(source, dict(zip(schema.names, given.columns, strict=True)))
            latest = max(latest, int(times.max(initial=BEGINNING)))
        if latest > BEGINNING:
            clock = (latest - source.lateness // own) * (own // UNITS[unit])
            if clock >= END:
                raise beyond(f"a time in column '{source.time}' of stream {source.name}, in {unit},", clock)
            yield blob_batch(at, 0, clock.to_bytes(16, signed=True))

    return send_clock


# The task that holds a query


def step_task(make: Callable[[], HeldQuery]) -> StepTask:
    """Return the function for `applyInPandasWithState`: the one task that holds a streaming query.

    Spark commits its state with the batch. `transformWithState` would also do, but it starts a Python process
    with every query, and Spark waits ten seconds for it, which is too short on a busy machine.
    """

    def step_query(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        freeze_libraries()
        query = load_query(bytes(state.get[0]) if state.exists else None, make())
        before = query.figures
        blobs = [Blob.of(row) for frame in frames for row in frame.to_dict("records")]
        results = [batch for batch in query.step(blobs, ended=False) if batch.num_rows]
        state.update((pickle.dumps(query),))
        after = query.figures
        *changes, _ = (b - a for a, b in zip(before, after, strict=True))  # the last one counts rows now
        for batch in results:
            yield _result(batch).to_pandas()
        yield _row(None, [*changes, after[-1], 0]).to_pandas()

    return step_query


def load_query(state: bytes | None, fresh: HeldQuery) -> HeldQuery:
    """Load the query that the last micro-batch left; `fresh` if there is none.

    Raises:
        HandshakeError: The state is of a query with another plan.
    """
    if state is None:
        return fresh
    held: HeldQuery = pickle.loads(state)
    if held.output != fresh.output:
        raise HandshakeError(
            f"the checkpoint belongs to another query: the plan of '{fresh.output.name}' has changed; use a "
            "new checkpoint, or the old text"
        )
    return held


def finish_task(make: Callable[[], HeldQuery]) -> Task:
    """Run a whole finite query in one task."""

    def run_to_the_end(batches: Batches) -> Batches:
        freeze_libraries()
        blobs = [Blob.of(row) for batch in batches for row in batch.to_pylist()]
        query = make()
        for batch in query.step(blobs, ended=True):
            if batch.num_rows:
                yield _result(batch)
        yield _row(None, [*query.figures, 0])

    return run_to_the_end


def _result(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _row(bytes(batch.serialize()), [0] * (len(FIGURES) - 1) + [batch.num_rows])


def _row(data: bytes | None, figures: list[int]) -> pa.RecordBatch:
    arrays = [pa.array([data], pa.binary()), *(pa.array([figure], pa.int64()) for figure in figures)]
    return pa.RecordBatch.from_arrays(arrays, names=["data", *FIGURES])


def unpack_task(output: Output) -> Task:
    """Turn serialised results into rows."""

    def unpack_results(batches: Batches) -> Batches:
        freeze_libraries()
        schema = pa.schema([(f.name, arrow_of(f.type)) for f in output.schema])
        target = carrier_schema(output.schema)
        for batch in batches:
            for blob in batch.column(0):
                found = pa.ipc.read_record_batch(blob.as_buffer(), schema)
                arrays = [column.cast(f.type) for column, f in zip(found.columns, target, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=target)

    return unpack_results
