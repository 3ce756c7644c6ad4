"""Nearest joins of DataFrames agree with those of tables, which agree with the oracle."""

from __future__ import annotations

import math
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import handshake
from handshake.errors import ExpressionError, SchemaError, UnsupportedError, WindowError
from spark_session import Feed, Sink


def make_table(rng: Random, number: str, size: int) -> pa.Table:
    """Return rows in the order of time, with ties, zeros of either sign, NULL and NaN."""
    times = sorted(rng.choices(range(60), k=size))
    return pa.table(
        {
            "t": pa.array([1_700_000_000_000_000 + 10**6 * t for t in times], pa.timestamp("us", "UTC")),
            "k": pa.array(rng.choices((None, 1, 2, 3), k=size), pa.int64()),
            "x": pa.array(rng.choices((None, math.nan, -0.0, 0.0, 0.5, 1.0), k=size), pa.float64()),
            number: pa.array(range(size), pa.int64()),
        }
    )


def same(rows: list[dict]) -> list[tuple]:
    return sorted((tuple("NaN" if v != v else v for v in row.values()) for row in rows), key=repr)


def frames_of(spark, *tables: pa.Table) -> list:
    return [spark.createDataFrame(table).repartition(3) for table in tables]


@pytest.mark.parametrize(
    ("on", "options"),
    [
        ("l.k = r.k", {"by": "ABS(l.x - r.x)", "k": 2, "value": "off", "window": "9 s", "time": "t"}),
        ("l.x BETWEEN r.x - 1 AND r.x + 1", {"by": "r.t - l.t", "k": 3, "value": "age", "how": "inner"}),
        (None, {"by": "r.x", "k": 5, "rank": None, "left_window": "9 s", "time": "t"}),
    ],
)
def test_batches_agree_with_tables(spark, on, options):
    """By equality, by band, and in all segments; rows that can match nothing are there, too."""
    rng = Random(str(on))
    tables = make_table(rng, "n", 70), make_table(rng, "m", 60)
    joined = handshake.nearest(*frames_of(spark, *tables), on, segments=3, **options)
    want = handshake.nearest(*tables, on, **options)
    assert joined.columns == want.schema.names
    found = [row.asDict() for row in joined.collect()]
    for row in found:
        row.pop("t"), row.pop("t_right")
    assert same(found) == same(want.drop_columns(["t", "t_right"]).to_pylist())


def test_aliases_and_columns_of_spark(spark):
    rooms = spark.createDataFrame([("a", 1), ("b", 9)], "room string, x int").alias("o")
    sensors = spark.createDataFrame([(1, 2), (2, 3), (3, 8)], "sensor int, at int").alias("s")
    want = [("a", 1, 1, 2, 1), ("b", 9, 3, 8, 1)]
    joined = handshake.nearest(rooms, sensors, F.col("s.at") < 100, by="ABS(o.x - s.at)")
    assert sorted(map(tuple, joined.collect())) == want
    text = handshake.explain(joined)
    assert "best        1 per left row by ABS(l.x - r.at); rows without a match are kept, with NULLs" in text


def test_a_stream_finds_its_best_matches_in_a_batch(spark, tmp_path):
    rng = Random(5)
    left, right = (make_table(rng, name, 40).drop_columns(["t"]) for name in "nm")
    feed, sink = Feed(tmp_path / "left", "k bigint, x double, n bigint"), Sink(tmp_path)
    for start in (0, 15):
        feed.add(left.slice(start, 25 if start else 15))
    options = {"by": "ABS(l.x - r.x)", "k": 2, "value": "off"}
    sink.run(handshake.nearest(feed.read(spark), *frames_of(spark, right), "l.k = r.k", **options))
    assert same(sink.rows()) == same(handshake.nearest(left, right, "l.k = r.k", **options).to_pylist())


@pytest.mark.parametrize(
    ("on", "options"),
    [
        ("l.k = r.k", {"k": 2, "value": "off", "left_window": "5 s", "right_window": "9 s"}),
        pytest.param("l.k <= r.k", {"how": "inner", "rank": None, "window": "4 s"}, marks=pytest.mark.soak),
    ],
)
def test_streams_find_their_best_matches_over_restarts(spark, tmp_path, on, options):
    """The last rows come in a micro-batch without new rows, after two restarts."""
    rng, sink = Random(7), Sink(tmp_path)
    tables = [make_table(rng, name, 60) for name in "nm"]
    feeds = [Feed(tmp_path / name, f"t timestamp, k bigint, x double, {name} bigint") for name in "nm"]
    last = pa.array([1_700_000_900_000_000], pa.timestamp("us", "UTC"))
    ends = [table.slice(0, 1).set_column(0, "t", last).set_column(3, name, pa.array([99]))
            for table, name in zip(tables, "nm", strict=True)]  # fmt: skip
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    try:
        for start in (0, 20, 40, 60):
            for feed, table, end in zip(feeds, tables, ends, strict=True):
                feed.add(table.slice(start, 20) if start < 60 else end)
            if start == 20:
                continue  # a run with two micro-batches
            left, right = (feed.read(spark).withWatermark("t", "2 seconds") for feed in feeds)
            joined = handshake.nearest(
                left,
                right,
                on,
                by="ABS(l.x - r.x)",
                segments=3,
                state_dir=str(tmp_path / "state"),
                name="near",
                **options,
            )
            sink.run(joined)
    finally:
        spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    want = handshake.nearest(*tables, on, by="ABS(l.x - r.x)", time="t", **options)
    assert joined.columns == want.schema.names
    found = [row for row in sink.rows() if row["n"] != 99]
    for row in found:
        row.pop("t"), row.pop("t_right")
    assert same(found) == same(want.drop_columns(["t", "t_right"]).to_pylist())
    assert len([batch for batch in sink.batches.values() if batch.num_rows]) > 1
    assert sink.sums("near", "results") == len(sink.rows())
    assert "nearest by ABS(l.x - r.x) within" in handshake.explain(joined)


def test_mistakes_are_explained(spark, tmp_path):
    left, right = frames_of(spark, *(make_table(Random(1), name, 3) for name in "nm"))
    stream = Feed(tmp_path / "stream", "x double").read(spark)
    with pytest.raises(UnsupportedError, match="no left row would ever be final"):
        handshake.nearest(left, stream, by="r.x")
    with pytest.raises(WindowError, match="two streams on Spark needs windows of time on both"):
        handshake.nearest(stream, stream, by="r.x")
    with pytest.raises(UnsupportedError, match="0 was given"):
        handshake.nearest(left, right, by="r.x", k=0)
    with pytest.raises(
        ExpressionError, match="the ranking must be SQL text or a built expression, not Column"
    ):
        handshake.nearest(left, right, by=F.col("x"))
    with pytest.raises(SchemaError, match="differ in case only"):
        handshake.nearest(left, right, by="r.x", value="N")
    with pytest.raises(UnsupportedError, match="segments"):
        handshake.nearest({"x": [1]}, {"a": [1]}, by="r.a", segments=2)
    with pytest.raises(UnsupportedError, match="name='near' is only supported by"):
        handshake.nearest({"x": [1]}, {"a": [1]}, by="r.a", name="near")
