"""Join two Kafka topics, exactly once into Parquet files and at least once into a third topic.

SERVERS is the address of a broker, such as `localhost:9092`, with topics `bids` and `offers` of JSON texts.
Spark needs a package in its own release: `--packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0`.

    spark-submit --packages … examples/on_kafka.py SERVERS FOLDER
"""

from __future__ import annotations

import sys

from _offers import SCHEMA, SIDES
from _scaffold import local_spark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import handshake


def read_topic(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """Read the rows of a topic, which are JSON texts."""
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 120)
        .load()
    )
    rows = messages.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("row"))
    return rows.select("row.*").withWatermark("time", "10 seconds")


def matches(spark: SparkSession, servers: str, state: str) -> DataFrame:
    """Join each bid with the offers of the same 20 seconds and nearly the same price."""
    bids, offers = (read_topic(spark, servers, side) for side in SIDES)
    return handshake.join(
        bids,
        offers,
        "ABS(l.price - r.price) <= 0.5",
        window="20 seconds",
        name="matches",
        state_dir=state,
    )


def write_files(joined: DataFrame, folder: str) -> None:
    """Write all results to Parquet files; each is there once."""
    query = (
        joined.writeStream.option("checkpointLocation", f"{folder}/checkpoint-files")
        .trigger(availableNow=True)
        .start(f"{folder}/matches")
    )
    query.awaitTermination()


def write_topic(joined: DataFrame, servers: str, folder: str) -> None:
    """Write all results to a topic; after a failure, some may be there twice."""
    messages = joined.select(
        F.concat_ws("-", "id", "id_right").alias("key"), F.to_json(F.struct("*")).alias("value")
    )
    query = (
        messages.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "matches")
        .option("checkpointLocation", f"{folder}/checkpoint-topic")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    servers, folder = sys.argv[1:]
    with local_spark() as (spark, _):
        joined = matches(spark, servers, f"{folder}/state")
        write_files(joined, folder)
        write_topic(joined, servers, folder)
        print(f"{spark.read.parquet(f'{folder}/matches').count()} matches")
