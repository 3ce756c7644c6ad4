"""Rows in the columns and types of a declared schema. Rows that do not fit are put aside with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.frames import one_array
from handshake.schema import DIGITS, Field, Schema, String, arrow_of

BAD = pa.schema(
    [("stream", pa.string()), ("row", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)
"""Columns of bad rows: stream, row number (from 1, without the header), reason, and the row as it stood."""
WIDEST = pa.decimal256(2 * DIGITS, DIGITS)
"""A type that holds each decimal of 38 digits."""
_MOST_SHOWN = 100


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
            self.rows.append({"stream": stream, "row": row, "reason": reason, "text": text})

    def take(self) -> pa.RecordBatch:
        """Return the rows added since the last call."""
        batch = pa.RecordBatch.from_pylist(self.rows, schema=BAD)
        self.rows = []
        return batch


def is_utf8(row: bytes) -> bool:
    """Return whether the bytes of a row are UTF-8 text."""
    try:
        return row.isascii() or bool(row.decode())
    except UnicodeDecodeError:
        return False


def row_text(line: bytes) -> str:
    """Return a row as it stood; bytes that are not UTF-8 are written as `\\xe9`."""
    return line.decode("utf-8", "backslashreplace")


def fit_rows(table: pa.Table, schema: Schema, report: Callable[[int, str], None]) -> pa.RecordBatch:
    """Return the rows that fit a schema, and report the others.

    Args:
        table: The rows as they were read. Columns that the schema does not name are dropped.
        schema: The declared columns and types.
        report: Called with position and reason for each row that does not fit, in order.
    """
    batch, reasons = convert_rows(table, schema)
    if not reasons:
        return batch
    for at, reason in sorted(reasons.items()):
        report(at, reason)
    fits = np.ones(batch.num_rows, np.bool_)
    fits[list(reasons)] = False
    return batch.filter(pa.array(fits))


def convert_rows(table: pa.Table, schema: Schema) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return a table in the declared columns and types, and the reason per position that does not fit."""
    arrays = []
    reasons: dict[int, str] = {}
    for f in schema:
        column = one_array(table.column(find_column(f.name, table.column_names, schema.stream)))
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        array, wrong = convert(column, f)
        arrays.append(array)
        for row in np.flatnonzero(wrong):
            reasons.setdefault(int(row), misfit(column[row].as_py(), f))
    return pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow()), reasons


def misfit(value: Any, field: Field, shown: str | None = None) -> str:
    """Say that a value is not of a field's type. `shown` is the value as it stood, if it is not a text."""
    if shown is None:
        shown = repr(value) if isinstance(value, str) else str(value)
    if len(shown) > _MOST_SHOWN:
        shown = shown[: _MOST_SHOWN - 1] + "…"
    return f"{shown} in column '{field.name}' is not {field.type}"


def find_column(name: str, given: list[str], stream: str) -> str:
    """Find a column by its name; another case of letters will do if only one column has it."""
    found = [n for n in given if n == name] or [n for n in given if n.casefold() == name.casefold()]
    if len(found) != 1:
        hint = suggest(name, given)
        raise SchemaError(f"{stream} input has no column '{name}' ({', '.join(given)}){hint}")
    return found[0]


def convert(array: pa.Array, field: Field) -> tuple[pa.Array, Any]:
    """Return the values in the type of a field, and a mask of those that do not fit it."""
    array, wrong = _cast_each(array, arrow_of(field.type))
    if isinstance(field.type, String) and field.type.length is not None:
        too_long = pc.greater(pc.binary_length(array), field.type.length)
        wrong = wrong | np.asarray(pc.fill_null(too_long, False))
    return array, wrong


def _cast_each(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Any]:
    """Cast all values at once, or else by halves, and so find those that cannot be cast."""
    try:
        return _cast(array, kind), np.zeros(len(array), np.bool_)
    except pa.ArrowInvalid:
        if len(array) < 2:
            return pa.nulls(len(array), kind), np.ones(len(array), np.bool_)
    except pa.ArrowNotImplementedError:
        raise SchemaError(f"a column of {array.type} cannot be read as {kind}") from None
    middle = len(array) // 2
    halves = [_cast_each(part, kind) for part in (array[:middle], array[middle:])]
    return pa.concat_arrays([part for part, _ in halves]), np.concatenate([wrong for _, wrong in halves])


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if pa.types.is_string(array.type) and pa.types.is_decimal(kind):
        array = _cast_exactly(array, kind)
    if pa.types.is_string(array.type) and pa.types.is_timestamp(kind):
        try:
            return array.cast(kind)
        except pa.ArrowInvalid:  # texts with an offset from UTC become instants
            return array.cast(pa.timestamp(kind.unit, "UTC")).view(pa.int64()).view(kind)
    return array.cast(kind)


def _cast_exactly(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast texts to decimals.

    Arrow moves the point without a check that the digits still fit 128 bits. So texts that are long, or have
    an exponent, take the way over 256 bits.
    """
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest + kind.scale > DIGITS or pc.any(pc.match_substring(texts, "e", ignore_case=True)).as_py():
        texts = texts.cast(WIDEST)
    return texts.cast(kind)
