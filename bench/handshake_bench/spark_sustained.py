"""`handshake bench spark_sustained`: the rate that Spark sustains with full windows.

This package is compared with the usual workaround: buckets, an exploded side, Spark's own equi-join, a
filter.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.spark_streams import Run, bucket_join, handshake_join, measure, session

__all__ = ["run"]

_OURS, _THEIRS = "handshake", "bucketed"
_NAMES = {"rows": "spark_sustained", "files": "spark_sustained_files"}
"""The name of the data by the kind of sink."""
_GOALS, _TIMES = {"rows": 22_000, "files": 28_000}, 10
"""Goals: tuples/s per stream by the kind of sink, and the ratio to the workaround."""


def run(
    rate: int | None = None, baseline: int | None = None, step: int = 20, window: int = 900, cores: int = 2,
    bucket: int = 50, batches: int = 3, sink: str = "rows", out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure at `rate` with full windows; then search the workaround's rate, from a tenth downwards.

    Results are rows for a sink that consumes them, or go to files in the segments' tasks; then the workaround
    is left out. The rate of the goal is the default.
    """
    if source:
        data = report.load(source, _NAMES[sink])
    else:
        rate = rate or _GOALS[sink]
        data = _measure(rate, baseline or rate // 10, step, window, cores, bucket, batches, sink)
    report.publish(_NAMES[sink], data, _show, _draw, out)


def _measure(
    rate: int, baseline: int, step: int, window: int, cores: int, bucket: int, batches: int, sink: str
) -> Data:
    with session(cores) as spark:
        progress(f"handshake at {rate:,} tuples/s per stream, results as {sink}")
        ours = partial(handshake_join, sink=sink)
        runs = [_summary(_OURS, measure(spark, ours, rate, step, window, batches=batches))]
        if sink == "rows":
            theirs = _descend(spark, baseline, step, window, bucket, batches)
            runs += [_summary(_THEIRS, run) for run in theirs]
    head = {"benchmark": _NAMES[sink], "machine": report.machine(), "cores": cores, "window": window}
    return {**head, "step": step, "bucket": bucket, "sink": sink, "runs": runs}


def _descend(spark: SparkSession, rate: int, step: int, window: int, bucket: int, batches: int) -> list[Run]:
    """Run the workaround at falling rates, until it keeps up."""
    runs: list[Run] = []
    while rate >= 50:
        progress(f"bucketed equi-join at {rate:,} tuples/s per stream")
        runs.append(measure(spark, bucket_join(bucket), rate, step, window, batches=batches))
        if runs[-1].sustained:
            break
        rate = rate * 2 // 3
    return runs


def _summary(engine: str, one: Run) -> Data:
    batches = [(b.stream, b.took) for b in one.batches]
    return {
        "engine": engine, "rate": one.rate, "took": one.took, "full": bool(one.full),
        "sustained": one.sustained, "batches": batches, "spent": one.spent._asdict(),
        "results": one.batches[-1].figures.get("results"),
    }  # fmt: skip


def _show(page: Report, data: Data) -> None:
    rows = [
        (
            p["engine"], f"{p['rate']:,}", "yes" if p["full"] else f"at {p['batches'][-1][0]:.0f} s",
            f"{p['took']:.1f}", *_spent(p), "yes" if p["sustained"] else "no",
        )
        for p in data["runs"]
    ]  # fmt: skip
    title = f"Band join of two streams on Spark, local[{data['cores']}], windows of {data['window']} s, "
    page.table(
        f"{title}micro-batches of {data['step']} s",
        ("engine", "tuples/s/stream", "windows full", "s per micro-batch", "JVM", "Python", "kept up"), rows,
    )  # fmt: skip
    page.say("JVM, Python: processor seconds per micro-batch.")
    _say_sinks(page, data)
    sink = data.get("sink", "rows")
    more = f", {_TIMES} times the workaround" if sink == "rows" else ""
    page.say(f"Goal: {_GOALS[sink]:,} tuples/s per stream with windows of 15 minutes{more}.")
    ours = next((p["rate"] for p in data["runs"] if p["engine"] == _OURS and p["sustained"]), 0)
    load = data["runs"][0]["took"] / data["step"]
    if sink == "files":
        page.result(rate=ours, load=load)
        return
    kept = max((p["rate"] for p in data["runs"] if p["engine"] == _THEIRS and p["sustained"]), default=0)
    page.result(rate=ours, load=load, bucketed=kept, vs_bucketed=ours / kept if kept else "inf")


def _spent(one: Data) -> tuple[str, str]:
    spent = one.get("spent")
    return ("-", "-") if spent is None else (f"{spent['jvm']:.1f}", f"{spent['python']:.1f}")


def _say_sinks(page: Report, data: Data) -> None:
    if data.get("sink") == "files":
        page.say(
            f"Results: {data['runs'][0]['results']:,} in the last micro-batch, in Parquet files that the "
            "segments' tasks write and that are removed after their micro-batch."
        )
        return
    page.say(
        f"bucketed: squares {data['bucket']} wide, the right side exploded into those it reaches, Spark's "
        "own equi-join on RocksDB state, a filter on what it gives. Rows go to a sink that consumes them."
    )


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = f"Micro-batches of {data['step']} s while windows of {plots.length(data['window'])} fill"
    with plots.figure(folder / f"{data['benchmark']}.svg", 1, title) as (_, (axes,)):
        colours = iter(plots.SERIES)
        for one in data["runs"]:
            times = [(stream / 60, took) for stream, took in one["batches"][1:]]
            if times:
                label = f"{one['engine']} at {one['rate']:,}/s"
                axes.plot(*zip(*times, strict=True), marker=".", color=next(colours), label=label)
        axes.axhline(data["step"], color="k", linewidth=0.8, linestyle="--", label="as fast as the stream")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes of stream (without the first micro-batch, which compiles)")
        axes.set_ylabel("seconds for a micro-batch")
        axes.legend(loc="best", fontsize=8)
        plots.machine(axes, data)
