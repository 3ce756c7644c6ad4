"""CSV and JSON lines: formats that carry no types, so that these are inferred from all rows of a file."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import json as arrow_json

from handshake.errors import InputError

__all__ = ["header_only", "json_lines", "read_csv", "read_json"]

_BLOCKS = (1 << 20, 1 << 24, 1 << 28, (1 << 31) - 1)
"""Bytes parsed at a time; a row longer than that asks for the next size."""

_BEYOND_INT64 = 2.0**63
_WHOLE = (pa.uint64(), pa.decimal128(38, 0))
_STAMPS = (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
_LOOKS_LIKE_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", re.DOTALL)
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_BLANK = b" \t\r\n\xef\xbb\xbf"
"""What may stand before the first value: white space, and the mark of UTF-8."""
_NULL_LINE = re.compile(rb"\n[ \t\r\n\xef\xbb\xbf]*null")
_TWICE = re.compile(r"Column\(/?(.*?)\) was specified twice")
_CHANGED = re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+)")

Types = dict[str, pa.DataType]


def read_csv(path: Path, delimiter: str, compression: str | None) -> pa.Table:
    """Read delimited text with a header. An empty field is NULL, a quoted empty one an empty text."""
    parse = partial(_parse_csv, path, delimiter, compression)
    table = parse({})
    if table.num_columns == 1:  # here a blank line is a row whose only value is NULL
        parse = partial(parse, blank_is_row=True)
        table = parse({})
    return _checked_text(_exact_whole_numbers(table, parse), path)


def _parse_csv(
    path: Path, delimiter: str, compression: str | None, types: Types, blank_is_row: bool = False
) -> pa.Table:
    parsing = csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=not blank_is_row
    )
    converting = csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )

    def parse(block: int, threads: bool = True) -> pa.Table:
        reading = csv.ReadOptions(block_size=block, use_threads=threads)
        with pa.input_stream(str(path), compression=compression) as stream:
            return csv.read_csv(stream, reading, parsing, converting)

    try:
        return _in_blocks(parse)
    except pa.ArrowInvalid as error:
        if "columns, got" in str(error):
            raise _ragged(path, parse) from error
        if "cannot infer number of columns" in str(error) or "Empty CSV" in str(error):
            return header_only(path, delimiter, compression)
        raise


def _ragged(path: Path, parse: Callable[..., pa.Table]) -> InputError:
    """An error that names the row: only a parse without threads knows its number."""
    try:
        _in_blocks(partial(parse, threads=False))
    except pa.ArrowInvalid as error:
        found = _RAGGED.search(str(error))
        if found:
            row, expected, got = found.groups()
            return InputError(
                f"'{path}', row {row} (the header is row 1): {got} fields where the header has {expected}; "
                "correct the row, or quote a field that holds the delimiter"
            )
    return InputError(f"'{path}' has a row with more or fewer fields than the header")


def header_only(path: Path, delimiter: str, compression: str | None) -> pa.Table:
    """A header that no line break follows."""
    with pa.input_stream(str(path), compression=compression) as stream:
        header = stream.read(1 << 20)
    if not header.strip():
        raise InputError(f"'{path}' is empty: it has no header line")
    return csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=csv.ParseOptions(delimiter=delimiter))


def _checked_text(table: pa.Table, path: Path) -> pa.Table:
    for field in table.schema:
        if pa.types.is_binary(field.type):
            raise InputError(
                f"column '{field.name}' of '{path}' is not UTF-8 text; convert the file to UTF-8"
            )
    return table


def read_json(path: Path, compression: str | None, lines: bytes | None = None) -> pa.Table:
    """Read one JSON object per line; a key that a line lacks is NULL there. `lines`: those to be read."""
    if lines is None and _has_null_line(path, compression):
        lines = _without_null(path, compression)
    parse = partial(_parse_json, path, compression, lines)
    table = parse({})
    names = table.column_names
    # Inference takes '…+02:00' for a time without a zone: read such columns as text and look closer.
    stamps = {field.name: pa.string() for field in table.schema if pa.types.is_timestamp(field.type)}
    if stamps:
        table = parse(stamps)
    table = _exact_whole_numbers(table, lambda types: parse({**stamps, **types}))
    return _with_times(table.select(names))


def _parse_json(path: Path, compression: str | None, lines: bytes | None, types: Types) -> pa.Table:
    parsing = arrow_json.ParseOptions(explicit_schema=pa.schema(list(types.items())))

    def parse(block: int) -> pa.Table:
        whole = (
            pa.input_stream(str(path), compression=compression) if lines is None else pa.BufferReader(lines)
        )
        with whole as stream:
            return arrow_json.read_json(stream, arrow_json.ReadOptions(block_size=block), parsing)

    try:
        return _in_blocks(parse)
    except pa.ArrowInvalid as error:
        raise _bad_line(path, compression) or _bad_column(path, str(error)) or error from error


def _has_null_line(path: Path, compression: str | None) -> bool:
    """Whether a line begins with null: a block that does so ends the process in Arrow's parser."""
    with pa.input_stream(str(path), compression=compression) as stream:
        rest = b"\n"
        while block := stream.read(_BLOCKS[0]):
            text = rest + block
            if _NULL_LINE.search(text):
                return True
            last = text[text.rfind(b"\n") :]
            rest = last if b"null".startswith(last.strip(_BLANK)) else b""
    return False


