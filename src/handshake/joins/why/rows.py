"""Rows that are asked about: given as values, by their numbers, or in JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from handshake.errors import HandshakeError, InputError, suggest
from handshake.io.frames import conform, is_spark, schema_of, table_of
from handshake.joins.driver import times_of
from handshake.joins.spec import JoinSpec

_LONGEST = 20_000
"""The most characters of a row in JSON."""


def conform_pair(spec: JoinSpec, *rows: Any) -> list[pa.RecordBatch]:
    """Return a left row and a right row, such as dicts of values, in the columns of a join."""
    return [conform_row(row, side.schema, side.name) for row, side in zip(rows, spec.sides, strict=True)]


def conform_row(row: Any, schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Return a row of a running join or of a plan, which is given by its values."""
    if isinstance(row, int):
        raise InputError(
            f"the {stream} row is given by its number, {row}; a join has no numbers of rows, so give values"
        )
    return typed_row(row, schema, stream) if isinstance(row, Mapping) else one_row(row, schema, stream)


def rows_by_name(given: Any, streams: Mapping[str, pa.Schema]) -> list[pa.RecordBatch]:
    """Return one row per stream, given by name, in the order of the streams.

    Args:
        given: The rows: dicts of values, or frames of one row.
        streams: The columns of the streams.
    """
    if not isinstance(given, Mapping):
        raise InputError(
            f"rows are given by the names of their streams, such as {{'a': {{…}}, 'b': {{…}}}}, "
            f"not as {type(given).__name__}"
        )
    for name in given:
        if name not in streams:
            raise InputError(f"no stream '{name}' ({', '.join(streams)}){suggest(str(name), streams)}")
    missing = [name for name in streams if name not in given]
    if missing:
        raise InputError(f"no row of '{missing[0]}' is given; give one row of each stream")
    return [conform_row(given[name], schema, name) for name, schema in streams.items()]


def whole_input(value: Any, stream: str) -> pa.Table | pa.Schema:
    """Return an input as a table, or its schema if only that is given."""
    if is_spark(value):
        raise InputError(
            f"why() looks at rows in this process; collect the rows of the {stream} DataFrame that matter "
            "(toPandas)"
        )
    return schema_of(value, stream) if isinstance(value, pa.Schema) else table_of(value)


def one_row(row: Any, whole: pa.Table | pa.Schema | None, stream: str) -> pa.RecordBatch:
    """Return a row as a batch of one row."""
    if isinstance(row, int) and not isinstance(row, bool):
        if not isinstance(whole, pa.Table):
            raise InputError(
                f"the {stream} row is given by its number, {row}, so the whole input is needed ({stream}=…)"
            )
        if not 0 <= row < whole.num_rows:
            raise InputError(f"no row {row} in the {stream} input of {whole.num_rows} rows, counted from 0")
        return whole.slice(row, 1).combine_chunks().to_batches()[0]
    schema = None if whole is None else whole if isinstance(whole, pa.Schema) else whole.schema
    if isinstance(row, Mapping) and not any(isinstance(value, (list, pa.Array)) for value in row.values()):
        row = [dict(row)]
    found = table_of(row, schema)
    if found.num_rows != 1:
        raise InputError(f"one {stream} row is explained, and {found.num_rows} were given")
    return conform(found, schema or found.schema, stream)


def parse_row(text: str, side: str) -> dict[str, Any]:
    """Return a row that is written in JSON.

    >>> parse_row('{"id": 17}', "left")
    {'id': 17}
    """
    try:
        row = json.loads(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f'the {side} row is an object in JSON, such as {{"x": 1}}')
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"the {side} row has half of a surrogate pair, which is no character") from None
    return row


def typed_row(row: Mapping[str, Any], schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Return a row, whose texts may stand for values of other types, such as times, as a batch of one row.

    Raises:
        InputError: A text is no value of its column.
    """
    found = dict(row)
    for field in schema:
        value = found.get(field.name)
        if isinstance(value, str) and not pa.types.is_string(field.type):
            try:
                found[field.name] = _value_of(value, field.type).as_py()
            except pa.ArrowException as error:
                raise InputError(f"column '{field.name}' is {field.type}: {error}") from error
    return conform([found], schema, stream)


def _value_of(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a text as a value; a time without a zone is in UTC."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        with contextlib.suppress(pa.ArrowInvalid):
            return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.timestamp(kind.unit, "UTC"))
    return pa.scalar(text).cast(kind)


def watermark_of(spec: JoinSpec, watermark: Any) -> int:
    """Return a watermark in the unit of the join's times."""
    side = next((side for side in spec.sides if side.time is not None), None)
    if side is None or side.time is None:
        raise InputError(f"a watermark, {watermark!r}, says nothing without time columns; name them (time=…)")
    field = side.schema.field(side.time)
    try:
        row = typed_row({side.time: watermark}, pa.schema([field]), side.name)
    except HandshakeError as error:
        raise InputError(
            f"the watermark, {watermark!r}, is no value of column '{side.time}', which is {field.type}"
        ) from error
    times, valid = times_of(row.column(0), spec.unit, side.time, side.name)
    if valid is not None:
        raise InputError(f"{watermark!r} is not a time, so it is no watermark")
    return int(times[0])


def row_time(row: pa.RecordBatch, column: str | None, unit: str, stream: str) -> int | None:
    """Return the time of a row in a unit; None without one.

    Args:
        row: The row.
        column: The time column; None if there is none.
        unit: The unit of the join's times.
        stream: The name of the stream, for errors.
    """
    if column is None:
        return None
    times, valid = times_of(row.column(column), unit, column, stream)
    return int(times[0]) if valid is None or valid[0] else None
