"""Bad joins of DataFrames: refused when they are defined, with what would work, else at the first batch."""

from __future__ import annotations

import atexit
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

import handshake
from handshake.errors import (
    ExpressionError,
    HandshakeError,
    InputError,
    SchemaError,
    UnsupportedError,
    WindowError,
)

pytest.importorskip("pyspark")
from pyspark.errors import PySparkException

import handshake.engines.spark.workers as releases
from handshake.engines.spark.java import java_home
from handshake.engines.spark.joins.directories import state_root
from handshake.engines.spark.joins.frames import _ROCKSDB
from handshake.engines.spark.workers import VersionError, check_driver_python, check_versions, versions
from spark_session import Feed


@pytest.fixture(scope="module")
def batch(spark):
    return spark.createDataFrame([(1, 2.0, "a")], "x int, y double, price string")


@pytest.fixture(scope="module")
def other(spark):
    return spark.createDataFrame([(1, 2.0)], "a int, b double")


@pytest.fixture(scope="module")
def stream(spark, tmp_path_factory):
    feed = Feed(tmp_path_factory.mktemp("feed") / "in", "x int, at timestamp")
    feed.add(pa.table({"x": pa.array([1], pa.int32()), "at": pa.array([10**15], pa.timestamp("us", "UTC"))}))
    return feed.read(spark)


@pytest.fixture(scope="module")
def events(stream):
    return stream.withWatermark("at", "1 second")


def refuse(kind, message, *args, **options):
    """Check that a join is refused with a message."""
    with pytest.raises(kind, match=re.escape(message)):
        handshake.join(*args, **options)


# Streams


def test_a_missing_watermark_shows_the_line_to_add(stream, events):
    line = 'add one: left = left.withWatermark("at", "10 seconds")'
    refuse(WindowError, line, stream, events, "l.x = r.x", window="5 s")
    refuse(WindowError, line.replace("left", "right"), events, stream, "l.x = r.x", window="5 s", time="at")
    refuse(WindowError, "the left stream has no watermark on 'at'", stream, stream, window="5 s")


def test_a_watermark_on_another_column(events):
    other = events.withColumn("then", events.at)
    unmarked = events.selectExpr("*", "at + INTERVAL 1 SECOND AS then")
    refuse(
        WindowError, "the left stream has watermarks on at and then; say which one is its time: "
        'left_time="at"', other, events, window="5 s",
    )  # fmt: skip
    refuse(
        WindowError, "no watermark on 'then'", unmarked, unmarked, window="5 s", left_time="then", time="at"
    )


def test_streams_need_windows(events):
    refuse(WindowError, "a join of two streams needs a window on both", events, events, "l.x = r.x")
    refuse(WindowError, 'give one, such as window="15 minutes"', events, events, left_window="5 s")


def test_a_static_side_takes_no_window(events, batch):
    refuse(WindowError, "leave the window out", events, batch, "l.x = r.x", window="5 s")
    refuse(WindowError, "leave the window out", batch, events, "l.x = r.x", right_window="5 tuples")


def test_result_time(events, batch):
    refuse(UnsupportedError, "result_time='AT' is the name of a column already; choose another",
           events, events, window="5 s", result_time="AT")  # fmt: skip
    refuse(WindowError, "result_time needs time columns on both inputs", batch, batch, result_time="t")


def test_complete_output_is_refused_by_spark(events, tmp_path):
    joined = handshake.join(events, events, "l.x = r.x", window="5 s")
    writer = joined.writeStream.format("noop").outputMode("complete")
    with pytest.raises(PySparkException, match="Invalid streaming output mode: complete"):
        writer.option("checkpointLocation", str(tmp_path)).start()


# Any input


def test_kinds_that_ask_which_static_rows_match(events, batch):
    line = "how='left' asks which rows of the left DataFrame have a match, but that one is static"
    refuse(UnsupportedError, line, batch, events, "l.x = r.x", how="leftouter")
    line = "preserve the side that streams (how='left'), or join two batch DataFrames"
    refuse(UnsupportedError, line, events, batch, "l.x = r.x", how="full")
    refuse(UnsupportedError, "no kind of join 'leftt'", events, batch, "l.x = r.x", how="leftt")


def test_unknown_columns(batch, other, events):
    refuse(ExpressionError, "did you mean 'price'?", batch, other, "l.prise = 'a'")
    refuse(SchemaError, "no column 'pric' in the left DataFrame (x, y, price) to take the time from; did "
           "you mean 'price'?", batch, other, time="pric", window="5 s")  # fmt: skip
    refuse(SchemaError, "no column 'att' in the left DataFrame", events, events, window="5 s", time="att")


def test_columns_that_clash(batch, other):
    doubled = other.withColumnRenamed("b", "x_right").withColumnRenamed("a", "x")
    refuse(SchemaError, "output column 'x_right' would appear twice", batch, doubled, "l.x = r.x")
    refuse(SchemaError, "output columns 'x' and 'X' differ in case only, which Spark does not distinguish",
           batch, other.withColumnRenamed("a", "X"), "l.x = r.X")  # fmt: skip
    twice = batch.join(batch.select("x"), how="cross")
    refuse(SchemaError, "the left DataFrame has two columns 'x'; rename or drop one", twice, other)


