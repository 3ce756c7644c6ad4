"""One small Spark session for all tests of a process, and streams that are fed file by file."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from handshake.metrics.spark_progress import observed_figures
from handshake.testing.steps import KeptBatches

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


CONNECT = os.environ.get("HANDSHAKE_CONNECT")
"""An address for Spark Connect: the tests of the fixture `spark` then run with a client session."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a session on two cores, which ends with the tests."""
    pytest.importorskip("pyspark")
    folder = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.handshake.stateDir": str(folder / "state")}
    if CONNECT:
        yield from connect_session(CONNECT, settings)
        return
    from handshake.engines.spark.cluster import start_cluster

    places = {"spark.local.dir": str(folder), "spark.sql.warehouse.dir": "/tmp/handshake-warehouse"}
    with start_cluster("tests", cores=2, **settings, **places) as cluster:
        yield cluster.session


def connect_session(address: str, settings: dict[str, str]) -> Iterator[Any]:
    """Start a client of Spark Connect, and with the address `local[2]` its server."""
    from pyspark.sql import SparkSession

    from handshake.engines.spark.java import prepare_environment

    prepare_environment()
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)  # of the server's tasks
    os.environ["SPARK_TESTING"] = "1"  # the server takes any free port; its fixed one may be in use
    builder = SparkSession.builder.remote(address).config("spark.sql.session.timeZone", "UTC")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's thread of listeners ends with the connection, and warns
        session.stop()


def spark_columns(query: Any, stream: str) -> str:
    """Return the columns of a query's input in Spark's notation."""
    from handshake.engines.spark.types import carrier, spark_schema

    kinds = pa.schema([(f.name, carrier(f.type)) for f in query.input_schema(stream)])
    return ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in spark_schema(kinds))


@dataclass
class Feed:
    """A stream whose micro-batches take one file each, in the order in which they were added."""

    folder: Path
    schema: str
    """In Spark's notation."""
    files: int = 0
    start: float = field(default_factory=lambda: time.time() - 10_000)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)

    def add(self, table: pa.Table) -> None:
        """Add a file with the rows of one micro-batch."""
        path = self.folder / f"{self.files:05}.parquet"
        pq.write_table(table, path)
        os.utime(path, (self.start + self.files, self.start + self.files))
        self.files += 1

    def read(self, spark: Any) -> Any:
        """Return the stream of the files."""
        source = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        return source.parquet(str(self.folder))


@dataclass
class Sink:
    """The results of a query by micro-batch; a repeated micro-batch replaces its first attempt."""

    folder: Path
    batches: dict[int, pa.Table] = field(default_factory=dict)
    progress: list[dict[str, Any]] = field(default_factory=list)
    query: Any = None
    """The last query."""

    def run(self, frame: Any, mode: str = "append") -> None:
        """Start the query from its checkpoint, let it take all that there is, and stop it."""
        kept = KeptBatches(self.folder)
        self.query = query = (
            kept.write(frame)
            .outputMode(mode)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
            self.progress += [p.jsonValue if hasattr(p, "jsonValue") else p for p in query.recentProgress]
        finally:
            query.stop()
            self.batches.update(kept.read())

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows in the order of micro-batches."""
        return [row for batch in sorted(self.batches) for row in self.batches[batch].to_pylist()]

    def sums(self, name: str, figure: str) -> int:
        """Return the sum of a metric over all micro-batches."""
        told = [observed_figures(report).get(name, {}) for report in self.progress]
        return sum(figures.get(figure) or 0 for figures in told)
