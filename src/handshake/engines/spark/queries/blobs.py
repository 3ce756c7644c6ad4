"""Blobs: the rows in which source tasks send panes, tuples or clocks to the one task that holds a query."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

_SCHEMA = pa.schema(
    [
        ("slot", pa.int32()),
        ("source", pa.int32()),
        ("partition", pa.int32()),
        ("part", pa.int32()),
        ("data", pa.binary()),
    ]
)
BLOB_COLUMNS = "slot int, source int, partition int, part int, data binary"
"""The same columns in Spark's notation; `slot` is the grouping key, always 0."""


class Blob(NamedTuple):
    """Bytes from one partition of a source, with their place in the order of arrival."""

    source: int
    partition: int
    part: int
    data: bytes

    @classmethod
    def of(cls, row: dict[str, Any]) -> Blob:
        """Read a blob from a row of a DataFrame."""
        return cls(int(row["source"]), int(row["partition"]), int(row["part"]), bytes(row["data"]))


def blob_batch(source: int, part: int, data: bytes) -> pa.RecordBatch:
    """Return the row that sends bytes of this task's partition."""
    task: Any = TaskContext.get()
    columns = [[0], [source], [int(task.partitionId())], [part], [data]]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
