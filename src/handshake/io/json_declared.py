"""JSON lines by a declared schema. A value depends on its own line only, never on the other lines.

Arrow parses the file in pieces of whole lines, with the declared types. It accepts a piece only if all of its
lines fit. Others are cut into smaller ones, and the lines of the smallest are parsed one by one.
"""

from __future__ import annotations

import codecs
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal as Exact
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from handshake.errors import InputError
from handshake.io.declared import WIDEST, convert, convert_rows, find_column, is_utf8, misfit, row_text
from handshake.io.formats import AddBadRow, Rows
from handshake.schema import (
    Binary,
    Bool,
    Date,
    Decimal,
    Field,
    Float,
    Int,
    Schema,
    String,
    Timestamp,
    Type,
    arrow_of,
)

_FIRST, _LAST = 1 << 16, 1 << 24
"""Bytes of the first piece, and of the longest. Each piece is twice as long as the one before."""
_BLOCK = 1 << 20
_PARTS, _SMALLEST = 8, 1 << 16
"""The number of parts of a piece with a line that does not fit, and the size of pieces that are not cut."""
BLANK = b" \t\r\n\xef\xbb\xbf"
"""Bytes that may come before the first value: white space and the UTF-8 mark."""
NULL_LINE = re.compile(rb"\n[%b]*null" % BLANK)
"""A line that begins with null: Arrow's parser ends the process at a block that begins so."""
_NULL_START = re.compile(rb"[%b]*null" % BLANK)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MEETING = re.compile(rb"\}[ \t\r]*(?:\n[ \t\r]*)+(?=\{)")
_BLANK_LINE = re.compile(rb"\n[ \t\r]*(?=\n)")
_DIGITS = re.compile("0|-?[1-9][0-9]*")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NUMERIC = (Int, Float, Decimal)
_MOST_DIGITS = 20
"""Digits of the largest whole number of 64 bits, with its sign."""


def read_declared(path: Path, compression: str | None, schema: Schema, add_bad: AddBadRow) -> Rows:
    """Read a file of JSON lines by a declared schema."""
    keys = _keys(path, compression, schema)
    # A file of bad lines alone has no keys.
    found = [find_column(f.name, list(keys), schema.stream) if keys else f.name for f in schema]
    reader = _Reader(schema, found, add_bad)
    batches = [batch for piece in _pieces(path, compression) for batch in reader.read(piece)]
    if not keys and not reader.bad:
        raise InputError(f"{schema.stream} input: '{path}' has no columns")
    return batches, reader.lines


def _pieces(path: Path, compression: str | None) -> Iterator[bytes]:
    """Yield pieces of whole lines."""
    size, rest = _FIRST, b""
    with pa.input_stream(str(path), compression=compression) as stream:
        while block := stream.read(size):
            end = block.rfind(b"\n") + 1
            if end:
                yield rest + block[:end]
                rest = block[end:]
            else:
                rest += block
            size = min(2 * size, _LAST)
    if rest:
        yield rest


# Keys


def _keys(path: Path, compression: str | None, schema: Schema) -> dict[str, None]:
    """Return the keys of a file, up to the piece in which all declared ones have been seen."""
    keys: dict[str, None] = {}
    for piece in _pieces(path, compression):
        keys |= dict.fromkeys(_keys_of(piece))
        if keys.keys() >= set(schema.names):
            break
    return keys


def _keys_of(piece: bytes) -> list[str]:
    if _is_plain(piece):
        try:
            names: list[str] = arrow_json.read_json(pa.BufferReader(piece)).column_names
            return names
        except pa.ArrowInvalid:
            pass
    found = (parse_line(line) for line in _lines_of(piece))
    return list(dict.fromkeys(key for pairs in found if isinstance(pairs, _Pairs) for key, _ in pairs))


# Lines


class _Number(str):
    """A number as it stands in its line."""

    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    """Keys and values of an object, as they stand in its line."""


_PARSE = json.JSONDecoder(
    object_pairs_hook=_Pairs, parse_int=_Number, parse_float=_Number, parse_constant=_Number
).decode


