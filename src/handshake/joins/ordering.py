"""Results in order of time, by punctuation.

A result belongs to the moment of its later tuple, max(t_r, t_s). Once the watermark has come to a moment, no
result before it can appear any more: those held back up to there go out, sorted. What is held is bounded by
what the watermark lags behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.driver import times_of
from handshake.joins.spec import SIDES, JoinSpec

__all__ = ["InOrder"]

Array = np.ndarray[Any, Any]


class InOrder:
    """Holds results back until nothing earlier can follow."""

    def __init__(self, spec: JoinSpec) -> None:
        if not spec.windows.timed:
            raise UnsupportedError(
                "ordered results need a time window, since their order is that of time; "
                "give one, or sort the results afterwards"
            )
        self._spec = spec
        before = (0, len(spec.sides[0].schema))
        self._places = tuple(
            before[side.side] + side.schema.names.index(str(side.time)) for side in spec.sides
        )
        self._held: list[tuple[Array, pa.RecordBatch]] = []

    @property
    def rows(self) -> int:
        """Results held back."""
        return sum(int(batch.num_rows) for _, batch in self._held)

    def add(self, batches: list[pa.RecordBatch]) -> None:
        """Hold results back."""
        self._held += [(self._moments(batch), batch) for batch in batches]

    def _moments(self, batch: pa.RecordBatch) -> Array:
        times = [
            times_of(batch.column(place), self._spec.unit, str(side.time), SIDES[side.side])[0]
            for place, side in zip(self._places, self._spec.sides, strict=True)
        ]
        latest: Array = np.maximum(*times)
        return latest

    def release(self, mark: int | None, *, all_of_them: bool = False) -> list[pa.RecordBatch]:
        """Results of moments up to the watermark, in order; or all."""
        if all_of_them:
            mark = np.iinfo(np.int64).max
        if mark is None:
            return []
        going, staying = [], []
        for moments, batch in self._held:
            ripe = moments <= mark
            if ripe.any():
                going.append(_picked(moments, batch, ripe))
            if not ripe.all():
                staying.append(_picked(moments, batch, ~ripe))
        self._held = staying
        return _sorted(going)


def _picked(moments: Array, batch: pa.RecordBatch, mask: Array) -> tuple[Array, pa.RecordBatch]:
    return (moments, batch) if mask.all() else (moments[mask], batch.filter(pa.array(mask)))


def _sorted(held: list[tuple[Array, pa.RecordBatch]]) -> list[pa.RecordBatch]:
    if not held:
        return []
    order = np.argsort(np.concatenate([moments for moments, _ in held]), kind="stable")
    # As a table: several batches together may hold more text than one array can.
    together = pa.Table.from_batches([batch for _, batch in held])
    batches: list[pa.RecordBatch] = together.take(pa.array(order)).to_batches()
    return batches
