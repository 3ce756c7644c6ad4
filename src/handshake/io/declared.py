"""Rows in the columns and types of a declared schema. Rows that do not fit are put aside with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.formats import AddBadRow, one_line
from handshake.schema import Schema, String, arrow_of

__all__ = ["BAD", "BadRows", "arrow_schema", "convert_rows", "fit_rows"]

BAD = pa.schema(
    [("stream", pa.string()), ("row", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)
"""Columns of the bad rows: stream, row number (from 1, without the header), reason, and the row as text."""
_MOST_TEXT = 500


@dataclass
class BadRows:
    """Rows that do not fit. They are only counted unless `kept`; with `strict`, the first one is an error."""

    strict: bool = False
    kept: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    def add(self, stream: str, row: int, reason: str, text: str) -> None:
        """Count a bad row and keep it, or raise `InputError` if strict."""
        if self.strict:
            raise InputError(f"{stream} input, row {row}: {reason}")
        self.count += 1
        if self.kept:
            text = one_line(text, _MOST_TEXT)
            self.rows.append({"stream": stream, "row": row, "reason": reason, "text": text})

    def take(self) -> pa.RecordBatch:
        """Return the rows added since the last call."""
        batch = pa.RecordBatch.from_pylist(self.rows, schema=BAD)
        self.rows = []
        return batch


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a declared one."""
    return pa.schema([(f.name, arrow_of(f.type)) for f in schema])


def fit_rows(
    table: pa.Table, schema: Schema, add_bad: AddBadRow, number: Callable[[int], int] = lambda at: at + 1
) -> pa.RecordBatch:
    """Return the rows that fit a schema, and report the others.

    Args:
        table: The rows as they were read. Columns that the schema does not name are dropped.
        schema: The declared columns and types.
        add_bad: Called for each row that does not fit.
        number: Gives the row number to report for a position in the table.
    """
    batch, reasons = convert_rows(table, schema)
    if not reasons:
        return batch
    for at, reason in sorted(reasons.items()):
        add_bad(schema.stream, number(at), reason, str(table.slice(at, 1).to_pylist()[0]))
    fits = np.ones(batch.num_rows, np.bool_)
    fits[list(reasons)] = False
    return batch.filter(pa.array(fits))


def convert_rows(
    table: pa.Table, schema: Schema, *, mixed: bool = False
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return a table in the declared columns and types, and the reason per position that does not fit.

    With `mixed`, a column whose type cannot be converted makes its rows bad. Without, it is a `SchemaError`.
    """
    arrays = []
    reasons: dict[int, str] = {}
    for f in schema:
        column = _one_array(table.column(_find_column(f.name, table.column_names, schema.stream)))
        array, wrong = _convert(column, arrow_of(f.type), mixed=mixed)
        if isinstance(f.type, String) and f.type.length is not None:
            too_long = pc.greater(pc.binary_length(array), f.type.length)
            wrong = wrong | np.asarray(pc.fill_null(too_long, False))
        arrays.append(array)
        for row in np.flatnonzero(wrong):
            reasons.setdefault(int(row), f"{column[row].as_py()!r} in column '{f.name}' is not {f.type}")
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema)), reasons


def _find_column(name: str, given: list[str], stream: str) -> str:
    """Find a column by its name; another case of letters will do if only one column has it."""
    found = [n for n in given if n == name] or [n for n in given if n.casefold() == name.casefold()]
    if len(found) != 1:
        hint = suggest(name, given)
        raise SchemaError(f"{stream} input has no column '{name}' ({', '.join(given)}){hint}")
    return found[0]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _convert(array: pa.Array, kind: pa.DataType, *, mixed: bool) -> tuple[pa.Array, Any]:
    """Return the values in another type, and a mask of those that cannot be converted."""
    fine = np.zeros(len(array), np.bool_)
    if array.type == kind:
        return array, fine
    try:
        return _cast(array, kind), fine
    except pa.ArrowInvalid:
        pass
    except pa.ArrowNotImplementedError:
        if mixed:
            return pa.nulls(len(array), kind), np.asarray(array.is_valid())
        raise SchemaError(f"a column of {array.type} cannot be read as {kind}") from None
    values = [_cast_one(array.slice(at, 1), kind) for at in range(len(array))]
    wrong = np.array([value is None for value in values])
    return pa.concat_arrays([pa.nulls(1, kind) if v is None else v for v in values]), wrong


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(array.type) and pa.types.is_decimal(kind):
        array = array.cast(pa.decimal128(38, max(kind.scale, 9)))
    if pa.types.is_string(array.type) and pa.types.is_timestamp(kind):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:  # texts with an offset from UTC become instants
            return array.cast(pa.timestamp(kind.unit, "UTC")).view(pa.int64()).view(kind)
    return array.cast(kind)


def _cast_one(value: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return _cast(value, kind)
    except pa.ArrowInvalid:
        return None
