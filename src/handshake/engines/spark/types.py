"""Arrow types and Spark types: which is which, and the carriers of Arrow types that Spark lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from handshake.errors import InputError
from handshake.schema import Schema, arrow_of, without_view

_TIME: Any = getattr(spark, "TimeType", None)
"""The type of times of day, since Spark 4.1."""
_PLAIN: list[tuple[Any, pa.DataType]] = [
    (spark.BooleanType, pa.bool_()), (spark.ByteType, pa.int8()), (spark.ShortType, pa.int16()),
    (spark.IntegerType, pa.int32()), (spark.LongType, pa.int64()), (spark.FloatType, pa.float32()),
    (spark.DoubleType, pa.float64()), (spark.StringType, pa.string()), (spark.BinaryType, pa.binary()),
    (spark.DateType, pa.date32()), (spark.TimestampNTZType, pa.timestamp("us")),
    (spark.DayTimeIntervalType, pa.duration("us")), (spark.NullType, pa.null()),
    *([(_TIME, pa.time64("ns"))] if _TIME else []),
]  # fmt: skip
_VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)

_WIDER = {
    pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(),
    pa.large_string(): pa.string(), pa.large_binary(): pa.binary(), pa.date64(): pa.date32(),
}  # fmt: skip


def arrow_type(kind: spark.DataType, zone: str) -> pa.DataType:
    """Return the Arrow type in which Spark passes values of a type to Python.

    Args:
        kind: A type of a DataFrame's column.
        zone: The session's time zone, in which Spark passes timestamps.

    Raises:
        InputError: Spark does not pass this type to Python as Arrow.

    >>> arrow_type(spark.ArrayType(spark.TimestampType()), "UTC")
    ListType(list<element: timestamp[us, tz=UTC]>)
    """
    for plain, arrow in _PLAIN:
        if isinstance(kind, plain):
            return arrow
    match kind:
        case spark.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case spark.TimestampType():
            return pa.timestamp("us", zone)
        case spark.VariantType():
            return _VARIANT
        case spark.UserDefinedType():
            return arrow_type(kind.sqlType(), zone)
        case spark.ArrayType():
            return pa.list_(pa.field("element", arrow_type(kind.elementType, zone), kind.containsNull))
        case spark.MapType():
            value = pa.field("value", arrow_type(kind.valueType, zone), kind.valueContainsNull)
            return pa.map_(pa.field("key", arrow_type(kind.keyType, zone), nullable=False), value)
        case spark.StructType():
            return pa.struct([pa.field(f.name, arrow_type(f.dataType, zone), f.nullable) for f in kind])
    raise InputError(
        f"a column of Spark's type {kind.simpleString()} cannot be passed to Python; cast or drop it"
    )


def spark_schema(schema: pa.Schema) -> spark.StructType:
    """Return the Spark types of an Arrow schema whose types are carriers.

    Raises:
        InputError: Spark has no such type.

    >>> spark_schema(pa.schema([("t", pa.timestamp("us"))])).simpleString()
    'struct<t:timestamp_ntz>'
    """
    return spark.StructType([spark.StructField(f.name, _spark_type(f.type), f.nullable) for f in schema])


def _spark_type(kind: pa.DataType) -> spark.DataType:
    for plain, arrow in _PLAIN:
        if kind == arrow:
            return cast(spark.DataType, plain())
    if pa.types.is_decimal128(kind):
        return spark.DecimalType(kind.precision, kind.scale)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return spark.TimestampType()
    if kind.equals(_VARIANT, check_metadata=True):
        return spark.VariantType()
    if pa.types.is_map(kind):
        values = kind.item_field
        return spark.MapType(_spark_type(kind.key_type), _spark_type(values.type), values.nullable)
    if pa.types.is_struct(kind):
        return spark_schema(pa.schema(list(kind)))
    if pa.types.is_list(kind):
        return spark.ArrayType(_spark_type(kind.value_type), kind.value_field.nullable)
    raise InputError(f"Spark has no type for {kind}")


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
    if pa.types.is_map(kind):
        return pa.map_(carrier(kind.key_type), carrier(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(carrier(field.type)) for field in list(kind)])
    kind = without_view(kind)
    if pa.types.is_nested(kind) and not pa.types.is_union(kind):
        return pa.list_(kind.value_field.with_type(carrier(kind.value_type)))
    return _WIDER.get(kind, kind)


def carriers(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a schema in types of Spark's; see `carrier`."""
    return pa.schema([pa.field(field.name, carrier(field.type), field.nullable) for field in schema])


def carrier_schema(schema: Schema) -> pa.Schema:
    """Return the Spark types that carry the columns of a plan's node."""
    return pa.schema([(f.name, carrier(arrow_of(f.type))) for f in schema])


def to_spark_types(table: pa.Table, stream: str) -> pa.Table:
    """Cast a table to types of Spark's.

    Raises:
        InputError: A column has a type or a value that Spark cannot hold exactly.
    """
    schema = pa.schema([field.with_nullable(True) for field in carriers(table.schema)])
    columns = [_cast(column, field, stream) for column, field in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


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
        _encode(column, field.type, origin) if pa.types.is_dictionary(field.type) else column.cast(field.type)
        for column, field, origin in zip(batch.columns, schema, origins, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _encode(column: pa.Array, kind: pa.DataType, origin: pa.ChunkedArray) -> pa.Array:
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
