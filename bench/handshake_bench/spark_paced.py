"""A Spark source of the papers' two streams in real time, with a past.

Offsets are milliseconds, so a micro-batch holds all tuples since the last one. The first micro-batch holds
the past, so windows are full from then on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

__all__ = ["Paced"]

_SCHEMAS = {
    "left": "t timestamp, x int, y float, z string",
    "right": "t timestamp, a int, b float, c double, d boolean",
}


class Paced(DataSource):
    """`format("handshake-paced")`; options `side`, `rate` (tuples/s), `start` and `past` (milliseconds)."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "handshake-paced"

    def schema(self) -> str:
        """Return the schema of R or S."""
        return _SCHEMAS[self.options["side"]]

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        """Return a reader of tuples in real time."""
        return _Reader(self.options)


class _Span(InputPartition):
    """Milliseconds of the epoch, the end excluded."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__((start, end))
        self.start, self.end = start, end


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Any) -> None:
        self.side, self.rate = options["side"], int(options["rate"])
        self.start, self.past = int(options["start"]), int(options["past"])

    def initialOffset(self) -> dict[str, int]:
        return {"until": self.start - self.past}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # 4.3 passes the last one and a limit
        return {"until": max(int(time.time() * 1000), self.start)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [_Span(start["until"], end["until"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Span)
        first = self._number(partition.start)
        for low in range(first, last := self._number(partition.end), 65_536):
            yield self._tuples(low, min(low + 65_536, last))

    def _number(self, instant: int) -> int:
        """Return the number of the first tuple at or after an instant."""
        return -(-(instant - self.start + self.past) * self.rate // 1000)

    def _tuples(self, low: int, high: int) -> pa.RecordBatch:
        numbers = np.arange(low, high)
        micros = numbers * 1_000_000 // self.rate + (self.start - self.past) * 1000
        random = np.random.default_rng((self.side == "left", low))
        whole = random.integers(1, 10_001, high - low, dtype=np.int32)
        real = random.uniform(1, 10_000, high - low).astype(np.float32)
        times = pa.array(micros, pa.timestamp("us", "UTC"))
        if self.side == "left":
            text = pa.array(np.char.zfill(numbers.astype("U20"), 20).tolist())
            return pa.record_batch({"t": times, "x": whole, "y": real, "z": text})
        return pa.record_batch({"t": times, "a": whole, "b": real, "c": numbers / 1.0, "d": numbers % 2 == 0})
