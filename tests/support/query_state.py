"""Spark queries without Spark: blobs of rows and panes, and state that is saved after each micro-batch."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa

from handshake.engines.spark.queries.blobs import Blob
from handshake.engines.spark.queries.native import SparkFilter
from handshake.engines.spark.queries.panes import reduce_panes
from handshake.engines.spark.queries.tasks import load_query
from handshake.kernels.evaluate import Evaluator
from handshake.operators.query import Query
from handshake.operators.sources import arrow_schema
from handshake.plan import expr
from handshake.plan.algebra import Output, Source
from handshake.plan.expr import conjunction
from handshake.testing.oracle_values import rows as physical_rows
from query_streams import Item, batch_of


def run_to_end(state: Any, batches: list[list[Blob]]) -> list[dict[str, Any]]:
    """Return the rows of a query that is saved and loaded again after every micro-batch."""
    found = []
    for blobs in batches:
        fresh = state()
        query = load_query(saved, fresh) if (saved := getattr(state, "saved", None)) else fresh
        found += query.step(blobs, ended=False)
        state.saved = pickle.dumps(query)
    query = load_query(getattr(state, "saved", None), state())
    found += query.step([], ended=True)
    state.last = query
    schema = found[0].schema if found else None
    return [row for batch in found for row in physical_rows(pa.Table.from_batches([batch], schema))]


class SavedState:
    """A factory of queries that also keeps the bytes of the last saved one."""

    saved: bytes | None = None
    last: Any = None

    def __init__(self, make: Any) -> None:
        self.make = make

    def __call__(self) -> Any:
        return self.make()


def blob_of_panes(
    query: Query, output: Output, source: Source, partition: int, items: list[Item], made: SparkFilter | None
) -> Blob:
    pieces = [[row for _, row in items[at : at + 3]] for at in range(0, len(items), 3)]
    batches = [batch_of(query, source.name, rows) for rows in pieces]
    if made is None:
        reduced = reduce_panes(output, batches)
    else:
        reduced = reduce_panes(made.output, [_holding(made, batch) for batch in batches])
    return Blob(0, partition, 0, pickle.dumps(reduced))


def _holding(made: SparkFilter, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Compute in process what Spark's filter would give."""
    condition = conjunction(made.conditions)
    columns = {c: batch.column(c.name) for c in expr.walk(condition) if isinstance(c, expr.Column)}
    holds = Evaluator(condition)(columns, batch.num_rows)
    schema = arrow_schema(made.source)
    return pa.RecordBatch.from_arrays([*(batch.column(n) for n in schema.names[:-1]), holds], schema=schema)


def blob_of_rows(query: Query, names: list[str], batch: list[Item]) -> Blob:
    sink, rows = pa.BufferOutputStream(), batch_of(query, batch[0][0], [row for _, row in batch])
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return Blob(names.index(batch[0][0]), 0, 0, sink.getvalue().to_pybytes())
