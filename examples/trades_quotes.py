"""Trades and quotes: a band join of two streams on price and time, which Spark's own stream join rejects.

Which quotes were within five cents and two seconds of a trade, for any symbol?

    python examples/trades_quotes.py
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _scaffold import local_spark, read_stream, write_files
from pyspark.sql import DataFrame, Row, SparkSession

import handshake

TRADES = "time timestamp, symbol string, price double, volume int"
QUOTES = "time timestamp, symbol string, bid double, ask double"


def near(trades: DataFrame, quotes: DataFrame, state: str) -> DataFrame:
    """Join each trade with the quotes near it."""
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


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate twelve seconds of trades and quotes, 50 per second each."""
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


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Write the streams, join them, and return the pairs."""
    trades, quotes = make_rows()
    write_files(trades, folder / "trades")
    write_files(quotes, folder / "quotes")
    pairs = near(
        read_stream(spark, folder / "trades", TRADES),
        read_stream(spark, folder / "quotes", QUOTES),
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


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        pairs = run(spark, folder)
        print(f"{len(pairs)} pairs of a trade and a quote near it, the first of them:")
        for pair in pairs[:5]:
            print(
                f"{pair.time:%H:%M:%S.%f} {pair.symbol} at {pair.price:.2f}, "
                f"{pair.symbol_right} {pair.bid:.2f}-{pair.ask:.2f}"
            )
