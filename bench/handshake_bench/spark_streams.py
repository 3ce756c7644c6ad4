"""The papers' streams on Spark, and the time of micro-batches while windows fill."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import handshake
from handshake.engines.spark.cluster import start_cluster
from handshake_bench.processes import Spent, processor_seconds
from handshake_bench.report import progress

__all__ = [
    "BAND",
    "Batch",
    "Engine",
    "Run",
    "bucket_join",
    "equi_join",
    "handshake_join",
    "measure",
    "session",
    "streams",
    "uniform",
]

BAND = "l.x BETWEEN r.a - 10 AND r.a + 10 AND l.y BETWEEN r.b - 10 AND r.b + 10"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_START = 1_700_000_000_000
_RESULTS = "results"
"""The folder for files of results."""

_NOTHING = Spent()

Engine = Callable[[DataFrame, DataFrame, int, str], DataFrame]


@dataclass(frozen=True)
class Batch:
    """One micro-batch: when its tuples end in stream time, and how long it took."""

    number: int
    stream: float
    """Seconds of stream time up to its end."""
    took: float
    figures: dict[str, Any]
    spent: Spent = _NOTHING
    """Processor seconds of all processes since the micro-batch before was seen."""


@dataclass
class Run:
    """Micro-batches of a stream at one rate."""

    rate: int
    step: int
    window: int
    batches: list[Batch] = field(default_factory=list)

    @property
    def full(self) -> list[Batch]:
        """Micro-batches that began with full windows."""
        return [b for b in self.batches if b.stream - self.step >= self.window]

    @property
    def took(self) -> float:
        """Median seconds of micro-batches with full windows, or of the last three."""
        times = sorted(b.took for b in (self.full or self.batches[-3:]))
        return times[len(times) // 2]

    @property
    def worked(self) -> float:
        """Average processor seconds of the same micro-batches."""
        times = [b.spent.total for b in (self.full or self.batches[-3:])]
        return sum(times) / len(times)

    @property
    def spent(self) -> Spent:
        """Median processor seconds of the same micro-batches, of the JVM and of Python workers."""
        spent = [b.spent for b in (self.full or self.batches[-3:])]
        return Spent(*(sorted(values)[len(values) // 2] for values in zip(*spent, strict=True)))

    @property
    def sustained(self) -> bool:
        """True if the engine kept up with full windows."""
        return bool(self.full) and self.took <= self.step


@contextlib.contextmanager
def session(cores: int) -> Iterator[SparkSession]:
    """Start Spark in local mode with the same settings for all engines, or reuse the session."""
    chosen = {
        "spark.sql.shuffle.partitions": str(cores),
        "spark.driver.memory": "6g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    }
    with start_cluster("handshake bench", f"local[{cores}]", None, ui=False, **chosen) as cluster:
        yield cluster.session


def streams(
    spark: SparkSession,
    rate: int,
    step: int,
    partitions: int,
    unmatched: int = 0,
    keys: int | None = None,
) -> tuple[DataFrame, DataFrame]:
    """Create R(x, y, z) and S(a, b, c, d) of the papers; a micro-batch holds `step` seconds of each.

    `unmatched` is the percentage of rows of R whose y is beyond the reach of S.
    With `keys`, both streams also have that many different values of `k`.
    """

    def source() -> DataFrame:
        reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rate * step)
        reader = reader.option("advanceMillisPerBatch", step * 1000).option("startTimestamp", _START)
        return reader.option("numPartitions", partitions).load().withColumnRenamed("timestamp", "t")

    beyond = F.when(uniform(5) <= 100 * unmatched, 20_000).otherwise(0) if unmatched else F.lit(0)
    left = source().select(
        _instant(rate), uniform(1).cast("int").alias("x"), (uniform(2) + beyond).cast("float").alias("y"),
        F.lpad(F.col("value").cast("string"), 20, "0").alias("z"), *_key(5, keys),
    )  # fmt: skip
    right = source().select(
        _instant(rate), uniform(3).cast("int").alias("a"), uniform(4).cast("float").alias("b"),
        F.col("value").cast("double").alias("c"), (F.col("value") % 2 == 0).alias("d"), *_key(6, keys),
    )  # fmt: skip
    return left.withWatermark("t", "0 seconds"), right.withWatermark("t", "0 seconds")


def _key(seed: int, keys: int | None) -> list[Column]:
    if keys is None:
        return []
    return [F.pmod(F.xxhash64(F.lit(seed), F.col("value")), F.lit(keys)).alias("k")]


def _instant(rate: int) -> Column:
    """Spread the times evenly, because the source gives a whole micro-batch the same time."""
    passed = (F.col("value") * (1_000_000 / rate)).cast("bigint")
    return F.timestamp_micros(F.lit(_START * 1000) + passed).alias("t")


def uniform(seed: int) -> Column:
    """Return whole numbers from 1 to 10,000, computed from the column `value`."""
    return F.pmod(F.xxhash64(F.lit(seed), F.col("value")), F.lit(10_000)) + 1


def handshake_join(
    left: DataFrame, right: DataFrame, window: int, folder: str, how: str = "inner",
    state: str = "directory", sink: str = "rows", on: str = BAND,
) -> DataFrame:  # fmt: skip
    """Join by this package; results are rows, or go to files in the segments' tasks."""
    place = f"{folder}/state" if state == "directory" else None
    files = f"{folder}/{_RESULTS}" if sink == "files" else None
    joined: DataFrame = handshake.join(
        left, right, on, window=f"{window} seconds", how=how, state_dir=place, state=state,
        name="handshake", results_to=files,
    )  # fmt: skip
    return joined


