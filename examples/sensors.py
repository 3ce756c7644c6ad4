"""Sensor correlation by distance: a theta join of two streams with arithmetic over two columns of each.

Drifting buoys measure the water, drifting balloons the air. Which measurements were taken within two
kilometres and thirty seconds of each other, and do they rise and fall together?
python examples/sensors.py
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

import handshake

SCHEMA = "time timestamp, sensor int, x double, y double, degrees double"
DISTANCE = "POWER(w.x - a.x, 2) + POWER(w.y - a.y, 2) < 4"


def close(water: DataFrame, air: DataFrame, state: str) -> DataFrame:
    """Measurements that were taken close to each other, in space and in time."""
    return handshake.join(
        water.withWatermark("time", "5 seconds").alias("w"),
        air.withWatermark("time", "5 seconds").alias("a"),
        DISTANCE,
        window="30 seconds",
        name="close_sensors",
        state_dir=state,
    )


# The streams: files that land in a folder, one for each micro-batch


def made() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Two minutes; every second, two of forty buoys and two of forty balloons report."""
    chance, start = random.Random(3), datetime(2026, 6, 1, 12, tzinfo=UTC)
    water, air = [], []
    for tick in range(240):
        time = start + timedelta(milliseconds=500 * tick)
        for rows, offset in ((water, 14.0), (air, 21.0)):
            x, y = chance.uniform(0, 20), chance.uniform(0, 20)
            degrees = offset + x / 4 + chance.gauss(0, 0.5)  # it is warmer in the east
            rows.append({"time": time, "sensor": tick % 40, "x": x, "y": y, "degrees": degrees})
    return water, air


def land(rows: list[dict[str, Any]], folder: Path, files: int = 3) -> None:
    """Write rows as JSON files, in order."""
    folder.mkdir(parents=True)
    for number in range(files):
        part = rows[len(rows) * number // files : len(rows) * (number + 1) // files]
        text = "\n".join(json.dumps({**row, "time": row["time"].isoformat()}) for row in part)
        path = folder / f"{number}.json"
        path.write_text(text)
        os.utime(path, (number, number))  # Spark takes files by age


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """What lands in a folder, a file per micro-batch."""
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Let the streams land, join them to their end, and return the pairs."""
    water, air = made()
    land(water, folder / "water")
    land(air, folder / "air")
    pairs = close(stream(spark, folder / "water"), stream(spark, folder / "air"), str(folder / "state"))
    query = (
        pairs.writeStream.format("memory")
        .queryName("close_sensors")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("close_sensors").collect()


def correlation(pairs: list[Row]) -> float:
    """Of the temperatures of water and air, over all pairs."""
    return statistics.correlation([p.degrees for p in pairs], [p.degrees_right for p in pairs])


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
        pairs = run(spark, Path(folder))
        print(f"{len(pairs)} pairs of measurements within 2 km and 30 s")
        print(f"correlation of water and air: {correlation(pairs):.2f}")
        spark.stop()
