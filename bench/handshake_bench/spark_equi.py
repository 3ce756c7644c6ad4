"""`handshake bench spark_equi`: an equi-join of two streams, by this package and by Spark's own join.

Both get the same streams and settings. Spark's join has a range of times, so it also drops old rows, and
keeps the others in RocksDB. The pairs of all micro-batches are compared.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.spark_streams import Engine, Run, equi_join, handshake_join, measure, session

__all__ = ["run"]

_ENGINES: dict[str, Engine] = {
    "handshake": partial(handshake_join, on="l.k = r.k"),
    "store": partial(handshake_join, on="l.k = r.k", state="store"),
    "spark": equi_join,
}
"""Engines by name; `store` is this package with its windows in Spark's state store."""
_PAIRS = ("pairs", "left", "right")


def run(
    rate: int = 2_000, keys: int = 100_000, step: int = 10, window: int = 300, cores: int = 2,
    batches: int = 3, out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure seconds per micro-batch with full windows for each engine, one after the other.

    Args:
        rate: The rows per second of each stream.
        keys: The different keys.
        step: The seconds of stream in a micro-batch.
        window: The window of both streams in seconds.
        cores: The cores of Spark's local mode.
        batches: The micro-batches with full windows.
        out: The folder for the table and the figures.
        source: The figures of an earlier run, instead of measuring.
    """
    if source:
        data = report.load(source, "spark_equi")
    else:
        data = _measure(rate, keys, step, window, cores, batches)
    report.publish("spark_equi", data, _show, _draw, out)


def _measure(rate: int, keys: int, step: int, window: int, cores: int, batches: int) -> Data:
    runs = []
    with session(cores) as spark:
        for name, engine in _ENGINES.items():
            progress(f"{name} at {rate:,} rows/s per stream")
            watched = partial(_watch, engine)
            runs.append((name, measure(spark, watched, rate, step, window, batches=batches, keys=keys)))
    head = {"benchmark": "spark_equi", "machine": report.machine(), "cores": cores, "window": window}
    return {**head, "step": step, "rate": rate, "keys": keys, "runs": _compare(runs)}


def _watch(engine: Engine, left: DataFrame, right: DataFrame, window: int, folder: str) -> DataFrame:
    """Count the pairs of each micro-batch, and sum up a column of each side."""
    sums = [
        F.sum(F.col(column).cast("bigint")).alias(name) for column, name in (("z", "left"), ("c", "right"))
    ]
    return engine(left, right, window, folder).observe("pairs", F.count("*").alias("pairs"), *sums)


def _compare(runs: list[tuple[str, Run]]) -> list[Data]:
    """Summarise the runs; all engines must have found the same pairs in each micro-batch."""
    found = {name: [[b.figures[key] for key in _PAIRS] for b in one.batches] for name, one in runs}
    wanted = found["handshake"]
    for name, pairs in found.items():
        if any(one != other for one, other in zip(wanted, pairs, strict=False)):
            raise AssertionError(f"{name} found {pairs}, handshake {wanted}")
    return [
        {
            "engine": name, "took": one.took, "worked": one.worked, "full": bool(one.full),
            "sustained": one.sustained, "pairs": sum(pairs for pairs, _, _ in found[name]),
        }
        for name, one in runs
    ]  # fmt: skip


def _show(page: Report, data: Data) -> None:
    step = data["step"]
    rows = [
        (
            one["engine"], "yes" if one["full"] else "no", f"{one['took']:.1f}", f"{one['worked']:.1f}",
            "yes" if one["sustained"] else "no", f"{one['pairs']:,}",
        )
        for one in data["runs"]
    ]  # fmt: skip
    page.table(
        f"Equi-join of two streams on Spark, local[{data['cores']}], {data['rate']:,} rows/s per stream, "
        f"{data['keys']:,} keys, windows of {data['window']} s, micro-batches of {step} s",
        ("engine", "windows full", "s per micro-batch", "processor s", "kept up", "pairs"), rows,
    )  # fmt: skip
    page.say(
        "spark: Spark's own join on the key and a range of times, with RocksDB state. store: handshake with "
        'state="store". All engines found the same pairs.'
    )
    ours, *others = data["runs"]
    took = {f"{one['engine']}_took": round(one["took"] / ours["took"], 3) for one in others}
    worked = {f"{one['engine']}_processor": round(one["worked"] / ours["worked"], 3) for one in others}
    page.result(**took, **worked, rate=data["rate"], load=round(ours["took"] / step, 3))


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table says it all."""
