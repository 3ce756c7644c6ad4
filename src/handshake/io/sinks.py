"""Outputs: a file that appears complete or not at all, or standard output."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

import pyarrow as pa

from handshake.errors import InputError, one_line
from handshake.io.csv_files import CSV
from handshake.io.files import format_of
from handshake.io.formats import FileFormat, Writer

_GROUP = 1 << 17
"""Rows collected before they are written, so that a file does not consist of tiny pieces."""


def sink_for(path: str | Path, schema: pa.Schema) -> Sink:
    """Return a sink for rows of `schema`. The suffix names the format; `-` is CSV on standard output.

    Use it in a `with` statement. The file gets its name when the block ends well. After an error or Ctrl-C,
    nothing is left behind.
    """
    if str(path) == "-":
        return Sink(_StandardOutput(), CSV.open_writer, schema)
    target, form = _target_file(path)
    return Sink(target, form.open_writer, schema)


def check_output(path: str | Path) -> None:
    """Refuse a place or a suffix before any work is done for it."""
    if str(path) != "-":
        _target_file(path)


def _target_file(path: str | Path) -> tuple[_File, FileFormat]:
    try:
        form, compression = format_of(path)
        return _File(Path(path), compression), form
    except InputError as error:
        raise InputError(f"output: {error}") from error.__cause__


class Target(Protocol):
    """A place that bytes are written to."""

    name: str
    gathers: bool
    """Whether rows may wait until there are many of them."""

    def open(self) -> Any: ...

    def commit(self) -> None:
        """Make the complete output visible."""

    def discard(self) -> None:
        """Leave nothing behind after an error."""


class Sink:
    """Writes result batches, in a `with` block."""

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
        """Clean up. After a commit, nothing is left to do."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        self._target.discard()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn failures to write into one-line errors, except for a closed pipe."""
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
    """A file that is written under a temporary name in the same folder, then renamed."""

    gathers = True

    def __init__(self, path: Path, compression: str | None) -> None:
        self.name = str(path)
        self._path = Path(os.path.realpath(path))  # through a link, not over it
        self._compression = compression
        self._temporary: Path | None = None
        self._streams: list[Any] = []
        self._mode = self._check_place()

    def _check_place(self) -> int | None:
        """Refuse a path that cannot become a file. Return the permissions of an existing file."""
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
    """Standard output, to which rows are written at once."""

    name = "standard output"
    gathers = False

    def open(self) -> Any:
        sys.stdout.flush()
        return _Flushing(sys.stdout.buffer)

    def commit(self) -> None:
        sys.stdout.buffer.flush()

    def discard(self) -> None:
        """Do nothing: written rows cannot be taken back."""


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
