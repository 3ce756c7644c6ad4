"""Outputs: a file that appears complete or not at all, or standard output."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from handshake.errors import InputError, one_line
from handshake.io.csv_files import CSV
from handshake.io.files import format_of
from handshake.io.formats import FileFormat, Writer

_GROUP = 1 << 17
"""Rows collected before they are written, so that a file does not consist of tiny pieces."""


class Sink:
    """An open output, to which result batches are written."""

    def __init__(self, writer: Writer, schema: pa.Schema, name: str, gathered: int) -> None:
        self._writer, self._schema, self._name, self._gathered = writer, schema, name, gathered
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        self._waiting.append(batch)
        self._rows += batch.num_rows
        if self._rows >= self._gathered:
            with _errors_of(self._name):
                self.flush()

    def flush(self) -> None:
        """Write the rows that wait."""
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows = [], 0


@contextlib.contextmanager
def sink_for(path: str | Path, schema: pa.Schema) -> Iterator[Sink]:
    """Open a sink for rows of `schema`. The suffix names the format; `-` is CSV on standard output.

    The file gets its name when the `with` block ends well. After an error or Ctrl-C, nothing is left behind.
    """
    if str(path) == "-":
        name, gathered, form = "standard output", 0, CSV
        place = _standard_output()
    else:
        name, gathered = str(path), _GROUP
        form, compression = _check_file(path)
        place = whole_file(Path(path), compression)
    with contextlib.ExitStack() as stack:
        with _errors_of(name):
            writer = form.open_writer(stack.enter_context(place), schema)
        failure = stack.enter_context(contextlib.ExitStack())
        failure.callback(_close_quietly, writer)
        sink = Sink(writer, schema, name, gathered)
        yield sink
        with _errors_of(name):
            sink.flush()
            failure.pop_all()  # a writer is closed once, since that may write a footer
            writer.close()
            stack.close()


def check_output(path: str | Path) -> None:
    """Refuse a place or a suffix before any work is done for it."""
    if str(path) != "-":
        _check_file(path)


def _check_file(path: str | Path) -> tuple[FileFormat, str | None]:
    """Return the format and the compression of an output; refuse a path that cannot become a file."""
    with _errors_of(str(path)):
        form = format_of(path)
        place = Path(os.path.realpath(path))
        if not place.parent.is_dir():
            raise InputError(f"'{path}' cannot be written: no folder '{place.parent}'")
        if place.is_dir():
            raise InputError(f"'{path}' is a folder; give the name of a file")
        if place.exists() and not place.is_file():
            raise InputError(f"'{path}' is not a file; give the name of a file")
    return form


@contextlib.contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Turn failures to write into one-line errors, except for a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except InputError as error:
        raise InputError(f"output: {error}") from error.__cause__
    except (OSError, pa.ArrowException) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"output: '{name}' cannot be written: {one_line(why)}") from error


@contextlib.contextmanager
def whole_file(path: Path, compression: str | None = None) -> Iterator[Any]:
    """Write a file under a temporary name in the same folder; rename it if the block ends well."""
    target = Path(os.path.realpath(path))  # through a link, not over it
    temporary = target.with_name(f".handshake-{secrets.token_hex(6)}.tmp")
    streams: list[Any] = []
    try:
        streams.append(open(temporary, "xb"))  # noqa: SIM115 - closed below, whatever happens
        if target.exists():
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        if compression:
            streams.insert(0, pa.CompressedOutputStream(streams[0], compression))
        yield streams[0]
        for stream in streams:
            stream.close()
        os.replace(temporary, target)
    finally:
        for stream in streams:
            _close_quietly(stream)
        temporary.unlink(missing_ok=True)


def _close_quietly(stream: Any) -> None:
    with contextlib.suppress(Exception):
        stream.close()


@contextlib.contextmanager
def _standard_output() -> Iterator[_Flushing]:
    """Write to standard output at once; written rows cannot be taken back."""
    sys.stdout.flush()
    yield _Flushing(sys.stdout.buffer)


class _Flushing:
    """A stream that flushes each write and is never closed."""

    closed = False

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        self._stream.write(data)
        self._stream.flush()
        return len(data)

    def flush(self) -> None:
        """Do nothing: each write has been flushed."""

    def close(self) -> None:
        """Do nothing: standard output belongs to the process."""