def _without_null(path: Path, compression: str | None) -> bytes:
    """The lines of a file, those that are null as objects without keys, which are the same to us."""
    lines = []
    for number, (line, found) in enumerate(json_lines(path, compression), 1):
        if found is None:
            raise _no_object(path, number)
        if line.strip():
            lines.append(line.strip() if found else b"{}")
    return b"\n".join(lines) + b"\n"


def _no_object(path: Path, number: int) -> InputError:
    return InputError(f"'{path}', line {number} is not a JSON object; write one object per line")


def _bad_line(path: Path, compression: str | None) -> InputError | None:
    """An error that names the first line that is no JSON object, if there is one."""
    for number, (_, found) in enumerate(json_lines(path, compression), 1):
        if found is None:
            return _no_object(path, number)
    return None


def json_lines(path: Path, compression: str | None) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """The lines of a file, each with its object: an empty one of null or a blank line, None of no object."""
    with pa.input_stream(str(path), compression=compression) as stream:
        for line in io.BufferedReader(stream):
            yield line, _object(line)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else {} if found is None else None


def _bad_column(path: Path, message: str) -> InputError | None:
    if found := _TWICE.search(message):
        return InputError(f"'{path}' has a line with the key '{found[1]}' twice; rename one of them")
    if found := _CHANGED.search(message):
        column, before, after = found.groups()
        return InputError(
            f"column '{column}' of '{path}' changes from {before} to {after}; a column has values of one type"
        )
    return None


def _with_times(table: pa.Table) -> pa.Table:
    """Give columns of ISO dates and times their type, as reading CSV does."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(at, field.name, _as_time(table.column(at)))
    return table


def _as_time(column: pa.ChunkedArray) -> pa.ChunkedArray:
    sample = next((value.as_py() for value in column if value.is_valid), "")
    if not _LOOKS_LIKE_TIME.fullmatch(sample):
        return column
    for kind in _STAMPS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column


def _exact_whole_numbers(table: pa.Table, parse: Callable[[Types], pa.Table]) -> pa.Table:
    """Whole numbers beyond 64 bits are inferred as floats, which would round them: ask for exact types."""
    types: Types = {}
    for field in table.schema:
        if pa.types.is_float64(field.type) and _is_huge(table.column(field.name)):
            types |= _fitting(field.name, parse)
    return parse(types) if types else table


def _is_huge(column: pa.ChunkedArray) -> bool:
    finite = column.filter(pc.is_finite(column))
    largest = pc.max(pc.abs(finite)).as_py()
    return largest is not None and largest >= _BEYOND_INT64


def _fitting(name: str, parse: Callable[[Types], pa.Table]) -> Types:
    for kind in _WHOLE:
        try:
            parse({name: kind})
            return {name: kind}
        except pa.ArrowInvalid:
            continue
    return {}


def _in_blocks(parse: Callable[[int], pa.Table]) -> pa.Table:
    """Parse with the smallest block that holds the longest row."""
    for block in _BLOCKS[:-1]:
        try:
            return parse(block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
    return parse(_BLOCKS[-1])
