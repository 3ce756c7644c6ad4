"""The reader of `handshake-udp` streams with limits, which Spark supports since version 4.2."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from handshake.engines.spark.udp_source import StreamReader
from handshake.io.udp.log import LogReader


@dataclass
class LimitedReader(StreamReader, SupportsTriggerAvailableNow):
    """A reader whose micro-batches take at most `maxRowsPerTrigger` rows."""

    until: int | None = None
    """With the trigger availableNow: the end of the log when the query began."""

    def prepareForTriggerAvailableNow(self) -> None:
        self.until = LogReader(self.options.path).end

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # type: ignore[override]
        newest = LogReader(self.options.path).end if self.until is None else self.until
        end = max(newest, start["row"])
        return {"row": min(end, start["row"] + limit.max_rows) if isinstance(limit, ReadMaxRows) else end}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self.options.most is None else ReadMaxRows(self.options.most)

    def reportLatestOffset(self) -> dict[str, int]:
        return {"row": LogReader(self.options.path).end}
