"""Results in order of time.

A result belongs to the time of its newest row. Once the watermark has come to a time, no result before it can
appear any more: the results held back up to there go out, sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.driver import StreamLike, times_of
from handshake.windows import Windows

__all__ = ["InOrder"]

Array = np.ndarray[Any, Any]


class InOrder:
    """Results that are held back until no earlier one can follow."""

    def __init__(self, streams: Sequence[StreamLike], windows: Windows, unit: str) -> None:
        if not windows.timed:
            raise UnsupportedError(
                "ordered results need a time window, since their order is that of time; "
                "give one, or sort the results afterwards"
            )
        self._streams, self._unit = streams, unit
        starts = accumulate((len(stream.schema) for stream in streams), initial=0)
        self._places = [
            start + stream.schema.names.index(str(stream.time))
            for start, stream in zip(starts, streams, strict=False)
        ]
        self._held: list[tuple[Array, pa.RecordBatch]] = []

    @property
    def rows(self) -> int:
        """The number of results held back."""
        return sum(int(batch.num_rows) for _, batch in self._held)

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Hold results back."""
        self._held += [(self._moments(batch), batch) for batch in batches]

    def _moments(self, batch: pa.RecordBatch) -> Array:
        times = [
            times_of(batch.column(place), self._unit, str(stream.time), stream.name)[0]
            for place, stream in zip(self._places, self._streams, strict=True)
        ]
        latest: Array = np.maximum.reduce(times)
        return latest

    def release(self, mark: int | None, *, all_of_them: bool = False) -> list[pa.RecordBatch]:
        """Return the results up to the watermark, or all of them, in order."""
        if all_of_them:
            mark = np.iinfo(np.int64).max
        if mark is None:
            return []
        going, staying = [], []
        for moments, batch in self._held:
            ripe = moments <= mark
            if ripe.any():
                going.append(_select(moments, batch, ripe))
            if not ripe.all():
                staying.append(_select(moments, batch, ~ripe))
        self._held = staying
        return _sort(going)


def _select(moments: Array, batch: pa.RecordBatch, mask: Array) -> tuple[Array, pa.RecordBatch]:
    return (moments, batch) if mask.all() else (moments[mask], batch.filter(pa.array(mask)))


def _sort(held: list[tuple[Array, pa.RecordBatch]]) -> list[pa.RecordBatch]:
    if not held:
        return []
    order = np.argsort(np.concatenate([moments for moments, _ in held]), kind="stable")
    # As a table: several batches together may hold more text than one array can.
    together = pa.Table.from_batches([batch for _, batch in held])
    batches: list[pa.RecordBatch] = together.take(pa.array(order)).to_batches()
    return batches
