"""Files, and folders of files, read as one table that is then replayed as a stream.

The suffix of a file names its format. Values that cannot be read exactly are an error.
To add a file format, write a `FileFormat` and add it to `FORMATS`.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from handshake.errors import InputError, SchemaError, one_line, suggest
from handshake.io.arrow_files import ARROW, PARQUET
from handshake.io.csv_declared import read_standard_input
from handshake.io.csv_files import CSV, TSV
from handshake.io.declared import BadRows, fit_rows
from handshake.io.formats import AddBadRow, FileFormat, Rows
from handshake.io.frames import plain_table
from handshake.io.json_lines import JSON_LINES, json_row
from handshake.schema import STRING, Schema, type_from_arrow, without_view

FORMATS = (PARQUET, ARROW, CSV, TSV, JSON_LINES)
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


def describe_formats() -> str:
    """Return the formats with their suffixes, for help texts.

    >>> describe_formats()
    'Parquet (.parquet), Arrow (.arrow, .feather), CSV (.csv, .tsv) or JSON lines (.jsonl, .ndjson)'
    """
    kinds = [
        f"{kind} ({', '.join(suffix for form in forms for suffix in form.suffixes)})"
        for kind, forms in groupby(FORMATS, lambda form: form.kind)
    ]
    return f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def format_of(path: str | Path) -> tuple[FileFormat, str | None]:
    """Return the format and the compression that the suffix of a file names.

    >>> form, compression = format_of("trades.csv.gz")
    >>> form.kind, compression
    ('CSV', 'gzip')
    """
    name = Path(path).name
    stem, suffix = os.path.splitext(name)
    compression = _COMPRESSED.get(suffix.lower())
    if compression:
        suffix = os.path.splitext(stem)[1]
    form = next((form for form in FORMATS if suffix.lower() in (*form.suffixes, *form.aliases)), None)
    if form is None or (compression and not form.is_text):
        given = name[len(os.path.splitext(stem)[0]) :] if compression else suffix
        what = f"has the unknown extension '{given}'" if given else "has no extension"
        raise InputError(f"'{path}' {what}; {_known_suffixes()}")
    return form, compression


def _known_suffixes() -> str:
    known = ", ".join(suffix for form in FORMATS for suffix in (*form.suffixes, *form.aliases))
    return f"known are {known}, and {', '.join(_COMPRESSED)} after a text format"


def read(path: str | Path, stream: str = "left") -> pa.Table:
    """Read a file, or all files of a folder in the order of their names; `stream` is named in errors."""
    place = Path(path)
    with _errors_of(stream):
        if not os.path.isdir(place):
            return _read_file(place)
        return _combine([(file, _read_file(file)) for file in _files_in(place)])


def read_declared(path: str | Path, schema: Schema, bad: BadRows) -> pa.Table:
    """Read a file or folder in the columns and types of a schema.

    Args:
        path: A file, a folder, or `-` for all of standard input.
        schema: The declared columns and types. Other columns are dropped.
        bad: Takes the rows that do not fit.
    """
    place = Path(path)
    if path == "-":
        batches = list(read_standard_input(schema, bad.add))
    elif place.is_dir():
        batches = _read_declared_folder(place, schema, bad)
    else:
        batches, _ = _read_declared_file(place, schema, bad.add)
    return pa.Table.from_batches(batches, schema.to_arrow())


def _read_declared_folder(folder: Path, schema: Schema, bad: BadRows) -> list[pa.RecordBatch]:
    """Read each file by itself: values of another type in one file are bad rows there."""

    def add_bad(file: str, before: int, stream: str, row: int, reason: str, text: str) -> None:
        bad.add(stream, before + row, f"{reason} (row {row} of '{file}')", text)

    batches: list[pa.RecordBatch] = []
    count = 0
    with _errors_of(schema.stream):
        files = _files_in(folder)
    for path in files:
        try:
            found, rows = _read_declared_file(path, schema, partial(add_bad, path.name, count))
        except SchemaError as error:
            raise SchemaError(f"{error} (in '{path}')") from None
        batches += found
        count += rows
    return batches


def _read_declared_file(path: Path, schema: Schema, add_bad: AddBadRow) -> Rows:
    form, compression = format_of(path)
    if form.read_declared is not None:
        with _errors_of(schema.stream):
            _check_bytes(path)
        with _errors_of_arrow(f"{schema.stream} input: '{path}'", form):
            return form.read_declared(path, compression, schema, add_bad)
    table = read(path, schema.stream)

    def report(at: int, reason: str) -> None:
        add_bad(schema.stream, at + 1, reason, json_row(table, at))

    return [fit_rows(table, schema, report)], table.num_rows


@contextmanager
def _errors_of(stream: str) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"{stream} input: {error}") from error.__cause__


def _files_in(folder: Path) -> list[Path]:
    """List the data files of a folder in the order of their names, and check that they are of one format."""
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be read: {_reason(error)}") from error
    files = [path for path in entries if not path.name.startswith((".", "_"))]
    if not files:
        raise InputError(f"folder '{folder}' holds no data files; {_known_suffixes()}")
    for path in files:
        if os.path.isdir(path):
            raise InputError(
                f"folder '{folder}' holds the folder '{path.name}'; "
                "give a folder whose files lie directly in it"
            )
    kinds = [format_of(path)[0].kind for path in files]
    for path, kind in zip(files, kinds, strict=True):
        if kind != kinds[0]:
            raise InputError(
                f"'{folder}' mixes formats: '{files[0].name}' is {kinds[0]} and '{path.name}' is {kind}; "
                "put each format in a folder of its own"
            )
    return files


def _read_file(path: Path) -> pa.Table:
    _check_bytes(path)
    form, compression = format_of(path)
    with _errors_of_arrow(f"'{path}'", form):
        table = form.read(path, compression)
        table.validate(full=True)
    _check_columns(table, path)
    table = plain_table(table)
    fields = [field.remove_metadata() for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields)).unify_dictionaries()


@contextmanager
def _errors_of_arrow(what: str, form: FileFormat) -> Iterator[None]:
    try:
        yield
    except pa.ArrowCancelled:
        raise KeyboardInterrupt from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 text; convert the file to UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{what} cannot be read as {form.kind}: {_reason(error)}") from error


def _check_bytes(path: Path) -> None:
    """Refuse a path that cannot be opened, is not a file, or has no bytes."""
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"'{path}' is not a file; give a file or a folder of files")
            empty = not file.read(1)
    except FileNotFoundError:
        raise InputError(f"no file or folder '{path}'{_suggest_file(path)}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {_reason(error)}") from error
    if empty:
        raise InputError(f"'{path}' is empty (0 bytes); it needs at least the names of its columns")


def _suggest_file(path: Path) -> str:
    try:
        return suggest(path.name, [entry.name for entry in path.parent.iterdir()])
    except OSError:
        return ""


def _check_columns(table: pa.Table, path: Path) -> None:
    names = table.column_names
    if not names:
        raise InputError(f"'{path}' has no columns")
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise InputError(
            f"'{path}' has more than one column named '{repeated[0]}' ({', '.join(names)}); "
            "rename one of them"
        )
    for field in table.schema:
        kind = field.type
        if pa.types.is_run_end_encoded(kind) or without_view(kind) != kind:
            continue  # `plain_table` converts them
        try:
            pa.nulls(1, kind).take(pa.array([0]))
        except pa.ArrowNotImplementedError:
            raise InputError(
                f"column '{field.name}' of '{path}' is {kind}, whose rows cannot be picked; "
                "leave the column out or cast it"
            ) from None


def _reason(error: Exception) -> str:
    return one_line(error.strerror if isinstance(error, OSError) and error.strerror else error)


# Folders: columns in any order, types widened if no value changes.

_SAME_COLUMNS = "all files of a folder must have the same columns"


@dataclass(frozen=True)
class _Column:
    """The common type of a column so far, and the file that it comes from."""

    type: pa.DataType
    path: Path


def _combine(parts: Sequence[tuple[Path, pa.Table]]) -> pa.Table:
    """Concatenate the tables of the files in a folder."""
    first, table = parts[0]
    columns = {field.name: _Column(field.type, first) for field in table.schema}
    for path, other in parts[1:]:
        _check_names(first, table, path, other)
        for field in other.schema:
            columns[field.name] = _widen(field.name, columns[field.name], _Column(field.type, path))

    def cast(path: Path, name: str, values: pa.ChunkedArray, column: _Column) -> pa.ChunkedArray:
        try:
            return values.cast(column.type)
        except pa.ArrowInvalid as error:
            raise InputError(
                f"column '{name}' of '{path}' is {values.type} with values that do not fit {column.type}, "
                f"its type in '{column.path}'; {_SAME_COLUMNS}"
            ) from error

    tables = [
        pa.table({name: cast(path, name, part.column(name), column) for name, column in columns.items()})
        for path, part in parts
    ]
    return pa.concat_tables(tables).unify_dictionaries()


def _check_names(first: Path, table: pa.Table, path: Path, other: pa.Table) -> None:
    for has, lacks, names, known in (
        (first, path, table.column_names, other.column_names),
        (path, first, other.column_names, table.column_names),
    ):
        missing = [name for name in names if name not in known]
        if missing:
            raise InputError(
                f"column '{missing[0]}' is in '{has}' but not in '{lacks}' ({', '.join(known)})"
                f"{suggest(missing[0], known)}; {_SAME_COLUMNS}"
            )


def _widen(name: str, before: _Column, after: _Column) -> _Column:
    kind = _common_type(before.type, after.type)
    if kind is None:
        raise InputError(
            f"column '{name}' is {before.type} in '{before.path}' but {after.type} in '{after.path}'; "
            f"{_SAME_COLUMNS}"
        )
    return _Column(kind, before.path if kind == before.type else after.path)


def _common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both, or None if there is none."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        return _common_type(*(t.value_type if pa.types.is_dictionary(t) else t for t in (a, b)))
    if all(map(is_number, (a, b))):
        return _common_number(a, b)
    if all(type_from_arrow(kind) == STRING and not pa.types.is_dictionary(kind) for kind in (a, b)):
        return pa.large_string()
    return _common_time(a, b)


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type has numbers."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _common_number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    def is_either(test: Callable[[pa.DataType], bool]) -> bool:
        return test(a) or test(b)

    if pa.types.is_floating(a) and pa.types.is_floating(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    if is_either(pa.types.is_floating):
        return pa.float64()
    if is_either(pa.types.is_decimal):
        scale = max(kind.scale if pa.types.is_decimal(kind) else 0 for kind in (a, b))
        return pa.decimal128(38, scale)
    if pa.types.is_signed_integer(a) == pa.types.is_signed_integer(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    return pa.decimal128(38, 0) if pa.uint64() in (a, b) else pa.int64()


def _common_time(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and (a.tz is None) == (b.tz is None):
        finest = next(unit for unit in ("ns", "us", "ms", "s") if unit in (a.unit, b.unit))
        return pa.timestamp(finest, a.tz)
    for day, stamp in ((a, b), (b, a)):
        if pa.types.is_date(day) and pa.types.is_timestamp(stamp) and stamp.tz is None:
            return stamp
    return None
