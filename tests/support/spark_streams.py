"""Random streams for tests of segments, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pyarrow as pa

from handshake.engines.spark.state.store import Store
from handshake.windows import Windows, windows_of
from spark_steps import FILES, Cluster, definition_of
from strategies import Case

SECOND = 10**6
RETAIN = 3
SCHEMAS = (
    pa.schema([("l", pa.int64()), ("x", pa.int32()), ("t", pa.timestamp("us"))]),
    pa.schema([("r", pa.int64()), ("a", pa.int32()), ("u", pa.timestamp("us"))]),
)
BAND = "x BETWEEN a - 10 AND a + 10"


class Stream:
    """Both inputs of a join, generated batch by batch; times follow the number of the batch."""

    def __init__(
        self, rng: Random, value: Callable[[int], int], disorder: int = 0, spacing: int = SECOND
    ) -> None:
        self.rng, self.value, self.disorder, self.spacing = rng, value, disorder, spacing
        self.rows: tuple[list, list] = ([], [])
        self.batches: list = []

    def batch(self, *sizes: int, partitions: int = 1) -> tuple[list[pa.Table], list[pa.Table]]:
        """Generate one micro-batch with the given number of rows per side."""
        parts = tuple(
            [self._table(side, size) for _ in range(partitions) if size] for side, size in enumerate(sizes)
        )
        self.batches.append(parts)
        return parts

    def _table(self, side: int, size: int) -> pa.Table:
        number, start = len(self.batches), len(self.rows[side])
        rows = []
        for k in range(size):
            at = number * self.spacing + self.rng.randrange(self.spacing) - self.rng.randint(0, self.disorder)
            rows.append((start + k, self.value(number), max(at, 0)))
        self.rows[side].extend(rows)
        return pa.Table.from_arrays(
            [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), SCHEMAS[side], strict=True)],
            schema=SCHEMAS[side],
        )

    def watermark(self) -> int:
        """Return a time that no later row is older than."""
        return max((len(self.batches) - 1) * self.spacing - self.disorder, 0)

    def case(self, on: str, windows: Windows) -> Case:
        tables = [
            pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)
            for schema, rows in zip(SCHEMAS, self.rows, strict=True)
        ]
        return Case(*tables, on, windows, "t", "u")


def cluster_of(on: str, window: str, root, segments: int) -> Cluster:
    windows = windows_of(window)
    empty = tuple(schema.empty_table() for schema in SCHEMAS)
    case = Case(*empty, on, windows, "t", "u")
    return Cluster(
        definition_of(*empty, case, segments, str(root), retain=RETAIN, tuning=FILES), Store(str(root))
    )
