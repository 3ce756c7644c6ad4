"""The gate before a join of several streams (see `admission`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.gate import AnyGate, Arrival
from handshake.joins.multiway.metrics import MultiMetrics
from handshake.joins.multiway.mjoin import MJoin

__all__ = ["ManyGate"]

Seen = Mapping[int, np.ndarray[Any, Any]]


class ManyGate(AnyGate[MJoin, Seen, MultiMetrics]):
    """The gate before a join of several streams."""

    @property
    def names(self) -> Sequence[str]:
        """The streams, in their order."""
        return self.engine.spec.names

    def metrics(self) -> MultiMetrics:
        """The join's, and what waits here or was shed."""
        figures = self.engine.metrics()
        streams = zip(figures.streams, self.shed_rows, strict=True)
        return replace(
            figures, streams=tuple(replace(stream, shed=shed) for stream, shed in streams),
            waiting_rows=sum(self._waiting), most_waiting_rows=self._most,
        )  # fmt: skip

    def _arrive(self, came: Arrival[Seen]) -> Iterator[pa.RecordBatch]:
        return self.engine.push(came.stream, came.batch, came.seen, came.at)
