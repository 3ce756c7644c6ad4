"""Fresh static sides: a batch DataFrame that a stream joins is read again while the query runs.

`refresh="batch"` reads it in every micro-batch, as Spark's own joins with a static side do. A period keeps
what was read and replaces it after that time. Spark lists the files of a DataFrame once, when it is created;
both list them again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener

from handshake.engines.spark.joins.definition import EACH_BATCH, Definition
from handshake.engines.spark.private import connect_messages, connect_relation, list_files_again
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
    """Reads a static side again between micro-batches of the queries that run its join.

    It stays in the session, since the DataFrame of the join may be started again, and rests meanwhile.
    Spark calls it when a query starts, before the first micro-batch, and after each one. A micro-batch that
    has been planned goes on with what was there: `held` is recomputed for later ones only.
    """

    def __init__(self, static: DataFrame, held: DataFrame | None, definition: Definition) -> None:
        assert definition.refresh is not None
        self._static, self._held, self._period = static, held, definition.refresh
        self._store = ReachedStore(static.sparkSession, definition.root)
        self._folder = definition.scratch
        self.metric = f"refresh {definition.identity}"
        """The metric that every micro-batch of the join observes."""
        self._runs: dict[str, str] = {}
        """The runs of queries that have started since, and their queries."""
        self._others: set[str] = set()
        """Queries that ran without this join the last time."""
        self._due = 0.0
        self._outdated: list[_Outdated] = []
        self._lock = threading.Lock()

    def onQueryStarted(self, event: Any) -> None:
        """Read the static side again before the first micro-batch, unless the query has had another join."""
        with self._working():
            self._runs[str(event.runId)] = str(event.id)
            if str(event.id) not in self._others:
                self._refresh()

    def onQueryProgress(self, event: Any) -> None:
        """Read the static side again if it is time; remove chunks that no micro-batch reads any more."""
        report = event.progress
        with self._working():
            if self.metric in report.observedMetrics:
                self._others.discard(str(report.id))
            else:
                self._others.add(str(report.id))
            self._forget(str(report.runId), int(report.batchId))
            self._refresh_if_due()

    def onQueryIdle(self, event: Any) -> None:
        """Read the static side again if it is time; Spark calls this every ten seconds without new rows."""
        with self._working():
            self._refresh_if_due()

    def onQueryTerminated(self, event: Any) -> None:
        """Remove chunks that only this query may have read."""
        with self._working():
            self._runs.pop(str(event.runId), None)
            self._forget(str(event.runId), None)

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except ValueError as error:  # of grpc: the session of Spark Connect is being stopped
                if "Channel closed" not in str(error):
                    raise

    def _refresh_if_due(self) -> None:
        if time.monotonic() >= self._due and not self._others.issuperset(self._runs.values()):
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
        messages = () if relation is None else connect_messages(relation)
        sources = [each for each in messages if each.DESCRIPTOR.name == "DataSource"]
        for path in sorted({path for source in sources for path in source.paths}):
            self._static.sparkSession.catalog.refreshByPath(path)

    def _running(self) -> dict[str, int]:
        """Return the last micro-batch that may be planned by now, of each run that may have the join."""
        running = {}
        for query in self._static.sparkSession.streams.active:
            if str(query.runId) in self._runs and str(query.id) not in self._others:
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
