"""`handshake bench spark_growth`: seconds per micro-batch while windows fill, at a constant rate."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from handshake_bench import report
from handshake_bench.report import Data, Report, progress
from handshake_bench.spark_streams import handshake_join, measure, session

__all__ = ["run"]

_GOAL = 1.5
"""Goal for the growth from a tenth full to full."""


def run(
    rate: int = 2_000, step: int = 10, window: int = 900, cores: int = 2, batches: int = 9,
    out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure seconds per micro-batch with windows a tenth full and full, and their results."""
    data = report.load(source, "spark_growth") if source else _measure(rate, step, window, cores, batches)
    report.publish("spark_growth", data, _show, _draw, out)


def _measure(rate: int, step: int, window: int, cores: int, batches: int) -> Data:
    with session(cores) as spark:
        progress("a short stream first, to compile")
        measure(spark, handshake_join, rate, step, 2 * step, batches=20)
        progress(f"{rate:,} tuples/s per stream, micro-batches of {step} s, windows of {window} s")
        seen = measure(spark, handshake_join, rate, step, window, batches=batches).batches
    points = [{"stream": b.stream, "took": b.took, "results": b.figures.get("results")} for b in seen]
    head = {"benchmark": "spark_growth", "machine": report.machine(), "cores": cores, "rate": rate}
    return {**head, "step": step, "window": window, "points": points}


def _show(page: Report, data: Data) -> None:
    tenth, full = (_around(data, share) for share in (0.1, 1.0))
    rows = [
        (name, f"{len(found)}", f"{_took(found):.2f}", f"{_results(found):,.0f}")
        for name, found in (("a tenth full", tenth), ("full", full))
    ]
    page.table(
        f"{data['rate']:,} tuples/s per stream on Spark, local[{data['cores']}], windows of "
        f"{data['window']} s, micro-batches of {data['step']} s",
        ("windows", "micro-batches", "seconds each (median)", "results each"), rows,
    )  # fmt: skip
    page.say(f"Goal: less than {_GOAL} times from a tenth full to full.")
    page.result(growth=_took(full) / _took(tenth), tenth=_took(tenth), full=_took(full))


def _around(data: Data, share: float) -> list[Data]:
    """Return the micro-batches that began with windows filled to about `share`."""
    begun = [(p["stream"] - data["step"], p) for p in data["points"]]
    if share >= 1:
        return [p for at, p in begun if at >= data["window"]]
    near, slack = share * data["window"], max(share * data["window"] / 2, data["step"])
    return [p for at, p in begun if abs(at - near) <= slack and at > 0]


def _took(found: list[Data]) -> float:
    return float(median(p["took"] for p in found))


def _results(found: list[Data]) -> float:
    return float(median(p["results"] or 0 for p in found))


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = f"Micro-batches of {data['step']} s while windows fill, {data['rate']:,} tuples/s per stream"
    with plots.figure(folder / "spark_growth.svg", 1, title) as (_, (axes,)):
        points = data["points"][1:]
        minutes = [p["stream"] / 60 for p in points]
        axes.plot(minutes, [p["took"] for p in points], color=plots.SERIES[0], label="seconds")
        axes.axvline(data["window"] / 60, color="k", linewidth=0.8, linestyle="--", label="windows full")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("minutes of stream (without the first micro-batch, which compiles)")
        axes.set_ylabel("seconds for a micro-batch")
        axes.legend(loc="best", fontsize=8)
        plots.machine(axes, data)
