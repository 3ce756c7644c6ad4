"""Cards: what a board holds of one query."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from handshake.metrics.snapshot import Snapshot
from handshake.page.history import History
from handshake.page.sources import FINAL, Source

_ROWS, _CELL = 8, 120
_DETAILS_EVERY = 0.5
"""Seconds between two looks at the details, which take longer to read and to send than all other figures."""


class Card:
    """One query on the page: its last snapshot, its history and its last results."""

    def __init__(self, source: Source, snapshot: Snapshot) -> None:
        self.history = History()
        self.updates = 0
        self._latest: pa.RecordBatch | None = None
        self._rows = dict[str, Any]()
        self.looks, self._looked, self.details = 0, 0.0, dict[str, Any]()
        self.snapshot = snapshot
        self._begin(source)

    @property
    def query(self) -> str:
        """The name that the source gives the query."""
        return self.snapshot.name

    def _begin(self, source: Source) -> None:
        """Show another source, whose figures continue the history."""
        self.source, self.since = source, time.time()
        record = source.record(self.query)
        if record is not None:
            self.history.extend(record.history)

    def update(self, source: Source, snapshot: Snapshot) -> None:
        """Take over new figures."""
        self.snapshot, self.updates = snapshot, self.updates + 1
        if source is not self.source:
            self._begin(source)
        record = source.record(self.query)
        if record is None:
            self.history.add(snapshot, time.time())
        else:
            self.since, self._rows = record.since, record.last
            self.history.extend(record.points)

    def end(self) -> None:
        """Show the query as ended: its figures are read no more."""
        if self.snapshot.state not in FINAL:
            self.snapshot, self.updates = self.snapshot.with_state("ended"), self.updates + 1

    def show(self, batch: pa.RecordBatch) -> None:
        """Keep the last batch of results until the next look."""
        self._latest = batch

    def look(self) -> None:
        """Renew the details, the last rows as text and the latencies, if they are old; `looks` counts it."""
        now, batch = time.monotonic(), self._latest
        if self.looks and now - self._looked < _DETAILS_EVERY:
            return
        self.looks, self._looked = self.looks + 1, now
        if batch is not None:
            self._latest = None
            self._rows = {"columns": batch.schema.names, "rows": _texts(batch)}
        latency = self.snapshot.latency
        self.details = {"latency": None if latency is None else latency.to_dict(), "last": self._rows}

    def figures(self) -> dict[str, Any]:
        """Return the last figures as plain data, without the details."""
        snapshot = self.snapshot
        return {
            "engine": snapshot.engine, "state": snapshot.state, "algorithm": snapshot.algorithm,
            "since": round(self.since, 1), "error": snapshot.error,
            "streams": [vars(stream) for stream in snapshot.streams],
            "results": snapshot.results, "figures": snapshot.figures,
            "parts": [[p.results, p.comparisons, p.window_rows, p.queue] for p in snapshot.parts],
        }  # fmt: skip


def _texts(batch: pa.RecordBatch) -> list[list[str | None]]:
    tail = batch.slice(max(batch.num_rows - _ROWS, 0))
    return [[_cell(value) for value in row.values()] for row in reversed(tail.to_pylist())]


def _cell(value: Any) -> str | None:
    text = None if value is None else str(value)
    return text if text is None or len(text) <= _CELL else text[: _CELL - 1] + "…"
