"""Files read by a declared schema: rows that do not fit it are put aside, each with the reason."""

from __future__ import annotations

import bisect
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from handshake.errors import HandshakeError, InputError, SchemaError
from handshake.io.files import Format, check_bytes, data_files, format_of, one_line, read
from handshake.io.fitting import BAD, Aside, BadRows, Part, declared, fitted, typed
from handshake.io.objects import read_objects
from handshake.io.standard_input import piped, whole_rows
from handshake.io.text import header_only
from handshake.schema import Schema

__all__ = ["BAD", "BadRows", "fitted", "read_declared", "read_standard_input"]


class _HeaderAlone(InputError):
    """A file of names without the end of a line, which Arrow does not take for a header."""


def read_declared(path: str | Path, schema: Schema, bad: BadRows) -> pa.Table:
    """A file or folder, in the columns and types of a schema; columns that it does not name are left out.

    `-` is all of standard input.
    """
    if path == "-":
        return pa.Table.from_batches(read_standard_input(schema, bad), declared(schema))
    place = Path(path)
    batches = _read_folder(place, schema, bad) if place.is_dir() else _read_file(place, schema, bad)[0]
    return pa.Table.from_batches(batches, declared(schema))


def _read_folder(folder: Path, schema: Schema, bad: BadRows) -> list[pa.RecordBatch]:
    """Each file by itself, so that what does not fit in one of them is a bad row and no other type."""
    batches: list[pa.RecordBatch] = []
    before = 0
    for path in data_files(folder, schema.stream):
        try:
            found, rows = _read_file(path, schema, Part(bad, path.name, before))
        except SchemaError as error:
            raise SchemaError(f"{error} (in '{path}')") from None
        batches += found
        before += rows
    return batches


def _read_file(path: Path, schema: Schema, bad: Aside) -> tuple[list[pa.RecordBatch], int]:
    """Rows that fit, and how many there were."""
    form = format_of(path)
    if form.kind == "CSV":
        return _read_csv(path, form, schema, bad)
    try:
        table = read(path, schema.stream)
    except InputError:
        if form.kind != "JSON lines" or not path.is_file():
            raise
        batch, rows = read_objects(path, form.compression, schema, bad)
        if batch is None:
            raise
        return [batch], rows
    return [fitted(table, schema, bad)], table.num_rows


def _read_csv(path: Path, form: Format, schema: Schema, bad: Aside) -> tuple[list[pa.RecordBatch], int]:
    batches: list[pa.RecordBatch] = []

    try:
        with _opened(path, schema.stream, form.compression) as source:
            parts = _csv_batches(source, form.delimiter, schema, bad)
            while True:
                try:
                    batches.append(next(parts))
                except StopIteration as end:
                    return batches, end.value
    except _HeaderAlone:
        return [fitted(header_only(path, form.delimiter, form.compression), schema, bad)], 0


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


def _csv_batches(
    source: Any, delimiter: str, schema: Schema, bad: Aside, row: int = 0
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
        typed(reader.schema.empty_table(), schema)  # a header without rows has to have all columns as well
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
