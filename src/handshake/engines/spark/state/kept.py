"""Chunks in Spark's state store, beside the manifest of their segment: `state="store"`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from handshake.engines.spark.state.store import StateError

T = TypeVar("T")


class Chunks(Protocol):
    """A place where chunks live: a directory (`Store`), or Spark's state store (`KeptChunks`)."""

    is_local: bool
    """True if reads return at once, so that reading ahead gains nothing."""

    def path(self, name: str) -> str:
        """Return the full name of a chunk, for messages."""

    def write(self, name: str, parts: Iterable[Any]) -> None:
        """Write a chunk: readers see all of it or nothing."""

    def read(self, name: str) -> pa.Buffer:
        """Return the bytes of a chunk."""

    def read_ranges(self, name: str, ranges: Iterable[tuple[int, int]]) -> list[pa.Buffer]:
        """Return byte ranges of a chunk."""

    def ahead(self, read: Callable[..., T], *arguments: Any) -> Callable[[], T]:
        """Begin a read and return a function that waits for it."""

    def version(self, name: str) -> Any:
        """Return a value that changes if the chunk does."""

    def remove(self, name: str) -> None:
        """Remove a chunk if it exists."""


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
