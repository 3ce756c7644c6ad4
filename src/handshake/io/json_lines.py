"""JSON lines: files with inferred types, files by a declared schema, and output."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import json as arrow_json

from handshake.errors import InputError
from handshake.io.csv_files import BLOCKS, Types, exact_whole_numbers, read_in_blocks
from handshake.io.formats import FileFormat
from handshake.io.json_declared import BLANK, NULL_LINE, parse_line, read_declared

_STAMPS = (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
_LOOKS_LIKE_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", re.DOTALL)
_TWICE = re.compile(r"Column\(/?(.*?)\) was specified twice")
_CHANGED = re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+)")


# Files with inferred types.


def _read(path: Path, compression: str | None) -> pa.Table:
    """Read one JSON object per line. A key that a line lacks is NULL."""
    if _has_null_line(path, compression):
        return _infer(path, compression, _without_null_lines(path, compression))
    return _infer(path, compression, None)


def _infer(path: Path, compression: str | None, lines: bytes | None) -> pa.Table:
    """Infer the types of `lines`, or of the whole file if that is None."""
    parse = partial(_parse, path, compression, lines)
    table = parse({})
    names = table.column_names
    # Inference takes '…+02:00' for a time without a zone, so such columns are read as text first.
    stamps = {field.name: pa.string() for field in table.schema if pa.types.is_timestamp(field.type)}
    if stamps:
        table = parse(stamps)
    table = exact_whole_numbers(table, lambda types: parse({**stamps, **types})).select(names)
    for at, field_ in enumerate(table.schema):
        if pa.types.is_string(field_.type):
            table = table.set_column(at, field_.name, _as_time(table.column(at)))
    return table


def _parse(path: Path, compression: str | None, lines: bytes | None, types: Types) -> pa.Table:
    parsing = arrow_json.ParseOptions(explicit_schema=pa.schema(list(types.items())))

    def parse(block: int) -> pa.Table:
        whole = (
            pa.input_stream(str(path), compression=compression) if lines is None else pa.BufferReader(lines)
        )
        with whole as stream:
            return arrow_json.read_json(stream, arrow_json.ReadOptions(block_size=block), parsing)

    try:
        return read_in_blocks(parse)
    except pa.ArrowInvalid as error:
        raise _explain(path, compression, str(error)) or error from error


def _explain(path: Path, compression: str | None, message: str) -> InputError | None:
    """Return an error that names the first line or column that Arrow cannot read, if one is to blame."""
    for number, line in enumerate(_lines(path, compression), 1):
        if isinstance(found := parse_line(line), str):
            return _no_object(path, number, found)
    if twice := _TWICE.search(message):
        return InputError(f"'{path}' has a line with the key '{twice[1]}' twice; rename one of them")
    if changed := _CHANGED.search(message):
        column, before, after = changed.groups()
        return InputError(
            f"column '{column}' of '{path}' changes from {before} to {after}; a column has values of one type"
        )
    return None


def _no_object(path: Path, number: int, reason: str) -> InputError:
    remedy = "convert the file to UTF-8" if "UTF-8" in reason else "write one object per line"
    return InputError(f"'{path}', line {number} {reason.removeprefix('the line ')}; {remedy}")


def _has_null_line(path: Path, compression: str | None) -> bool:
    """Find a line that begins with null: Arrow's parser ends the process at a block that begins so."""
    with pa.input_stream(str(path), compression=compression) as stream:
        rest = b"\n"
        while block := stream.read(BLOCKS[0]):
            text = rest + block
            if NULL_LINE.search(text):
                return True
            last = text[text.rfind(b"\n") :]
            rest = last if b"null".startswith(last.strip(BLANK)) else b""
    return False


def _without_null_lines(path: Path, compression: str | None) -> bytes:
    """Return the file with an empty object for each line that is null, which means the same."""
    lines = []
    for number, line in enumerate(_lines(path, compression), 1):
        found = parse_line(line)
        if isinstance(found, str):
            raise _no_object(path, number, found)
        if found is not None:
            lines.append(line.strip() if found else b"{}")
    return b"\n".join(lines) + b"\n"


def _lines(path: Path, compression: str | None) -> Iterator[bytes]:
    with pa.input_stream(str(path), compression=compression) as stream:
        yield from io.BufferedReader(stream)


def _as_time(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert ISO dates and times, as Arrow's CSV reader does; return other texts as they are."""
    sample = next((value.as_py() for value in column if value.is_valid), "")
    if not _LOOKS_LIKE_TIME.fullmatch(sample):
        return column
    for kind in _STAMPS:
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column


# Output.


class JsonWriter:
    """One object per line. Bytes become base64, times ISO text; NaN and Infinity are written as such."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._stream = stream
        self._keys = [json.dumps(name, ensure_ascii=False) for name in schema.names]

    def write_table(self, table: pa.Table) -> None:
        columns = [
            [f"{key}: {value}" for value in _json_values(column)]
            for key, column in zip(self._keys, table.columns, strict=True)
        ]
        lines = "".join(f"{{{', '.join(row)}}}\n" for row in zip(*columns, strict=True))
        self._stream.write(lines.encode())

    def close(self) -> None:
        """Do nothing: nothing follows the last row."""


def json_row(table: pa.Table, at: int) -> str:
    """Return one row of a table as it would be written."""
    stream = io.BytesIO()
    JsonWriter(stream, table.schema).write_table(table.slice(at, 1))
    return stream.getvalue().decode().rstrip("\n")


def _json_values(column: pa.ChunkedArray) -> Iterator[str]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _json_values(column.cast(kind.value_type))
    if pa.types.is_floating(kind):
        return (_json_float(value) for value in column.cast(pa.string()).to_pylist())
    if pa.types.is_decimal(kind):
        return (value or "null" for value in column.cast(pa.string()).to_pylist())
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind) and not pa.types.is_duration(kind):
        column = column.cast(pa.string())
    if pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    return (json.dumps(value, ensure_ascii=False, default=_json_other) for value in column.to_pylist())


_NOT_FINITE = {None: "null", "nan": "NaN", "-nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _json_float(text: str | None) -> str:
    if text is None or text in _NOT_FINITE:
        return _NOT_FINITE[text]
    return text if "." in text or "e" in text else text + ".0"


def _json_other(value: Any) -> str:
    """Write a value that JSON has no form for, alone or nested."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


JSON_LINES = FileFormat(
    kind="JSON lines",
    suffixes=(".jsonl", ".ndjson"),
    aliases=(".jsonlines", ".json-lines", ".json"),
    read=_read,
    open_writer=JsonWriter,
    is_text=True,
    read_declared=read_declared,
)
