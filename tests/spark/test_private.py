"""Private parts of PySpark do what their plain alternatives do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import handshake
from spark_home import OPTIONS
from spark_session import Feed, Sink, spark

__all__ = ["spark"]

pytest.importorskip("pyspark")
from pyspark import SparkContext, TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from handshake.engines.spark import private
from handshake.engines.spark.java import java_home
from handshake.engines.spark.joins.inputs import qualifiers, session_zone
from handshake.engines.spark.types import arrow_type, spark_schema

ROOT = Path(__file__).parents[2]
COLUMNS = """a boolean, b tinyint, c smallint, d int, e bigint, f float, g double, h decimal(12,3), i string,
    j binary, k date, l timestamp, m timestamp_ntz, n interval day to second, o array<int>,
    p map<string,double>, q struct<x:int,y:array<timestamp>>"""


def test_arrow_types_are_those_of_an_empty_frame(spark: Any) -> None:
    frame = spark.createDataFrame([], COLUMNS)
    found = [arrow_type(field.dataType, session_zone(frame)) for field in frame.schema]
    assert found == frame.toArrow().schema.types


def test_spark_types_are_those_of_an_empty_table(spark: Any) -> None:
    schema = spark.createDataFrame([], COLUMNS).toArrow().schema
    found = spark_schema(schema)
    assert isinstance(found, StructType)
    kind = "spark.sql.timestampType"
    before = spark.conf.get(kind)
    spark.conf.set(kind, "TIMESTAMP_NTZ")  # columns without a zone stay without one
    try:
        plain = spark.createDataFrame(schema.empty_table()).schema
    finally:
        spark.conf.set(kind, before)
    assert [(f.name, f.dataType.simpleString()) for f in found] == [
        (f.name, f.dataType.simpleString()) for f in plain
    ]


def test_char_columns_are_padded(spark: Any, tmp_path: Path) -> None:
    spark.sql(
        f"CREATE TABLE padded (c char(3), v varchar(3), s string) USING parquet LOCATION '{tmp_path}/t'"
    )
    try:
        fields = spark.table("padded").schema.fields
        assert [private.is_padded(field) for field in fields] == [True, False, False]
    finally:
        spark.sql("DROP TABLE padded")


def test_the_mark_of_event_times_is_that_of_a_watermark(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.schema("t timestamp").json(str(tmp_path)).withWatermark("t", "3 seconds")
    assert stream.schema["t"].metadata == {private.WATERMARK: 3000}


@pytest.mark.classic("plans are Java objects")
def test_plans_show_names_and_casts(spark: Any) -> None:
    frame = spark.range(3).alias("left_name").select(F.col("id").cast("string").alias("c"), "id")
    plan = private.analysed_plan(frame)
    assert [str(column.name()) for column in private.elements(plan.output())] == ["c", "id"]
    assert private.is_java_column(frame.c)
    (alias, _) = private.elements(plan.projectList())
    cast = alias.child()
    assert private.is_user_cast(cast, frame)
    assert private.is_instance(cast, "org.apache.spark.sql.catalyst.expressions.Cast", frame)
    assert not private.is_instance(alias, "org.apache.spark.sql.catalyst.expressions.Cast", frame)


@pytest.mark.classic("plans are Java objects")
def test_without_plans_predicates_are_texts(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = spark.range(4).alias("a"), spark.range(4).withColumnRenamed("id", "n").alias("b")
    assert qualifiers(left, right) == ("a", "b")
    monkeypatch.setattr("handshake.engines.spark.joins.inputs.analysed_plan", lambda frame: None)
    assert qualifiers(left, right) is None
    assert handshake.join(left, right, "l.id < r.n").count() == 6


@pytest.mark.classic("it asks the JVM")
def test_classes_of_the_jvm(spark: Any) -> None:
    assert private.has_class(spark, "org.rocksdb.RocksDB")
    assert not private.has_class(spark, "org.rocksdb.Absent")
    assert private.has_class(object(), "org.rocksdb.Absent")  # no JVM to ask: left to Spark


@pytest.mark.classic("files are listed by the JVM")
def test_files_are_listed_again(spark: Any, tmp_path: Path) -> None:
    for n in range(2):
        spark.range(1).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        if n == 0:
            frame = spark.read.parquet(str(tmp_path / "in"))
            narrow = frame.where("id >= 0").select("id")
    assert narrow.count() == 1
    private.list_files_again(narrow)
    assert narrow.count() == 2
    assert spark.read.parquet(str(tmp_path / "in")).count() == 2  # plain


def test_tasks_know_their_query_run_and_batch(spark: Any, tmp_path: Path) -> None:
    def look(batches: Any) -> Any:
        task: Any = TaskContext.get()
        seen = (private.query_id(task), private.run_id(task), private.batch_number(task))
        for _ in batches:
            yield pa.RecordBatch.from_pylist([dict(zip(("query", "run", "batch"), seen, strict=True))])

    columns = "query string, run string, batch bigint"
    (row,) = spark.range(1, numPartitions=1).mapInArrow(look, columns).collect()
    assert tuple(row) == (None, "", 0)
    feed, sink = Feed(tmp_path / "in", "n bigint"), Sink(tmp_path / "sink")
    for n in range(2):
        feed.add(pa.table({"n": [n]}))
    sink.run(feed.read(spark).mapInArrow(look, columns))
    assert [row["batch"] for row in sink.rows()] == [0, 1]
    assert {row["query"] for row in sink.rows()} == {str(sink.progress[0]["id"])}
    assert {row["run"] for row in sink.rows()} == {str(sink.progress[0]["runId"])}


@pytest.mark.classic("accumulators are those of SparkContext")
def test_accumulator_errors_stay_off_the_terminal(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = spark.sparkContext._accumulatorServer
    monkeypatch.setattr(server, "handle_error", server.handle_error)  # restored at the end
    private.silence_accumulators(spark)
    assert server.handle_error(None, None) is None


def test_a_released_jvm_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_gateway", "_jvm", "_active_spark_context"):
        monkeypatch.setattr(SparkContext, name, object())
    private.release_jvm()
    assert (SparkContext._gateway, SparkContext._jvm, SparkContext._active_spark_context) == (
        None,
        None,
        None,
    )


def test_a_session_by_the_builder_will_do() -> None:
    """Run an example as a script: neither our gateway nor our daemon is part of it.

    Workers run the script's Python, although the PATH has another one.
    """
    environment = {"PATH": "/usr/bin:/bin", "JAVA_HOME": java_home(), "SPARK_SUBMIT_OPTS": OPTIONS}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "ip_ranges.py")],
        capture_output=True, text=True, timeout=400, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "networks for" in done.stdout
