"""The workload of CellJoin and handshake join, for tests and benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

__all__ = ["BAND", "GENERAL", "Source", "Streams", "left_schema", "right_schema"]

BAND = "l.x BETWEEN r.a - 10 AND r.a + 10 AND l.y BETWEEN r.b - 10 AND r.b + 10"
"""One match in 250,000 pairs when attributes are uniform in 1 to 10,000."""
GENERAL = "(ABS(l.x - r.a) <= 2 OR l.y > r.b + 9990) AND ABS(l.y - r.b) <= l.w + 9990"
"""A predicate with OR, ABS and three columns, which no index can use."""

left_schema = pa.schema(
    [("ts", pa.timestamp("us")), ("x", pa.int32()), ("y", pa.float32()), ("z", pa.string())]
)
right_schema = pa.schema(
    [
        ("ts", pa.timestamp("us")),
        ("a", pa.int32()),
        ("b", pa.float32()),
        ("c", pa.float64()),
        ("d", pa.bool_()),
    ]
)
_TEXTS = 1 << 16


class Source(Protocol):
    """Tuples of two streams by position."""

    def left(self, start: int, rows: int) -> pa.RecordBatch:
        """Return tuples `start` to `start + rows` of the left stream."""

    def right(self, start: int, rows: int) -> pa.RecordBatch:
        """Return tuples `start` to `start + rows` of the right stream."""


@dataclass
class Streams:
    """R(x int, y float, z char(20)) and S(a int, b float, c double, d bool) at a given rate each."""

    rate: float
    seed: int = 7

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        letters = self._random.integers(97, 123, 1 << 20, dtype=np.uint8)
        offsets = np.arange(0, 20 * _TEXTS + 1, 20, dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.resize(letters, 20 * _TEXTS))]
        self._pool = pa.Array.from_buffers(pa.string(), _TEXTS, buffers)

    def left(self, start: int, rows: int) -> pa.RecordBatch:
        """Return tuples `start` to `start + rows` of R."""
        return pa.RecordBatch.from_arrays([*self._common(start, rows), self._texts(rows)], schema=left_schema)

    def right(self, start: int, rows: int) -> pa.RecordBatch:
        """Return tuples `start` to `start + rows` of S."""
        c = pa.array(self._random.random(rows))
        d = pa.array(self._random.random(rows) < 0.5)
        return pa.RecordBatch.from_arrays([*self._common(start, rows), c, d], schema=right_schema)

    def _common(self, start: int, rows: int) -> list[pa.Array]:
        times = (np.arange(start, start + rows) * (1e6 / self.rate)).astype(np.int64)
        return [
            pa.array(times).view(pa.timestamp("us")),
            pa.array(self._random.integers(1, 10_001, rows, dtype=np.int32)),
            pa.array(self._random.uniform(1, 10_000, rows).astype(np.float32)),
        ]

    def _texts(self, rows: int) -> pa.Array:
        """Return char(20) values from a fixed pool; no predicate reads them."""
        return self._pool.take(pa.array(self._random.integers(0, _TEXTS, rows)))
