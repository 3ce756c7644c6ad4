"""Correlate sensors by distance: a theta join with arithmetic over two columns of each stream.

Drifting buoys measure the water, drifting balloons the air. Which measurements were taken within two
kilometres and thirty seconds of each other, and do they rise and fall together?

    python examples/sensors.py
"""

from __future__ import annotations

import random
import statistics
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _scaffold import collect, local_spark, read_stream, write_files
from pyspark.sql import DataFrame, Row, SparkSession

import handshake

SCHEMA = "time timestamp, sensor int, x double, y double, degrees double"
DISTANCE = "POWER(w.x - a.x, 2) + POWER(w.y - a.y, 2) < 4"


def close(water: DataFrame, air: DataFrame, state: str) -> DataFrame:
    """Join measurements that were taken close to each other, in space and in time."""
    return handshake.join(
        water.withWatermark("time", "5 seconds").alias("w"),
        air.withWatermark("time", "5 seconds").alias("a"),
        DISTANCE,
        window="30 seconds",
        name="close_sensors",
        state_dir=state,
    )


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate two minutes; two of forty buoys and two of forty balloons report per second."""
    chance, start = random.Random(3), datetime(2026, 6, 1, 12, tzinfo=UTC)
    water, air = [], []
    for tick in range(240):
        time = start + timedelta(milliseconds=500 * tick)
        for rows, offset in ((water, 14.0), (air, 21.0)):
            x, y = chance.uniform(0, 20), chance.uniform(0, 20)
            degrees = offset + x / 4 + chance.gauss(0, 0.5)  # it is warmer in the east
            rows.append({"time": time, "sensor": tick % 40, "x": x, "y": y, "degrees": degrees})
    return water, air


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Write the streams, join them, and return the pairs."""
    water, air = make_rows()
    write_files(water, folder / "water")
    write_files(air, folder / "air")
    streams = (read_stream(spark, folder / name, SCHEMA) for name in ("water", "air"))
    return collect(close(*streams, str(folder / "state")), "close_sensors", folder)


def correlation(pairs: list[Row]) -> float:
    """Return the correlation of water and air temperatures over all pairs."""
    return statistics.correlation([p.degrees for p in pairs], [p.degrees_right for p in pairs])


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        pairs = run(spark, folder)
        print(f"{len(pairs)} pairs of measurements within 2 km and 30 s")
        print(f"correlation of water and air: {correlation(pairs):.2f}")
