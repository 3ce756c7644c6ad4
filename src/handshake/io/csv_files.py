"""CSV: files with inferred types, files and standard input by a declared schema, and output."""

from __future__ import annotations

import bisect
import contextlib
import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from handshake.errors import HandshakeError, InputError
from handshake.io.declared import convert_rows, fit_rows
from handshake.io.formats import AddBadRow, FileFormat, Rows, one_line
from handshake.schema import BINARY, STRING, Schema, type_from_arrow

__all__ = [
    "CSV",
    "TSV",
    "CsvWriter",
    "exact_whole_numbers",
    "read_in_blocks",
    "read_standard_input",
    "split_rows",
]

Types = dict[str, pa.DataType]

BLOCKS = (1 << 20, 1 << 24, 1 << 28, (1 << 31) - 1)
"""Bytes parsed at a time. A row that is longer needs the next size."""
_BEYOND_INT64 = 2.0**63
_WHOLE = (pa.uint64(), pa.decimal128(38, 0))
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}


# Files with inferred types.


def _read(delimiter: str, path: Path, compression: str | None) -> pa.Table:
    """Read delimited text with a header. An empty field is NULL, a quoted empty field an empty text."""
    parse = partial(_parse, path, delimiter, compression)
    table = parse({})
    if table.num_columns == 1:  # here a blank line is a row whose only value is NULL
        parse = partial(parse, blank_is_row=True)
        table = parse({})
    table = exact_whole_numbers(table, parse)
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise InputError(
                f"column '{field.name}' of '{path}' is not UTF-8 text; convert the file to UTF-8"
            )
    return table


def _parse(
    path: Path, delimiter: str, compression: str | None, types: Types, blank_is_row: bool = False
) -> pa.Table:
    parsing = csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=not blank_is_row
    )
    converting = csv.ConvertOptions(column_types=types, **_NULLS)

    def parse(block: int, threads: bool = True) -> pa.Table:
        reading = csv.ReadOptions(block_size=block, use_threads=threads)
        with pa.input_stream(str(path), compression=compression) as stream:
            return csv.read_csv(stream, reading, parsing, converting)

    try:
        return read_in_blocks(parse)
    except pa.ArrowInvalid as error:
        if "columns, got" in str(error):
            raise _ragged_row(path, parse) from error
        if "cannot infer number of columns" in str(error) or "Empty CSV" in str(error):
            return _read_header(path, delimiter, compression)
        raise


def _ragged_row(path: Path, parse: Callable[..., pa.Table]) -> InputError:
    """Parse again without threads, because only then Arrow knows the row's number."""
    try:
        read_in_blocks(partial(parse, threads=False))
    except pa.ArrowInvalid as error:
        found = _RAGGED.search(str(error))
        if found:
            row, expected, got = found.groups()
            return InputError(
                f"'{path}', row {row} (the header is row 1): {got} fields where the header has {expected}; "
                "correct the row, or quote a field that holds the delimiter"
            )
    return InputError(f"'{path}' has a row with more or fewer fields than the header")


def _read_header(path: Path, delimiter: str, compression: str | None) -> pa.Table:
    """Read a file that is a header without a line break, which Arrow refuses."""
    with pa.input_stream(str(path), compression=compression) as stream:
        header = stream.read(1 << 20)
    if not header.strip():
        raise InputError(f"'{path}' is empty: it has no header line")
    return csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=csv.ParseOptions(delimiter=delimiter))


def exact_whole_numbers(table: pa.Table, parse: Callable[[Types], pa.Table]) -> pa.Table:
    """Parse again with exact types if whole numbers beyond 64 bits were inferred as floats."""

    def exact_type(name: str) -> Types:
        for kind in _WHOLE:
            with contextlib.suppress(pa.ArrowInvalid):
                parse({name: kind})
                return {name: kind}
        return {}

    types: Types = {}
    for place, field in enumerate(table.schema):
        if pa.types.is_float64(field.type):
            column = table.column(place)  # names may come twice; the caller refuses that
            largest = pc.max(pc.abs(column.filter(pc.is_finite(column)))).as_py()
            if largest is not None and largest >= _BEYOND_INT64:
                types |= exact_type(field.name)
    return parse(types) if types else table


