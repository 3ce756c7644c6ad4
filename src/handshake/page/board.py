"""The board: everything that a page shows, by the titles of the queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from handshake.errors import InputError
from handshake.metrics.export import openmetrics
from handshake.metrics.snapshot import Snapshot
from handshake.page.cards import Card
from handshake.page.frames import Frame, Viewer, whole
from handshake.page.history import Errors
from handshake.page.sources import Source

IDLE, SAMPLED = 1.0, 0.2
"""Seconds between two samples of all figures, at most and at least; rows and results are read per update."""
MOST_ENDED = 20
"""Cards of sources that are over; older ones are removed."""


class Board:
    """The queries of a page, sampled once a second, or more often if somebody who looks asks for that."""

    def __init__(self) -> None:
        self.cards: dict[str, Card] = {}
        self.errors = Errors()
        self._samplers: dict[str, _Sampler] = {}
        """The thread of each source that is not over, by the name of the source."""
        self._lock = threading.RLock()
        self._viewers: set[Viewer] = set()
        self._waiting: dict[str, pa.RecordBatch] = {}

    # Sources

    def add(self, source: Source) -> None:
        """Show the queries of a source from now on, in place of a source of the same name."""
        sampler = _Sampler(self, source)
        with self._lock:
            former = self._samplers.get(source.name)
            if former is not None:
                self.drop(former.source)
            self._samplers[source.name] = sampler
        sampler.start()

    def drop(self, source: Source) -> None:
        """Read a source no more; its queries are shown as ended."""
        with self._lock:
            if self._reads(source):
                self._samplers.pop(source.name).stop()
                for card in self.cards.values():
                    if card.source is source:
                        card.end()
                ended = [title for title, card in self.cards.items() if not self._reads(card.source)]
                for title in ended[:-MOST_ENDED]:
                    del self.cards[title]

    def sources(self) -> list[Source]:
        """Return the sources that are read."""
        with self._lock:
            return [sampler.source for sampler in self._samplers.values()]

    def _reads(self, source: Source) -> bool:
        sampler = self._samplers.get(source.name)
        return sampler is not None and sampler.source is source

    def take(self, source: Source, snapshots: list[Snapshot]) -> None:
        """Take over the figures of a source, unless it has been dropped."""
        with self._lock:
            if not self._reads(source):
                return
            for snapshot in snapshots:
                title = self._title(source, snapshot.name)
                card = self.cards.get(title)
                if card is not None and card.source is not source and snapshot.state == "waiting":
                    continue  # the former figures stay until there are new ones
                former = "" if card is None else card.snapshot.error
                if card is None:
                    card = self.cards[title] = Card(source, snapshot)
                    if title in self._waiting:
                        card.show(self._waiting.pop(title))
                if snapshot.error and snapshot.error != former:
                    self.errors.note(title, snapshot.error)
                card.update(source, snapshot)
            names = {snapshot.name for snapshot in snapshots}
            for title, card in list(self.cards.items()):
                if card.source is source and card.query not in names:
                    del self.cards[title]

    def _title(self, source: Source, query: str) -> str:
        """Return the title of a query: its name, with its source if another one has a query of that name."""
        own = (title for title, card in self.cards.items() if card.source is source and card.query == query)
        free = (
            title
            for title in (query, f"{query} · {source.name}")
            if title not in self.cards or not self._reads(self.cards[title].source)
        )
        return next(own, None) or next(free, query)

    def show(self, title: str, batch: pa.RecordBatch) -> None:
        """Show rows as the last results of a query."""
        if batch.num_rows:
            card = self.cards.get(title)
            if card is None:
                self._waiting[title] = batch
            else:
                card.show(batch)

    # Those who look

    def look(self, viewer: Viewer) -> None:
        """Sample as often as a viewer wants it, until it leaves."""
        with self._lock:
            self._viewers.add(viewer)
            for sampler in self._samplers.values():
                sampler.wake()

    def leave(self, viewer: Viewer) -> None:
        """Forget a viewer."""
        self._viewers.discard(viewer)

    @property
    def pause(self) -> float:
        """Seconds between two samples now; a slow viewer does not thin the history."""
        return max(min((IDLE, *(1 / viewer.rate for viewer in list(self._viewers)))), SAMPLED)

    def frame(self) -> Frame:
        """Return all figures of this moment as plain data."""
        return whole(dict(self.cards), self.errors)

    def news(self, viewer: Viewer) -> Frame | None:
        """Return the figures of this moment that a viewer has not got; None if there are none."""
        return viewer.news(dict(self.cards), self.errors)

    def describe(self, title: str) -> dict[str, Any]:
        """Return the history and what does not change of a query."""
        card = self._card(title)
        return {"history": card.history.columns(), "about": card.source.about(card.query)}

    def why(self, title: str, rows: Sequence[str]) -> str:
        """Explain why rows of a join, one per stream, written in JSON, are a result, or not."""
        card = self._card(title)
        return card.source.why(card.query, rows)

    def _card(self, title: str) -> Card:
        card = self.cards.get(title)
        if card is None:
            raise InputError(f"no query '{title}' on this page ({', '.join(self.cards) or 'none yet'})")
        return card

    def openmetrics(self) -> str:
        """Return the metrics of all queries in the OpenMetrics text format."""
        return openmetrics(*(replace(card.snapshot, name=title) for title, card in dict(self.cards).items()))

    def close(self) -> None:
        """End all samplers."""
        with self._lock:
            samplers = list(self._samplers.values())
            self._samplers.clear()
        for sampler in samplers:
            sampler.stop()
        for sampler in samplers:
            sampler.join(timeout=2.0)


class _Sampler(threading.Thread):
    """The thread that reads one source: a source that is slow to answer does not hold up the others."""

    def __init__(self, board: Board, source: Source) -> None:
        super().__init__(name="handshake-live-sampler", daemon=True)
        self._board, self.source = board, source
        self._stopped, self._awake = threading.Event(), threading.Event()
        self._failure = ""

    def run(self) -> None:
        """Sample until the source is over, or another takes its place, or the page is closed."""
        while not self._stopped.is_set():
            began = time.monotonic()
            self._sample()
            if self.source.over:
                self._board.drop(self.source)
                return
            self._awake.wait(max(self._board.pause - (time.monotonic() - began), 0.001))
            self._awake.clear()

    def _sample(self) -> None:
        try:
            found = self.source.snapshots()
        except Exception as error:  # the page goes on, whatever one source does
            text = f"{type(error).__name__}: {error}"
            if text != self._failure:
                self._board.errors.note(self.source.name, f"figures cannot be read: {text}")
            self._failure = text
        else:
            self._failure = ""
            self._board.take(self.source, found)

    def wake(self) -> None:
        """Let the thread sample now instead of later."""
        self._awake.set()

    def stop(self) -> None:
        """End the thread after its present sample, and let go of the source."""
        self._stopped.set()
        self._awake.set()
        self.source.close()