def parse_line(line: bytes) -> _Pairs | str | None:
    """Return the object of a line, none for a blank line, or the reason why it is no object."""
    line = line.removeprefix(codecs.BOM_UTF8)
    if not line.strip():
        return None
    try:
        found = _PARSE(line.decode())
    except UnicodeDecodeError:
        return "the line is not UTF-8 text"
    except (ValueError, RecursionError):
        return "the line is not a JSON object"
    if found is None:
        return _Pairs()
    return found if isinstance(found, _Pairs) else "the line is not a JSON object"


# Rows


@dataclass
class _Reader:
    """Reads the pieces of a file one after the other."""

    schema: Schema
    keys: Sequence[str]
    add_bad: AddBadRow
    lines: int = 0
    bad: int = 0

    def read(self, piece: bytes) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a piece that fit, and report the others in order."""
        batch = _parse_piece(piece, self.schema, self.keys)
        if batch is not None:
            self.lines += _count_lines(piece)
            yield batch
        elif len(piece) > _SMALLEST and piece.find(b"\n", 0, -1) >= 0:
            for part in _cut(piece):
                yield from self.read(part)
        else:
            lines = _lines_of(piece)
            batch, reasons = _fit_lines(lines, self.schema, self.keys)
            for at, reason in sorted(reasons.items()):
                self.add_bad(
                    self.schema.stream, self.lines + at + 1, reason, row_text(lines[at].rstrip(b"\r"))
                )
            self.lines += len(lines)
            self.bad += len(reasons)
            yield batch


def _cut(piece: bytes) -> Iterator[bytes]:
    """Cut a piece of several lines at ends of lines; a line may be longer than the parts should be."""
    start = 0
    while start < len(piece):
        end = piece.find(b"\n", start + len(piece) // _PARTS, -1) + 1 or len(piece)
        if end - start == len(piece):
            end = piece.rfind(b"\n", 0, -1) + 1
        yield piece[start:end]
        start = end


def _lines_of(piece: bytes) -> list[bytes]:
    """Split a piece at line feeds; a carriage return is white space of JSON."""
    return piece.removesuffix(b"\n").split(b"\n")


def _count_lines(piece: bytes) -> int:
    return piece.count(b"\n") + (not piece.endswith(b"\n"))


def _parse_piece(piece: bytes, schema: Schema, keys: Sequence[str]) -> pa.RecordBatch | None:
    """Return the rows of a piece if each line is one object whose values fit, else None."""
    if not _is_plain(piece):
        return None
    first = parse_line(piece[: piece.find(b"\n") + 1 or None])
    values = dict(first) if isinstance(first, _Pairs) else {}
    types = {key: _parsed_type(f, values.get(key)) for f, key in zip(schema, keys, strict=True)}
    parsing = arrow_json.ParseOptions(
        explicit_schema=pa.schema(list(types.items())), unexpected_field_behavior="ignore"
    )
    reading = arrow_json.ReadOptions(block_size=_BLOCK)
    try:
        table = arrow_json.read_json(pa.BufferReader(piece), reading, parsing)
    except pa.ArrowInvalid:
        return None
    if not _has_objects_in_lines(piece, table.num_rows):
        return None
    columns = pa.table([table.column(key) for key in keys], names=list(schema.names))
    batch, reasons = convert_rows(columns, schema)
    return None if reasons else batch


def _is_plain(piece: bytes) -> bool:
    """Return whether Arrow may see a piece: UTF-8 text, in which no line begins with null."""
    if _NULL_START.match(piece) or NULL_LINE.search(piece) or piece.count(b"\r") != piece.count(b"\r\n"):
        return False
    return is_utf8(piece)


def _has_objects_in_lines(piece: bytes, objects: int) -> bool:
    """Return whether each line is one object, or blank: objects meet at ends of lines only."""
    meetings = piece.count(b"}\n{")
    if meetings != objects - 1:
        meetings = len(_MEETING.findall(piece))
    lines = _count_lines(piece)
    if lines != objects:
        lines -= len(_BLANK_LINE.findall(b"\n" + piece))
    return lines == objects and meetings == objects - 1


def _parsed_type(field: Field, first: Any) -> pa.DataType:
    """Return the type by which Arrow parses a column whose first value is known."""
    if isinstance(first, str) and not isinstance(first, _Number):
        return pa.string()
    match field.type:
        case Decimal():  # Arrow does not check the digits of narrower types
            return WIDEST
        case Int() if isinstance(first, _Number) and not _DIGITS.fullmatch(first):  # such as 3.0
            return WIDEST
        case Timestamp() if isinstance(first, _Number):
            return pa.int64()
        case String() | Binary() | Date() | Timestamp():
            return pa.string()
    return arrow_of(field.type)


def _fit_lines(
    lines: Sequence[bytes], schema: Schema, keys: Sequence[str]
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return the rows of lines that fit, and the reason per position that does not."""
    places, rows = [], []
    reasons: dict[int, str] = {}
    for at, line in enumerate(lines):
        found = parse_line(line)
        if isinstance(found, str):
            reasons[at] = found
        elif found is not None:
            places.append(at)
            rows.append(dict(found))
            if len(rows[-1]) < len(found) and (twice := _find_twice(found, keys)):
                reasons[at] = f"the key '{twice}' comes twice"
    arrays = []
    for f, key in zip(schema, keys, strict=True):
        array, wrong = _convert_values([row.get(key) for row in rows], f)
        arrays.append(array)
        for at, reason in wrong.items():
            reasons.setdefault(places[at], reason)
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema.to_arrow())
    return batch.filter(pa.array([at not in reasons for at in places], pa.bool_())), reasons


