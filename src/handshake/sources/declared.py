"""Files read by a declared schema: rows that do not fit it are put aside, each with the reason."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from handshake.errors import HandshakeError, InputError, SchemaError, suggest
from handshake.schema import Schema, String, arrow_of
from handshake.sources.files import Format, check_bytes, format_of, one_line, read
from handshake.sources.standard_input import piped, whole_rows
from handshake.sources.text import header_only, json_lines, read_json

__all__ = ["BAD", "BadRows", "fitted", "read_declared", "read_standard_input"]

BAD = pa.schema(
    [("stream", pa.string()), ("row", pa.int64()), ("reason", pa.string()), ("text", pa.string())]
)
"""What is kept of a bad row: its stream, its number (from 1, a header not counted), why, and what it held."""
_MOST_TEXT = 500


class _HeaderAlone(InputError):
    """A file of names without the end of a line, which Arrow does not take for a header."""


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


def read_declared(path: str | Path, schema: Schema, bad: BadRows) -> pa.Table:
    """A file or folder, in the columns and types of a schema; columns that it does not name are left out.

    `-` is all of standard input.
    """
    stream = schema.stream
    if path == "-":
        return pa.Table.from_batches(read_standard_input(schema, bad), _arrow(schema))
    form = None if Path(path).is_dir() else format_of(path)
    if form is not None and form.kind == "CSV":
        try:
            with _opened(path, stream, form.compression) as source:
                batches = list(_csv_batches(source, form.delimiter, schema, bad))
        except _HeaderAlone:
            batches = [fitted(header_only(Path(path), form.delimiter, form.compression), schema, bad)]
        return pa.Table.from_batches(batches, _arrow(schema))
    try:
        batch = fitted(read(path, stream), schema, bad)
    except InputError:
        found = _json_objects(Path(path), form, schema, bad) if form is not None else None
        if found is None:
            raise
        batch = found
    return pa.Table.from_batches([batch])


def _json_objects(path: Path, form: Format, schema: Schema, bad: BadRows) -> pa.RecordBatch | None:
    """JSON lines less those that are no objects; None where that is not what is wrong with a file."""
    if form.kind != "JSON lines" or not path.is_file():
        return None
    kept, numbers, broken = list[bytes](), list[int](), False
    for number, (line, fine) in enumerate(json_lines(path, form.compression), 1):
        if not fine:
            broken = True
            bad.add(schema.stream, number, "the line is not a JSON object", line.decode(errors="replace"))
        elif line.strip():
            kept.append(line)
            numbers.append(number)
    if not broken:
        return None
    if not kept:
        return pa.RecordBatch.from_pylist([], schema=_arrow(schema))
    table = read_json(path, form.compression, b"".join(kept))
    return fitted(table, schema, bad, numbers.__getitem__)


def _opened(path: str | Path, stream: str, compression: str | None) -> Any:
    try:
        check_bytes(Path(path))
    except InputError as error:
        raise InputError(f"{stream} input: {error}") from error.__cause__
    return pa.input_stream(str(path), compression=compression)


def read_standard_input(schema: Schema, bad: BadRows) -> Iterator[pa.RecordBatch]:
    """CSV from standard input, as it comes."""
    row = None
    for piece in whole_rows(piped()):
        row = yield from _csv_batches(pa.BufferReader(piece), ",", schema, bad, row or 0)
    if row is None:
        raise InputError(f"standard input is empty; stream {schema.stream} needs a header at least")


def _arrow(schema: Schema) -> pa.Schema:
    return pa.schema([(f.name, arrow_of(f.type)) for f in schema])


def _csv_batches(
    source: Any, delimiter: str, schema: Schema, bad: BadRows, row: int = 0
) -> Generator[pa.RecordBatch, None, int]:
    """Batches of text fields, each read by its declared type, where `row` rows came before; how many then."""
    good = 0
    ragged_after: list[int] = []  # how many good rows each has before it
    refused: list[HandshakeError] = []

    def number(at: int) -> int:  # of a row of the batch that comes next
        return row + good + at + 1 + bisect.bisect_right(ragged_after, good + at)

    def ragged(invalid: Any) -> str:
        what = f"{invalid.actual_columns} fields where the header has {invalid.expected_columns}"
        at = max(0, (invalid.number or 1) - 2)
        ragged_after.append(at - len(ragged_after))
        try:
            bad.add(schema.stream, row + at + 1, what, invalid.text)
        except InputError as error:  # it could not get through Arrow's code
            refused.append(error)
            return "error"
        return "skip"

    try:
        reader = csv.open_csv(
            source,
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(
                delimiter=delimiter, invalid_row_handler=ragged, newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(
                column_types={f.name: pa.string() for f in schema}, null_values=[""],
                strings_can_be_null=True, quoted_strings_can_be_null=False,
                include_columns=None, check_utf8=True,
            ),
        )  # fmt: skip
        for batch in reader:
            yield fitted(pa.Table.from_batches([batch]), schema, bad, number)
            good += batch.num_rows
        return row + good + len(ragged_after)
    except pa.ArrowInvalid as error:
        if refused:
            raise refused[0] from None
        if "cannot infer number of columns" in str(error):
            raise _HeaderAlone(f"{schema.stream} input has a header without end") from None
        raise InputError(f"{schema.stream} input cannot be read as CSV: {one_line(error)}") from None


def fitted(
    table: pa.Table, schema: Schema, bad: BadRows, number: Callable[[int], int] = lambda at: at + 1
) -> pa.RecordBatch:
    """A table's rows in the declared columns and types, less those that do not fit, by their `number`."""
    arrays = []
    reasons: dict[int, str] = {}
    for f in schema:
        column = _whole(table.column(_named(f.name, table.column_names, schema.stream)))
        array, wrong = _converted(column, arrow_of(f.type))
        if isinstance(f.type, String) and f.type.length is not None:
            wrong = wrong | _too_long(array, f.type.length)
        arrays.append(array)
        for row in np.flatnonzero(wrong):
            reasons.setdefault(int(row), f"{column[row].as_py()!r} in column '{f.name}' is not {f.type}")
    batch = pa.RecordBatch.from_arrays(arrays, schema=_arrow(schema))
    if not reasons:
        return batch
    for at, reason in sorted(reasons.items()):
        bad.add(schema.stream, number(at), reason, str(table.slice(at, 1).to_pylist()[0]))
    stays = np.ones(batch.num_rows, np.bool_)
    stays[list(reasons)] = False
    return batch.filter(pa.array(stays))


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


def _converted(array: pa.Array, kind: pa.DataType) -> tuple[pa.Array, Any]:
    """Values in another type, and which of them have none there."""
    fine = np.zeros(len(array), np.bool_)
    if array.type == kind:
        return array, fine
    try:
        return _cast(array, kind), fine
    except pa.ArrowInvalid:
        pass
    except pa.ArrowNotImplementedError:
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
