"""Fresh static sides: a batch DataFrame that a stream joins is read again while the query runs.

`refresh="batch"` reads it in every micro-batch, as Spark's own joins with a static side do. A period keeps
what was read and replaces it after that time. Spark lists the files of a DataFrame once, when it is created;
both list them again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

from handshake.engines.spark.joins.definition import EACH_BATCH, Definition
from handshake.engines.spark.private import connect_paths, connect_relation, list_files_again
from handshake.engines.spark.state.reached import ReachedStore
from handshake.errors import UnsupportedError, WindowError


def check_refresh(definition: Definition) -> None:
    """Raise if a static side is to be read again and cannot be.

    Raises:
        UnsupportedError: The join is not one of a stream with a batch DataFrame.
        WindowError: The text is no length of time, or not longer than zero.
    """
    text = definition.options.refresh
    if text is None:
        return
    if not definition.spread:
        raise UnsupportedError(
            f"refresh='{text}' is for joins of a stream with a batch DataFrame, which is read again; "
            "leave it out"
        )
    if text != EACH_BATCH and not definition.refresh:
        raise WindowError(f"refresh must be longer than zero; '{text}' is not; 'batch' reads every time")


@dataclass
class _Outdated:
    """Folders of chunks that were replaced, and the micro-batches that may still read them."""

    folders: list[str]
    waiting: dict[str, int]
    """By run of a query, the last micro-batch that may have been planned before."""


class Refresher(StreamingQueryListener):
    """Reads a static side again between micro-batches.

    Spark calls it when a query starts, before the first micro-batch, and after each one. A micro-batch that
    has been planned goes on with what was there: `held` is recomputed for later ones only.
    """

    def __init__(
        self, static: DataFrame, held: DataFrame | None, period: float, store: ReachedStore, folder: str
    ) -> None:
        self._static, self._held, self._period = static, held, period
        self._store, self._folder = store, folder
        self._due = 0.0
        self._outdated: list[_Outdated] = []
        self._lock = threading.Lock()

    def onQueryStarted(self, event: Any) -> None:
        """Read the static side again before the first micro-batch."""
        self._work_alone(self._refresh)

    def onQueryProgress(self, event: Any) -> None:
        """Read the static side again if it is time; remove chunks that no micro-batch reads any more."""
        run, batch = str(event.progress.runId), int(event.progress.batchId)
        self._work_alone(lambda: self._pass(run, batch))

    def onQueryIdle(self, event: Any) -> None:
        """Read the static side again if it is time; Spark calls this every ten seconds without new rows."""
        self._work_alone(self._refresh_if_due)

    def onQueryTerminated(self, event: Any) -> None:
        """Remove chunks that only this query may have read."""
        run = str(event.runId)
        self._work_alone(lambda: self._forget(run, None))

    def _work_alone(self, work: Callable[[], None]) -> None:
        with self._lock:
            try:
                work()
            except ValueError as error:  # of grpc: the session of Spark Connect is being stopped
                if "Channel closed" not in str(error):
                    raise

    def _pass(self, run: str, batch: int) -> None:
        self._forget(run, batch)
        self._refresh_if_due()

    def _refresh_if_due(self) -> None:
        if time.monotonic() >= self._due:
            self._refresh()

    def _refresh(self) -> None:
        list_files_again(self._static)
        if self._held is not None:
            folders = self._store.names(self._folder)
            self._held.unpersist()
            self._held.persist()
            self._list_for_connect()
            self._outdated.append(_Outdated(folders, self._running()))
        self._due = time.monotonic() + self._period

    def _list_for_connect(self) -> None:
        """Let a server of Spark Connect list files again, which it does for what it holds."""
        relation = connect_relation(self._static)
        for path in sorted(connect_paths(relation)) if relation is not None else ():
            self._static.sparkSession.catalog.refreshByPath(path)

    def _running(self) -> dict[str, int]:
        """Return the last micro-batch of each query that may have been planned by now."""
        running = {}
        for query in self._static.sparkSession.streams.active:
            last = query.lastProgress
            running[str(query.runId)] = 0 if last is None else int(last["batchId"]) + 1
        return running

    def _forget(self, run: str, batch: int | None) -> None:
        """Note that a query has ended a micro-batch, or has ended altogether."""
        for outdated in self._outdated:
            if batch is None or batch >= outdated.waiting.get(run, -1):
                outdated.waiting.pop(run, None)
        while self._outdated and not self._outdated[0].waiting:
            for name in self._outdated.pop(0).folders:
                if name.isdigit():  # the folder of a stage
                    self._store.remove_folder(f"{self._folder}/{name}")
