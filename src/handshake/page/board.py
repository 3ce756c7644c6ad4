"""The board: everything that a page shows, sampled in threads of its own."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from handshake.engines.engine import Run
from handshake.errors import InputError
from handshake.joins.why import typed_row
from handshake.metrics.export import openmetrics
from handshake.metrics.snapshot import Snapshot
from handshake.metrics.watch import Counts, Watch
from handshake.page.about import StateOf, describe
from handshake.page.history import History

__all__ = ["FASTEST", "Board", "RunSource", "Sent", "Source", "ThingSource"]

IDLE, SAMPLED = 1.0, 0.2
"""Seconds between two samples of all figures: while no page is open, and at least while one is. Rows and
results are read for each update."""
FASTEST = 50
"""Updates per second, at most."""
_ROWS, _CELL, _ERRORS = 8, 120, 50
_DETAILS_EVERY = 0.5
"""Seconds between two looks at the details, which take longer to read and to send than all other figures."""


Sent = dict[str, tuple[int, int]]
"""By name, the last snapshot and the last details that a viewer has got."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class Source(Protocol):
    """Snapshots of one or more queries, and what is known about each."""

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of this moment."""

    def counts(self, name: str) -> Counts | None:
        """Return the rows and results of this moment; None if that takes as long as a snapshot."""

    def about(self, name: str) -> dict[str, Any]:
        """Return what does not change: the plan, the windows."""

    def why(self, left: Any, right: Any) -> str:
        """Explain why two rows are a pair, or not."""


class ThingSource:
    """A join, a query, or a streaming query of Spark."""

    def __init__(self, thing: Any, name: str | None, plan: Any = None) -> None:
        self._watch = Watch(thing, name)
        self._about, self._state = describe(thing, plan), StateOf.join(thing, plan)
        self.name = self._watch.name
        self._thing = self._watch.thing

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of this moment."""
        return self._watch.snapshots()

    def counts(self, name: str) -> Counts | None:
        """Return the rows and results of this moment, if the thing counts them."""
        return self._watch.counts()

    def about(self, name: str) -> dict[str, Any]:
        """Return what does not change."""
        return self._about

    def why(self, left: Any, right: Any) -> str:
        """Explain why two rows are a pair, or not."""
        if self._state is not None:
            return self._state.why(left, right)
        thing = self._thing()
        if self._about["why"] is None or thing is None:
            raise InputError(f"'{self.name}' cannot explain pairs; one join of two streams can")
        rows = zip((left, right), thing.plan.spec.sides, strict=True)
        return str(thing.why(*(typed_row(row, side.schema, side.name) for row, side in rows)))


