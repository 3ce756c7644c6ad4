"""The datasets of a pipeline: matches of bids and offers, and a summary of them."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import handshake

spark = SparkSession.active()
ORDER = StructType().add("time", "timestamp").add("id", "integer").add("price", "double")


def read_orders(side: str) -> DataFrame:
    """Read the files of one side as they come, with columns that the plan declares."""
    files = spark.readStream.schema(ORDER).json(f"data/{side}")
    return files.to(ORDER).withWatermark("time", "5 seconds")


@dp.table
def matches() -> DataFrame:
    """Join each bid with the offers of the same 20 seconds and nearly the same price."""
    return handshake.join(
        read_orders("bids"),
        read_orders("offers"),
        "ABS(l.price - r.price) <= 0.5",
        window="20 seconds",
        name="matches",
    )


@dp.materialized_view
def partners() -> DataFrame:
    """Count the offers that match each bid."""
    return spark.read.table("matches").groupBy("id").agg(F.count("*").alias("offers"))