def read_in_blocks(parse: Callable[[int], pa.Table]) -> pa.Table:
    """Parse with the smallest block that holds the longest row."""
    for block in BLOCKS[:-1]:
        try:
            return parse(block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
    return parse(BLOCKS[-1])


# Files and standard input by a declared schema.


class _HeaderAlone(InputError):
    """A header without a line break, which Arrow does not accept."""


def _read_declared(
    delimiter: str, path: Path, compression: str | None, schema: Schema, add_bad: AddBadRow
) -> Rows:
    batches: list[pa.RecordBatch] = []
    try:
        with pa.input_stream(str(path), compression=compression) as source:
            parts = _parse_declared(source, delimiter, schema, add_bad)
            while True:
                try:
                    batches.append(next(parts))
                except StopIteration as end:
                    return batches, end.value
    except _HeaderAlone:
        pass
    try:
        header = _read_header(path, delimiter, compression)
        return [fit_rows(header, schema, add_bad)], 0
    except UnicodeDecodeError:
        raise _not_utf8(schema) from None
    except pa.ArrowInvalid as error:
        raise InputError(f"{schema.stream} input cannot be read as CSV: {one_line(error)}") from None


def _not_utf8(schema: Schema) -> InputError:
    return InputError(f"{schema.stream} input is not UTF-8 text; convert it to UTF-8")


def _parse_declared(
    source: Any, delimiter: str, schema: Schema, add_bad: AddBadRow, row: int = 0
) -> Generator[pa.RecordBatch, None, int]:
    """Parse all fields as text, then convert them by their declared types.

    `row` rows came before these. Returns the number of rows up to the end.
    """
    good = 0
    ragged_after: list[int] = []  # per ragged row, the number of good rows before it
    refused: list[HandshakeError] = []

    def number(at: int) -> int:  # of a row in the next batch
        return row + good + at + 1 + bisect.bisect_right(ragged_after, good + at)

    def skip_ragged(invalid: Any) -> str:
        reason = f"{invalid.actual_columns} fields where the header has {invalid.expected_columns}"
        at = max(0, (invalid.number or 1) - 2)
        ragged_after.append(at - len(ragged_after))
        try:
            add_bad(schema.stream, row + at + 1, reason, invalid.text)
        except InputError as error:  # cannot pass through Arrow's code
            refused.append(error)
            return "error"
        return "skip"

    types = {f.name: pa.string() for f in schema}
    try:
        reader = csv.open_csv(
            source,
            csv.ReadOptions(use_threads=False),
            csv.ParseOptions(delimiter=delimiter, invalid_row_handler=skip_ragged, newlines_in_values=True),
            csv.ConvertOptions(column_types=types, check_utf8=True, **_NULLS),
        )
        convert_rows(reader.schema.empty_table(), schema)  # check the columns even if no row follows
        for batch in reader:
            yield fit_rows(pa.Table.from_batches([batch]), schema, add_bad, number)
            good += batch.num_rows
        return row + good + len(ragged_after)
    except UnicodeDecodeError:  # the names of columns
        raise _not_utf8(schema) from None
    except pa.ArrowInvalid as error:
        if refused:
            raise refused[0] from None
        if "cannot infer number of columns" in str(error):
            raise _HeaderAlone(f"{schema.stream} input has a header without end") from None
        raise InputError(f"{schema.stream} input cannot be read as CSV: {one_line(error)}") from None


_MOST = 1 << 20
_LONGEST = 1 << 24
_QUOTED = rb'"(?:[^"]|"")*+"[^,\r\n]*+'
_FIELD = rb"(?:" + _QUOTED + rb'|(?!")[^,\r\n]*+)'
_ROW = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+(?:\r?\n|\r(?=.))", re.DOTALL)
"""A row and its line break. A CR at the very end may be half of a line break, so it waits for more bytes."""


def read_standard_input(
    schema: Schema, add_bad: AddBadRow, read: Callable[[], bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of CSV on standard input as they arrive.

    Args:
        schema: The declared columns and types.
        add_bad: Called for each row that does not fit.
        read: Reads the next bytes, none at the end; standard input by default.
    """
    row = None
    for piece in split_rows(read or _standard_input()):
        row = yield from _parse_declared(pa.BufferReader(piece), ",", schema, add_bad, row or 0)
    if row is None:
        raise InputError(f"standard input is empty; stream {schema.stream} needs a header at least")


def _standard_input() -> Callable[[], bytes]:
    """Return a function that reads the descriptor of standard input directly.

    A thread that waits there may outlive the run after Ctrl-C. If it waited inside Python's buffer or Arrow's
    reader, the interpreter would crash at its exit.
    """
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # not a file, as in a notebook
        return lambda: sys.stdin.buffer.readline(_MOST)
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not a pipe, or not Linux
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _MOST)
    return lambda: os.read(descriptor, _MOST)


def split_rows(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield pieces of whole rows, each with the header in front; nothing if there is no header."""
    header, rest, any_rows = b"", b"", False
    for text in iter(read, b""):
        rest += text
        while not header.strip() and (first := _ROW.match(rest)):
            header, rest = first.group(), rest[first.end() :]
        end = _end_of_rows(rest) if header.strip() else 0
        whole, rest = rest[:end], rest[end:]
        if whole:
            yield header + whole
            any_rows = True
        if len(rest) > _LONGEST:
            raise InputError(
                f"standard input has a row of more than {_LONGEST >> 20} MiB; is a quote left open before it?"
            )
    if (header + rest).strip() and (rest or not any_rows):
        yield header + rest if header.strip() else rest + b"\n"


def _end_of_rows(text: bytes) -> int:
    """Find the end of the last whole row. A line break between quotes is part of a field."""
    if b'"' not in text:
        return max(text.rfind(b"\n"), text.rfind(b"\r", 0, len(text) - 1)) + 1
    end = 0
    while row := _ROW.match(text, end):
        end = row.end()
    return end


# Output.

_TYPED = "use .parquet or .arrow"


class CsvWriter:
    """Delimited text with a header. Texts are quoted, NULL is an empty field."""

    def __init__(self, stream: Any, schema: pa.Schema, delimiter: str = ",") -> None:
        self._schema = pa.schema([(field.name, _written_type(field)) for field in schema])
        options = csv.WriteOptions(delimiter=delimiter)
        self._writer = csv.CSVWriter(stream, self._schema, write_options=options)

    def write_table(self, table: pa.Table) -> None:
        arrays = []
        for field in self._schema:
            column = table.column(field.name)
            try:
                arrays.append(column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"column '{field.name}' ({column.type}) holds bytes that are not UTF-8 text, "
                    f"which CSV cannot hold; {_TYPED}"
                ) from error
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _written_type(field: pa.Field) -> pa.DataType:
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if type_from_arrow(kind) in (STRING, BINARY) and not pa.types.is_string(kind):
        return pa.large_string()
    try:
        csv.write_csv(pa.table([pa.nulls(1, kind)], names=["x"]), pa.BufferOutputStream())
    except pa.ArrowException:
        raise InputError(
            f"column '{field.name}' ({field.type}) cannot be written as CSV, "
            f"which has no nested values; {_TYPED}"
        ) from None
    return kind


def _delimited_text(suffix: str, delimiter: str) -> FileFormat:
    return FileFormat(
        kind="CSV",
        suffixes=(suffix,),
        read=partial(_read, delimiter),
        open_writer=partial(CsvWriter, delimiter=delimiter),
        is_text=True,
        read_declared=partial(_read_declared, delimiter),
    )


CSV, TSV = _delimited_text(".csv", ","), _delimited_text(".tsv", "\t")
