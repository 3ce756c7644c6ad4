"""`handshake bench spark_latency`: time from the arrival of the later tuple until the sink has the result.

Streams run in real time; the first micro-batch brings past tuples for a whole window, so windows are full
when the measurement begins. The sink takes the rows of each micro-batch and reads the clock.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from handshake.errors import HandshakeError
from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.spark_paced import Paced
from handshake_bench.spark_streams import handshake_join, session

__all__ = ["run"]

_GOAL = 2.0
"""Goal for the 99th percentile, in seconds."""
_SETTLE = 15.0


def run(
    rate: int = 1_000, trigger: int = 500, seconds: float = 60.0, window: int = 900, cores: int = 2,
    out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure percentiles of the latency over `seconds` of stream with full windows."""
    data = report.load(source, "spark_latency") if source else _measure(rate, trigger, seconds, window, cores)
    report.publish("spark_latency", data, _show, _draw, out)


@dataclass
class _Sink:
    """Latencies of the results."""

    waits: list[tuple[float, float, int]] = field(default_factory=list)
    """Clock time, latency, and the number of results with it."""

    def take(self, frame: DataFrame, number: int) -> None:
        """Bring the rows of one micro-batch to the driver and note their latencies."""
        rows = frame.select(F.greatest("t", "t_right").cast("double").alias("later"), "*").toArrow()
        now = time.time()
        later, counts = np.unique(rows["later"].to_numpy(), return_counts=True)
        if number == 0:  # the past
            return
        self.waits += [(now, now - at, int(n)) for at, n in zip(later.tolist(), counts.tolist(), strict=True)]


def _measure(rate: int, trigger: int, seconds: float, window: int, cores: int) -> Data:
    sink = _Sink()
    with session(cores) as spark, tempfile.TemporaryDirectory(prefix="handshake-bench-") as folder:
        query = (
            handshake_join(*_streams(spark, rate, window), window, folder)
            .writeStream.trigger(processingTime=f"{trigger} milliseconds")
            .option("checkpointLocation", f"{folder}/checkpoint").foreachBatch(sink.take).start()
        )  # fmt: skip
        try:
            begun = _wait_until_settled(query, sink)
            progress(f"windows are full and up to date; counting for {seconds:.0f} s")
            _wait(query, begun + seconds)
            took = [p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress[1:]]
        finally:
            query.stop()
    waits = [(wait, n) for at, wait, n in sink.waits if at >= begun]
    head = {"benchmark": "spark_latency", "machine": report.machine(), "cores": cores, "rate": rate}
    return {**head, "trigger": trigger, "window": window, "micro_batches": took[-50:], **_percentiles(waits)}


def _streams(spark: SparkSession, rate: int, window: int) -> tuple[DataFrame, DataFrame]:
    spark.dataSource.register(Paced)
    start = int(time.time() * 1000)

    def stream(side: str) -> DataFrame:
        reader = spark.readStream.format("handshake-paced").option("side", side).option("rate", rate)
        reader = reader.option("start", start).option("past", window * 1000)
        return reader.load().withWatermark("t", "0 seconds")

    return stream("left"), stream("right")


def _wait_until_settled(query: StreamingQuery, sink: _Sink) -> float:
    """Wait until micro-batches have caught up after the one with the past tuples; return the time."""
    while not sink.waits or sink.waits[-1][0] - sink.waits[0][0] < _SETTLE:
        _wait(query, time.time() + 0.5)
    return time.time()


def _wait(query: StreamingQuery, until: float) -> None:
    while (left := until - time.time()) > 0:
        if not query.isActive:
            raise query.exception() or HandshakeError("the query has ended by itself")
        time.sleep(min(left, 0.2))


def _percentiles(waits: list[tuple[float, int]]) -> Data:
    values = np.repeat([w for w, _ in waits], [n for _, n in waits])
    shares = {"p50": 50, "p90": 90, "p99": 99, "longest": 100}
    curve = [float(v) for v in np.percentile(values, range(101))]
    return {
        "results": len(values), **{k: float(np.percentile(values, v)) for k, v in shares.items()},
        "curve": curve,
    }  # fmt: skip


def _show(page: Report, data: Data) -> None:
    took = sorted(data["micro_batches"])
    row = (
        f"{data['rate']:,}", f"{data['results']:,}", f"{took[len(took) // 2]:.2f}",
        *(f"{data[name]:.2f}" for name in ("p50", "p90", "p99", "longest")),
    )  # fmt: skip
    page.table(
        f"End to end on Spark, local[{data['cores']}], trigger {data['trigger']} ms, full windows of "
        f"{data['window']} s",
        ("tuples/s/stream", "results", "s per micro-batch", "p50 s", "p90 s", "p99 s", "longest s"), [row],
    )  # fmt: skip
    page.say(f"Goal: p99 up to {_GOAL:g} s.")
    page.result(p50=data["p50"], p99=data["p99"])


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = f"Latency on Spark: {data['rate']:,} tuples/s per stream, trigger {data['trigger']} ms"
    with plots.figure(folder / "spark_latency.svg", 1, title) as (_, (axes,)):
        axes.plot(data["curve"], [i / 100 for i in range(101)], color=plots.SERIES[0], label="results")
        axes.plot([_GOAL], [0.99], "k<", markersize=7, label="goal: p99")
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds from the later tuple's arrival to the result in the sink")
        axes.set_ylabel("share of results")
        axes.legend(loc="best", fontsize=8)
        plots.machine(axes, data)