def _find_twice(pairs: _Pairs, keys: Sequence[str]) -> str | None:
    counts = Counter(key for key, _ in pairs)
    return next((key for key in keys if counts[key] > 1), None)


def _convert_values(values: Sequence[Any], field: Field) -> tuple[pa.Array, dict[int, str]]:
    """Return values in the type of a field, and the reason per position that does not fit."""
    wrong: dict[int, str] = {}
    texts: list[str | None] = [None] * len(values)
    units: list[int | None] = [None] * len(values)
    for at, value in enumerate(values):
        if isinstance(field.type, Timestamp) and isinstance(value, _Number):
            units[at] = _units(value)
        elif value is not None:
            texts[at] = _text_of(value, field.type)
        if value is not None and units[at] is None and texts[at] is None:
            wrong[at] = _misfit(value, field)
    array, mask = convert(pa.array(texts, pa.string()), field)
    for at in np.flatnonzero(mask).tolist():
        wrong[at] = _misfit(values[at], field)
    if isinstance(field.type, Timestamp):
        array = pc.coalesce(array, pa.array(units, pa.int64()).cast(array.type))
    return array, wrong


def _text_of(value: Any, kind: Type) -> str | None:
    """Return the text that CSV would have for a value of this kind; None if the value is of another kind."""
    if isinstance(value, bool):
        return str(value).lower() if isinstance(kind, Bool) else None
    if not isinstance(value, str) or (isinstance(value, _Number) and not isinstance(kind, _NUMERIC)):
        return None
    if not value.isascii() and _SURROGATE.search(value):
        return None
    return _whole(value) if isinstance(kind, Int) else value


def _whole(number: str) -> str:
    """Return a whole number in digits, such as 3 for 3.0; another text as it is."""
    if not _DIGITS.fullmatch(number) and _DECIMAL.fullmatch(number):
        with contextlib.suppress(ArithmeticError):
            exact = Exact(number)
            if exact.adjusted() < _MOST_DIGITS and exact == exact.to_integral_value():
                return str(int(exact))
    return number


def _units(number: str) -> int | None:
    """Return a whole number of 64 bits, or None."""
    text = _whole(number)
    try:
        units = int(text) if len(text) <= _MOST_DIGITS else None
    except ValueError:
        return None
    return units if units is not None and -(2**63) <= units < 2**63 else None


def _misfit(value: Any, field: Field) -> str:
    """Say that a value does not fit a field, with the value as it stands in its line."""
    match value:
        case _Number():
            shown = str(value)
        case str():
            if _SURROGATE.search(value):
                return f"{value!r} in column '{field.name}' has half of a surrogate pair"
            shown = repr(value)
        case bool():
            shown = "true" if value else "false"
        case _:
            shown = "an object" if isinstance(value, _Pairs) else "a list"
    return misfit(value, field, shown)