class RunSource:
    """A run of an engine, which may consist of several queries, such as streaming queries of Spark."""

    def __init__(self, run: Run, name: str, text: str = "") -> None:
        self._run, self.name, self._text = run, name, text
        self._sources: dict[int, ThingSource] = {}
        self._end: tuple[str, str] | None = None

    def finish(self, error: str = "") -> None:
        """Say that the run is done, or that it failed with an error."""
        self._end = ("failed" if error else "ended", error)

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of all its queries."""
        for thing in self._run.sources_of_figures():
            if id(thing) not in self._sources:
                name = None if hasattr(thing, "lastProgress") else self.name
                self._sources[id(thing)] = ThingSource(thing, name)
        found = [each for source in self._sources.values() for each in source.snapshots()]
        found = found or [Snapshot(self.name, "local", "waiting")]
        return found if self._end is None else [each.with_state(*self._end) for each in found]

    def counts(self, name: str) -> Counts | None:
        """Return the rows and results of this moment, if the run is one thing that counts them."""
        alone = len(self._sources) == 1 and self._end is None
        return next(iter(self._sources.values())).counts(name) if alone else None

    def about(self, name: str) -> dict[str, Any]:
        """Return what does not change."""
        own = next(iter(self._sources.values())).about(name) if len(self._sources) == 1 else {}
        return {"tree": None, "windows": {}, "why": None, **own, "text": own.get("text") or self._text}

    def why(self, left: Any, right: Any) -> str:
        """Explain why two rows are a pair, or not, if the run is one join."""
        if len(self._sources) != 1:
            raise InputError(f"'{self.name}' is not one join, and cannot explain pairs; use handshake why")
        return next(iter(self._sources.values())).why(left, right)


class Card:
    """One query on the page: its last snapshot, its history and its last results."""

    def __init__(self, source: Source, snapshot: Snapshot) -> None:
        self.source, self.snapshot = source, snapshot
        self.history = History()
        self.since, self.updates = time.time(), 0
        self._latest: pa.RecordBatch | None = None
        self.rows = dict[str, Any]()
        self.looks, self._looked, self.details = 0, 0.0, dict[str, Any]()

    def update(self, source: Source, snapshot: Snapshot) -> None:
        """Take over new figures; those of another source continue the history."""
        if source is not self.source:
            self.source, self.since = source, time.time()
        self.snapshot, self.updates = snapshot, self.updates + 1
        self.history.add(snapshot, time.time())

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
            self.rows = {"columns": batch.schema.names, "rows": _texts(batch)}
        self.details = {"latency": _plain_latency(self.snapshot.latency), "last": self.rows}


def _texts(batch: pa.RecordBatch) -> list[list[str | None]]:
    tail = batch.slice(max(batch.num_rows - _ROWS, 0))
    return [[_cell(value) for value in row.values()] for row in reversed(tail.to_pylist())]


def _cell(value: Any) -> str | None:
    text = None if value is None else str(value)
    return text if text is None or len(text) <= _CELL else text[: _CELL - 1] + "…"


class Board:
    """The queries of a page by name, sampled once a second, or as often as somebody who looks asks for."""

    def __init__(self) -> None:
        self.cards: dict[str, Card] = {}
        self.errors: deque[dict[str, Any]] = deque(maxlen=_ERRORS)
        self.noted = 0
        """The number of errors so far, of which the list has the last ones."""
        self._samplers: list[_Sampler] = []
        self._lock = threading.Lock()
        self._rates: dict[object, float] = {}
        self._waiting: dict[str, pa.RecordBatch] = {}

    def add(self, source: Source) -> None:
        """Show the queries of a source from now on."""
        sampler = _Sampler(self, source)
        self._samplers.append(sampler)
        sampler.start()

    def show(self, name: str, batch: pa.RecordBatch) -> None:
        """Show rows as the last results of a query."""
        if batch.num_rows:
            card = self.cards.get(name)
            if card is None:
                self._waiting[name] = batch
            else:
                card.show(batch)

    def take(self, source: Source, snapshots: list[Snapshot]) -> None:
        """Take over the figures of a source."""
        with self._lock:
            for snapshot in snapshots:
                card = self.cards.get(snapshot.name)
                former = "" if card is None else card.snapshot.error
                if card is None:
                    card = self.cards[snapshot.name] = Card(source, snapshot)
                    if snapshot.name in self._waiting:
                        card.show(self._waiting.pop(snapshot.name))
                elif card.source is not source and snapshot.state in ("ended", "waiting"):
                    continue  # a newer query of that name has taken its place
                if snapshot.error and snapshot.error != former:
                    self.note(snapshot.name, snapshot.error)
                card.update(source, snapshot)

    def note(self, name: str, error: str) -> None:
        """Note an error for the list of errors."""
        self.errors.append({"t": time.time(), "query": name, "error": error[:2000]})
        self.noted += 1

    # Those who look

    def look(self, viewer: object, rate: float) -> None:
        """Sample this many times per second as long as the viewer looks."""
        self._rates[viewer] = min(max(rate, 0.2), FASTEST)
        for sampler in self._samplers:
            sampler.wake()

    def leave(self, viewer: object) -> None:
        """Forget a viewer."""
        self._rates.pop(viewer, None)

    @property
    def pause(self) -> float:
        """Seconds between two samples now."""
        return max(min((1 / rate for rate in list(self._rates.values())), default=IDLE), SAMPLED)

    def frame(self, sent: Sent | None = None) -> dict[str, Any]:
        """Return the figures of this moment as plain data.

        Args:
            sent: The figures that a viewer has got so far; they are left out and brought up to date. Without
                it, the frame has everything.
        """
        found: dict[str, Any] = {"t": round(time.time(), 3), "queries": {}}
        for name, card in list(self.cards.items()):
            card.look()
            found["queries"][name] = (
                {**_figures(card), **card.details} if sent is None else _news(card, name, sent)
            )
        if sent is None or sent.get("") != (self.noted, 0):  # no query is called that
            found["errors"] = list(self.errors)
        if sent is not None:
            sent[""] = self.noted, 0
        return found

    def frame_text(self, sent: Sent | None = None) -> str:
        """Return the figures of this moment as JSON; see `frame`. It is empty if there is nothing to send."""
        found = self.frame(sent)
        if sent is not None and not any(found["queries"].values()) and "errors" not in found:
            return ""
        return _ENCODER.encode(found)

    def describe(self, name: str) -> dict[str, Any]:
        """Return the history and what does not change of a query."""
        card = self._card(name)
        return {"history": card.history.columns(), "about": card.source.about(name)}

    def why(self, name: str, left: Any, right: Any) -> str:
        """Explain why two rows of a join are a pair, or not."""
        return self._card(name).source.why(left, right)

    def _card(self, name: str) -> Card:
        if name not in self.cards:
            raise InputError(f"no query '{name}' on this page ({', '.join(self.cards) or 'none yet'})")
        return self.cards[name]

    def openmetrics(self) -> str:
        """Return the metrics of all queries in the OpenMetrics text format."""
        return openmetrics(*(card.snapshot for card in list(self.cards.values())))

    def close(self) -> None:
        """End all samplers."""
        for sampler in self._samplers:
            sampler.stop()
        for sampler in self._samplers:
            sampler.join(timeout=2.0)
        self._samplers.clear()


def _news(card: Card, name: str, sent: Sent) -> dict[str, Any]:
    """Return the figures that a viewer has not got: all of them, or the rows and results of this moment."""
    updates, looks = sent.get(name, (-1, -1))
    counts = card.source.counts(name)
    found: dict[str, Any] = {} if counts is None else {"rows": counts[0], "results": counts[1]}
    if updates == card.updates:
        return found
    sent[name] = card.updates, card.looks
    found = {**_figures(card), **found}
    if looks != card.looks:
        found |= card.details
    return found


def _figures(card: Card) -> dict[str, Any]:
    snapshot = card.snapshot
    return {
        "engine": snapshot.engine, "state": snapshot.state, "algorithm": snapshot.algorithm,
        "since": round(card.since, 1), "error": snapshot.error,
        "streams": [vars(stream) for stream in snapshot.streams],
        "results": snapshot.results, "figures": snapshot.figures,
        "parts": [[p.results, p.comparisons, p.window_rows, p.queue] for p in snapshot.parts],
    }  # fmt: skip


def _plain_latency(latency: Any) -> Any:
    if latency is None or isinstance(latency, Mapping):
        return latency
    bounds = [[None if bound == float("inf") else bound, count] for bound, count in latency.buckets]
    return {
        **{k: getattr(latency, k) for k in ("results", "p50", "p90", "p99", "longest")},
        "buckets": bounds,
    }


class _Sampler(threading.Thread):
    """The thread that reads one source: a source that is slow to answer does not hold up the others."""

    def __init__(self, board: Board, source: Source) -> None:
        super().__init__(name="handshake-live-sampler", daemon=True)
        self._board, self._source = board, source
        self._over, self._awake = threading.Event(), threading.Event()
        self._failure = ""

    def run(self) -> None:
        """Sample until the page is closed."""
        while not self._over.is_set():
            began = time.monotonic()
            self._sample()
            self._awake.wait(max(self._board.pause - (time.monotonic() - began), 0.001))
            self._awake.clear()

    def _sample(self) -> None:
        try:
            found = self._source.snapshots()
        except Exception as error:  # the page goes on, whatever one source does
            text = f"{type(error).__name__}: {error}"
            if text != self._failure:
                self._board.note(getattr(self._source, "name", ""), f"figures cannot be read: {text}")
            self._failure = text
        else:
            self._failure = ""
            self._board.take(self._source, found)

    def wake(self) -> None:
        """Let the thread sample now instead of later."""
        self._awake.set()

    def stop(self) -> None:
        """End the thread after its present sample."""
        self._over.set()
        self._awake.set()
