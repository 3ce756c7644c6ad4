"""The state directory as the driver program reaches it.

A client of Spark Connect may run where nothing but the server can be reached, so tasks do its work there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from handshake.engines.spark.failures import reason
from handshake.engines.spark.private import NO_ANALYSIS, is_connect
from handshake.engines.spark.state.store import Store, open_store
from handshake.errors import HandshakeError

_PATIENCE = 20.0
"""Seconds to wait for a server when the program ends."""


class ReachedStore:
    """Files of the state directory, for driver code: `mark`, `probe`, `names` and `remove_folder`."""

    def __init__(self, session: SparkSession, root: str) -> None:
        self._session, self._root = session, root

    def mark(self, folder: str) -> str:
        """Return a marker, by which executors see that they have the same directory; write a missing one.

        Args:
            folder: The folder of the marker; empty for the directory itself.
        """
        return self._run(lambda store: [_mark(store, folder)])[0]

    def probe(self) -> None:
        """Raise if the directory cannot be written."""
        self._run(_probe)

    def names(self, folder: str) -> list[str]:
        """Return the names directly under a folder; none if the folder is missing."""
        return self._run(lambda store: store.list(folder))

    def remove_folder(self, folder: str) -> None:
        """Remove a folder with its content, if it exists."""
        self._run(lambda store: store.remove_folder(folder))

    def remove_at_exit(self, folder: str) -> None:
        """Remove a folder when the program ends; with Spark Connect only if the session still answers."""
        if not is_connect(self._session):
            open_store(self._root).remove_folder(folder)
            return
        if not getattr(self._session, "is_stopped", False):

            def remove() -> None:
                with suppress(Exception):
                    self.remove_folder(folder)

            removal = threading.Thread(target=remove, daemon=True)
            removal.start()
            removal.join(_PATIENCE)

    def _run(self, work: Callable[[Store], list[str] | None]) -> list[str]:
        if not is_connect(self._session):
            return work(open_store(self._root)) or []
        try:
            found = self._session.range(0, 1, 1, 1).mapInArrow(_task(self._root, work), "name string")
            return [str(name) for (name,) in found.collect()]
        except PySparkException as error:
            if NO_ANALYSIS not in str(error):
                raise HandshakeError(reason(error)) from error
            return (
                work(open_store(self._root)) or []
            )  # a pipeline's query function runs nothing, and is local


def _task(root: str, work: Callable[[Store], list[str] | None]) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            names = pa.array(work(open_store(root)) or [], pa.string())
            yield pa.RecordBatch.from_arrays([names], names=["name"])

    return run


def _mark(store: Store, folder: str) -> str:
    found = (name for name in store.list(folder) if name.endswith(".marker"))
    name = next(found, f"handshake-{uuid.uuid4().hex}.marker")
    marker = f"{folder}/{name}".lstrip("/")
    if not store.exists(marker):
        store.write(marker, [b"Tuples of stream joins; checkpoints refer to files in this folder.\n"])
    return marker


def _probe(store: Store) -> None:
    name = f"_handshake-{uuid.uuid4().hex}"
    store.write(name, [])
    store.remove(name)
