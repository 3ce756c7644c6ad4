"""Tests of `results_to`: the results of a join of streams are in Parquet files, each of them once."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import handshake
from handshake import testing
from handshake.engines.spark.state.store import Store
from handshake.errors import InputError, UnsupportedError
from worked_example import START

pytest.importorskip("pyspark")

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

EVENT = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("s", pa.string())])
JOIN = {"on": "l.k = r.k", "window": "9 seconds"}
DELAY = timedelta(seconds=10)


def rows(first: int, *seconds: int):
    times = [START + timedelta(seconds=s) for s in seconds]
    keys = [None if s % 7 == 0 else s % 3 for s in seconds]
    return {"t": times, "k": keys, "s": [f"row {first + n}" for n in range(len(seconds))]}


LEFT = [rows(0, 60, 61, 50, 70), rows(4, 64, 74, 71), rows(7, 98)]
RIGHT = [rows(0, 60, 66, 52), rows(3, 75, 69, 66), rows(6, 99, 91)]


def forget_commit(folder: Path) -> None:
    """Let the last micro-batch run again, as after a crash before it was committed."""
    last = max(int(path.name) for path in folder.glob("[0-9]*"))
    (folder / str(last)).unlink()
    (folder / f".{last}.crc").unlink(missing_ok=True)


def table(parts: list[dict]) -> pa.Table:
    return pa.concat_tables(pa.Table.from_pydict(part, EVENT) for part in parts)


def expected_results(how: str) -> Counter:
    """Return the results by the oracle, as far as they are final at the watermark of the last micro-batch."""
    mark = min(max(table(side[:2])["t"].to_pylist()) for side in (LEFT, RIGHT)) - DELAY
    found = testing.reference({**JOIN, "how": how, "time": "t"}, table(LEFT), table(RIGHT)).to_pylist()
    wanted = [tuple(row.values()) for row in found if _is_final(row, mark)]
    return Counter(wanted)


def _is_final(row: dict, mark: datetime) -> bool:
    """Return whether a row is a pair, can match nothing, or has left its window."""
    times = [row[name] for name in ("t", "t_right") if row[name] is not None]
    key = row["k"] if row["t"] is not None else row["k_right"]
    return len(times) == 2 or key is None or times[0] + timedelta(seconds=9) <= mark


def build(folder: Path, how: str, options: dict):
    """Return a pipeline that joins with these options, as they are when it starts."""

    def join(left, right):
        left, right = (frame.withWatermark("t", "10 seconds") for frame in (left, right))
        return handshake.join(
            left, right, **JOIN, how=how, name="j", results_to=str(folder), result_time="at", **options
        )

    return join


@pytest.mark.parametrize(
    ("how", "state", "segments"), [("inner", "directory", (3, 2)), ("full", "store", (3, 3))]
)
def test_results_are_in_the_files_once(spark, tmp_path, how, state, segments):
    folder, query, options = tmp_path / "results", tmp_path / "query", {"state": state}
    options["segments"] = segments[0]
    steps = testing.SparkSteps(spark, build(folder, how, options), {"left": EVENT, "right": EVENT}, query)
    steps.run([{"left": LEFT[0], "right": RIGHT[0]}, {"left": LEFT[1], "right": RIGHT[1]}])
    forget_commit(query / "checkpoint" / "commits")
    options["segments"] = segments[1]  # the query changes while it is down
    steps.step(left=LEFT[2], right=RIGHT[2])
    files = steps.results.to_pylist()
    assert sorted(file["path"] for file in files) == sorted(map(str, folder.glob("*.parquet")))
    for file in files:
        assert pq.read_metadata(file["path"]).num_rows == file["rows"] > 0
        assert Path(file["path"]).stat().st_size == file["bytes"]
    found = pq.read_table(folder)
    times = found.select(["t", "t_right", "at"]).to_pylist()
    pairs = [row for row in times if None not in row.values()]
    assert pairs
    assert all(row["at"] == max(row["t"], row["t_right"]) for row in pairs)
    plain = found.drop_columns("at").to_pylist()
    wanted = expected_results(how)
    assert Counter(tuple(row.values()) for row in plain) == wanted
    assert how == "inner" or sum(None in row for row in wanted) > 3
    by_spark = spark.read.parquet(str(folder))
    assert (by_spark.columns, by_spark.count()) == (found.schema.names, found.num_rows)


def test_a_folder_belongs_to_one_query(spark, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "_handshake").write_text("another query")
    streams = {"left": EVENT, "right": EVENT}
    pipeline = build(tmp_path / "results", "inner", {"segments": 1})
    steps = testing.SparkSteps(spark, pipeline, streams, tmp_path / "query")
    with pytest.raises(StreamingQueryException, match="holds results of another query or checkpoint"):
        steps.step(left=LEFT[0], right=RIGHT[0])
    assert not list((tmp_path / "results").glob("*.parquet"))


def test_what_cannot_go_to_files_is_refused(spark, tmp_path):
    frame = spark.createDataFrame([(1,)], "x int")
    with pytest.raises(
        UnsupportedError, match=r"results_to is for joins of two streams.*joined\.write\.parquet"
    ):
        handshake.join(frame, frame, "l.x = r.x", results_to=str(tmp_path))
    (tmp_path / "file").touch()
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    with pytest.raises(InputError, match=r"results_to='.*/file/results' cannot be written"):
        handshake.join(
            stream, stream, "l.value = r.value", window="1 s", results_to=f"{tmp_path}/file/results"
        )
    with pytest.raises(UnsupportedError, match="results_to and late_to are both"):
        handshake.join(
            stream, stream, "l.value = r.value", window="1 s", results_to=str(tmp_path), late_to=str(tmp_path)
        )
    empty = stream.withColumn("nothing", F.struct())
    with pytest.raises(UnsupportedError, match="Parquet has no type for column 'nothing'"):
        handshake.join(empty, stream, "l.value = r.value", window="1 s", results_to=str(tmp_path))
    plan = handshake.explain(stream, stream, "l.value = r.value", window="1 s", results_to=str(tmp_path))
    assert f"results     in Parquet files under {tmp_path}" in plan


@pytest.mark.parametrize("root", ["{}", "mock://results"])
def test_an_incomplete_file_is_never_seen(tmp_path, root):
    store = Store(root.format(tmp_path))
    with store.create("a/part-0.parquet") as sink:
        sink.write(b"whole")
    assert store.read("a/part-0.parquet").to_pybytes() == b"whole"
    store.remove_folder("a")
    with suppress(ZeroDivisionError), store.create("part-1.parquet") as sink:
        sink.write(b"half")
        assert [name for name in store.list("") if not name.startswith(".")] == []
        sink.write(bytes(1 // 0))
    assert store.list("") == []
