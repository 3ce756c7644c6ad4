"""Match orders by inequality: which orders could have traded while both were open?

An order to buy is open for a minute, an order to sell for twenty seconds. Two orders match if the buyer pays
what the seller asks, the seller has enough shares, and the houses differ.

    python examples/orders.py
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

SCHEMA = "time timestamp, id int, house string, price decimal(10,2), shares int"


def matches(buy: DataFrame, sell: DataFrame, state: str) -> DataFrame:
    """Join each order to buy with every order to sell that could fill it."""
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


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate three minutes of orders, two per second on each side."""
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


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Write the streams, join them, and return the matches."""
    buy, sell = make_rows()
    write_files(buy, folder / "buy")
    write_files(sell, folder / "sell")
    streams = (read_stream(spark, folder / side, SCHEMA) for side in ("buy", "sell"))
    return collect(matches(*streams, str(folder / "state")), "order_matches", folder)


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        found = run(spark, folder)
        buyers = {match.id for match in found}
        print(f"{len(found)} possible trades; {len(buyers)} of 360 orders to buy could have been filled")
        best = max(found, key=lambda match: match.price - match.price_right)
        print(
            f"widest: {best.house} buys {best.shares} at {best.price}, "
            f"{best.house_right} sells at {best.price_right}"
        )
