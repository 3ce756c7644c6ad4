"""Files, and folders of files, read as one table that is then replayed as a stream.

The extension names the format. Nothing is lost on the way: what cannot be read exactly is an error.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather, ipc, parquet

from handshake.errors import InputError, suggest
from handshake.io.folders import combine
from handshake.io.text import read_csv, read_json

__all__ = ["Format", "check_bytes", "data_files", "format_of", "one_line", "read"]

_KINDS = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".arrows": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".csv": "CSV",
    ".tsv": "CSV",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".jsonlines": "JSON lines",
    ".json-lines": "JSON lines",
    ".json": "JSON lines",
}
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_TEXT = ("CSV", "JSON lines")
_KNOWN = ".parquet, .arrow, .feather, .csv, .tsv, .jsonl, .ndjson, and .gz after a text format"


@dataclass(frozen=True)
class Format:
    """How the rows of a file are written."""

    kind: str
    """Parquet, Arrow, CSV or JSON lines."""
    delimiter: str = ","
    compression: str | None = None


def format_of(path: str | Path) -> Format:
    """The format that a file's extension names.

    >>> format_of("trades.csv.gz")
    Format(kind='CSV', delimiter=',', compression='gzip')
    """
    name = Path(path).name
    stem, extension = os.path.splitext(name)
    compression = _COMPRESSED.get(extension.lower())
    if compression:
        extension = os.path.splitext(stem)[1]
    kind = _KINDS.get(extension.lower())
    if kind is None or (compression and kind not in _TEXT):
        given = name[len(os.path.splitext(stem)[0]) :] if compression else extension
        what = f"has the unknown extension '{given}'" if given else "has no extension"
        raise InputError(f"'{path}' {what}; known are {_KNOWN}")
    return Format(kind, "\t" if extension.lower() == ".tsv" else ",", compression)


def read(path: str | Path, stream: str = "left") -> pa.Table:
    """Read a file, or all files of a folder in the order of their names; `stream` is named in errors."""
    place = Path(path)
    try:
        return _read_folder(place) if os.path.isdir(place) else _read_file(place)
    except InputError as error:
        raise InputError(f"{stream} input: {error}") from error.__cause__


def data_files(folder: Path, stream: str) -> list[Path]:
    """A folder's files in the order of their names, all of one format; `stream` is named in errors."""
    try:
        return _files_of_one_format(folder)
    except InputError as error:
        raise InputError(f"{stream} input: {error}") from error.__cause__


def _read_folder(folder: Path) -> pa.Table:
    return combine([(path, _read_file(path)) for path in _files_of_one_format(folder)])


def _files_of_one_format(folder: Path) -> list[Path]:
    files = _data_files(folder)
    formats = {path: format_of(path).kind for path in files}
    first = files[0]
    for path, kind in formats.items():
        if kind != formats[first]:
            raise InputError(
                f"'{folder}' mixes formats: '{first.name}' is {formats[first]} and '{path.name}' is {kind}; "
                "put each format in a folder of its own"
            )
    return files


def _data_files(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise InputError(f"folder '{folder}' cannot be read: {_reason(error)}") from error
    files = [path for path in entries if not path.name.startswith((".", "_"))]
    if not files:
        raise InputError(f"folder '{folder}' holds no data files; known are {_KNOWN}")
    for path in files:
        if os.path.isdir(path):
            raise InputError(
                f"folder '{folder}' holds the folder '{path.name}'; "
                "give a folder whose files lie directly in it"
            )
    return files


def _read_file(path: Path) -> pa.Table:
    check_bytes(path)
    form = format_of(path)
    try:
        table = _READERS[form.kind](path, form)
        table.validate(full=True)
    except pa.ArrowCancelled:
        raise KeyboardInterrupt from None
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is not UTF-8 text; convert the file to UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"'{path}' cannot be read as {form.kind}: {_reason(error)}") from error
    return _plain(table, path)


def check_bytes(path: Path) -> None:
    """Refuse what cannot be opened, is no file, or holds no byte."""
    try:
        with open(path, "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"'{path}' is not a file; give a file or a folder of files")
            empty = not file.read(1)
    except FileNotFoundError:
        raise InputError(f"no file or folder '{path}'{_nearest(path)}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {_reason(error)}") from error
    if empty:
        raise InputError(f"'{path}' is empty (0 bytes); it needs at least the names of its columns")


def _nearest(path: Path) -> str:
    """A hint at a file beside the missing one with nearly its name, as a tail."""
    try:
        beside = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return ""
    return suggest(path.name, beside)


def _plain(table: pa.Table, path: Path) -> pa.Table:
    """Check names and types, drop notes that other programs left in the schema, one dictionary each."""
    names = table.column_names
    if not names:
        raise InputError(f"'{path}' has no columns")
    doubled = [name for name, n in Counter(names).items() if n > 1]
    if doubled:
        raise InputError(
            f"'{path}' has more than one column named '{doubled[0]}' ({', '.join(names)}); rename one of them"
        )
    columns = [_selectable(table.column(at), names[at], path) for at in range(len(names))]
    fields = [
        field.with_type(column.type).remove_metadata()
        for field, column in zip(table.schema, columns, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields)).unify_dictionaries()


_LONG = (1 << 31) - 1
"""Bytes of text that 32-bit offsets reach; beyond, a column cannot be put into one array."""


def _selectable(column: pa.ChunkedArray, name: str, path: Path) -> pa.ChunkedArray:
    """A column in a type whose rows Arrow can pick one by one, as a join does."""
    kind = column.type
    if pa.types.is_run_end_encoded(kind):
        return pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], kind.value_type)
    if pa.types.is_string_view(kind) or (pa.types.is_string(kind) and column.nbytes > _LONG):
        return column.cast(pa.large_string())
    if pa.types.is_binary_view(kind) or (pa.types.is_binary(kind) and column.nbytes > _LONG):
        return column.cast(pa.large_binary())
    try:
        pa.nulls(1, kind).take(pa.array([0]))
    except pa.ArrowNotImplementedError:
        raise InputError(
            f"column '{name}' of '{path}' is {kind}, whose rows cannot be picked; "
            "leave the column out or cast it"
        ) from None
    return column


def _read_parquet(path: Path, _: Format) -> pa.Table:
    # Not read_table: it would add columns for 'name=value' folders on the way to the file.
    with parquet.ParquetFile(path) as file:
        return file.read()


def _read_arrow(path: Path, _: Format) -> pa.Table:
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        return feather.read_table(path, memory_map=False)
    with pa.OSFile(os.fspath(path)) as file:
        reader = ipc.open_file(file) if magic == b"ARROW1" else ipc.open_stream(file)
        return reader.read_all()


def _read_csv(path: Path, form: Format) -> pa.Table:
    return read_csv(path, form.delimiter, form.compression)


def _read_json(path: Path, form: Format) -> pa.Table:
    return read_json(path, form.compression)


_READERS: dict[str, Callable[[Path, Format], pa.Table]] = {
    "Parquet": _read_parquet,
    "Arrow": _read_arrow,
    "CSV": _read_csv,
    "JSON lines": _read_json,
}


def one_line(text: object, limit: int = 200) -> str:
    """A text without line breaks, cut at `limit` characters."""
    flat = " ".join(str(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _reason(error: Exception) -> str:
    """What an exception says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return one_line(error.strerror)
    return one_line(error)