@pytest.mark.parametrize(
    "text",
    ["rand() < 0.5", "l.x < randn()", "uuid() = l.price", "now() > '2024'", "current_timestamp() > '2024'",
     "current_date > '2024'"],
)  # fmt: skip
def test_predicates_that_change_their_mind(batch, other, text):
    message = "gives another value each time; a predicate must give the same answer whenever two tuples"
    refuse(ExpressionError, message, batch, other, text)


def test_predicates_of_no_known_kind(batch, other):
    refuse(ExpressionError, "must be SQL text, a built expression or a Column, not list", batch, other, ["x"])


@pytest.mark.parametrize("segments", [0, -1, 1.5, "2", True])
def test_segments(batch, other, segments):
    refuse(UnsupportedError, f"segments is a whole number from 1 up; {segments!r} was given",
           batch, other, "l.x < r.a", segments=segments)  # fmt: skip


def test_a_dataframe_with_something_else(batch, spark):
    message = "one input is a Spark DataFrame, but the right one is a pandas.core.frame.DataFrame"
    refuse(InputError, message, batch, pd.DataFrame({"a": [1]}), "l.x = r.a")
    refuse(InputError, "left = spark.createDataFrame(left)", pd.DataFrame({"a": [1]}), batch, "l.a = r.x")
    with pytest.raises(InputError, match="but the left one"):
        handshake.explain(pa.table({"a": [1]}), batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "cell"}, "algorithm='cell' is only supported by the local engine"),
        ({"ordered": True}, "order='time' is only supported by the local engine"),
        ({"cores": 2}, "cores=2 has no effect on Spark DataFrames; use segments=2"),
    ],
)
def test_options_of_the_other_engine(batch, other, options, message):
    refuse(UnsupportedError, message, batch, other, "l.x = r.a", **options)


@pytest.mark.parametrize(
    "options", [{"segments": 2}, {"state_dir": "/tmp"}, {"name": "j"}, {"result_time": "t"}]
)
def test_options_of_spark(options):
    ((name, value),) = options.items()
    message = f"{name}={value!r} is only supported by the spark engine"
    refuse(UnsupportedError, message, {"x": [1]}, {"a": [1]}, "l.x = r.a", **options)


def test_types_that_arrow_does_not_carry(spark, other):
    months = spark.sql("SELECT INTERVAL '1-2' YEAR TO MONTH AS age")
    refuse(SchemaError, "column 'age' of the left DataFrame is interval year to month, which Spark does not "
           "pass to Python and back in Arrow; cast it to another type", months, other)  # fmt: skip


def test_zones_that_python_does_not_know(spark, batch, other):
    spark.conf.set("spark.sql.session.timeZone", "PST")
    try:
        refuse(SchemaError, "timeZone is 'PST', which Python's zone database does not have",
               batch, other)  # fmt: skip
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_texts_with_a_collation(spark, other):
    folded = spark.sql("SELECT 'A' COLLATE UTF8_LCASE AS s, 1 AS x")
    refuse(SchemaError, "column 's' of the left DataFrame has the collation UTF8_LCASE, but a predicate "
           "compares texts by code point", folded, folded.toDF("u", "v"), "l.s = r.u")  # fmt: skip
    assert handshake.join(folded, other, "l.x = r.a").columns == ["s", "x", "a", "b"]


# Where state lies


def test_the_state_directory():
    assert state_root("/a", "/b", "/c", "yarn") == "/a"
    assert state_root(None, "s3://b/c", "/c", "yarn") == "s3://b/c"
    assert state_root(None, None, "/c/", "yarn") == "/c/handshake-state"
    assert state_root(None, None, None, "local[2]").endswith("/handshake-state")
    assert state_root(None, None, None, "local[2]", lasting=False) == tempfile.gettempdir()
    assert state_root(None, None, None, "spark://host:7077") == ""
    assert state_root(None, None, None, None) == ""


def test_no_state_directory_on_a_cluster(batch, other, monkeypatch):
    """Find no directory on a cluster; the session of these tests is local."""
    monkeypatch.setattr(
        "handshake.engines.spark.joins.directories.state_root",
        lambda *_, **__: state_root(None, None, None, "yarn"),
    )
    refuse(UnsupportedError, "a join on a cluster needs a directory for its windows that every",
           batch, other, "l.x < r.a")  # fmt: skip
    assert handshake.join(batch, other, "l.x = r.a").columns == ["x", "y", "price", "a", "b"]  # Spark's own


def test_a_batch_join_leaves_nothing_in_the_working_directory(spark, batch, other, tmp_path, monkeypatch):
    """Neither in the directory of the session nor in a given one, once the process has ended."""
    monkeypatch.chdir(tmp_path)
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda call, *args: at_exit.append((call, args)))
    configured = spark.conf.get("spark.handshake.stateDir")
    spark.conf.unset("spark.handshake.stateDir")
    try:
        assert handshake.join(batch, other, "l.x <= r.a").count() == 1
    finally:
        spark.conf.set("spark.handshake.stateDir", configured)
    assert list(tmp_path.iterdir()) == []
    assert handshake.join(batch, other, "l.x <= r.a", state_dir="given").count() == 1
    assert list((tmp_path / "given").rglob("*.marker"))
    for call, args in at_exit:
        call(*args)
    assert list((tmp_path / "given").iterdir()) == []


