"""Replace a bucketed workaround: the same join with buckets on Spark's stream join, then with one line.

Two readings match if both attributes differ by at most ten, within a minute. Spark's stream join needs an
equality. The usual workaround cuts both axes into buckets, copies one stream into every bucket that may hold
a match, joins on the buckets and filters again.

    python examples/buckets.py
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _scaffold import collect, local_spark, read_stream, write_files
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import handshake

LEFT = "time timestamp, x int, y double"
RIGHT = "time timestamp, a int, b double"
BAND = "x BETWEEN a - 10 AND a + 10 AND y BETWEEN b - 10 AND b + 10"
WIDTH = 40
"""The width of a bucket: narrow buckets mean many copies, wide ones many pairs for the filter to drop."""


def by_buckets(left: DataFrame, right: DataFrame) -> DataFrame:
    """Join with the workaround."""
    cut = left.withColumn("i", F.floor(F.col("x") / WIDTH)).withColumn("j", F.floor(F.col("y") / WIDTH))
    spread = right.withColumnRenamed("time", "time_right")
    for bucket, value in (("i", "a"), ("j", "b")):
        low, high = (F.floor((F.col(value) + reach) / WIDTH) for reach in (-10, 10))
        spread = spread.withColumn(bucket, F.explode(F.sequence(low, high)))
    return (
        cut.join(spread, ["i", "j"])
        .where(BAND)
        .where("time_right > time - INTERVAL 1 MINUTE AND time_right < time + INTERVAL 1 MINUTE")
        .drop("i", "j")
    )


def by_handshake(left: DataFrame, right: DataFrame, state: str) -> DataFrame:
    """Join with one line."""
    return handshake.join(left, right, BAND, window="1 minute", state_dir=state)


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate two minutes of readings, five per second on each side."""
    chance, start = random.Random(5), datetime(2026, 2, 1, 8, tzinfo=UTC)
    left, right = [], []
    for tick in range(600):
        time = start + timedelta(milliseconds=200 * tick)
        left.append({"time": time, "x": chance.randrange(1, 300), "y": chance.uniform(1, 300)})
        right.append({"time": time, "a": chance.randrange(1, 300), "b": chance.uniform(1, 300)})
    return left, right


def run(spark: SparkSession, folder: Path) -> tuple[list[Row], list[Row]]:
    """Run both joins over the same streams and return the pairs of each, sorted."""
    left, right = make_rows()
    write_files(left, folder / "left", 2)
    write_files(right, folder / "right", 2)
    streams = [
        read_stream(spark, folder / side, schema).withWatermark("time", "5 seconds")
        for side, schema in (("left", LEFT), ("right", RIGHT))
    ]
    columns = ("time", "x", "y", "time_right", "a", "b")
    bucketed = collect(by_buckets(*streams).select(*columns), "by_buckets", folder)
    joined = collect(by_handshake(*streams, str(folder / "state")).select(*columns), "by_handshake", folder)
    assert sorted(joined) == sorted(bucketed), "both joins must find the same pairs"
    return sorted(bucketed), sorted(joined)


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        bucketed, joined = run(spark, folder)
        print(f"{len(bucketed)} pairs by buckets, {len(joined)} by handshake.join, and they are the same")
