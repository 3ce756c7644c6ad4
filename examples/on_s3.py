"""Join streams of files whose windows, checkpoint and rows lie on S3, or on a store with its protocol.

DATA is a folder with JSON files in `bids` and `offers`; results and checkpoint go there, too. It is a path,
or `s3a://…` for Spark with the package hadoop-aws. STATE is the directory of the windows, such as
`s3://bucket/state`.

    python examples/on_s3.py DATA STATE
"""

from __future__ import annotations

import sys

from _offers import SCHEMA, SIDES
from _scaffold import local_spark
from pyspark.sql import DataFrame, SparkSession

import handshake


def matches(spark: SparkSession, data: str, state: str) -> DataFrame:
    """Join each bid with the offers of the same 20 seconds and nearly the same price."""
    bids, offers = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(f"{data}/{side}")
        .withWatermark("time", "5 seconds")
        for side in SIDES
    )
    return handshake.join(
        bids,
        offers,
        "ABS(l.price - r.price) <= 0.5",
        window="20 seconds",
        name="matches",
        state_dir=state,
    )


def run(joined: DataFrame, data: str) -> None:
    """Write the results of all files that are there; a second run goes on where the first one ended."""
    query = (
        joined.writeStream.option("checkpointLocation", f"{data}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{data}/matches")
    )
    query.awaitTermination()


if __name__ == "__main__":
    data, state = sys.argv[1:]
    with local_spark() as (spark, _):
        run(matches(spark, data, state), data)
        print(f"{spark.read.parquet(f'{data}/matches').count()} matches")
