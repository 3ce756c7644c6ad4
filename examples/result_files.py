"""Write the pairs of two streams to Parquet files, in the tasks that find them.

Readings of two networks of sensors belong together if their values and places are close. There are many
pairs per reading, so they go to files straight from the join, and the query only passes on the names.

    python examples/result_files.py
"""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from _scaffold import local_spark, read_stream, write_files
from pyspark.sql import DataFrame, SparkSession

import handshake

READINGS = "time timestamp, id int, place double, value double"


def write_pairs(ours: DataFrame, theirs: DataFrame, folder: str, state: str, checkpoint: str) -> None:
    """Write readings of both networks that are close to each other to Parquet files under a folder."""
    files = handshake.join(
        ours.withWatermark("time", "5 seconds"),
        theirs.withWatermark("time", "5 seconds"),
        "ABS(l.place - r.place) <= 0.5 AND ABS(l.value - r.value) <= 2",
        window="1 minute",
        results_to=folder,
        state_dir=state,
        name="pairs",
    )
    query = (
        files.writeStream.format("noop")  # or any sink that wants the names of the files
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def make_rows() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate ten minutes of readings of both networks, one a second."""
    chance, start = random.Random(4), datetime(2026, 3, 2, 8, tzinfo=UTC)
    networks = [
        [
            {
                "time": start + timedelta(seconds=second),
                "id": second,
                "place": round(chance.uniform(0, 5), 3),
                "value": round(chance.uniform(10, 20), 3),
            }
            for second in range(600)
        ]
        for _ in range(2)
    ]
    return networks[0], networks[1]


def run(spark: SparkSession, folder: Path) -> pa.Table:
    """Write the streams, join them, and return the pairs as any reader of Parquet sees them."""
    places = {name: str(folder / name) for name in ("pairs", "state", "checkpoint")}
    streams = []
    for name, rows in zip(("ours", "theirs"), make_rows(), strict=True):
        write_files(rows, folder / name)
        streams.append(read_stream(spark, folder / name, READINGS))
    write_pairs(streams[0], streams[1], places["pairs"], places["state"], places["checkpoint"])
    return ds.dataset(places["pairs"]).to_table()


if __name__ == "__main__":
    with local_spark() as (spark, folder):
        pairs = run(spark, folder)
        names = sorted(path.name for path in (folder / "pairs").glob("*.parquet"))
        print(f"{pairs.num_rows} pairs in {len(names)} files, such as {names[0]}")
