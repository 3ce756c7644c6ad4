"""Sources of a board: things of this process whose figures are read again and again."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from handshake.engines.engine import Run
from handshake.errors import InputError
from handshake.joins.why.rows import parse_row
from handshake.metrics.snapshot import Snapshot
from handshake.metrics.watch import Counts, Watch
from handshake.page.about import StateOf, describe, explain_rows
from handshake.page.history import Point

FINAL = ("ended", "failed")
"""The states that nothing follows."""


class Record(NamedTuple):
    """The record of a query that another page keeps, beyond its figures."""

    since: float
    last: dict[str, Any]
    """The last rows, as text."""
    history: list[Point]
    """The points when the query was first seen."""
    points: list[Point]
    """The last few points."""


class Source(ABC):
    """Snapshots of one or more queries, and what is known about each."""

    name: str
    """Its name. A source takes the place of the one of the same name."""
    over = False
    """True if the last snapshots were final."""

    @abstractmethod
    def snapshots(self) -> list[Snapshot]:
        """Return the figures of this moment."""

    def counts(self, query: str) -> Counts | None:
        """Return the rows and results of this moment; None if that takes as long as a snapshot."""
        return None

    @abstractmethod
    def about(self, query: str) -> dict[str, Any]:
        """Return what does not change: the plan, the windows."""

    def record(self, query: str) -> Record | None:
        """Return what another page has recorded of a query; None for things of this process."""
        return None

    @abstractmethod
    def why(self, query: str, rows: Sequence[str]) -> str:
        """Explain why rows, one per stream, written in JSON, are a result, or not."""

    def close(self) -> None:  # noqa: B027  (few sources hold on to anything)
        """Let go of what is shown."""


class ThingSource(Source):
    """A join, a query, or a streaming query of Spark."""

    def __init__(self, thing: Any, name: str | None, plan: Any = None) -> None:
        self._watch = Watch(thing, name)
        self._about, self._state = describe(thing, plan), StateOf.join(thing, plan)
        self.name = self._watch.name
        self._listener: Callable[[pa.RecordBatch], object] | None = None

    def listen(self, show: Callable[[pa.RecordBatch], object]) -> None:
        """Let the thing pass on its last results until `close`, if it can."""
        thing = self._watch.thing()
        if hasattr(thing, "listeners"):
            self._listener = show
            thing.listeners.append(show)

    def close(self) -> None:
        """Stop listening to its results."""
        thing, listener, self._listener = self._watch.thing(), self._listener, None
        if thing is not None and listener is not None:
            with contextlib.suppress(ValueError):
                thing.listeners.remove(listener)

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of this moment."""
        found = self._watch.snapshots()
        self.over = all(each.state in FINAL for each in found)
        return found

    def counts(self, query: str) -> Counts | None:
        """Return the rows and results of this moment, if the thing counts them."""
        return self._watch.counts()

    def about(self, query: str) -> dict[str, Any]:
        """Return what does not change."""
        return self._about

    def why(self, query: str, rows: Sequence[str]) -> str:
        """Explain why rows are a result, or not."""
        thing, streams = self._watch.thing(), self._about["why"]
        if streams is None or (thing is None and self._state is None):
            raise InputError(f"'{self.name}' joins no streams, so it cannot explain rows")
        names = [stream["name"] for stream in streams]
        if len(rows) != len(names):
            raise InputError(f"one row of each stream is asked for ({', '.join(names)}); {len(rows)} came")
        parsed = [parse_row(text, name) for text, name in zip(rows, names, strict=True)]
        return explain_rows(thing, parsed) if self._state is None else self._state.why(*parsed)


class RunSource(Source):
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
        end = self._end
        for thing in self._run.sources_of_figures():
            if id(thing) not in self._sources:
                name = None if hasattr(thing, "lastProgress") else self.name
                self._sources[id(thing)] = ThingSource(thing, name)
        found = [each for source in self._sources.values() for each in source.snapshots()]
        found = found or [Snapshot(self.name, "local", "waiting")]
        self.over = end is not None
        return found if end is None else [each.with_state(*end) for each in found]

    def counts(self, query: str) -> Counts | None:
        """Return the rows and results of this moment, if the run is one thing that counts them."""
        only = self._only()
        return None if only is None or self._end is not None else only.counts(query)

    def about(self, query: str) -> dict[str, Any]:
        """Return what does not change."""
        only = self._only()
        own = {} if only is None else only.about(query)
        return {"tree": None, "windows": {}, "why": None, **own, "text": own.get("text") or self._text}

    def why(self, query: str, rows: Sequence[str]) -> str:
        """Explain why rows are a result, or not, if the run is one join or query."""
        only = self._only()
        if only is None:
            raise InputError(
                f"'{self.name}' runs as several queries, so it cannot explain rows; use handshake why"
            )
        return only.why(query, rows)

    def _only(self) -> ThingSource | None:
        return next(iter(self._sources.values())) if len(self._sources) == 1 else None
