"""Matching orders by inequality: who could have traded with whom while both orders stood?

An order to buy stands for a minute, one to sell for twenty seconds. They match where the buyer pays what
the seller asks, the seller has enough, and the two are not the same house.
python examples/orders.py
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

SCHEMA = "time timestamp, id int, house string, price decimal(10,2), shares int"


def matches(buy: DataFrame, sell: DataFrame, state: str) -> DataFrame:
    """Each order to buy with every order to sell that would have served it."""
    buy = buy.withWatermark("time", "2 seconds").alias("b")
    sell = sell.withWatermark("time", "2 seconds").alias("s")
    return handshake.join(
        buy,
        sell,
        (F.col("b.price") >= F.col("s.price"))
        & (F.col("b.shares") <= F.col("s.shares"))
        & (F.col("b.house") != F.col("s.house")),
        window=handshake.Time(left="1 minute", right="20 seconds"),
        name="order_matches",
        state_dir=state,
    )


# The streams: files that land in a folder, one for each micro-batch


def made() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Three minutes of orders, two a second on each side."""
    chance, start = random.Random(11), datetime(2026, 3, 2, 14, tzinfo=UTC)
    sides: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for tick in range(360):
        for side, price in ((0, 9900), (1, 10100)):
            sides[side].append(
                {
                    "time": start + timedelta(milliseconds=500 * tick),
                    "id": tick,
                    "house": chance.choice("ABCDEFGH"),
                    "price": f"{round(chance.gauss(price, 60)) / 100:.2f}",
                    "shares": chance.randrange(1, 100),
                }
            )
    return sides


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
    """Let the streams land, join them to their end, and return the matches."""
    buy, sell = made()
    land(buy, folder / "buy")
    land(sell, folder / "sell")
    found = matches(stream(spark, folder / "buy"), stream(spark, folder / "sell"), str(folder / "state"))
    query = (
        found.writeStream.format("memory")
        .queryName("order_matches")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("order_matches").collect()


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
        found = run(spark, Path(folder))
        buyers = {match.id for match in found}
        print(f"{len(found)} possible trades; {len(buyers)} of 360 orders to buy could have been served")
        best = max(found, key=lambda match: match.price - match.price_right)
        print(
            f"widest: {best.house} buys {best.shares} at {best.price}, "
            f"{best.house_right} sells at {best.price_right}"
        )
        spark.stop()
