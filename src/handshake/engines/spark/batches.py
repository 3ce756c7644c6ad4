"""Record batches on their way through tasks: as bytes, and in few large pieces."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pyarrow as pa


def to_stream(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], options: pa.ipc.IpcWriteOptions | None = None
) -> pa.Buffer:
    """Return batches as an Arrow stream in memory."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def large_pieces(
    batches: Iterable[pa.RecordBatch], rows: float = math.inf, size: float = math.inf
) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in few, large pieces: each ends when it has as many rows or bytes as given."""
    held: list[pa.RecordBatch] = []
    found = taken = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            found, taken = found + batch.num_rows, taken + batch.nbytes
        if found >= rows or taken >= size:
            yield held
            held, found, taken = [], 0, 0
    if held:
        yield held