def equi_join(left: DataFrame, right: DataFrame, window: int, folder: str) -> DataFrame:
    """Join on `k` and a range of times by Spark's own join, which keeps its windows in RocksDB."""
    other = right.withColumnRenamed("t", "t_right").withColumnRenamed("k", "k_right")
    return left.join(
        other,
        F.expr(
            f"k = k_right AND t_right > t - INTERVAL {window} SECONDS "
            f"AND t_right < t + INTERVAL {window} SECONDS"
        ),
    )


def bucket_join(width: int) -> Engine:
    """Return the workaround: buckets of both attributes, one side exploded, an equi-join, a filter."""

    def join(left: DataFrame, right: DataFrame, window: int, folder: str) -> DataFrame:
        one = left.withColumn("i", F.floor(F.col("x") / width)).withColumn("j", F.floor(F.col("y") / width))
        two = right.withColumnRenamed("t", "t_right")
        for name, value in (("i", "a"), ("j", "b")):
            low, high = (F.floor((F.col(value) + offset) / width) for offset in (-10, 10))
            two = two.withColumn(name, F.explode(F.sequence(low, high)))
        return (
            one.join(two, ["i", "j"])
            .where(
                f"x BETWEEN a - 10 AND a + 10 AND y BETWEEN b - 10 AND b + 10 "
                f"AND t_right > t - INTERVAL {window} SECONDS AND t_right < t + INTERVAL {window} SECONDS"
            )
            .drop("i", "j")
        )

    return join


def measure(
    spark: SparkSession, engine: Engine, rate: int, step: int, window: int, *, batches: int,
    unmatched: int = 0, patient: bool = False, keys: int | None = None,
) -> Run:  # fmt: skip
    """Run a stream until `batches` micro-batches had full windows, or, unless patient, it falls behind."""
    folder = tempfile.mkdtemp(prefix="handshake-bench-")
    run = Run(rate, step, window)
    partitions = int(spark.conf.get("spark.sql.shuffle.partitions") or 2)
    left, right = streams(spark, rate, step, partitions, unmatched, keys)
    query = (
        engine(left, right, window, folder).writeStream.format("noop")
        .option("checkpointLocation", f"{folder}/checkpoint").start()
    )  # fmt: skip
    try:
        for batch in _batches(query, step):
            run.batches.append(batch)
            for file in Path(folder, _RESULTS).glob("*.parquet"):  # a reader that consumes them
                file.unlink()
            progress(f"{rate:,}/s, {batch.stream:.0f} s of stream: {batch.took:.1f} s for {step} s")
            if len(run.full) >= batches or (not patient and _lost(run)):
                break
    finally:
        query.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return run


def _lost(run: Run) -> bool:
    """Return True if three micro-batches in a row took far longer than they last."""
    last = run.batches[-3:]
    return len(run.batches) > 3 and all(b.took > 1.2 * run.step for b in last)


def _batches(query: StreamingQuery, step: int) -> Iterator[Batch]:
    seen, spent = -1, processor_seconds()
    while query.isActive:
        for report in query.recentProgress:
            if report["batchId"] > seen and report["numInputRows"]:
                seen = report["batchId"]
                took = report["durationMs"]["triggerExecution"] / 1000
                before, spent = spent, processor_seconds()
                yield Batch(seen, (seen + 1) * step, took, _figures(report), spent.since(before))
        time.sleep(0.1)
    error = query.exception()
    if error is not None:
        raise error


def _figures(report: Any) -> dict[str, Any]:
    observed = report["observedMetrics"]
    named = [observed[name].asDict() for name in ("handshake", "pairs") if name in observed]
    return {key: value for figures in named for key, value in figures.items()}
