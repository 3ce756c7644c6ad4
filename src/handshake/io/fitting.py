"""Rows in the columns and types of a declared schema: those that do not fit are put aside, with reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import InputError, SchemaError, suggest
from handshake.io.files import one_line
from handshake.schema import Schema, String, arrow_of

__all__ = ["BAD", "Aside", "BadRows", "Part", "declared", "fitted", "typed"]

BAD = pa.schema(
    [("stream", pa.string()), ("row", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)
"""What is kept of a bad row: its stream, its number (from 1, a header not counted), why, and what it held."""
_MOST_TEXT = 500


@dataclass
class BadRows:
    """Rows that did not fit, only counted unless `kept`; with `strict`, the first one is an error."""

    strict: bool = False
    kept: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    def add(self, stream: str, row: int, reason: str, text: str) -> None:
        """Put one aside."""
        if self.strict:
            raise InputError(f"{stream} input, row {row}: {reason}")
        self.count += 1
        if self.kept:
            self.rows.append(
                {"stream": stream, "row": row, "reason": reason, "text": one_line(text, _MOST_TEXT)}
            )

    def taken(self) -> pa.RecordBatch:
        """What has come since the last time."""
        batch = pa.RecordBatch.from_pylist(self.rows, schema=BAD)
        self.rows = []
        return batch


class Aside(Protocol):
    """Where rows that do not fit are told of."""

    def add(self, stream: str, row: int, reason: str, text: str) -> None: ...


@dataclass(frozen=True)
class Part:
    """Rows of one of a folder's files: numbered among all of the folder, and told where they are."""

    bad: Aside
    file: str
    before: int
    """Rows of the files before it."""

    def add(self, stream: str, row: int, reason: str, text: str) -> None:
        """Put one aside."""
        self.bad.add(stream, self.before + row, f"{reason} (row {row} of '{self.file}')", text)


def declared(schema: Schema) -> pa.Schema:
    """A schema as Arrow has it."""
    return pa.schema([(f.name, arrow_of(f.type)) for f in schema])


def fitted(
    table: pa.Table, schema: Schema, bad: Aside, number: Callable[[int], int] = lambda at: at + 1
) -> pa.RecordBatch:
    """A table's rows in the declared columns and types, less those that do not fit, by their `number`."""
    batch, reasons = typed(table, schema)
    if not reasons:
        return batch
    for at, reason in sorted(reasons.items()):
        bad.add(schema.stream, number(at), reason, str(table.slice(at, 1).to_pylist()[0]))
    stays = np.ones(batch.num_rows, np.bool_)
    stays[list(reasons)] = False
    return batch.filter(pa.array(stays))


def typed(table: pa.Table, schema: Schema, *, mixed: bool = False) -> tuple[pa.RecordBatch, dict[int, str]]:
    """A table's rows in the declared columns and types, and why rows do not fit, by their places.

    Of a column whose type has no values in the declared one no row fits, if rows of other types are beside
    it (`mixed`); else that is an error of the whole.
    """
    arrays = []
    reasons: dict[int, str] = {}
    for f in schema:
        column = _whole(table.column(_named(f.name, table.column_names, schema.stream)))
        array, wrong = _converted(column, arrow_of(f.type), mixed=mixed)
        if isinstance(f.type, String) and f.type.length is not None:
            wrong = wrong | _too_long(array, f.type.length)
        arrays.append(array)
        for row in np.flatnonzero(wrong):
            reasons.setdefault(int(row), f"{column[row].as_py()!r} in column '{f.name}' is not {f.type}")
    return pa.RecordBatch.from_arrays(arrays, schema=declared(schema)), reasons


def _named(name: str, given: list[str], stream: str) -> str:
    """A column by its name, in any case where that is unambiguous."""
    found = [n for n in given if n == name] or [n for n in given if n.casefold() == name.casefold()]
    if len(found) != 1:
        hint = suggest(name, given)
        raise SchemaError(f"{stream} input has no column '{name}' ({', '.join(given)}){hint}")
    return found[0]


def _whole(column: pa.ChunkedArray) -> pa.Array:
    made = column.combine_chunks()
    if isinstance(made, pa.ChunkedArray):
        made = pa.concat_arrays(made.chunks) if made.num_chunks else pa.array([], made.type)
    return made.dictionary_decode() if pa.types.is_dictionary(made.type) else made


def _converted(array: pa.Array, kind: pa.DataType, *, mixed: bool) -> tuple[pa.Array, Any]:
    """Values in another type, and which of them have none there."""
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
    values = [_one(array.slice(at, 1), kind) for at in range(len(array))]
    wrong = np.array([value is None for value in values])
    return pa.concat_arrays([pa.nulls(1, kind) if v is None else v for v in values]), wrong


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(array.type) and pa.types.is_decimal(kind):
        array = array.cast(pa.decimal128(38, max(kind.scale, 9)))
    if pa.types.is_string(array.type) and pa.types.is_timestamp(kind):
        return _timestamps(array, kind)
    if pa.types.is_floating(array.type) and pa.types.is_integer(kind):
        return array.cast(kind, safe=True)
    return array.cast(kind)


def _timestamps(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times as they are written; of those with an offset from UTC, which Arrow reads apart, the instant."""
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp(kind.unit, "UTC")).view(pa.int64()).view(kind)


def _one(value: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return _cast(value, kind)
    except pa.ArrowInvalid:
        return None


def _too_long(array: pa.Array, length: int) -> Any:
    return np.asarray(pc.fill_null(pc.greater(pc.binary_length(array), length), False))
