"""Where results go: a file that appears complete or not at all, or standard output."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import pyarrow as pa
from pyarrow import csv, ipc, parquet

from handshake.errors import InputError
from handshake.io.files import Format, format_of, one_line

__all__ = ["Sink", "check_output", "sink_for"]

_GROUP = 1 << 17
"""Rows gathered before they are written, so that a file does not fall into tiny pieces."""


def sink_for(path: str | Path, schema: pa.Schema) -> Sink:
    """A sink for rows of `schema`: the extension names the format, `-` is CSV on standard output.

    Use it in a `with` statement. The file gets its name when the block ends well; after an error,
    Ctrl-C included, nothing is left behind.
    """
    if str(path) == "-":
        return Sink(_StandardOutput(), partial(_csv_writer, form=Format("CSV")), schema)
    target, form = _file(path)
    return Sink(target, partial(_WRITERS[form.kind], form=form), schema)


def check_output(path: str | Path) -> None:
    """Refuse a place or an extension before any work is done for it."""
    if str(path) != "-":
        _file(path)


def _file(path: str | Path) -> tuple[_File, Format]:
    try:
        form = format_of(path)
        return _File(Path(path), form.compression), form
    except InputError as error:
        raise InputError(f"output: {error}") from error.__cause__


class Writer(Protocol):
    """What every format offers."""

    def write_table(self, table: pa.Table) -> None:
        """Add rows."""

    def close(self) -> None:
        """Write what the format has at its end; the stream stays open."""


class Target(Protocol):
    """Bytes on their way to a place."""

    name: str
    gathers: bool
    """Whether rows may wait until there are many of them."""

    def open(self) -> Any:
        """A binary stream to write to."""

    def commit(self) -> None:
        """All is written: make it visible."""

    def discard(self) -> None:
        """Something went wrong: leave nothing behind."""


class Sink:
    """Takes result batches, in a `with` block."""

    def __init__(self, target: Target, writer: Callable[..., Writer], schema: pa.Schema) -> None:
        self._target, self._open, self._schema = target, writer, schema
        self._writer: Writer | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def __enter__(self) -> Self:
        try:
            with self._errors():
                self._writer = self._open(self._target.open(), self._schema)
        except BaseException:
            self._discard()
            raise
        return self

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _GROUP or not self._target.gathers:
            with self._errors():
                self._flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                with self._errors():
                    self._finish()
        finally:
            self._discard()

    def _flush(self) -> None:
        assert self._writer is not None
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows = [], 0

    def _finish(self) -> None:
        assert self._writer is not None
        self._flush()
        writer, self._writer = self._writer, None
        writer.close()
        self._target.commit()

    def _discard(self) -> None:
        """Clean up; after a commit there is nothing left to do."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        self._target.discard()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn failures to write into errors of one line; a reader that went away stays what it is."""
        try:
            yield
        except BrokenPipeError:
            raise
        except InputError as error:
            raise InputError(f"output: {error}") from error.__cause__
        except (OSError, pa.ArrowException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InputError(f"output: '{self._target.name}' cannot be written: {one_line(why)}") from error


class _File:
    """A file that is written under a temporary name beside its own, then renamed."""

    gathers = True

    def __init__(self, path: Path, compression: str | None) -> None:
        self.name = str(path)
        self._path = Path(os.path.realpath(path))  # through a link, not over it
        self._compression = compression
        self._temporary: Path | None = None
        self._streams: list[Any] = []
        self._mode = self._check_place()

    def _check_place(self) -> int | None:
        """Refuse what cannot become a file; the permissions of the file that is there already, if one is."""
        if not self._path.parent.is_dir():
            raise InputError(f"'{self.name}' cannot be written: no folder '{self._path.parent}'")
        if self._path.is_dir():
            raise InputError(f"'{self.name}' is a folder; give the name of a file")
        if not self._path.exists():
            return None
        if not self._path.is_file():
            raise InputError(f"'{self.name}' is not a file; give the name of a file")
        return stat.S_IMODE(self._path.stat().st_mode)

    def open(self) -> Any:
        self._temporary = self._path.with_name(f".handshake-{secrets.token_hex(6)}.tmp")
        stream = open(self._temporary, "xb")  # noqa: SIM115 - closed by commit or discard
        self._streams = [stream]
        if self._mode is not None:
            os.chmod(self._temporary, self._mode)
        if self._compression:
            self._streams.insert(0, pa.CompressedOutputStream(stream, self._compression))
        return self._streams[0]

    def commit(self) -> None:
        assert self._temporary is not None
        for stream in self._streams:
            stream.close()
        os.replace(self._temporary, self._path)
        self._temporary = None

    def discard(self) -> None:
        if self._temporary is None:
            return
        for stream in self._streams:
            with contextlib.suppress(Exception):
                stream.close()
        self._temporary.unlink(missing_ok=True)
        self._temporary = None


class _StandardOutput:
    """Rows leave at once, for whoever reads the other end."""

    name = "standard output"
    gathers = False

    def open(self) -> Any:
        sys.stdout.flush()
        return _Flushing(sys.stdout.buffer)

    def commit(self) -> None:
        sys.stdout.buffer.flush()

    def discard(self) -> None:
        """What was written is gone already."""


class _Flushing:
    """A stream that keeps nothing back and is never closed."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self._stream.flush()
        return len(data)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """Standard output belongs to the process."""


_TYPED = "use .parquet or .arrow"


class CsvWriter:
    """Delimited text with a header; texts are quoted, NULL is an empty field."""

    def __init__(self, stream: Any, schema: pa.Schema, delimiter: str) -> None:
        self._schema = pa.schema([(field.name, _csv_type(field)) for field in schema])
        options = csv.WriteOptions(delimiter=delimiter)
        self._writer = csv.CSVWriter(stream, self._schema, write_options=options)

    def write_table(self, table: pa.Table) -> None:
        """Add rows."""
        arrays = [_csv_text(table.column(field.name), field) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def _csv_type(field: pa.Field) -> pa.DataType:
    """The type in which a column is written, or an error that names the column."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    if pa.types.is_string_view(kind) or _is_binary(kind):
        return pa.large_string()
    try:
        csv.write_csv(pa.table([pa.nulls(1, kind)], names=["x"]), pa.BufferOutputStream())
    except pa.ArrowException:
        raise InputError(
            f"column '{field.name}' ({field.type}) cannot be written as CSV, "
            f"which has no nested values; {_TYPED}"
        ) from None
    return kind


def _csv_text(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"column '{field.name}' ({column.type}) holds bytes that are not UTF-8 text, "
            f"which CSV cannot hold; {_TYPED}"
        ) from error


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_binary_view(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


class JsonWriter:
    """One object per line. Bytes become base64, times ISO text; NaN and Infinity are written as such."""

    def __init__(self, stream: Any, schema: pa.Schema) -> None:
        self._stream = stream
        self._keys = [json.dumps(name, ensure_ascii=False) for name in schema.names]

    def write_table(self, table: pa.Table) -> None:
        """Add rows."""
        columns = [
            [f"{key}: {value}" for value in _json_values(column)]
            for key, column in zip(self._keys, table.columns, strict=True)
        ]
        lines = "".join(f"{{{', '.join(row)}}}\n" for row in zip(*columns, strict=True))
        self._stream.write(lines.encode())

    def close(self) -> None:
        """Nothing comes after the last row."""


def _json_values(column: pa.ChunkedArray) -> Iterator[str]:
    """The values of a column as JSON text."""
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
    """Values that JSON has no form for, alone or inside of nested ones."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _csv_writer(stream: Any, schema: pa.Schema, form: Format) -> Writer:
    return CsvWriter(stream, schema, form.delimiter)


def _json_writer(stream: Any, schema: pa.Schema, form: Format) -> Writer:
    return JsonWriter(stream, schema)


def _parquet_writer(stream: Any, schema: pa.Schema, form: Format) -> Writer:
    writer: Writer = parquet.ParquetWriter(stream, schema)
    return writer


def _arrow_writer(stream: Any, schema: pa.Schema, form: Format) -> Writer:
    writer: Writer = ipc.new_file(stream, schema)
    return writer


_WRITERS: dict[str, Callable[..., Writer]] = {
    "Parquet": _parquet_writer,
    "Arrow": _arrow_writer,
    "CSV": _csv_writer,
    "JSON lines": _json_writer,
}
