"""Tests of `late_to` on Spark: each late row is in the files once, also if a micro-batch runs twice."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import handshake
from handshake import testing
from handshake.errors import UnsupportedError
from handshake.metrics.spark_progress import observed_figures
from waiting import wait_until
from worked_example import START

pytest.importorskip("pyspark")

EVENT = pa.schema([("t", pa.timestamp("us", "UTC")), ("k", pa.int64()), ("n", pa.int64())])


def rows(first: int, *seconds: int):
    times = [START + timedelta(seconds=s) for s in seconds]
    keys = [None if s % 5 == 0 else s % 3 for s in seconds]
    return {"t": times, "k": keys, "n": list(range(first, first + len(seconds)))}


@pytest.mark.parametrize(("how", "state"), [("inner", "directory"), ("left", "store")])
def test_late_rows_are_in_the_files_once(spark, tmp_path, how, state):
    late = str(tmp_path / "late")

    def build(left, right):
        left, right = (frame.withWatermark("t", "1 second") for frame in (left, right))
        return handshake.join(
            left, right, "l.k = r.k", window="9 seconds", how=how, late_to=late, name="j", segments=3,
            state=state,
        )  # fmt: skip

    steps = testing.SparkSteps(spark, build, {"left": EVENT, "right": EVENT}, tmp_path / "query")
    steps.step(left=rows(0, 60, 61, 62), right=rows(0, 70, 71))
    steps.step(left=rows(3, 40, 63, 35, 41), right=rows(2, 61, 10, 72))
    steps.repeat()
    steps.step(left=rows(7, 2), right=rows(5, 99))
    # the watermark is 61 s in the second micro-batch, and 62 s in the third
    wanted = {"left": {3: 21, 5: 26, 6: 20, 7: 60}, "right": {3: 51}}
    for side, numbers in wanted.items():
        table = pq.read_table(f"{late}/{side}")
        found = [(row["n"], row["late_by"] // timedelta(seconds=1)) for row in table.to_pylist()]
        assert sorted(found) == sorted(numbers.items())
        frame = spark.read.parquet(f"{late}/{side}")
        assert sorted(row["n"] for row in frame.collect()) == sorted(numbers)
    observed = [observed_figures(report).get("j", {}) for report in steps.progress.values()]
    assert sum(figures.get("late") or 0 for figures in observed) == 5


def test_tables_have_no_late_rows(spark):
    frame = spark.createDataFrame([(1,)], "x int")
    with pytest.raises(UnsupportedError, match="late_to is for joins of two streams"):
        handshake.join(frame, frame, "l.x = r.x", late_to="/late")
    with pytest.raises(UnsupportedError, match="late_to is for joins of two streams"):
        handshake.join(frame, frame, "l.x = r.x", late_to=print)


class Calls:
    """A function for late rows, which fails now and then."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, int, int]] = []
        self.batches: list[int] = []
        self.fails, self.failures = False, 0

    def __call__(self, side: str, batch: pa.RecordBatch) -> None:
        if self.fails:
            self.failures += 1
            raise RuntimeError("the table of late rows is locked")
        self.batches.append(int(batch.schema.metadata[b"micro_batch"]))
        lags = [lag // timedelta(seconds=1) for lag in batch["late_by"].to_pylist()]
        self.rows += zip([side] * len(lags), batch["n"].to_pylist(), lags, strict=True)


@pytest.mark.classic("late rows for a function are read by a listener of the driver")
def test_a_function_gets_late_rows_once_per_micro_batch(spark, tmp_path):
    calls = Calls()

    def build(left, right):
        left, right = (frame.withWatermark("t", "1 second") for frame in (left, right))
        return handshake.join(
            left, right, "l.k = r.k", window="9 seconds", late_to=calls, name="a join", segments=3,
            state_dir=str(tmp_path / "state"),
        )  # fmt: skip

    # each step starts the query again, with another definition and so another listener
    steps = testing.SparkSteps(spark, build, {"left": EVENT, "right": EVENT}, tmp_path / "query")
    steps.step(left=rows(0, 60, 61, 62), right=rows(0, 70, 71))
    steps.step(left=rows(3, 40, 63, 35, 41), right=rows(2, 61, 10, 72))
    first = [("left", 3, 21), ("left", 5, 26), ("left", 6, 20), ("right", 3, 51)]
    wait_until(lambda: sorted(calls.rows) == first, what="the late rows of the second micro-batch")
    assert calls.batches == [1, 1]
    calls.fails = True
    steps.step(left=rows(7, 2))
    waiting = tmp_path / "state"
    wait_until(lambda: calls.failures)
    assert len([*waiting.glob("*/join-a%20join/late/left/*.parquet")]) == 1
    calls.fails = False
    steps.step(left=rows(8, 3, 99), right=rows(5, 99))
    wanted = [*first, ("left", 7, 60), ("left", 8, 59)]
    wait_until(lambda: len(calls.rows) >= len(wanted), what="the late rows of the last micro-batches")
    assert sorted(calls.rows) == sorted(wanted)
    assert calls.batches == [1, 1, 2, 3]
    assert not [*waiting.glob("*/join-a%20join/late/*/*.parquet")]


@pytest.mark.classic("late rows for a function are read by a listener of the driver")
def test_what_a_function_for_late_rows_cannot_have(spark, tmp_path):
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    with pytest.raises(
        UnsupportedError, match="a function for late_to gets them from files in the state dir"
    ):
        handshake.join(stream, stream, "l.value = r.value", window="1 s", late_to=print, state="store")
