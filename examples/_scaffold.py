"""Shared code of the Spark examples: a local session, and streams made of files in a folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession


@contextmanager
def local_spark() -> Iterator[tuple[SparkSession, Path]]:
    """Start Spark's local mode on two cores, with an empty folder; both go away at the end."""
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
    quiet = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    with tempfile.TemporaryDirectory() as folder:
        spark = quiet.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark, Path(folder)
        finally:
            spark.stop()


def write_files(rows: list[dict[str, Any]], folder: Path, files: int = 3) -> None:
    """Write rows as JSON files, in order."""
    folder.mkdir(parents=True)
    for number in range(files):
        part = rows[len(rows) * number // files : len(rows) * (number + 1) // files]
        text = "\n".join(json.dumps({**row, "time": row["time"].isoformat()}) for row in part)
        path = folder / f"{number}.json"
        path.write_text(text)
        os.utime(path, (number, number))  # Spark reads files by age


def read_stream(spark: SparkSession, folder: Path, schema: str) -> DataFrame:
    """Read a folder as a stream: one file per micro-batch."""
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(folder))


def collect(frame: DataFrame, name: str, folder: Path) -> list[Row]:
    """Run a streaming query to the end of its inputs and return its rows."""
    query = (
        frame.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return frame.sparkSession.table(name).collect()
