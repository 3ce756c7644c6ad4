"""The durable log: rows by number, whatever was torn, cut, rotated or removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handshake.errors import InputError
from handshake.io.udp.log import LogReader, LogWriter

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def batch(start: int, count: int) -> pa.RecordBatch:
    numbers = list(range(start, start + count))
    return pa.record_batch({"n": numbers, "s": [f"row {n}" for n in numbers]}, schema=SCHEMA)


def numbers(reader: LogReader, start: int, stop: int) -> list[int]:
    return [n for part in reader.read(start, stop) for n in part.column("n").to_pylist()]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.sampled_from([1, 600, 1500, 1 << 20]),
    st.sampled_from([0, 1000.0]),
    st.sets(st.integers(0, 12)),
    st.data(),
)
def test_any_run_of_rows_can_be_read_again(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    segment: int,
    sync: float,
    reopen: set[int],
    data: st.DataObject,
) -> None:
    folder, total = tmp_path_factory.mktemp("log"), 0
    log = LogWriter(folder, SCHEMA, sync=sync, segment_bytes=segment)
    for at, size in enumerate(sizes):
        log.append(batch(total, size))
        total += size
        if at in reopen:
            log.close()
            log = LogWriter(folder, SCHEMA, sync=sync, segment_bytes=segment)
            assert log.cut == 0
    assert log.rows == total
    log.close()
    reader = LogReader(folder)
    assert (reader.first, reader.end) == (0, total)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    assert numbers(reader, start, stop) == list(range(start, stop))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(0, 4000),
    st.integers(0, 80),
)
def test_a_torn_file_is_cut_at_the_last_whole_batch(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], unsynced: int, torn: int, index_torn: int
) -> None:
    """If any number of bytes is missing at the end of data and index, only whole batches are kept."""
    folder, total, ends = tmp_path_factory.mktemp("log"), 0, [0]
    log = LogWriter(folder, SCHEMA, sync=1e9)
    for at, size in enumerate(sizes):
        log.append(batch(total, size))
        total += size
        ends.append(log._end)
        if at < len(sizes) - unsynced:
            log.sync()
    os.close(log._data), os.close(log._index), os.close(log._lock)
    data, index = folder / f"{0:020}.arrows", folder / f"{0:020}.index"
    left = max(data.stat().st_size - torn, 0)
    os.truncate(data, left)
    os.truncate(index, max(index.stat().st_size - index_torn, 0))
    whole = max(at for at, end in enumerate(ends) if end <= left)
    rows = sum(sizes[:whole])
    with LogWriter(folder, SCHEMA) as again:
        assert again.rows == rows
        assert again.cut == left - ends[whole]
        again.append(batch(rows, 3))
    reader = LogReader(folder)
    assert numbers(reader, 0, reader.end) == list(range(rows + 3))


def test_readers_see_what_is_synced_and_nothing_else(tmp_path: Path) -> None:
    now = [0.0]
    log = LogWriter(tmp_path, SCHEMA, sync=5, clock=lambda: now[0])
    reader = LogReader(tmp_path)
    log.append(batch(0, 4))
    assert reader.end == 0
    now[0] = 5.0
    log.append(batch(4, 4))
    assert reader.end == 8
    log.append(batch(8, 1))
    assert reader.end == 8
    log.close()
    assert numbers(reader, 7, 9) == [7, 8]


_WRITE = """
import sys, pyarrow as pa
from handshake.io.udp.log import LogWriter
schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
log = LogWriter(sys.argv[1], schema, sync=0, segment_bytes=20_000)
print(log.rows, flush=True)
n = log.rows
while True:
    log.append(pa.record_batch({"n": list(range(n, n + 7)), "s": ["x" * 50] * 7}, schema=log.schema))
    n += 7
    print(n, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_has_written(tmp_path: Path) -> None:
    told = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _WRITE, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= told
        for _ in range(40):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        reader = LogReader(tmp_path)
        assert reader.end >= told
        assert numbers(reader, 0, reader.end) == list(range(reader.end))
    with LogWriter(tmp_path, SCHEMA) as log:
        assert log.rows == reader.end


def test_only_the_newest_segments_are_kept_if_so_asked(tmp_path: Path) -> None:
    with LogWriter(tmp_path, SCHEMA, sync=0, segment_bytes=1000, keep_bytes=4000) as log:
        for n in range(100):
            log.append(batch(n * 5, 5))
    reader = LogReader(tmp_path)
    assert 0 < reader.first < reader.end == 500
    assert numbers(reader, reader.first, 500) == list(range(reader.first, 500))
    with pytest.raises(
        InputError, match=rf"does not hold rows 0 to 10 \(it has {reader.first} to 500\); segments"
    ):
        list(reader.read(0, 10))


@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5, 9])
def test_a_damaged_number_of_rows_in_an_index_is_refused(rows: int, tmp_path: Path) -> None:
    with LogWriter(tmp_path, SCHEMA) as log:
        log.append(batch(0, 3))
        log.append(batch(3, 2))
    index = tmp_path / f"{0:020}.index"
    index.write_bytes(bytes([rows]) + index.read_bytes()[1:])
    for start in range(5):
        with pytest.raises(InputError, match=r"index' is damaged: the checksum of a record differs"):
            numbers(LogReader(tmp_path), start, 5)


def test_a_cut_index_of_a_full_segment_is_refused(tmp_path: Path) -> None:
    with LogWriter(tmp_path, SCHEMA, segment_bytes=1) as log:
        log.append(batch(0, 3))
        log.append(batch(3, 2))
    index = tmp_path / f"{0:020}.index"
    index.write_bytes(index.read_bytes()[:-1])
    with pytest.raises(
        InputError, match=r"index' is damaged: it ends at row 0, and the next begins at row 3"
    ):
        list(LogReader(tmp_path))
    assert numbers(LogReader(tmp_path), 3, 5) == [3, 4]


def test_damage_other_columns_and_second_writers_are_refused(tmp_path: Path) -> None:
    with LogWriter(tmp_path, SCHEMA) as log:
        with pytest.raises(
            InputError, match=r"another process writes the log '.*'; a log has one writer at a time"
        ):
            LogWriter(tmp_path, SCHEMA)
        log.append(batch(0, 100))
    with pytest.raises(
        InputError, match=r"holds other columns \(n int64, s string\) than are to be written \(x int8\)"
    ):
        LogWriter(tmp_path, pa.schema([("x", pa.int8())]))
    data = tmp_path / f"{0:020}.arrows"
    raw = bytearray(data.read_bytes())
    raw[-200] ^= 1
    data.write_bytes(raw)
    with pytest.raises(InputError, match=r"arrows' is damaged at bytes 0 to \d+: their checksum differs"):
        list(LogReader(tmp_path))
    with pytest.raises(InputError, match=r"is not a log of a stream: it holds no schema.arrow"):
        LogReader(tmp_path / "nothing")


def test_a_log_without_rows_is_read(tmp_path: Path) -> None:
    LogWriter(tmp_path, SCHEMA).close()
    assert list(LogReader(tmp_path)) == []
    for path in tmp_path.glob("0*"):
        path.unlink()
    assert list(LogReader(tmp_path)) == []
