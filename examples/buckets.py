"""Replacing a bucketed workaround: the same join by buckets on Spark's own stream join, then by one line.

Two readings match when both attributes lie within ten of each other, within a minute. Spark's stream join
needs an equality, so people cut both axes into buckets, copy one stream into every bucket that its
partners may be in, join on the buckets and filter again.
python examples/buckets.py
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import handshake

LEFT = "time timestamp, x int, y double"
RIGHT = "time timestamp, a int, b double"
BAND = "x BETWEEN a - 10 AND a + 10 AND y BETWEEN b - 10 AND b + 10"
WIDTH = 40
"""Of a bucket. Narrow ones make many copies, wide ones many pairs that the filter throws away."""


def by_buckets(left: DataFrame, right: DataFrame) -> DataFrame:
    """The workaround."""
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
    """The one line."""
    return handshake.join(left, right, BAND, window="1 minute", state_dir=state)


# The streams: files that land in a folder, one for each micro-batch


def made() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two minutes, five a second on each side."""
    chance, start = random.Random(5), datetime(2026, 2, 1, 8, tzinfo=UTC)
    left, right = [], []
    for tick in range(600):
        time = start + timedelta(milliseconds=200 * tick)
        left.append({"time": time, "x": chance.randrange(1, 300), "y": chance.uniform(1, 300)})
        right.append({"time": time, "a": chance.randrange(1, 300), "b": chance.uniform(1, 300)})
    return left, right


def land(rows: list[dict[str, Any]], folder: Path, files: int = 2) -> None:
    """Write rows as JSON files, in order."""
    folder.mkdir(parents=True)
    for number in range(files):
        part = rows[len(rows) * number // files : len(rows) * (number + 1) // files]
        text = "\n".join(json.dumps({**row, "time": row["time"].isoformat()}) for row in part)
        path = folder / f"{number}.json"
        path.write_text(text)
        os.utime(path, (number, number))  # Spark takes files by age


def stream(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """What lands in a folder, a file per micro-batch, with the watermark that both joins need."""
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))
    return source.withWatermark("time", "5 seconds")


def results(frame: DataFrame, name: str, folder: Path) -> list[Row]:
    """Run a query to the end of its streams."""
    query = (
        frame.select("time", "x", "y", "time_right", "a", "b")
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(frame.sparkSession.table(name).collect())


def run(spark: SparkSession, folder: Path) -> tuple[list[Row], list[Row]]:
    """Both ways over the same streams; what each found, sorted."""
    left, right = made()
    land(left, folder / "left")
    land(right, folder / "right")
    streams = stream(spark, folder / "left", LEFT), stream(spark, folder / "right", RIGHT)
    bucketed = results(by_buckets(*streams), "by_buckets", folder)
    joined = results(by_handshake(*streams, str(folder / "state")), "by_handshake", folder)
    assert joined == bucketed, "both ways must find the same pairs"
    return bucketed, joined


def session() -> SparkSession:
    """Spark's local mode on two cores."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers run the Python that this script runs
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = quiet.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        spark = session()
        bucketed, joined = run(spark, Path(folder))
        print(f"{len(bucketed)} pairs by buckets, {len(joined)} by handshake.join, and they are the same")
        spark.stop()
