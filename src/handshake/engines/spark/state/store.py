"""Immutable files under one root, on any filesystem that pyarrow or fsspec supports.

With `state="store"`, chunks are in Spark's state store instead, beside the manifest of their segment.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as fs

from handshake.engines.spark.state.agreement import publish_agreed
from handshake.errors import HandshakeError, InputError

T = TypeVar("T")
_READERS = 16
"""Reads at the same time, if files are not local."""
_PIECE = 1 << 23
"""Bytes per write of a file that is copied."""
_LISTINGS = 100
"""Attempts to list a folder that appears or disappears at that moment."""


class StateError(HandshakeError):
    """Files that a join's state refers to are missing, damaged or out of reach."""


@lru_cache(maxsize=64)
def open_store(root: str) -> Store:
    """Return the store at a path or URI; one per process and root."""
    return Store(root)


@lru_cache(maxsize=1)
def _readers(process: int) -> ThreadPoolExecutor:
    """Return the threads that read; a forked process gets its own."""
    return ThreadPoolExecutor(_READERS, "handshake-read")


class Store:
    """Files by names relative to a root."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/")
        self._filesystem, self._base = _filesystem(self.root)
        self.is_local = isinstance(self._filesystem, fs.LocalFileSystem)

    def path(self, name: str) -> str:
        """Return the full path of a file, for messages."""
        return f"{self.root}/{name}"

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a file atomically: readers see all of it or nothing."""
        # object stores show closed files only; elsewhere, readers wait for a reference
        with self.create(name) if self.is_local else self._output(name) as sink:
            for part in parts:
                sink.write(part)

    @contextlib.contextmanager
    def create(self, name: str) -> Iterator[Any]:
        """Open a large file to write; readers see it when it is complete, and never if writing fails.

        Its draft has a hidden name, which readers of a folder ignore.
        """
        folder = os.path.dirname(f"{self._base}/{name}") if self.is_local else tempfile.gettempdir()
        draft = os.path.join(folder, f".{os.path.basename(name)}.{uuid.uuid4().hex}.part")
        try:
            if self.is_local:
                os.makedirs(folder, exist_ok=True)
            with open(draft, "wb") as sink:
                yield sink
            if self.is_local:
                os.replace(draft, f"{self._base}/{name}")
            else:
                with open(draft, "rb") as source, self._output(name) as copy:
                    shutil.copyfileobj(source, copy, _PIECE)
        except OSError as error:
            raise self._unwritable(name, error) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)

    @contextlib.contextmanager
    def _output(self, name: str) -> Iterator[Any]:
        """Open a file that is not local to write."""
        target = f"{self._base}/{name}"
        try:
            self._filesystem.create_dir(os.path.dirname(target), recursive=True)
            with self._filesystem.open_output_stream(target) as sink:
                yield sink
        except OSError as error:
            raise self._unwritable(name, error) from error

    def _unwritable(self, name: str, error: Exception) -> StateError:
        return StateError(
            f"cannot write '{self.path(name)}': {error}; the folder must be writable for every executor and "
            "have room"
        )

    def publish(self, name: str, data: pa.Buffer) -> pa.Buffer:
        """Write a small file unless it exists; return the content of the existing file."""
        if not self.is_local:
            return publish_agreed(self, name, data)
        draft = f"{name}.{uuid.uuid4().hex}.part"
        self.write(draft, [data])
        try:
            os.link(f"{self._base}/{draft}", f"{self._base}/{name}")
        except FileExistsError:
            data = self.read(name)
        except OSError:  # no hard links there
            data = publish_agreed(self, name, data)
        self.remove(draft)
        return data

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a file; a local file is mapped, not read."""
        path = f"{self._base}/{name}"
        try:
            if self.is_local:
                with pa.memory_map(path) as source:
                    return source.read_buffer()
            with self._filesystem.open_input_file(path) as source:
                return source.read_buffer()
        except (OSError, pa.ArrowInvalid) as error:
            raise self._unreadable(name, error) from error

    def read_ranges(self, name: str, ranges: Iterable[tuple[int, int]]) -> list[pa.Buffer]:
        """Return byte ranges of a file; what lies behind its end is missing."""
        if self.is_local:
            data = self.read(name)
            return [data[start:stop] for start, stop in ranges]
        try:
            with self._filesystem.open_input_file(f"{self._base}/{name}") as source:
                return [pa.py_buffer(source.read_at(stop - start, start)) for start, stop in ranges]
        except OSError as error:
            raise self._unreadable(name, error) from error

    def ahead(self, read: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Begin a read and return a function that waits for it; local files are read by that function."""
        if self.is_local:
            return partial(read, *arguments)
        return _readers(os.getpid()).submit(read, *arguments).result

    def version(self, name: str) -> tuple[int, int] | None:
        """Return size and modification time of a local file, which show that it changed."""
        if not self.is_local:
            return None
        try:
            status = os.stat(f"{self._base}/{name}")
        except OSError as error:
            raise self._unreadable(name, error) from error
        return status.st_size, status.st_mtime_ns

    def _unreadable(self, name: str, error: Exception) -> StateError:
        return StateError(f"cannot read '{self.path(name)}', which the join's state needs: {error}")

    def exists(self, name: str) -> bool:
        """Return whether a file exists."""
        return bool(self._filesystem.get_file_info(f"{self._base}/{name}").type != fs.FileType.NotFound)

    def list(self, folder: str) -> list[str]:
        """Return the names directly under a folder; none if the folder is missing."""
        return sorted(os.path.basename(info.path) for info in self._entries(folder))

    def folders(self, folder: str) -> tuple[str, ...]:
        """Return the names of the folders directly under a folder."""
        found = (info for info in self._entries(folder) if info.type == fs.FileType.Directory)
        return tuple(sorted(os.path.basename(info.path) for info in found))

    def _entries(self, folder: str) -> Sequence[fs.FileInfo]:
        """Return what is directly under a folder; nothing if the folder is missing."""
        selector = fs.FileSelector(f"{self._base}/{folder}", allow_not_found=True)
        failure: OSError | None = None
        for _ in range(_LISTINGS):
            try:
                found: Sequence[fs.FileInfo] = self._filesystem.get_file_info(selector)
                return found
            except FileNotFoundError as error:  # another task made or removed the folder meanwhile
                failure = error
            except OSError as error:
                failure = error
                break
        raise StateError(f"cannot list '{self.path(folder)}': {failure}") from failure

    def remove(self, name: str) -> None:
        """Remove a file if it exists; a task may run twice."""
        try:
            self._filesystem.delete_file(f"{self._base}/{name}")
        except FileNotFoundError:
            return
        except OSError:
            if self.exists(name):
                raise

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its content, if it exists."""
        try:
            self._filesystem.delete_dir(f"{self._base}/{folder}")
        except FileNotFoundError:
            return
        except OSError:
            if self.list(folder):
                raise


class KeptChunks:
    """Chunks in a map of Spark's state store.

    Spark commits them with the micro-batch, and returns to an earlier micro-batch with all of them. So chunks
    are removed as soon as the windows no longer need them, and a task that fails leaves nothing.
    """

    is_local = True

    def __init__(self, state: Any) -> None:
        self._state = state

    def path(self, name: str) -> str:
        """Return the name of a chunk, for messages."""
        return f"state store: {name}"

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a chunk, which Spark commits with the micro-batch."""
        self._state.updateValue((name,), (b"".join(map(bytes, parts)),))

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a chunk."""
        held = self._state.getValue((name,))
        if held is None:
            raise StateError(f"Spark's state store has lost the chunk '{name}'; start from a new checkpoint")
        return pa.py_buffer(bytes(held[0]))

    def read_ranges(self, name: str, ranges: Iterable[tuple[int, int]]) -> list[pa.Buffer]:
        """Return byte ranges of a chunk."""
        data = self.read(name)
        return [data[start:stop] for start, stop in ranges]

    def ahead(self, read: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Return a function that reads: the state store is asked by one thread only."""
        return partial(read, *arguments)

    def version(self, name: str) -> None:
        """Return nothing: chunks never change."""

    def remove(self, name: str) -> None:
        """Remove a chunk from the next version of the state."""
        self._state.removeKey((name,))


Chunks = Store | KeptChunks
"""A place where chunks live: a directory, or Spark's state store."""


def _filesystem(root: str) -> tuple[fs.FileSystem, str]:
    if "\0" in root:
        raise InputError(f"folder {root!r} has a NUL character; remove it")
    if "://" not in root:
        return fs.LocalFileSystem(), os.path.abspath(root)
    try:  # `s3a` is Hadoop's name for the same store
        filesystem, base = fs.FileSystem.from_uri(re.sub("^s3a://", "s3://", root))
        return filesystem, base.rstrip("/")
    except pa.ArrowInvalid as error:
        found = _by_fsspec(root)
        if found is None:
            raise InputError(
                f"no filesystem for '{root}': {error}; give a path, or a URI of a kind "
                "that pyarrow (file, s3, gs, abfss, hdfs) or an installed fsspec package reaches"
            ) from None
        return found


def _by_fsspec(root: str) -> tuple[fs.FileSystem, str] | None:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        return None
    try:
        # other processes write too, so what a folder listed before says nothing
        filesystem, base = url_to_fs(root, use_listings_cache=False)
    except (ValueError, ImportError):
        return None
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), base.rstrip("/")
