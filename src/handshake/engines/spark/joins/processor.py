"""The stateful operator of a streaming join, which imports the join when rows come.

At each start of a query Spark starts a Python process that asks the operator for its states, and for nothing
else. With the imports of `tasks` that takes a second of processor time, and without them an eighth.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.serializers import CPickleSerializer
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

if TYPE_CHECKING:
    import pandas as pd

    from handshake.engines.spark.joins.definition import Definition
    from handshake.engines.spark.joins.tasks import Segments


_PICKLER: Any = CPickleSerializer()


class SegmentProcessor(StatefulProcessor):
    """The segments of a streaming join; Spark keeps their manifests and commits them with the batch."""

    def __init__(self, definition: Definition, name: str) -> None:
        self._definition = _PICKLER.dumps(definition)
        self._name, self._keeps_chunks = name, definition.options.state == "store"

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state of a segment."""
        self._handle = handle
        self._manifest = handle.getValueState("manifest", "data binary")
        self._chunks: Any = None
        if self._keeps_chunks:
            self._chunks = handle.getMapState("chunks", "name string", "data binary")

    @cached_property
    def _segments(self) -> Segments:
        from handshake.engines.spark.joins.tasks import Segments

        definition = _PICKLER.loads(self._definition)
        return Segments(definition, self._name, self._handle, self._manifest, self._chunks)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        """Run one micro-batch of one segment."""
        return self._segments.take_rows(key[0], rows, timerValues)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        """Return tuples without a match that are final now."""
        return self._segments.expire(key[0], timerValues)

    def close(self) -> None:
        """Do nothing: no resource is open."""
