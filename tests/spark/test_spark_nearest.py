"""Nearest joins of DataFrames agree with those of tables, which agree with the oracle."""

from __future__ import annotations

import math
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import handshake
from handshake.errors import ExpressionError, SchemaError, UnsupportedError
from spark_session import Feed, Sink


def make_table(rng: Random, number: str, size: int) -> pa.Table:
    """Ties, NULL and NaN, in the order of time."""
    times = sorted(rng.choices(range(60), k=size))
    return pa.table(
        {
            "t": pa.array([1_700_000_000_000_000 + 10**6 * t for t in times], pa.timestamp("us", "UTC")),
            "k": pa.array(rng.choices((None, 1, 2, 3), k=size), pa.int64()),
            "x": pa.array(rng.choices((None, math.nan, 0.0, 0.5, 1.0, 4.0), k=size), pa.float64()),
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


def test_mistakes_are_explained(spark, tmp_path):
    left, right = frames_of(spark, *(make_table(Random(1), name, 3) for name in "nm"))
    stream = Feed(tmp_path / "stream", "x double").read(spark)
    with pytest.raises(UnsupportedError, match="a better match may come at any time"):
        handshake.nearest(left, stream, by="r.x")
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
