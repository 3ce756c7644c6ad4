"""Arrow tables as DataFrames, row by row in their order, and DataFrames as Arrow batches.

Tables travel as files under a directory that every executor reaches, so neither way do rows pile up in the
driver. Types that Spark lacks go as the nearest one that holds every value, and are restored in results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from handshake.engines.spark.state.store import Store, open_store
from handshake.errors import InputError

__all__ = ["batches_in", "carried", "carrier", "frame_of", "restored", "results_of"]

_SLICE = 1 << 26
"""Bytes of a table that one task reads at most, roughly."""
_PIECE = 1 << 16
"""Rows that a task hands over at once."""
_WIDER = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
}  # fmt: skip

Batches = Iterator[pa.RecordBatch]


# Types


def carrier(kind: pa.DataType) -> pa.DataType:
    """The type as which Spark carries values of a type.

    >>> carrier(pa.list_(pa.uint16())), carrier(pa.timestamp("s", "Europe/Zurich"))
    (ListType(list<item: int32>), TimestampType(timestamp[us, tz=UTC]))
    """
    if pa.types.is_dictionary(kind):
        return carrier(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_duration(kind):
        return pa.duration("us")
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.decimal128(min(kind.precision, 38), kind.scale)
    return _nested(kind) if pa.types.is_nested(kind) else _WIDER.get(kind, kind)


def _nested(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(carrier(kind.key_type), carrier(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(carrier(field.type)) for field in kind.fields])
    if pa.types.is_union(kind):
        return kind
    return pa.list_(kind.value_field.with_type(carrier(kind.value_type)))


def carried(table: pa.Table, stream: str) -> pa.Table:
    """A table in types of Spark's, or an error that names the column which they cannot hold."""
    fields = [pa.field(field.name, carrier(field.type)) for field in table.schema]
    columns = [_cast(column, field, stream) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(column: pa.ChunkedArray, field: pa.Field, stream: str) -> pa.ChunkedArray:
    try:
        from_arrow_schema(pa.schema([field]))
        if not pa.types.is_dictionary(column.type):
            pa.array([], field.type).cast(column.type)  # as results will be
        return column if column.type == field.type else column.cast(field.type)
    except Exception as error:
        raise InputError(
            f"column '{field.name}' of the {stream} input is {column.type}, which Spark cannot hold exactly "
            f"({str(error).splitlines()[0]}); convert or leave out the column, or use the local back end"
        ) from error


def restored(batch: pa.RecordBatch, schema: pa.Schema, origins: Sequence[pa.ChunkedArray]) -> pa.RecordBatch:
    """A batch of results in the types of the columns that they come from."""
    columns = [
        _restored(column, field.type, origin)
        for column, field, origin in zip(batch.columns, schema, origins, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _restored(column: pa.Array, kind: pa.DataType, origin: pa.ChunkedArray) -> pa.Array:
    if column.type == kind:
        return column
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    words = origin.chunk(0).dictionary  # the same for all batches, as files of Arrow's want it
    places = pc.index_in(column, value_set=words.cast(column.type)).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(places, words)


# To Spark


def frame_of(session: SparkSession, table: pa.Table, store: Store, folder: str) -> DataFrame:
    """A DataFrame of a table's rows; its partitions are runs of them, in order."""
    least = int(session.sparkContext.defaultParallelism)
    parts = max(min(least, table.num_rows), table.nbytes // _SLICE, 1)
    edges = [table.num_rows * part // parts for part in range(parts + 1)]
    for part, (start, stop) in enumerate(pairwise(edges)):
        _write(store, _name(folder, part), table.slice(start, stop - start))
    numbers = session.range(0, parts, 1, parts)
    return numbers.mapInArrow(_reading(store.root, folder), from_arrow_schema(table.schema))


def _name(folder: str, part: int) -> str:
    return f"{folder}/{part}.arrow"


def _write(store: Store, name: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=_PIECE)
    store.write(name, [sink.getvalue()])


def _reading(root: str, folder: str) -> Callable[[Batches], Batches]:
    def read_rows(parts: Batches) -> Batches:
        for batch in parts:
            for part in batch.column(0).to_pylist():
                yield from pa.ipc.open_stream(open_store(root).read(_name(folder, part)))

    return read_rows


# From Spark


def results_of(joined: DataFrame, store: Store, folder: str) -> list[str]:
    """Run a query and leave its rows in files, whose names come back."""
    written = joined.mapInArrow(_writing(store.root, folder), "name string").collect()
    return [row["name"] for row in written]


def _writing(root: str, folder: str) -> Callable[[Batches], Batches]:
    def write_results(batches: Batches) -> Batches:
        task: Any = TaskContext.get()
        for number, table in enumerate(_gathered(batches)):
            name = f"{folder}/{task.partitionId()}-{task.taskAttemptId()}-{number}.arrow"
            _write(open_store(root), name, table)
            yield pa.RecordBatch.from_pydict({"name": [name]})

    return write_results


def _gathered(batches: Batches) -> Iterator[pa.Table]:
    """Few and large pieces."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.nbytes for b in held) >= _SLICE:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def batches_in(store: Store, name: str) -> Batches:
    """The rows of a file that `results_of` left."""
    yield from pa.ipc.open_stream(store.read(name))
