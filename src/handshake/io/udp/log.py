"""A durable log of one stream: Arrow data in segment files, read by row number, also while it is written.

A segment is two files named after the number of its first row: `….arrows`, an Arrow IPC stream, and
`….index`, one record per batch. Readers see a batch once it has an index record, which is written after the
data has been synced to the disk. After a crash, whole batches without a record get one, and torn bytes are
cut off.
"""

from __future__ import annotations

import bisect
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from handshake.closing import Closing
from handshake.errors import InputError

_RECORD = np.dtype([("rows", "<u8"), ("end", "<u8"), ("data", "<u4"), ("own", "<u4")])
"""Rows up to the end of the batch, end of its bytes, their checksum, checksum of the record."""
_DIGITS = 20
_ENDING = b"\xff\xff\xff\xff\0\0\0\0"
"""The end mark of an Arrow stream."""


def _name(row: int) -> str:
    return f"{row:0{_DIGITS}}"


def _record(rows: int, end: int, data: int) -> bytes:
    head = struct.pack("<QQI", rows, end, data)
    return head + struct.pack("<I", zlib.crc32(head))


def _records(path: Path) -> np.ndarray:
    """Read the records of an index without a torn end."""
    raw = path.read_bytes() if path.exists() else b""
    whole = len(raw) // _RECORD.itemsize
    found = np.frombuffer(raw[: whole * _RECORD.itemsize], _RECORD)
    while len(found) and zlib.crc32(found[-1].tobytes()[:20]) != found[-1]["own"]:
        found = found[:-1]
    return found


@dataclass(frozen=True)
class Segment:
    """A run of rows in one file."""

    folder: Path
    first: int

    @property
    def data(self) -> Path:
        return self.folder / f"{_name(self.first)}.arrows"

    @property
    def index(self) -> Path:
        return self.folder / f"{_name(self.first)}.index"

    def records(self) -> np.ndarray:
        return _records(self.index)

    @property
    def end(self) -> int:
        """One past the number of the last row."""
        records = self.records()
        return self.first + (int(records["rows"][-1]) if len(records) else 0)


def _segments(folder: Path) -> list[Segment]:
    found = sorted(path.stem for path in folder.glob("*.arrows") if path.stem.isdigit())
    return [Segment(folder, int(stem)) for stem in found]


