"""Running things, watched from outside: joins, queries, runs of engines, streaming queries on Spark."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from handshake.errors import HandshakeError, InputError
from handshake.metrics.snapshot import Snapshot, of_join, of_query, of_report
from handshake.metrics.spark_progress import StreamingWatch

_numbers = itertools.count(1)
Counts = tuple[tuple[int, ...], Mapping[str, int]]
"""The rows of each stream, and the results by name."""


class Watch:
    """A named thing whose figures can be read at any moment; reading changes nothing.

    Joins and queries are not kept alive: once nothing else refers to one, it counts as ended.

    Args:
        thing: A `Join`, `MultiJoin`, `Query`, replay or run, or a `StreamingQuery` of Spark.
        name: Its name. By default that of the streaming query, or a number.

    Examples:
        >>> import handshake, pyarrow
        >>> rows = pyarrow.schema([("x", pyarrow.int64())])
        >>> with handshake.Join(left=rows, right=rows, on="l.x < r.x", window="10 tuples") as join:
        ...     _ = join.push_left({"x": [1, 2]}), join.push_right({"x": [2]})
        ...     Watch(join, "pairs").snapshots()[0].results
        {'join': 1}
    """

    def __init__(self, thing: Any, name: str | None = None) -> None:
        self._streaming = StreamingWatch(thing, name) if hasattr(thing, "lastProgress") else None
        if self._streaming is None and not hasattr(thing, "metrics"):
            raise InputError(
                f"{type(thing).__name__} has no metrics to read; give a Join, a MultiJoin, a Query or a "
                "StreamingQuery of Spark"
            )
        named = name or getattr(thing, "name", None) or f"{type(thing).__name__.lower()}-{next(_numbers)}"
        self.name = str(named)
        pushed = self._streaming is None and (hasattr(thing, "push") or hasattr(thing, "push_left"))
        self.thing: Callable[[], Any] = weakref.ref(thing) if pushed else lambda: thing
        """Returns what is watched, or None if it is gone."""
        self._last = [Snapshot(self.name, "spark" if self._streaming else "local", "waiting")]

    def snapshots(self) -> list[Snapshot]:
        """Return the figures of this moment: one snapshot, or one per join of a streaming query."""
        thing = self.thing()
        if thing is None:
            self._last = [each.with_state("ended") for each in self._last]
        elif self._streaming is not None:
            self._last = self._streaming.snapshots()
        else:
            self._last = [self._read(thing)]
        return self._last

    def counts(self) -> Counts | None:
        """Return the rows of each stream and the results of this moment; None if that takes longer."""
        thing = self.thing() if self._last[0].state == "running" else None
        return None if thing is None or not hasattr(thing, "counts") else thing.counts()

    def _read(self, thing: Any) -> Snapshot:
        try:
            found = thing.metrics()
        except HandshakeError:  # a replay that has not begun
            return self._last[0]
        if isinstance(found, Mapping):
            return of_report(self.name, found) if found else self._last[0]
        snapshot = of_join(self.name, found) if hasattr(found, "cores") else of_query(self.name, found)
        return snapshot.with_state("ended") if getattr(thing, "closed", False) else snapshot
