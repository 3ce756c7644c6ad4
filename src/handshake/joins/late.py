"""Late rows for callers that want them: passed to a function, or written to files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.errors import InputError, SchemaError
from handshake.io.sinks import Sink, sink_for
from handshake.joins.driver import StreamLike

__all__ = ["LATE_BY", "LateRows", "LateStream", "LateTo", "check_late_columns", "with_lag"]

LateTo = str | Path | Callable[[str, pa.RecordBatch], None]
"""A function of a stream's name and a batch of late rows, or a folder for files of them."""
LATE_BY = "late_by"
"""The column that says how far behind the watermark a late row was."""


class LateStream(NamedTuple):
    """A stream by its name, with the columns that its late rows have."""

    name: str
    schema: pa.Schema


def check_late_columns(streams: Sequence[StreamLike] | Sequence[LateStream]) -> None:
    """Raise if a stream has a column of the name that late rows get."""
    for stream in streams:
        if LATE_BY in stream.schema.names:
            raise SchemaError(
                f"late rows get a column '{LATE_BY}', and the {stream.name} input has one; rename it, or "
                "leave late_to out"
            )


def with_lag(batch: pa.RecordBatch, names: Sequence[str], lag: Any, unit: str) -> pa.RecordBatch:
    """Return late rows with these columns of theirs, and how far behind the watermark each was."""
    longest = np.uint64(2**63 - 1)
    behind = pa.array(np.minimum(lag.astype(np.uint64), longest).astype(np.int64)).cast(pa.duration(unit))
    return pa.RecordBatch.from_arrays([*(batch.column(n) for n in names), behind], names=[*names, LATE_BY])


class LateRows:
    """The late rows of a running join on their way to a function or to files, which appear when it closes."""

    def __init__(self, late_to: LateTo, streams: Sequence[LateStream], unit: str) -> None:
        check_late_columns(streams)
        self._streams, self._unit = streams, unit
        self._files = contextlib.ExitStack()
        self._sinks: dict[int, Sink] = {}
        self._folder = None if callable(late_to) else _folder(late_to)
        self._call = late_to if callable(late_to) else None

    def add(self, k: int, batch: pa.RecordBatch, lag: Any) -> None:
        """Pass on late rows of stream `k`, and how far behind they were."""
        stream = self._streams[k]
        late = with_lag(batch, stream.schema.names, lag, self._unit)
        if self._call is not None:
            self._call(stream.name, late)
            return
        if k not in self._sinks:
            assert self._folder is not None
            sink = sink_for(self._folder / f"{stream.name}.parquet", late.schema)
            self._sinks[k] = self._files.enter_context(sink)
        self._sinks[k].write(late)

    def close(self) -> None:
        """Complete the files."""
        self._files.close()


def _folder(late_to: Any) -> Path:
    if not isinstance(late_to, (str, Path)):
        raise InputError(
            f"late_to is a folder or a function of a stream and a batch, not {type(late_to).__name__}"
        )
    try:
        Path(late_to).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"late_to: cannot make the folder '{late_to}': {error.strerror}") from None
    return Path(late_to)
