"""Results in order of time.

Once the watermark has come to a time, no result before it can appear any more: the results held back up to
there go out, sorted.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.driver import times_of
from handshake.joins.multiway.spec import ManySpec
from handshake.joins.spec import MOMENT, ROW, JoinSpec
from handshake.kernels.columns import integers

Array = np.ndarray[Any, Any]
_LAST = int(np.iinfo(np.int64).max)
_MANY = 1 << 14
"""Rows of a semi join that are remembered before old ones are forgotten."""


class InOrder:
    """Results of a join that are held back until no earlier one can follow.

    A pair or a combination belongs to the time of its newest row. A row without a match belongs to the end
    of its window, `time + size`, when it becomes final; if its window is not one of time, to its own time or
    to the watermark at that moment, whichever is later. A row of a semi join belongs to the earliest of its
    pairs.
    """

    def __init__(self, spec: JoinSpec | ManySpec) -> None:
        if not spec.windows.timed:
            raise UnsupportedError(
                "ordered results need a time window, since their order is that of time; "
                "give one, or sort the results afterwards"
            )
        self._spec, self._mark = spec, int(np.iinfo(np.int64).min)
        hidden = [k for k, is_shown in enumerate(spec.kind.shown) if not is_shown]
        self._shown = [k for k in range(len(spec.streams)) if k not in hidden]
        starts = accumulate((len(spec.streams[k].schema) for k in self._shown), initial=0)
        self._places = {
            k: start + spec.streams[k].schema.names.index(str(spec.streams[k].time))
            for k, start in zip(self._shown, starts, strict=False)
        }
        self._held: list[tuple[Array, pa.RecordBatch]] = []
        self._given: dict[int, int] = {}
        """Numbers of the rows of a semi join that have been results, and the ends of their windows."""
        self._many = _MANY
        if spec.dated and self._length(self._shown[0]) is None:
            raise UnsupportedError(
                f"ordered results of a {spec.kind.name} join need a time window on the side that is shown; "
                "give it one, or sort the results afterwards"
            )

    @property
    def rows(self) -> int:
        """The number of results held back."""
        return sum(int(batch.num_rows) for _, batch in self._held)

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Hold results back."""
        self._held += [(self._moments(batch), batch) for batch in batches]

    def moments(self, batch: pa.RecordBatch, mark: int | None) -> Array:
        """Return the times that results belong to, at a watermark."""
        self._pass(mark)
        return self._moments(batch)

    def _pass(self, mark: int | None) -> None:
        self._mark = self._mark if mark is None else max(mark, self._mark)

    def _moments(self, batch: pa.RecordBatch) -> Array:
        if self._spec.dated:
            return integers(batch.column(MOMENT))
        found = [self._times(k, batch) for k in self._shown]
        times = [values for values, _ in found]
        if not self._spec.kind.preserves:
            latest: Array = np.maximum.reduce(times)
            return latest
        known = [np.ones(batch.num_rows, np.bool_) if valid is None else valid for _, valid in found]
        alone = [self._ends(k, values) for k, values in zip(self._shown, times, strict=True)]
        pairs = [known[0] & known[-1]] if self._spec.kind.pairs == "all" else []
        together = [np.maximum(times[0], times[-1])] if pairs else []
        moments: Array = np.select([*pairs, *known], [*together, *alone], self._mark)
        return moments

    def _times(self, k: int, batch: pa.RecordBatch) -> tuple[Array, Array | None]:
        stream = self._spec.streams[k]
        return times_of(batch.column(self._places[k]), self._spec.unit, str(stream.time), stream.name)

    def _ends(self, k: int, times: Array) -> Array:
        """Return the moments of rows without a match."""
        length = self._length(k)
        if length is None:
            return np.maximum(times, self._mark)
        return np.where(times > _LAST - length, _LAST, times + length)

    def _length(self, k: int) -> int | None:
        """Return the length of a stream's window, if that is one of time."""
        window, rule = self._spec.windows[k], self._spec.windows.rules(self._spec.unit)[k]
        return (
            min(rule.reach + 1, _LAST) if window is not None and window.timed and rule is not None else None
        )

    def release(self, mark: int | None, *, all_of_them: bool = False) -> list[pa.RecordBatch]:
        """Return the results up to the watermark, or all of them, in order."""
        self._pass(mark)
        until = _LAST if all_of_them else mark
        if until is None:
            return []
        going, staying = [], []
        for moments, batch in self._held:
            ripe = moments <= until
            if ripe.any():
                going.append(_select(moments, batch, ripe))
            if not ripe.all():
                staying.append(_select(moments, batch, ~ripe))
        self._held = staying
        batches = _sort(going)
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
