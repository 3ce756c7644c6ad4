"""JSON lines: files with inferred types, files by a declared schema, and output."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

from handshake.errors import InputError
from handshake.io.csv_files import BLOCKS, Types, exact_whole_numbers, read_in_blocks
from handshake.io.declared import arrow_schema, convert_rows
from handshake.io.formats import AddBadRow, FileFormat, Rows
from handshake.schema import Schema, concat_batches

__all__ = ["JSON_LINES", "JsonWriter"]

_STAMPS = (pa.date32(), pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns", "UTC"))
_LOOKS_LIKE_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", re.DOTALL)
_BLANK = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may come before the first value: white space and the UTF-8 mark."""
_NULL_LINE = re.compile(rb"\n[ \t\r\n\xef\xbb\xbf]*null")
_TWICE = re.compile(r"Column\(/?(.*?)\) was specified twice")
_CHANGED = re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+)")

Line = tuple[int, bytes]
"""The number and the text of a line."""


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
    for number, (_, found) in enumerate(_objects(path, compression), 1):
        if found is None:
            return _no_object(path, number)
    if twice := _TWICE.search(message):
        return InputError(f"'{path}' has a line with the key '{twice[1]}' twice; rename one of them")
    if changed := _CHANGED.search(message):
        column, before, after = changed.groups()
        return InputError(
            f"column '{column}' of '{path}' changes from {before} to {after}; a column has values of one type"
        )
    return None


def _no_object(path: Path, number: int) -> InputError:
    return InputError(f"'{path}', line {number} is not a JSON object; write one object per line")


def _has_null_line(path: Path, compression: str | None) -> bool:
    """Find a line that begins with null: Arrow's parser ends the process at a block that begins so."""
    with pa.input_stream(str(path), compression=compression) as stream:
        rest = b"\n"
        while block := stream.read(BLOCKS[0]):
            text = rest + block
            if _NULL_LINE.search(text):
                return True
            last = text[text.rfind(b"\n") :]
            rest = last if b"null".startswith(last.strip(_BLANK)) else b""
    return False


def _without_null_lines(path: Path, compression: str | None) -> bytes:
    """Return the file with an empty object for each line that is null, which means the same."""
    lines = []
    for number, (line, found) in enumerate(_objects(path, compression), 1):
        if found is None:
            raise _no_object(path, number)
        if line.strip():
            lines.append(line.strip() if found else b"{}")
    return b"\n".join(lines) + b"\n"


def _objects(path: Path, compression: str | None) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """Yield each line with its object: {} for null and for a blank line, None if it is no object."""
    with pa.input_stream(str(path), compression=compression) as stream:
        for line in io.BufferedReader(stream):
            try:
                found = json.loads(line) if line.strip() else None
            except (ValueError, RecursionError):
                yield line, None
                continue
            yield line, found if isinstance(found, dict) else {} if found is None else None


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


# Files by a declared schema.


@dataclass
class _Lines:
    """The lines of a file, grouped by the kinds of their values."""

    groups: dict[frozenset[tuple[str, str]], list[Line]] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    """All keys, in order of appearance."""
    bad: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    """Reason and text of the lines that do not fit, by line number."""
    count: int = 0


def _salvage(path: Path, compression: str | None, schema: Schema, add_bad: AddBadRow) -> Rows | None:
    """Read a file that Arrow cannot read as a whole, since a column there has values of one type only.

    Lines whose values are of the same kinds are read together. Lines that do not fit are reported.
    """
    lines = _group_lines(path, compression)
    if not lines.names and not lines.bad:
        return None
    parts = list(_convert_groups(path, lines, schema))
    if not lines.bad and len(lines.groups) < 2:
        return None
    for number, (reason, line) in sorted(lines.bad.items()):
        add_bad(schema.stream, number, reason, line.decode(errors="replace"))
    return [_in_file_order(parts, lines, schema)], lines.count


def _group_lines(path: Path, compression: str | None) -> _Lines:
    lines = _Lines()
    for number, (line, found) in enumerate(_objects(path, compression), 1):
        lines.count = number
        if found is None:
            lines.bad[number] = ("the line is not a JSON object", line)
        elif line.strip():
            lines.names |= dict.fromkeys(found)
            kinds = ((name, type(value).__name__) for name, value in found.items() if value is not None)
            group = frozenset((name, "float" if kind == "int" else kind) for name, kind in kinds)
            lines.groups.setdefault(group, []).append((number, line.strip() if found else b"{}"))
    return lines


def _convert_groups(path: Path, lines: _Lines, schema: Schema) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """Yield the rows of lines that are read together with their line numbers; note bad lines."""
    for group in lines.groups.values():
        for some, table in _read_group(path, group, lines):
            numbers = [number for number, _ in some]
            batch, reasons = convert_rows(_add_columns(table, lines, len(some)), schema, mixed=True)
            lines.bad |= {numbers[at]: (reason, some[at][1]) for at, reason in reasons.items()}
            yield numbers, batch


def _read_group(path: Path, group: list[Line], lines: _Lines) -> Iterator[tuple[list[Line], pa.Table]]:
    """Yield the group as one table, or else line by line without those that Arrow cannot read."""
    try:
        yield group, _infer(path, None, b"\n".join(line for _, line in group) + b"\n")
    except (pa.ArrowInvalid, InputError):
        for number, line in group:
            try:
                yield [(number, line)], _infer(path, None, line + b"\n")
            except (pa.ArrowInvalid, InputError):
                lines.bad[number] = ("the line cannot be read as a JSON object", line)


def _add_columns(table: pa.Table, lines: _Lines, rows: int) -> pa.Table:
    """Add a column of NULLs for each key of the file that these lines lack."""
    if table.num_columns == 0:
        return pa.table({name: pa.nulls(rows) for name in lines.names})
    for name in lines.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(rows))
    return table


def _in_file_order(
    parts: Sequence[tuple[list[int], pa.RecordBatch]], lines: _Lines, schema: Schema
) -> pa.RecordBatch:
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=arrow_schema(schema))
    numbers = np.concatenate([np.array(some) for some, _ in parts])
    order = np.argsort(numbers)
    order = order[[number not in lines.bad for number in numbers[order].tolist()]]
    whole = concat_batches([batch for _, batch in parts])
    return whole.take(pa.array(order, pa.int64()))


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
    salvage=_salvage,
)
