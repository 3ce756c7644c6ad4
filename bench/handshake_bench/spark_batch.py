"""`handshake bench spark_batch`: a band join and an equi-join of two tables, compared with Spark's own plans.

Both read the same Parquet files and give their rows to a sink that consumes them. Spark's own plan for a band
on two attributes compares all pairs, so it gets a time limit.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import handshake
from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.spark_streams import BAND, session, uniform

__all__ = ["run"]

_TIMES, _SLOWER = 20, 1.5
"""Goals: speed-up over Spark's own plan, and the most that an equi-join may be slower."""
_PLAIN = "x BETWEEN a - 10 AND a + 10 AND y BETWEEN b - 10 AND b + 10"
Make = Callable[[], DataFrame]


def run(
    rows: int = 5_000_000, limit: float | None = None, cores: int = 2, out: str | None = None,
    source: str | None = None,
) -> None:  # fmt: skip
    """Time both joins; Spark's band join gets `limit` seconds, by default 21 times ours."""
    data = report.load(source, "spark_batch") if source else _measure(rows, limit, cores)
    report.publish("spark_batch", data, _show, _draw, out)


def _measure(rows: int, limit: float | None, cores: int) -> Data:
    with session(cores) as spark, tempfile.TemporaryDirectory(prefix="handshake-bench-") as folder:
        left, right = _tables(spark, rows, folder)
        equi = [_equi(left, right) for _ in range(3)]

        def band_join() -> DataFrame:
            frame: DataFrame = handshake.join(left, right, BAND, state_dir=f"{folder}/state")
            return frame

        ours = [_time(band_join, "band join, handshake") for _ in range(2)]
        allowed = limit or (_TIMES + 1) * min(ours)
        theirs = _time_limited(spark, lambda: left.join(right, F.expr(_PLAIN)), allowed)
        found = band_join().count()
        counted = left.join(right, F.expr(_PLAIN)).count() if theirs is not None else None
    head = {"benchmark": "spark_batch", "machine": report.machine(), "cores": cores, "rows": rows}
    return {
        **head, "limit": allowed, "ours": ours, "spark": theirs, "results": found, "spark_results": counted,
        "equi": equi,
    }  # fmt: skip


def _tables(spark: SparkSession, rows: int, folder: str) -> tuple[DataFrame, DataFrame]:
    def write(name: str, seeds: tuple[int, int], names: tuple[str, str]) -> DataFrame:
        ids = spark.range(rows).withColumnRenamed("id", "value")
        frame = ids.select(
            uniform(seeds[0]).cast("int").alias(names[0]), uniform(seeds[1]).cast("float").alias(names[1]),
            (F.pmod(F.xxhash64(F.lit(9), "value"), F.lit(rows))).alias(f"k_{name}"),
        )  # fmt: skip
        frame.write.parquet(f"{folder}/{name}")
        return spark.read.parquet(f"{folder}/{name}")

    return write("left", (1, 2), ("x", "y")), write("right", (3, 4), ("a", "b"))


def _equi(left: DataFrame, right: DataFrame) -> tuple[float, float]:
    """Time the same equi-join through this package and by Spark."""
    ours = _time(lambda: handshake.join(left, right, "l.k_left = r.k_right"), "equi-join, handshake")
    return ours, _time(lambda: left.join(right, F.expr("k_left = k_right")), "equi-join, Spark")


def _time(make: Make, name: str) -> float:
    start = time.perf_counter()
    make().write.format("noop").mode("overwrite").save()
    took = time.perf_counter() - start
    progress(f"{name}: {took:.1f} s")
    return took


def _time_limited(spark: SparkSession, make: Make, limit: float) -> float | None:
    """Return the seconds, or None if the limit was reached."""
    progress(f"Spark's own plan for the band join, for at most {limit:.0f} s")
    cancelled = threading.Event()

    def cancel() -> None:
        cancelled.set()
        spark.sparkContext.cancelAllJobs()

    timer = threading.Timer(limit, cancel)
    timer.start()
    try:
        return _time(make, "band join, Spark")
    except Exception:
        if not cancelled.is_set():
            raise
        return None
    finally:
        timer.cancel()


def _show(page: Report, data: Data) -> None:
    ours, theirs = min(data["ours"]), data["spark"]
    equi = [min(pair[side] for pair in data["equi"]) for side in (0, 1)]
    never = f"> {data['limit']:.0f} (stopped)"
    rows = [
        ("band join, handshake", f"{ours:.1f}", f"{data['ours'][0]:.1f}", f"{data['results']:,}"),
        ("band join, Spark's own plan", f"{theirs:.1f}" if theirs else never, "-", "-"),
        ("equi-join, handshake", f"{equi[0]:.1f}", f"{data['equi'][0][0]:.1f}", "-"),
        ("equi-join, Spark", f"{equi[1]:.1f}", f"{data['equi'][0][1]:.1f}", "-"),
    ]
    title = f"{data['rows']:,} x {data['rows']:,} rows on Spark, local[{data['cores']}]; {BAND}"
    page.table(title, ("join", "seconds", "first run", "results"), rows)
    page.say(
        f"Goal: {_TIMES} times Spark's own plan; an equi-join at most {_SLOWER} times slower than Spark's."
    )
    times = (theirs or data["limit"]) / ours
    page.result(
        vs_spark=times, spark_ended="yes" if theirs else "no", equi_vs_spark=equi[0] / equi[1], seconds=ours
    )


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table is enough."""
