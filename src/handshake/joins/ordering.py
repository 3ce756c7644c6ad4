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
from handshake.joins.spec import MOMENT, ROW, JoinSpec
from handshake.kernels.columns import integers
from handshake.windows import Windows

Array = np.ndarray[Any, Any]
_LAST = int(np.iinfo(np.int64).max)
_MANY = 1 << 14
"""Rows of a semi join that are remembered before old ones are forgotten."""


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
            mark = _LAST
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


class KindInOrder(InOrder):
    """Results of a join of two streams of any kind.

    A pair belongs to the time of its newer row. A row without a match belongs to the end of its window,
    `time + size`, when it becomes final; if its window is not one of time, to its own time or to the
    watermark at that moment, whichever is later. A row of a semi join belongs to the earliest of its pairs.
    """

    def __init__(self, spec: JoinSpec) -> None:
        super().__init__(spec.streams, spec.windows, spec.unit)
        self._spec, self._mark = spec, int(np.iinfo(np.int64).min)
        self._shown = [side for side in (0, 1) if spec.kind.shown[side]]
        if self._shown == [1]:
            self._places[1] -= len(spec.sides[0].schema)
        self._given: dict[int, int] = {}
        """Numbers of the rows of a semi join that have been results, and the ends of their windows."""
        self._many = _MANY
        if spec.dated and self._length(self._shown[0]) is None:
            raise UnsupportedError(
                f"ordered results of a {spec.kind.name} join need a time window on the side that is shown; "
                "give it one, or sort the results afterwards"
            )

    def moments(self, batch: pa.RecordBatch, mark: int | None) -> Array:
        """Return the times that results belong to, at a watermark."""
        self._mark = self._mark if mark is None else max(mark, self._mark)
        return self._moments(batch)

    def _length(self, side: int) -> int | None:
        """Return the length of a side's window, if that is one of time."""
        window, reach = self._spec.windows[side], self._spec.reach(side)
        return min(reach + 1, _LAST) if window is not None and window.timed and reach is not None else None

    def _moments(self, batch: pa.RecordBatch) -> Array:
        if self._spec.dated:
            return integers(batch.column(MOMENT))
        times, known, alone = [], [], []
        for side in self._shown:
            values, valid = self._times(side, batch)
            times.append(values)
            known.append(np.ones(len(values), np.bool_) if valid is None else valid)
            alone.append(self._ends(side, values))
        pairs = [known[0] & known[-1]] if self._spec.kind.pairs == "all" else []
        found = [np.maximum(times[0], times[-1])] if pairs else []
        moments: Array = np.select([*pairs, *known], [*found, *alone], self._mark)
        return moments

    def _times(self, side: int, batch: pa.RecordBatch) -> tuple[Array, Array | None]:
        stream = self._spec.sides[side]
        return times_of(batch.column(self._places[side]), self._unit, str(stream.time), stream.name)

    def _ends(self, side: int, times: Array) -> Array:
        """Return the moments of rows without a match."""
        length = self._length(side)
        if length is None:
            return np.maximum(times, self._mark)
        return np.where(times > _LAST - length, _LAST, times + length)

    def release(self, mark: int | None, *, all_of_them: bool = False) -> list[pa.RecordBatch]:
        """Return the results up to the watermark, or all of them, in order."""
        self._mark = self._mark if mark is None else max(mark, self._mark)
        batches = super().release(mark, all_of_them=all_of_them)
        return self._first_ones(batches) if self._spec.dated else batches

    def _first_ones(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the first result of each row of a semi join, without the columns that were added."""
        found = []
        for batch in batches:
            ends = self._ends(self._shown[0], self._times(self._shown[0], batch)[0]).tolist()
            first = {number: row for row, number in reversed([*enumerate(batch.column(ROW).to_pylist())])}
            rows = sorted(row for number, row in first.items() if number not in self._given)
            self._given.update((number, ends[row]) for number, row in first.items())
            shown = batch.select(range(len(self._spec.output)))
            found.append(shown.take(pa.array(rows, pa.int64())))
        if len(self._given) > self._many:
            self._given = {number: end for number, end in self._given.items() if end > self._mark}
            self._many = max(2 * len(self._given), _MANY)
        return [batch for batch in found if batch.num_rows]
