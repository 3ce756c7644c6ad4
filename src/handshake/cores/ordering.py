"""Results in order of time, by punctuation.

A result belongs to the moment of its later tuple, max(t_r, t_s). Once the watermark has come to a moment, no
result before it can appear any more: those held back up to there go out, sorted. What is held is bounded by
what the watermark lags behind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.driver import times_of
from handshake.cores.spec import SIDES, JoinSpec
from handshake.errors import UnsupportedError

__all__ = ["InOrder"]

Array = np.ndarray[Any, Any]


class InOrder:
    """Holds results back until nothing earlier can follow."""

    def __init__(self, spec: JoinSpec) -> None:
        if not spec.windows.timed:
            raise UnsupportedError("ordered results need a time window: their order is that of time")
        self._spec = spec
        left = spec.sides[0]
        self._places = tuple(
            side.schema.names.index(str(side.time)) + (len(left.schema) if side.side else 0)
            for side in spec.sides
        )
        self._held: list[tuple[Array, pa.RecordBatch]] = []

    @property
    def rows(self) -> int:
        """Results held back."""
        return sum(batch.num_rows for _, batch in self._held)

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
        if not self._held or (mark is None and not all_of_them):
            return []
        moments = np.concatenate([m for m, _ in self._held])
        whole = pa.concat_batches([batch for _, batch in self._held])
        order = np.argsort(moments, kind="stable")
        count = (
            len(order) if mark is None or all_of_them else int(np.searchsorted(moments[order], mark, "right"))
        )
        out, rest = order[:count], order[count:]
        self._held = [(moments[rest], whole.take(pa.array(rest)))] if len(rest) else []
        return [whole.take(pa.array(out))] if count else []
