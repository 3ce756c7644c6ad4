"""CSV: files with inferred types, and output."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from handshake.errors import InputError, format_count
from handshake.io.csv_declared import NULLS, read_declared
from handshake.io.formats import FileFormat
from handshake.schema import BINARY, STRING, type_from_arrow

Types = dict[str, pa.DataType]

BLOCKS = (1 << 20, 1 << 24, 1 << 28, (1 << 31) - 1)
"""Bytes parsed at a time. A row that is longer needs the next size."""
_BEYOND_INT64 = 2.0**63
_WHOLE = (pa.uint64(), pa.decimal128(38, 0))
_RAGGED = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")


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
    converting = csv.ConvertOptions(column_types=types, **NULLS)

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
            row, expected, got = map(int, found.groups())
            return InputError(
                f"'{path}', row {row - 1}: {format_count(got, 'field')} where the header has {expected}; "
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
        read_declared=partial(read_declared, delimiter),
    )


CSV, TSV = _delimited_text(".csv", ","), _delimited_text(".tsv", "\t")
