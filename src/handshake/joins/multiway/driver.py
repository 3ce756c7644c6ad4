"""What happens to a tuple of one of several streams at arrival: stamping, lateness, filtering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.driver import Counts, arrays_of, times_of
from handshake.joins.multiway.plan import ManySpec
from handshake.kernels.evaluate import holds
from handshake.windows import watermark

__all__ = ["ManyDriver"]

Array = np.ndarray[Any, Any]
_NEVER_LATE = 2**64 - 1


@dataclass
class ManyDriver:
    """Stamps the tuples of all streams and remembers how far each one has come."""

    spec: ManySpec
    lateness: int = 0
    counts: list[Counts] = field(init=False)
    newest: list[int | None] = field(init=False)
    arrived: list[int] = field(init=False)
    told: bool = False
    """As of `Driver`."""

    def __post_init__(self) -> None:
        many = len(self.spec.streams)
        self.counts = [Counts() for _ in range(many)]
        self.newest = [None] * many
        self.arrived = [0] * many
        self.met = [[0] * many for _ in range(many)]
        """`met[j][k]`: the least count of stream k that a tuple of stream j can still be stamped with."""

    def admit(self, k: int, batch: pa.RecordBatch, seen: Mapping[int, Array] | None = None) -> pa.RecordBatch:
        """Stamp a batch; what comes back can match as far as the stream's own columns tell.

        `seen` gives the counts of streams with tuple windows, where the arrival order is known beforehand.
        """
        counts = self.counts[k]
        counts.rows += batch.num_rows
        stamps: list[Array] = []
        if self.spec.timed:
            batch, times, seen = self._timely(k, batch, seen)
            stamps.append(times)
        stamps += self._counted(k, batch.num_rows, seen)
        arrays = [*batch.columns, *map(pa.array, stamps)]
        stamped = pa.RecordBatch.from_arrays(arrays, schema=self.spec.stamped(k))
        kept = self._filtered(k, stamped)
        counts.unmatchable += stamped.num_rows - kept.num_rows
        return kept

    def _timely(
        self, k: int, batch: pa.RecordBatch, seen: Mapping[int, Array] | None
    ) -> tuple[pa.RecordBatch, Array, Mapping[int, Array] | None]:
        """Drop who has no time or is late."""
        stream, counts = self.spec.streams[k], self.counts[k]
        assert stream.time is not None
        times, valid = times_of(batch.column(stream.time), self.spec.unit, stream.time, stream.name)
        keep = np.ones(len(times), np.bool_) if valid is None else valid.copy()
        counts.no_time += len(times) - int(keep.sum())
        late = self._late(k, times[keep])
        counts.late += int(late.sum())
        keep[keep] = ~late
        if keep.all():
            return batch, times, seen
        seen = None if seen is None else {j: counted[keep] for j, counted in seen.items()}
        return batch.filter(pa.array(keep)), times[keep], seen

    def _late(self, k: int, times: Array) -> Array:
        """Which tuples the watermark, the least of all streams' newest times, has passed at their arrival."""
        if len(times) == 0 or self.told:
            return np.zeros(len(times), np.bool_)
        others = [newest for j, newest in enumerate(self.newest) if j != k]
        mine = self.newest[k]
        peak = np.maximum.accumulate(np.concatenate([[times[0] if mine is None else mine], times]))
        self.newest[k] = int(peak[-1])
        known = [newest for newest in others if newest is not None]
        if len(known) < len(others):
            return np.zeros(len(times), np.bool_)
        passed = np.minimum(peak[:-1], min(known))
        # Differences of 64-bit times fit unsigned words.
        behind = passed.view(np.uint64) - times.view(np.uint64)
        late: Array = (times < passed) & (behind > np.uint64(min(self.lateness, _NEVER_LATE)))
        return late

    def _counted(self, k: int, rows: int, seen: Mapping[int, Array] | None) -> list[Array]:
        """Positions in the own stream, and counts of the others."""
        stamps: list[Array] = []
        start = self.arrived[k]
        self.arrived[k] += rows
        if self.spec.streams[k].counted:
            stamps.append(np.arange(start, start + rows))
        for j, stream in enumerate(self.spec.streams):
            if j != k and stream.counted:
                stamps.append(np.full(rows, self.arrived[j]) if seen is None else seen[j].astype(np.int64))
                if seen is not None and rows:
                    self.met[k][j] = int(stamps[-1][-1])
        if seen is None:  # whoever comes now comes after all that have come
            self.met = [list(self.arrived) for _ in self.met]
        return stamps

    def _filtered(self, k: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        mask: Array | None = None
        for condition in self.spec.filters:
            if condition.streams == {k}:
                held = holds(condition.bound, arrays_of(batch, 0, (condition.bound,)), batch.num_rows)
                mask = held if mask is None else mask & held
        return batch if mask is None or mask.all() else batch.filter(pa.array(mask))

    def mark(self) -> int | None:
        """The watermark."""
        return watermark(self.newest, self.lateness)

    def oldest(self, k: int) -> int | None:
        """The least stamp of this stream that a tuple to come can still ask for."""
        if self.spec.streams[k].window is None:
            return None
        seen = min(self.met[j][k] for j in range(len(self.met)) if j != k)
        return self.spec.rule(k).oldest(self.mark(), seen)

    def advance(self, k: int, time: int) -> None:
        """Take note that no tuple of this stream older than `time` will come."""
        newest = self.newest[k]
        self.newest[k] = time if newest is None else max(time, newest)
