"""Late rows of a streaming join on Spark, in Parquet files.

A segment writes one file per side and micro-batch. Its name depends on nothing else, so a micro-batch that
runs again replaces the files of its first attempt: each late row is there once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.state.store import open_store
from handshake.errors import UnsupportedError
from handshake.joins.late import check_late_columns, with_lag
from handshake.joins.spec import SIDES

__all__ = ["LateFiles", "check_late"]


def check_late(definition: Definition, streaming: Sequence[bool]) -> None:
    """Raise if late rows of a join cannot be kept."""
    if not all(streaming):
        raise UnsupportedError("late_to is for joins of two streams; no row of a batch DataFrame is late")
    check_late_columns(definition.spec.sides)


class LateFiles:
    """The late rows of one micro-batch of a segment."""

    def __init__(self, definition: Definition, segment: int, batch: int, folder: str) -> None:
        self._definition = definition
        self._rows: tuple[list[pa.RecordBatch], ...] | None = ([], []) if definition.late_to else None
        self._name = f"part-{batch:06}-{segment:04}-{folder.replace('/', '-')}.parquet"

    def add(self, side: int, batch: pa.RecordBatch, times: Any, late: Any, mark: int) -> None:
        """Take the late rows of a batch, whose times are those given."""
        if self._rows is None or not late.any():
            return
        spec = self._definition.spec
        # differences of 64-bit times fit unsigned words
        lag = np.full(len(times), mark, np.int64).view(np.uint64) - times.astype(np.int64).view(np.uint64)
        late_rows = batch.filter(pa.array(late))
        self._rows[side].append(with_lag(late_rows, spec.sides[side].schema.names, lag[late], spec.unit))

    def write(self) -> None:
        """Write the files of both sides; remove one that an earlier attempt at the micro-batch left.

        After a restart the homes of rows may be other segments than in the attempt that failed.
        """
        for side, batches in enumerate(self._rows or ()):
            store, name = open_store(str(self._definition.late_to)), f"{SIDES[side]}/{self._name}"
            if batches:
                sink = pa.BufferOutputStream()
                pq.write_table(pa.Table.from_batches(batches), sink)
                store.write(name, [sink.getvalue()])
            elif store.exists(name):
                store.remove(name)
