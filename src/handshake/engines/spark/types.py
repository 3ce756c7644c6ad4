"""Arrow types that Spark lacks: the Spark type that carries their values, and the way there and back."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from handshake.engines.spark.private import spark_schema
from handshake.errors import InputError
from handshake.schema import Schema, arrow_of

__all__ = ["carrier", "carrier_schema", "conform", "from_spark_types", "to_spark_types"]

_WIDER = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
    pa.large_string(): pa.string(), pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
}  # fmt: skip


def carrier(kind: pa.DataType) -> pa.DataType:
    """Return the nearest type of Spark's that holds every value of a type.

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
    return _nested_carrier(kind) if pa.types.is_nested(kind) else _WIDER.get(kind, kind)


def _nested_carrier(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(carrier(kind.key_type), carrier(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(carrier(field.type)) for field in kind.fields])
    if pa.types.is_union(kind):
        return kind
    return pa.list_(kind.value_field.with_type(carrier(kind.value_type)))


def carrier_schema(schema: Schema) -> pa.Schema:
    """Return the Spark types that carry the columns of a plan's node."""
    return pa.schema([(f.name, carrier(arrow_of(f.type))) for f in schema])


def to_spark_types(table: pa.Table, stream: str) -> pa.Table:
    """Cast a table to types of Spark's.

    Raises:
        InputError: A column has a type or a value that Spark cannot hold exactly.
    """
    fields = [pa.field(field.name, carrier(field.type)) for field in table.schema]
    columns = [_cast(column, field, stream) for column, field in zip(table.columns, fields, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(column: pa.ChunkedArray, field: pa.Field, stream: str) -> pa.ChunkedArray:
    try:
        spark_schema(pa.schema([field]))
        if not pa.types.is_dictionary(column.type):
            pa.array([], field.type).cast(column.type)  # as results will be
        return column if column.type == field.type else column.cast(field.type)
    except Exception as error:
        raise InputError(
            f"column '{field.name}' of the {stream} input is {column.type}, which Spark cannot hold exactly "
            f"({str(error).splitlines()[0]}); convert or leave out the column, or use the local back end"
        ) from error


def from_spark_types(
    batch: pa.RecordBatch, schema: pa.Schema, origins: Sequence[pa.ChunkedArray]
) -> pa.RecordBatch:
    """Cast results back to the types of the columns that they come from."""
    columns = [
        _cast_back(column, field.type, origin)
        for column, field, origin in zip(batch.columns, schema, origins, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast_back(column: pa.Array, kind: pa.DataType, origin: pa.ChunkedArray) -> pa.Array:
    if column.type == kind:
        return column
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    words = origin.chunk(0).dictionary  # one dictionary for all batches, as Arrow files need it
    places = pc.index_in(column, value_set=words.cast(column.type)).cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(places, words)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Cast a batch from the types that carry a stream to the types that it is declared with."""
    columns = [_to_declared(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _to_declared(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if column.type == kind:
        return column
    try:
        if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
            return column.cast(pa.timestamp(kind.unit, column.type.tz)).view(pa.int64()).view(kind)
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"column '{field.name}' is declared as {kind}, which does not hold its values: {error}; declare "
            "a type that does"
        ) from error
