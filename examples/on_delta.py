"""Join two Delta tables as they grow, into a third one: directly, and by a function per micro-batch.

FOLDER holds the tables `bids` and `offers`. Spark needs the package of Delta Lake and two settings; see
`docs/spark/guide-delta.md`.

    spark-submit --packages … --conf … examples/on_delta.py FOLDER
"""

from __future__ import annotations

import sys

from _offers import SIDES
from _scaffold import local_spark
from pyspark.sql import DataFrame, SparkSession

import handshake


def matches(spark: SparkSession, folder: str) -> DataFrame:
    """Join each bid with the offers of the same 20 seconds and nearly the same price."""
    bids, offers = (
        spark.readStream.format("delta")
        .option("maxFilesPerTrigger", 1)
        .load(f"{folder}/{side}")
        .withWatermark("time", "5 seconds")
        for side in SIDES
    )
    return handshake.join(
        bids,
        offers,
        "ABS(l.price - r.price) <= 0.5",
        window="20 seconds",
        name="matches",
        state_dir=f"{folder}/state",
    )


def write_table(joined: DataFrame, folder: str) -> None:
    """Append all results to a table; each is there once."""
    query = (
        joined.writeStream.format("delta")
        .option("checkpointLocation", f"{folder}/checkpoint-table")
        .trigger(availableNow=True)
        .start(f"{folder}/matches")
    )
    query.awaitTermination()


def write_batches(joined: DataFrame, folder: str) -> None:
    """Append the results of each micro-batch by a function; each is there once."""

    def append(batch: DataFrame, number: int) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.option("txnAppId", "matches").option("txnVersion", number).save(f"{folder}/batches")

    query = (
        joined.writeStream.foreachBatch(append)
        .option("checkpointLocation", f"{folder}/checkpoint-batches")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    (folder,) = sys.argv[1:]
    with local_spark() as (spark, _):
        joined = matches(spark, folder)
        write_table(joined, folder)
        write_batches(joined, folder)
        print(f"{spark.read.format('delta').load(f'{folder}/matches').count()} matches")
