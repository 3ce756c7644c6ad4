"""Late rows for callers that want them: passed to a function, or written to files."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.errors import InputError, SchemaError
from handshake.io.sinks import sink_for
from handshake.joins.driver import StreamLike
from handshake.schema import UNITS

LateCall = Callable[[str, pa.RecordBatch], None]
LateTo = str | Path | LateCall
"""A function of a stream's name and a batch of late rows, or a folder for files of them."""
LATE_BY = "late_by"
"""The column that says how far behind the watermark a late row was."""


_ROWS, _SECONDS = 1 << 17, 60.0
"""A file is written when this many rows of a stream wait, or the first of them has waited this long."""


class LateStream(NamedTuple):
    """A stream by its name, with the columns that its late rows have, and the unit of its times."""

    name: str
    schema: pa.Schema
    unit: str


def check_late_columns(streams: Sequence[StreamLike] | Sequence[LateStream]) -> None:
    """Raise if a stream has a column of the name that late rows get."""
    for stream in streams:
        if LATE_BY in stream.schema.names:
            raise SchemaError(
                f"late rows get a column '{LATE_BY}', and the {stream.name} input has one; rename it, or "
                "leave late_to out"
            )


def with_lag(batch: pa.RecordBatch, names: Sequence[str], lag: Any, unit: str) -> pa.RecordBatch:
    """Return late rows with these columns of theirs, and how far behind the watermark each was.

    Args:
        batch: The rows.
        names: The columns to keep.
        lag: How far each row was behind; None for rows without a time, which have no such distance.
        unit: The unit of `lag`.
    """
    kind = pa.duration("s" if unit == "d" else unit)
    if lag is None:
        behind = pa.nulls(batch.num_rows, kind)
    else:
        longest, days = np.uint64(2**63 - 1), np.uint64(UNITS[unit] // UNITS["s"] if unit == "d" else 1)
        behind = pa.array(np.minimum(lag.astype(np.uint64) * days, longest).astype(np.int64)).cast(kind)
    return pa.RecordBatch.from_arrays([*(batch.column(n) for n in names), behind], names=[*names, LATE_BY])


class LateRows:
    """The late rows of a run on their way to a function, or to files in a folder per stream.

    A file appears when 131,072 rows of a stream have gathered, with the first late row after a minute, and
    when the run closes. Its name is its own, so no run replaces files of another.
    """

    def __init__(
        self, late_to: LateTo, streams: Sequence[LateStream], clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_late_columns(streams)
        self._streams, self._clock = streams, clock
        self._call = late_to if callable(late_to) else None
        self._folder = None if callable(late_to) else _folder(late_to)
        self._waiting = {k: list[pa.RecordBatch]() for k in range(len(streams))}
        self._since = dict[int, float]()
        """When the first row that waits came, by stream."""

    def add(self, k: int, batch: pa.RecordBatch, lag: Any) -> None:
        """Pass on late rows of stream `k`, and how far behind they were; None for rows without a time."""
        stream = self._streams[k]
        late = with_lag(batch, stream.schema.names, lag, stream.unit)
        if self._call is not None:
            self._call(stream.name, late)
            return
        self._waiting[k].append(late)
        since = self._since.setdefault(k, self._clock())
        if self._clock() - since >= _SECONDS or sum(b.num_rows for b in self._waiting[k]) >= _ROWS:
            self._write(k)

    def _write(self, k: int) -> None:
        batches, self._waiting[k] = self._waiting[k], []
        self._since.pop(k, None)
        if batches:
            assert self._folder is not None
            folder = _make_folder(self._folder / self._streams[k].name)
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{secrets.token_hex(3)}.parquet"
            with sink_for(folder / name, batches[0].schema) as sink:
                for batch in batches:
                    sink.write(batch)

    def close(self) -> None:
        """Write the rows that wait."""
        for k in self._waiting:
            self._write(k)


def _folder(late_to: Any) -> Path:
    if not isinstance(late_to, (str, Path)):
        raise InputError(
            f"late_to is a folder or a function of a stream and a batch, not {type(late_to).__name__}"
        )
    return _make_folder(Path(late_to))


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"late_to: cannot make the folder '{folder}': {error.strerror}") from None
    except ValueError as error:
        raise InputError(f"late_to: cannot make the folder {str(folder)!r}: {error}") from None
    return folder
