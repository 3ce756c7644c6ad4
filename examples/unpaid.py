"""Find orders without a payment: an anti join of streams, on a condition that has no equality alone.

An order is paid by a payment of its customer of at least its amount, within an hour after it. Customers pay
several orders at once, so there is no order number in a payment.

    python examples/unpaid.py
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from _scaffold import collect, local_spark, read_stream, write_files
from pyspark.sql import DataFrame, Row, SparkSession

import handshake

ORDERS = "time timestamp, id int, customer int, amount decimal(10,2)"
PAYMENTS = "time timestamp, customer int, paid decimal(10,2)"


def unpaid(orders: DataFrame, payments: DataFrame, state: str) -> DataFrame:
    """Return the orders that no payment follows within an hour."""
    orders = orders.withWatermark("time", "5 minutes").alias("o")
    payments = payments.withWatermark("time", "5 minutes").alias("p")
    return handshake.join(
        orders,
        payments,
        "o.customer = p.customer AND p.paid >= o.amount AND p.time >= o.time",
        window="1 hour",
        how="left_anti",
        name="unpaid",
        result_time="noticed",
        state_dir=state,
    )


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate six hours of orders, one a minute, of which four in five are paid; payments go on for two."""
    chance, start = random.Random(12), datetime(2026, 3, 2, 8, tzinfo=UTC)
    orders: list[dict[str, Any]] = []
    payments: list[dict[str, Any]] = []
    for minute in range(480):
        at, amount = start + timedelta(minutes=minute), chance.randrange(500, 20_000) / 100
        customer = chance.randrange(60)
        if minute < 360:
            orders.append({"time": at, "id": minute, "customer": customer, "amount": f"{amount:.2f}"})
        if minute >= 360 or chance.random() < 0.8:
            late = timedelta(minutes=chance.randrange(1, 80))
            payments.append({"time": at + late, "customer": customer, "paid": f"{amount:.2f}"})
    orders.append({**orders[-1], "time": start + timedelta(minutes=540), "id": 999})
    return orders, sorted(payments, key=lambda payment: payment["time"])


def run(spark: SparkSession, folder: Path) -> list[Row]:
    """Write the streams, join them, and return the orders without a payment."""
    orders, payments = make_rows()
    write_files(orders, folder / "orders")
    write_files(payments, folder / "payments")
    left = read_stream(spark, folder / "orders", ORDERS)
    right = read_stream(spark, folder / "payments", PAYMENTS)
    return collect(unpaid(left, right, str(folder / "state")), "unpaid", folder)


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        found = run(spark, folder)
        print(f"{len(found)} of 361 orders had no payment within an hour")
        for order in sorted(found)[:3]:
            print(f"order {order.id} of {order.time:%H:%M}: {order.amount}, noticed {order.noticed:%H:%M}")
