"""Trades and quotes: a band join of two streams on price and time, which Spark's own stream join refuses.

Which quotes lay within five cents and two seconds of a trade, whatever the symbol?
python examples/trades_quotes.py
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

import handshake

TRADES = "time timestamp, symbol string, price double, volume int"
QUOTES = "time timestamp, symbol string, bid double, ask double"


def near(trades: DataFrame, quotes: DataFrame, state: str) -> DataFrame:
    """Each trade with the quotes around it."""
    trades = trades.withWatermark("time", "1 second").alias("t")
    quotes = quotes.withWatermark("time", "1 second").selectExpr("*", "(bid + ask) / 2 AS mid").alias("q")
    return handshake.join(
        trades,
        quotes,
        "t.price BETWEEN q.mid - 0.05 AND q.mid + 0.05",
        window="2 seconds",
        time="time",
        name="trades_near_quotes",
        state_dir=state,
    )


# The streams: files that land in a folder, one for each micro-batch


def made() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Twelve seconds of each, about 50 a second."""
    chance, start = random.Random(7), datetime(2026, 1, 5, 9, 30, tzinfo=UTC)
    trades, quotes = [], []
    for tick in range(600):
        time = start + timedelta(milliseconds=20 * tick)
        symbol, mid = chance.choice(("ABBN", "NESN", "UBSN")), chance.uniform(20, 30)
        trades.append(
            {"time": time, "symbol": symbol, "price": round(mid, 2), "volume": chance.randrange(1, 500)}
        )
        symbol, bid = chance.choice(("ABBN", "NESN", "UBSN")), round(chance.uniform(20, 30), 2)
        quotes.append({"time": time, "symbol": symbol, "bid": bid, "ask": round(bid + 0.02, 2)})
    return trades, quotes


def land(rows: list[dict[str, Any]], folder: Path, files: int = 3) -> None:
    """Write rows as JSON files, in order."""
    folder.mkdir(parents=True)
    for number in range(files):
        part = rows[len(rows) * number // files : len(rows) * (number + 1) // files]
        text = "\n".join(json.dumps({**row, "time": row["time"].isoformat()}) for row in part)
        path = folder / f"{number}.json"
        path.write_text(text)
        os.utime(path, (number, number))  # Spark takes files by age


def stream(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """What lands in a folder, a file per micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Let the streams land, join them to their end, and return the pairs."""
    trades, quotes = made()
    land(trades, folder / "trades")
    land(quotes, folder / "quotes")
    pairs = near(
        stream(spark, folder / "trades", TRADES),
        stream(spark, folder / "quotes", QUOTES),
        str(folder / "state"),
    )
    print(handshake.explain(pairs))
    query = (
        pairs.writeStream.format("parquet")
        .option("path", str(folder / "pairs"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    for join in handshake.progress(query):
        print(join)
    return spark.read.parquet(str(folder / "pairs")).orderBy("time", "time_right").collect()


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
        print(f"{len(pairs)} pairs of a trade and a quote near it, the first of them:")
        for pair in pairs[:5]:
            print(
                f"{pair.time:%H:%M:%S.%f} {pair.symbol} at {pair.price:.2f}, "
                f"{pair.symbol_right} {pair.bid:.2f}-{pair.ask:.2f}"
            )
        spark.stop()
