"""A driver program of its own, for tests that kill it: a streaming join of files to files.

python spark_driver.py MASTER FOLDER KIND STATE joins what lies in FOLDER/left and FOLDER/right, one file of
each per micro-batch, until nothing is left. Then it reads the sink as Spark does and writes the pairs that it
holds.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
from pyspark.sql import SparkSession

import handshake

LEFT = "l long, x int, t timestamp"
RIGHT = "r long, a int, t timestamp"
ON = "x BETWEEN a - 10 AND a + 10"
WINDOW = "20 seconds"
DELAY = "10 seconds"
TOLERANCE = "15 seconds"
"""Of as-of joins, which look ahead."""
RANKING, BEST = "ABS(x - a)", 2
"""The ranking and the number of matches of nearest joins."""


def main(master: str, folder: str, kind: str, state: str = "directory") -> None:
    """Join to the end, then tell what the sink holds."""
    session = _session(master, folder)
    try:
        _run(session, folder, kind, state)
        _tell(session, folder)
    finally:
        session.stop()


def _session(master: str, folder: str) -> SparkSession:
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "600m",
        "spark.driver.memory": "600m", "spark.executor.cores": "1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.minBatchesToRetain": "3",
        "spark.local.dir": f"{folder}/local", "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }  # fmt: skip
    builder = SparkSession.builder.master(master).appName("faults")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _run(session: SparkSession, folder: str, kind: str, state: str) -> None:
    left, right = (
        session.readStream.schema(schema)
        .option("maxFilesPerTrigger", 1)
        .json(f"{folder}/{side}")
        .withWatermark("t", DELAY)
        for side, schema in (("left", LEFT), ("right", RIGHT))
    )
    where = {"state": "store"} if "store" in state else {"state_dir": f"{folder}/state"}
    if "files" in state:  # results and late rows go to files in the segments' tasks
        where |= {"results_to": f"{folder}/sink", "late_to": f"{folder}/late"}
    options = {"on": ON, "segments": 2, **where, **_changes(folder)}
    if kind != "nearest":  # which has no name
        options["name"] = "faults"
    if kind == "asof":
        joined = handshake.asof(left, right, direction="forward", tolerance=TOLERANCE, **options)
    elif kind == "nearest":
        joined = handshake.nearest(left, right, by=RANKING, k=BEST, window=WINDOW, **options)
    else:
        joined = handshake.join(left, right, how=kind, window=WINDOW, **options)
    names = [name for name in ("l", "r") if name in joined.columns] or ["path"]
    query = (
        joined.select(*names)
        .writeStream.format("parquet")
        .option("path", f"{folder}/names" if "files" in state else f"{folder}/sink")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _changes(folder: str) -> dict[str, Any]:
    """Return options that differ since the driver was started again."""
    path = Path(folder) / "changes.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _tell(session: SparkSession, folder: str) -> None:
    if Path(f"{folder}/names").exists():  # the query has passed on the names of the files of results
        names = sorted(row["path"] for row in session.read.parquet(f"{folder}/names").collect())
        if names != sorted(map(str, Path(folder, "sink").glob("*.parquet"))):
            raise RuntimeError(f"the folder of results does not hold these files alone: {names}")
    rows = [row.asDict() for row in session.read.parquet(f"{folder}/sink").collect()]
    table = pa.table({name: pa.array([row.get(name) for row in rows], pa.int64()) for name in ("l", "r")})
    feather.write_feather(table, f"{folder}/pairs.part")
    os.replace(f"{folder}/pairs.part", f"{folder}/pairs")


if __name__ == "__main__":
    main(*sys.argv[1:])
