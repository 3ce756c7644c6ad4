"""Results of windows on their way from the stateful task's Python to rows, without another Python process.

Columns are written as whole numbers of 64 bits, and the bytes of texts; `RowReader.java` reads them as longs,
doubles, decimals and bytes, of which Spark's own expressions make the types of the results.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import StructType

from handshake.engines.spark.jvm.classes import java_array, java_class, rows_of
from handshake.operators.chunk import Array
from handshake.operators.sort_keys import words_of

__all__ = ["packed", "readable", "unpacked"]

_WHOLE, _FLOAT, _BYTES, _DECIMAL = range(4)
"""The numbers that RowReader.java has for kinds of columns."""
_CARRIERS: dict[int | None, str] = {_WHOLE: "long", _FLOAT: "double", _BYTES: "binary"}


def _kind(arrow: pa.DataType) -> int | None:
    """How values of one of the types in which Spark carries columns are written; None: they are not."""
    if pa.types.is_floating(arrow):
        return _FLOAT
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        return _BYTES
    if pa.types.is_decimal(arrow):
        return _DECIMAL
    plain = pa.types.is_integer(arrow) or pa.types.is_boolean(arrow)
    return _WHOLE if plain or arrow == pa.date32() or pa.types.is_timestamp(arrow) else None


def readable(schema: pa.Schema, session: Any) -> bool:
    """Whether Java can read results of these types here."""
    return all(_kind(f.type) is not None for f in schema) and java_class(session, "RowReader") is not None


# To bytes.


def packed(batch: pa.RecordBatch, schema: pa.Schema) -> bytes:
    """Results in the types in which Spark carries them, as bytes."""
    pieces = [np.array([batch.num_rows], np.int64).tobytes()]
    for column, field in zip(batch.columns, schema, strict=True):
        column = column.cast(field.type)
        pieces += [np.asarray(column.is_valid()).astype(np.int64).tobytes(), *_values(column)]
    return b"".join(pieces)


def _values(column: pa.Array) -> list[bytes]:
    kind = _kind(column.type)
    if kind == _BYTES:
        return _texts(column)
    if kind == _DECIMAL:
        return [np.stack(words_of(column), axis=1).tobytes()]
    if kind == _FLOAT:
        return [_filled(column.cast(pa.float64())).view(np.int64).tobytes()]
    return [_filled(_numbered(column)).astype(np.int64).tobytes()]


def _numbered(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        return column.cast(pa.int8())
    if pa.types.is_temporal(column.type):
        return column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return column


def _filled(column: pa.Array) -> Array:
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _texts(column: pa.Array) -> list[bytes]:
    """Where each one ends, and all of them, up to a multiple of eight bytes."""
    _, offsets, text = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    body = text.to_pybytes()[ends[0] : ends[-1]] if text is not None else b""
    return [(ends[1:] - ends[0]).tobytes(), body, bytes(-len(body) % 8)]


# To rows.


def unpacked(blobs: DataFrame, schema: pa.Schema) -> DataFrame:
    """Rows of a DataFrame whose one column has them in bytes."""
    context = blobs.sparkSession.sparkContext
    jvm: Any = context._jvm
    scales = [f.type.scale if pa.types.is_decimal(f.type) else 0 for f in schema]
    arrays = [java_array(context, jvm.int, some) for some in ([_kind(f.type) for f in schema], scales)]
    rows = rows_of(blobs, "RowReader", arrays, _between(schema))
    return rows.select(*(_typed(F.col(f"c{place}"), field) for place, field in enumerate(schema)))


def _between(schema: pa.Schema) -> StructType:
    """What Java gives."""
    made = StructType()
    for place, field in enumerate(schema):
        name = _CARRIERS.get(_kind(field.type))
        made.add(f"c{place}", from_arrow_type(field.type) if name is None else name)
    return made


def _typed(column: Column, field: pa.Field) -> Column:
    kind = field.type
    if pa.types.is_date(kind):
        made = F.date_from_unix_date(column.cast("int"))
    elif pa.types.is_boolean(kind):
        made = column != 0
    elif pa.types.is_timestamp(kind):
        made = F.timestamp_micros(column) if kind.tz is not None else _reading(column)
    else:
        made = column.cast(from_arrow_schema(pa.schema([field]))[0].dataType)
    return made.alias(field.name)


def _reading(micros: Column) -> Column:
    """A reading of a clock that many microseconds after 1970 began."""
    return F.timestamp_add("MICROSECOND", micros, F.expr("TIMESTAMP_NTZ'1970-01-01'"))
