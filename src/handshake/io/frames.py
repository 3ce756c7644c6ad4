"""Rows of users (Arrow, pandas, Polars, plain Python) as Arrow tables and back."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError, SchemaError, suggest
from handshake.schema import DIGITS, without_view


def kind_of(value: Any) -> str:
    """Return the kind of a frame: arrow, pandas, polars or python. No library is imported to find out."""
    if isinstance(value, (pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
        return "arrow"
    for library in ("pandas", "polars"):
        module = sys.modules.get(library)
        if module is not None and isinstance(
            value, (module.DataFrame, getattr(module, "LazyFrame", module.DataFrame))
        ):
            return library
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, (str, bytes)):
        return "python"
    raise InputError(
        f"cannot read rows from {type(value).__name__}; "
        "give an Arrow table or batch, a pandas or Polars frame, a dict of lists or a list of dicts"
    )


def is_spark(value: Any) -> bool:
    """Return whether a value is a Spark DataFrame, classic or Connect. Spark need not be installed."""
    return type(value).__name__ == "DataFrame" and type(value).__module__.startswith("pyspark.sql.")


def table_of(value: Any, schema: pa.Schema | None = None) -> pa.Table:
    """Return the rows of any supported frame as an Arrow table without views and run lengths."""
    return plain_table(_table_of(value, schema))


def _table_of(value: Any, schema: pa.Schema | None) -> pa.Table:
    match kind_of(value):
        case "arrow":
            if isinstance(value, pa.RecordBatch):
                return pa.Table.from_batches([value])
            return value.read_all() if isinstance(value, pa.RecordBatchReader) else value
        case "pandas":
            return _pandas_table(value)
        case "polars":
            return _narrow_integers(value.collect() if hasattr(value, "collect") else value).to_arrow()
    return _python_table(value, schema)


def _pandas_table(frame: Any) -> pa.Table:
    names = [str(name) for name in frame.columns]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if doubled is not None:
        raise SchemaError(
            f"the given pandas frame has more than one column named '{doubled}' ({', '.join(names)}); "
            "rename one of them"
        )
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InputError(f"cannot read rows from the given pandas frame: {error}") from None


def _narrow_integers(frame: Any) -> Any:
    """Turn the 128-bit integers of a Polars frame into decimals, since Arrow has no such integers."""
    polars = sys.modules["polars"]
    for name, kind in frame.schema.items():
        if str(kind) in ("Int128", "UInt128"):
            whole = frame[name].cast(polars.Decimal(DIGITS, 0), strict=False)
            if whole.null_count() > frame[name].null_count():
                raise InputError(
                    f"column '{name}' is {kind} and has values of more than {DIGITS} digits; "
                    "cast it to a float"
                )
            frame = frame.with_columns(whole.alias(name))
    return frame


def _python_table(value: Any, schema: pa.Schema | None) -> pa.Table:
    try:
        columns = value if isinstance(value, Mapping) else _columns_of(value, schema)
        known = schema if schema is not None and set(columns) == set(schema.names) else None
        return pa.table({k: _column(v, known.field(k).type if known else None) for k, v in columns.items()})
    except (pa.ArrowException, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"cannot read rows from the given Python values: {error}") from None


def _columns_of(rows: Any, schema: pa.Schema | None) -> Mapping[str, Any]:
    """Turn a list of dicts into a dict of lists. A key that a row lacks is NULL."""
    names = dict.fromkeys(key for row in rows for key in row)
    if not rows and schema is not None:
        names = dict.fromkeys(schema.names)
    return {name: [row.get(name) for row in rows] for name in names}


def _column(values: Any, kind: pa.DataType | None) -> pa.Array:
    """Convert Python values; refuse fractions that Arrow would cut off for a whole-number type."""
    whole = kind is not None and (pa.types.is_integer(kind) or pa.types.is_temporal(kind))
    if whole and any(isinstance(v, float) and not v.is_integer() for v in values):
        raise TypeError(f"a fraction where {kind} is expected")
    return pa.array(values, kind)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type for the same values without views or run lengths.

    >>> plain_type(pa.list_(pa.run_end_encoded(pa.int32(), pa.string())))
    ListType(list<item: string>)
    """
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(plain_type(f.type)) for f in list(kind)])
    return without_view(kind)


_LONGEST = (1 << 31) - 1
"""Bytes of text that 32-bit offsets can address in one array."""


def plain_table(table: pa.Table, longest: int = _LONGEST) -> pa.Table:
    """Return a table in plain types; text columns of more than `longest` bytes get 64-bit offsets."""
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    for position, field in enumerate(table.schema):
        column, target = table.column(position), plain_type(field.type)
        if column.nbytes > longest:
            target = large.get(target, target)
        if target != field.type:
            if pa.types.is_run_end_encoded(field.type):
                column = pc.run_end_decode(column)
            table = table.set_column(position, field.with_type(target), column.cast(target))
    return table


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return a schema in plain types, without metadata."""
    return pa.schema([field.with_type(plain_type(field.type)) for field in schema])


def restore(table: pa.Table, kinds: set[str]) -> Any:
    """Return results in the kind of frame that both inputs had, or in Arrow if they differ."""
    if kinds == {"pandas"}:
        return table.to_pandas()
    if kinds == {"polars"}:
        return sys.modules["polars"].from_arrow(table)
    return table


def schema_of(value: Any, stream: str) -> pa.Schema:
    """Return the Arrow schema of a schema, a mapping of names to types, or an example frame."""
    if isinstance(value, pa.Schema):
        return plain_schema(value)
    if isinstance(value, Mapping) and value and all(isinstance(v, pa.DataType) for v in value.values()):
        return plain_schema(pa.schema(list(value.items())))
    if hasattr(value, "schema") and isinstance(value.schema, pa.Schema):
        return plain_schema(value.schema)
    try:
        return plain_schema(table_of(value).schema)
    except InputError:
        raise SchemaError(
            f"the schema of the {stream} input must be a pyarrow schema, a dict of names to pyarrow types, "
            f"or a frame to take it from, not {type(value).__name__}"
        ) from None


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def conform(value: Any, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Return rows as one batch of exactly the expected schema.

    Raises:
        SchemaError: A column is missing, unexpected or of another type.
    """
    if isinstance(value, pa.RecordBatch) and value.schema.equals(schema, check_metadata=True):
        return value
    table = table_of(value, schema)
    for name in schema.names:
        if name not in table.schema.names:
            raise SchemaError(
                f"a batch of the {stream} input lacks column '{name}' "
                f"(it has {', '.join(table.schema.names)}){suggest(name, table.schema.names)}"
            )
    extra = [name for name in table.schema.names if name not in schema.names]
    if extra:
        raise SchemaError(
            f"a batch of the {stream} input has column '{extra[0]}', which its schema "
            f"({', '.join(schema.names)}) has not"
        )
    columns = [_cast(table.column(field.name), field, stream) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, stream: str) -> pa.Array:
    whole = one_array(column)
    if whole.type == field.type:
        return whole
    try:
        return whole.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"column '{field.name}' of the {stream} input is {whole.type}, "
            f"but {field.type} was announced: {error}"
        ) from None
