"""Join each trade with the last quote before it: an as-of join of streams.

A quote of the same symbol counts if it is at most ten seconds old and its spread is at most a tenth of a
franc. So stale quotes and the wide ones of quiet moments are left out.

    python examples/last_quote.py
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _scaffold import collect, local_spark, read_stream, write_files
from pyspark.sql import DataFrame, Row, SparkSession

import handshake

TRADES = "time timestamp, id int, symbol string, price double"
QUOTES = "time timestamp, symbol string, bid double, ask double"


def last_quotes(trades: DataFrame, quotes: DataFrame, state: str) -> DataFrame:
    """Return each trade with the last narrow quote of its symbol in the ten seconds before it."""
    trades = trades.withWatermark("time", "5 seconds")
    quotes = quotes.withWatermark("time", "5 seconds")
    return handshake.asof(
        trades,
        quotes,
        "r.ask - r.bid <= 0.1",
        by="symbol",
        tolerance="10 seconds",
        name="last_quotes",
        state_dir=state,
    )


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate ten minutes of trades, one a second, and of quotes, two a second, of three symbols."""
    chance, start = random.Random(9), datetime(2026, 3, 2, 8, tzinfo=UTC)
    symbols, trades, quotes = ("ABBN", "NESN", "UBSN"), [], []
    for second in range(600):
        at = start + timedelta(seconds=second)
        symbol = symbols[chance.randrange(3)]
        price = round(30 + chance.random(), 2)
        trades.append({"time": at, "id": second, "symbol": symbol, "price": price})
        for half in range(2):
            middle, spread = 30 + chance.random(), chance.choice((0.02, 0.08, 0.5))
            quotes.append(
                {
                    "time": at + timedelta(milliseconds=500 * half),
                    "symbol": symbols[chance.randrange(3)],
                    "bid": round(middle - spread / 2, 3),
                    "ask": round(middle + spread / 2, 3),
                }
            )
    return trades, quotes


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Write the streams, join them, and return the trades with their quotes."""
    trades, quotes = make_rows()
    write_files(trades, folder / "trades")
    write_files(quotes, folder / "quotes")
    left = read_stream(spark, folder / "trades", TRADES)
    right = read_stream(spark, folder / "quotes", QUOTES)
    return collect(last_quotes(left, right, str(folder / "state")), "last_quotes", folder)


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        found = run(spark, folder)
        alone = sum(trade.bid is None for trade in found)
        print(f"{len(found)} of 600 trades are final; {alone} of them have no quote")
        for trade in sorted(found)[:3]:
            print(f"{trade.time:%H:%M:%S} {trade.symbol} {trade.price}: {trade.bid} to {trade.ask}")
