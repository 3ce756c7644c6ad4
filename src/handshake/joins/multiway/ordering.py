"""Results of several streams in order of time, by punctuation (see `ordering`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.driver import times_of
from handshake.joins.multiway.plan import ManySpec
from handshake.joins.ordering import InOrder

__all__ = ["ManyInOrder"]


class ManyInOrder(InOrder):
    """Holds results back until nothing earlier can follow; a result's moment is its newest member's."""

    def __init__(self, spec: ManySpec) -> None:
        if not spec.timed:
            raise UnsupportedError(
                "ordered results need a time window, since their order is that of time; "
                "give one, or sort the results afterwards"
            )
        self._many = spec
        self._held = []
        starts = np.cumsum([0, *(len(stream.schema) for stream in spec.streams)])
        self._columns = [
            int(start) + stream.schema.names.index(str(stream.time))
            for start, stream in zip(starts[:-1], spec.streams, strict=True)
        ]

    def _moments(self, batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
        times = [
            times_of(batch.column(column), self._many.unit, str(stream.time), stream.name)[0]
            for column, stream in zip(self._columns, self._many.streams, strict=True)
        ]
        latest: np.ndarray[Any, Any] = np.max(times, axis=0)
        return latest
