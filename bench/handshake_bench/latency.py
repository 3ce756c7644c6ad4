"""`handshake bench latency`: latency of results at half of the sustained rate, with full windows.

Tuples arrive by the clock, and a result's time runs from the arrival of its later tuple until it is
delivered. In a handshake line tuples must drift together first, so results wait for the windows to move: a
run counts them from one window's length on.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from handshake.joins.metrics import Metrics
from handshake.joins.plan import usable_cores
from handshake_bench import report
from handshake_bench.paced import Run, feed
from handshake_bench.report import Data, Report
from handshake_bench.search import band_plan, highest, warm

__all__ = ["run", "show"]

RUNS = (("low_latency", "scan"), ("low_latency", "band"), ("cell", "scan"), ("handshake", "scan"))
"""Arrangements and methods; by band index, at the rate of the scan."""
_PINNED = hasattr(os, "sched_setaffinity")
"""Pinned threads: otherwise cores that wake together may share a processor."""
_P50, _P99 = 0.002, 0.010
"""Goals for `low_latency`, in seconds."""


def run(quick: bool = False, out: str | None = None, source: str | None = None, tick: float = 2.0) -> None:
    """Measure, or take an earlier run's figures; give the percentiles of each arrangement in milliseconds."""
    data = report.load(source, "latency") if source else _measure(quick, tick / 1000)
    report.publish("latency", data, show, _draw, out)


def _measure(quick: bool, tick: float) -> Data:
    window, seconds = (20.0, 1.5) if quick else (900.0, 10.0)
    points, guess, cores = [], 2500.0 * (900 / window) ** 0.5, usable_cores()
    for algorithm, method in RUNS:
        if method == "scan":
            guess = _sustained_rate(algorithm, cores, window, guess, 0.5 if quick else 3.0)
        length = _short(window) if algorithm == "handshake" else window
        rate = guess / 2 * math.sqrt(window / length)  # the same work
        run = _run(algorithm, method, cores, length, rate, seconds, tick)
        points.append(
            {"algorithm": algorithm, "method": method, "window": length, "sustained": guess, "rate": rate,
             **_figures(run.metrics)}
        )  # fmt: skip
        p50, p99 = (1e3 * points[-1][name] for name in ("p50", "p99"))
        report.progress(f"{algorithm}, {method}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    head = {"benchmark": "latency", "machine": report.machine(), "quick": quick}
    return {**head, "window": window, "cores": cores, "tick": tick, "points": points}


def _short(window: float) -> float:
    """Return a short window: results of a line wait for part of a window, and a run must see them all."""
    return max(2.0, window / 60)


def _sustained_rate(algorithm: str, cores: int, window: float, guess: float, seconds: float) -> float:
    plan = band_plan(algorithm, cores, window)
    warm(plan, window)
    found, samples = highest(plan, window, guess, seconds)
    return found or samples[-1].rate


def _run(
    algorithm: str, method: str, cores: int, window: float, rate: float, seconds: float, tick: float
) -> Run:
    plan = band_plan(algorithm, cores, window, method, pin=_PINNED)
    feed(plan, 100.0, window, 0.5, tick=tick)  # compiles what small batches need
    # A line's tuples must have met all of a window; the others look at filled windows for the first time.
    unseen = window if algorithm == "handshake" else 1.0
    return feed(plan, rate, window, max(seconds, 2 * unseen), tick=tick, unseen=unseen)


def _figures(metrics: Metrics) -> Data:
    found = metrics.latency
    buckets = [(min(bound, found.longest), count) for bound, count in found.buckets]
    figures = {name: getattr(found, name) for name in ("results", "p50", "p90", "p99", "longest")}
    return {**figures, "buckets": buckets}


def show(page: Report, data: Data) -> None:
    """Show the figures."""
    rows = [
        (
            f"{p['algorithm']}, {p['method']}", f"{p['window']:,.0f} s",
            f"{p['sustained']:,.0f}", f"{p['rate']:,.0f}", f"{p['results']:,}",
            *(f"{p[name] * 1e3:,.2f}" for name in ("p50", "p90", "p99", "longest")),
        )
        for p in data["points"]
    ]  # fmt: skip
    heads = (
        "arrangement, method",
        "windows",
        "sustained by scan",
        "at, tuples/s/stream",
        "results",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "longest ms",
    )
    page.table(f"latency at half of the rate that a scan sustains, cores: {data['cores']}", heads, rows)
    page.say("Cores are pinned if the system supports it.")
    page.say(f"A batch of each stream comes every {data['tick'] * 1e3:g} ms, with all tuples of that time.")
    page.say(f"Sustained: with windows of {data['window']:,.0f} s. The line has shorter ones, at a rate with")
    page.say("the same work, because its latency grows with the length of the window.")
    page.say(f"Goal for low_latency: p50 up to {_P50 * 1e3:g} ms, p99 up to {_P99 * 1e3:g} ms.")
    page.result(**{f"{_name(p)}_{name}_ms": p[name] * 1e3 for p in data["points"] for name in ("p50", "p99")})


def _name(point: Data) -> str:
    return str(point["algorithm"]) + ("" if point["method"] == "scan" else f"_{point['method']}")


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = f"Latency at half of the rate that a scan sustains, {data['cores']} cores"
    with plots.figure(folder / "latency.svg", 1, title) as (_, (axes,)):
        for point in data["points"]:
            total, seen, line = point["results"], 0, []
            for bound, count in point["buckets"]:
                seen += count
                line.append((bound * 1e3, seen / total))
            label = f"{point['algorithm']}, {point['method']}, windows of {plots.length(point['window'])}: "
            label += f"p50 {point['p50'] * 1e3:.1f} ms"
            if line:
                axes.step(
                    *zip(*line, strict=True),
                    where="post",
                    color=plots.COLOURS[point["algorithm"]],
                    linestyle="-" if point["method"] == "scan" else ":",
                    label=label,
                )
        for at, share in ((_P50, 0.5), (_P99, 0.99)):
            axes.plot([at * 1e3], [share], "k<", markersize=7)
        axes.plot([], [], "k<", label="goal for low_latency: p50, p99")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("milliseconds from the later tuple's arrival to the result")
        axes.set_ylabel("share of results")
        axes.set_ylim(0, 1.02)
        axes.legend(loc="best", fontsize=8)
        plots.machine(axes, data)