@pytest.mark.classic("foreachBatch runs on the server")
def test_batch_joins_of_micro_batches_leave_no_files_behind(spark, other, tmp_path):
    """All batch joins of a process have one folder, in which those of earlier micro-batches are removed."""
    feed = Feed(tmp_path / "in", "x int")
    for n in range(5):
        feed.add(pa.table({"x": pa.array([n], pa.int32())}))

    def write(frame, number):
        joined = handshake.join(frame, other, "l.x + 9 > r.a", state_dir=tmp_path / "state")
        assert joined.count() == 1

    query = feed.read(spark).writeStream.foreachBatch(write)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start().awaitTermination()
    (scratch,) = (tmp_path / "state").iterdir()
    batches = sorted(path.name for path in scratch.glob("*/batch/*"))
    assert (len([*scratch.iterdir()]), batches) == (2, ["3", "4"])  # with a marker


FOLDERS = [
    ({"state_dir": 5}, "state_dir is a text; 5 was given"),
    ({"results_to": ""}, "results_to='' is empty; give the path or URI of a folder, or leave it out"),
    ({"name": ""}, "name='' is empty; give the join a name such as 'matches', or leave it out"),
    ({"late_to": "foo://x/y"}, "late_to='foo://x/y' cannot be written: no filesystem for 'foo://x/y'"),
    ({"late_to": "/proc/x"}, "late_to='/proc/x' cannot be written: cannot write '/proc/x/_handshake-"),
]


@pytest.mark.parametrize(("options", "message"), FOLDERS)
def test_folders_and_names_are_checked(events, options, message):
    refuse(HandshakeError, message, events, events, "l.x = r.x", window="5 s", **options)


def test_executors_that_do_not_see_the_state_directory(batch, other, tmp_path):
    joined = handshake.join(batch, other, "l.x <= r.a", state_dir=str(tmp_path / "state"))
    for marker in (tmp_path / "state").rglob("*.marker"):
        marker.unlink()
    with pytest.raises(
        PySparkException, match=r"does not see the state directory '.*state' that the driver uses"
    ):
        joined.collect()


# Who runs what


def test_versions_are_compared():
    check_versions(versions())
    assert [name for name, _ in versions()] == ["Python", "handshake", "pyarrow", "numpy", "numba"]
    with pytest.raises(
        VersionError, match=r"the driver runs numba 0\.1, but the worker on \S+ runs [0-9.]+; install"
    ):
        check_versions((("numba", "0.1"),))


@pytest.mark.classic("the server of Spark Connect chooses the Python")
def test_a_packed_python_that_the_driver_lacks(spark, monkeypatch, tmp_path):
    """Spark starts the workers' Python on the driver, too: named before a query fails inside Spark."""
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "./env/bin/python")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match=r"'./env/bin/python', on the driver.* ln -s .+ env$"):
        check_driver_python(spark)
    (tmp_path / "env").symlink_to(sys.prefix)
    check_driver_python(spark)


def test_workers_that_run_another_release(batch, other, monkeypatch):
    """Let the driver claim other releases than those of the workers."""
    fake = tuple((name, "9.9" if name == "pyarrow" else release) for name, release in versions())
    monkeypatch.setattr("handshake.engines.spark.joins.frames.versions", lambda: fake)
    joined = handshake.join(batch, other, "l.x <= r.a")
    with pytest.raises(PySparkException, match=r"the driver runs pyarrow 9\.9, but the worker on \S+ runs "):
        joined.collect()


def test_packages_and_jars_that_are_missing(tmp_path):
    """Run a session whose workers, JVM and driver lack something each; see the script."""
    script = Path(__file__).parents[1] / "support" / "spark_failures.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=500,
        env={**os.environ, "JAVA_HOME": java_home()}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split()[-1] == "done"


def test_a_platform_keeps_its_state_store(spark, events):
    """Leave a RocksDB of the platform as it is; replace any other provider."""
    key = "spark.sql.streaming.stateStore.providerClass"
    before = spark.conf.get(key)
    try:
        for given, kept in (("com.example.RocksDBProvider", True), ("com.example.Other", False)):
            spark.conf.set(key, given)
            handshake.join(events, events, "l.x = r.x", window="5 s")
            assert spark.conf.get(key) == (given if kept else _ROCKSDB)
    finally:
        spark.conf.set(key, before)


def test_definitions_travel(batch, other):
    from handshake.engines.spark.joins.frames import JoinRequest, define
    from handshake.options import Options
    from handshake.windows import windows_of

    request = JoinRequest("l.x = r.a", windows_of(), (None, None))
    definition = define(batch, other, request, Options())
    assert pickle.loads(pickle.dumps(definition)) == definition
    assert releases.versions() == definition.versions
