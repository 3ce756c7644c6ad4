"""Clocks of both streams of a join, by which a silent stream stops holding back the watermark.

Spark's watermark is that of the slower stream, and it moves only with rows of both. If a stream has been
silent for the time that the user gave (`idle`), the clock of the other stream alone counts. All segments see
all new rows and the time at which the micro-batch began, so they agree. Spark keeps that time in the
checkpoint, so a repeated micro-batch decides the same again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from handshake.engines.spark.joins.definition import Idle
from handshake.engines.spark.state.pack import PackedChunk
from handshake.schema import UNITS


@dataclass
class Clocks:
    """The newest time of each stream, and since when it has been silent."""

    newest: list[int | None] = field(default_factory=lambda: [None, None])
    silent_since: list[int | None] = field(default_factory=lambda: [None, None])
    """When the first micro-batch without rows of a stream began; None if the last one had rows of it."""

    def advance(self, chunks: Iterable[PackedChunk], now: int, idle: Idle, unit: str) -> int | None:
        """Note the rows of a micro-batch; return the clock of the stream that goes on alone, if one does.

        Rows without a time do not count. Like Spark's watermark, the clock does not know the rows of this
        micro-batch.

        Args:
            chunks: All new rows.
            now: The time at which the micro-batch began, in milliseconds.
            idle: The rule for silent streams.
            unit: The unit of event times.
        """
        seen: list[int | None] = [None, None]
        for chunk in chunks:
            if not chunk.is_lone and chunk.ref.rows + chunk.unmatchable:
                seen[chunk.side] = _later(seen[chunk.side], chunk.newest)
        for side in (0, 1):
            since = self.silent_since[side]
            self.silent_since[side] = None if seen[side] is not None else now if since is None else since
        silent = [since is not None and now - since >= idle.after for since in self.silent_since]
        mark = None
        if silent[0] != silent[1]:
            mark = self._clock(silent.index(False), idle, unit)
        self.newest = [_later(*times) for times in zip(self.newest, seen, strict=True)]
        return mark

    def _clock(self, side: int, idle: Idle, unit: str) -> int | None:
        """Return the watermark that a stream would have alone; Spark counts it in whole milliseconds."""
        newest = self.newest[side]
        if newest is None:
            return None
        mark = newest * UNITS[unit] // UNITS["ms"] - idle.delays[side]
        return mark * UNITS["ms"] // UNITS[unit] if mark > 0 else None


def _later(a: int | None, b: int | None) -> int | None:
    return max((time for time in (a, b) if time is not None), default=None)