class LogWriter(Closing):
    """Appends batches to a log.

    Args:
        folder: The folder of the log. It is created if it does not exist.
        schema: The schema of the batches.
        sync: Seconds between syncs to the disk, 0 for a sync with every batch.
        segment_bytes: Size of a full segment file.
        keep_bytes: The oldest segments are removed beyond this size; None keeps all.
        clock: Time in seconds, for tests.
    """

    def __init__(
        self, folder: str | Path, schema: pa.Schema, *, sync: float = 0.2, segment_bytes: int = 64 << 20,
        keep_bytes: int | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.folder, self.schema = Path(folder), schema
        self._sync_every, self._segment_bytes, self._keep_bytes = sync, segment_bytes, keep_bytes
        self._clock = clock
        self.cut = 0
        """Torn bytes that were cut off when the log was opened."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            _write_schema(self.folder, schema)
            self._begin(self._recover_rows())
        except BaseException:
            os.close(self._lock)
            raise

    def _recover_rows(self) -> int:
        """Repair the last segment and return the number of the next row."""
        segments = _segments(self.folder)
        if not segments:
            return 0
        self.cut = _recover(segments[-1], self.schema)
        return segments[-1].end

    def _begin(self, row: int) -> None:
        """Start a segment, over one that holds no row."""
        self._segment = Segment(self.folder, row)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._index = os.open(self._segment.index, flags, 0o644)
        self._data = os.open(self._segment.data, flags, 0o644)
        self._rows = self._end = 0
        self._waiting: list[bytes] = []
        self._synced = self._clock()
        self._pending = self.schema.serialize().to_pybytes()
        _sync_folder(self.folder)

    @property
    def rows(self) -> int:
        """Number of rows ever appended to the log."""
        return self._segment.first + self._rows

    def append(self, batch: pa.RecordBatch) -> None:
        """Add a batch. Readers see it after the next sync."""
        if not batch.num_rows:
            return
        data = self._pending + batch.serialize().to_pybytes()
        self._pending = b""
        _write(self._data, data)
        self._rows += batch.num_rows
        self._end += len(data)
        self._waiting.append(_record(self._rows, self._end, zlib.crc32(data)))
        self.tick()
        if self._end >= self._segment_bytes:
            self._turn()

    def tick(self) -> None:
        """Sync if `sync` seconds have passed since the last time."""
        if self._waiting and self._clock() - self._synced >= self._sync_every:
            self.sync()

    def sync(self) -> None:
        """Write all appended batches to the disk and show them to readers."""
        if self._waiting:
            os.fsync(self._data)
            _write(self._index, b"".join(self._waiting))
            os.fsync(self._index)
            self._waiting = []
        self._synced = self._clock()

    def _turn(self) -> None:
        """Close this segment and start the next one."""
        row = self.rows
        self._seal()
        self._begin(row)
        self._discard()

    def _seal(self) -> None:
        self.sync()
        if self._rows:
            _write(self._data, _ENDING)
        os.close(self._data)
        os.close(self._index)

    def _discard(self) -> None:
        segments = _segments(self.folder)
        held = sum(segment.data.stat().st_size for segment in segments)
        while self._keep_bytes is not None and held > self._keep_bytes and len(segments) > 1:
            oldest = segments.pop(0)
            held -= oldest.data.stat().st_size
            oldest.index.unlink()
            oldest.data.unlink()

    def close(self) -> None:
        """Sync the log and close its files."""
        self._seal()
        os.close(self._lock)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    """Sync the folder, which makes the names of its files durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _lock(folder: Path) -> int:
    opened = os.open(folder / "writer.lock", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        raise InputError(
            f"another process writes the log '{folder}'; a log has one writer at a time"
        ) from None
    return opened


def _write_schema(folder: Path, schema: pa.Schema) -> None:
    path = folder / "schema.arrow"
    if path.exists():
        known = read_schema(folder)
        if not known.equals(schema):
            raise InputError(
                f"the log '{folder}' holds other columns ({_columns(known)}) than are to be written "
                f"({_columns(schema)}); use another folder"
            )
        return
    partial = folder / "schema.partial"
    partial.write_bytes(schema.serialize().to_pybytes())
    os.replace(partial, path)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def read_schema(folder: str | Path) -> pa.Schema:
    """Read the schema of a log."""
    path = Path(folder) / "schema.arrow"
    if not path.exists():
        raise InputError(f"'{folder}' is not a log of a stream: it holds no schema.arrow")
    try:
        schema = ipc.read_schema(pa.py_buffer(path.read_bytes()))
        _columns(schema)  # all names are UTF-8
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        raise InputError(f"'{folder}' is not a log of a stream: its schema.arrow is damaged") from None
    return schema


def _recover(segment: Segment, schema: pa.Schema) -> int:
    """Repair a segment after a crash; return the number of torn bytes cut off."""
    raw, records = segment.data.read_bytes(), segment.records()
    records = records[records["end"] <= len(raw)]
    rows, end = (int(records["rows"][-1]), int(records["end"][-1])) if len(records) else (0, 0)
    found = list(_whole_batches(raw, schema, rows, end))
    last = found[-1][1] if found else end
    with open(segment.data, "r+b") as data, open(segment.index, "wb") as index:
        data.truncate(last)
        os.fsync(data.fileno())
        index.write(records.tobytes() + b"".join(_record(*one) for one in found))
        index.flush()
        os.fsync(index.fileno())
    return 0 if raw[last:] == _ENDING else len(raw) - last


def _whole_batches(raw: bytes, schema: pa.Schema, rows: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the record of each whole batch that has none yet."""
    start, source = end, pa.BufferReader(raw)
    source.seek(end)
    while (batch := _next_batch(source, schema)) is not None:
        rows, end = rows + batch.num_rows, source.tell()
        yield rows, end, zlib.crc32(raw[start:end])
        start = end


def _next_batch(source: pa.BufferReader, schema: pa.Schema) -> pa.RecordBatch | None:
    """Read the next batch, after the schema if that comes first; None if it is torn or missing."""
    try:
        message = ipc.read_message(source)
        if message.type == "schema":
            message = ipc.read_message(source)
        return ipc.read_record_batch(message, schema)
    except (EOFError, OSError, pa.ArrowException):
        return None


class LogReader:
    """Reads the rows of a log by their numbers."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.schema = read_schema(self.folder)

    @property
    def first(self) -> int:
        """The number of the oldest row."""
        segments = _segments(self.folder)
        return segments[0].first if segments else 0

    @property
    def end(self) -> int:
        """One past the number of the newest row."""
        segments = _segments(self.folder)
        return segments[-1].end if segments else 0

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from `start` up to but without `stop`."""
        segments = _segments(self.folder)
        if start < stop and (not segments or start < segments[0].first or stop > self.end):
            held = f"{self.first} to {self.end}" if segments else "none"
            raise InputError(
                f"the log '{self.folder}' does not hold rows {start} to {stop} (it has {held}); "
                "segments that a query still needs must not be removed"
            )
        at = max(bisect.bisect_right([s.first for s in segments], start) - 1, 0)
        for segment, following in zip(segments[at:], [*segments[at + 1 :], None], strict=False):
            if segment.first >= stop:
                return
            if following is not None and stop > segment.end != following.first:
                raise InputError(
                    f"'{segment.index}' is damaged: it ends at row {segment.end}, "
                    f"and the next begins at row {following.first}"
                )
            yield from _read_segment(segment, self.schema, start - segment.first, stop - segment.first)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.read(self.first, self.end)


def _read_segment(segment: Segment, schema: pa.Schema, start: int, stop: int) -> Iterator[pa.RecordBatch]:
    records = segment.records()
    if not len(records):
        return
    data = pa.memory_map(os.fspath(segment.data))
    _check_schema(segment, data, schema)
    first = int(np.searchsorted(records["rows"], max(start, 0), side="right"))
    for at in range(first, len(records)):
        if any(
            zlib.crc32(known.tobytes()[:20]) != known["own"] for known in records[max(at - 1, 0) : at + 1]
        ):
            raise InputError(f"'{segment.index}' is damaged: the checksum of a record differs")
        before = int(records["rows"][at - 1]) if at else 0
        if before >= stop:
            return
        begin = int(records["end"][at - 1]) if at else 0
        batch = _read_batch(segment, data, schema, begin, records[at])
        yield batch.slice(max(start - before, 0), min(stop, int(records["rows"][at])) - max(start, before))


def _check_schema(segment: Segment, data: pa.MemoryMappedFile, schema: pa.Schema) -> None:
    """Refuse a segment that begins with another schema than the log has."""
    try:
        same = ipc.read_schema(data).equals(schema)
    except (OSError, pa.ArrowException):
        same = False
    if not same:
        raise InputError(
            f"'{segment.data}' has other columns than its folder's schema.arrow; one of the two is damaged"
        )


def _read_batch(
    segment: Segment, data: pa.MemoryMappedFile, schema: pa.Schema, begin: int, record: Any
) -> pa.RecordBatch:
    end, batch = int(record["end"]), None
    if begin <= end <= data.size():
        data.seek(begin)
        raw = data.read_buffer(end - begin)
        if zlib.crc32(raw) == record["data"]:
            batch = _next_batch(pa.BufferReader(raw), schema)
    if batch is None:
        raise InputError(
            f"'{segment.data}' is damaged at bytes {begin} to {end}: their checksum differs from the index's"
        )
    return batch
