"""`handshake bench latency`: how long results take at half of the sustained rate, windows full.

Tuples arrive by the clock, and a result's time runs from the arrival of its later tuple until it is
delivered. In a handshake line tuples must drift together first, so results wait for the windows to move.
"""

from __future__ import annotations

from pathlib import Path

from handshake.bench import report
from handshake.bench.paced import feed
from handshake.bench.report import Data, Report
from handshake.bench.search import band_plan, highest, warm
from handshake.cores.metrics import Metrics
from handshake.planning import usable_cores

__all__ = ["run"]

ARRANGEMENTS = ("low_latency", "cell", "handshake")
_P50, _P99 = 0.002, 0.010
"""What `low_latency` is meant to reach."""


def run(quick: bool = False, out: str | None = None, source: str | None = None, tick: float = 2.0) -> None:
    """Measure, or take an earlier run's figures; give the percentiles of each arrangement in milliseconds."""
    data = report.load(source, "latency") if source else _measured(quick, tick / 1000)
    report.publish("latency", data, _show, _draw, out)


def _measured(quick: bool, tick: float) -> Data:
    window, seconds = (20.0, 1.5) if quick else (900.0, 10.0)
    cores = usable_cores()
    points, guess = [], 2500.0 * (900 / window) ** 0.5
    for algorithm in ARRANGEMENTS:
        plan = band_plan(algorithm, cores, window)
        warm(plan, window)
        found, samples = highest(plan, window, guess, 0.5 if quick else 3.0)
        guess = found or samples[-1].rate
        feed(plan, 100.0, window, 0.5, tick=tick)  # compiles what small batches need
        run = feed(plan, guess / 2, window, seconds, tick=tick)
        points.append(
            {"algorithm": algorithm, "sustained": guess, "rate": guess / 2, **_figures(run.metrics)}
        )
        report.progress(
            f"{algorithm}: p50 {points[-1]['p50'] * 1e3:.2f} ms, p99 {points[-1]['p99'] * 1e3:.2f} ms"
        )
    head = {"benchmark": "latency", "machine": report.machine(), "quick": quick}
    return {**head, "window": window, "cores": cores, "tick": tick, "points": points}


def _figures(metrics: Metrics) -> Data:
    found = metrics.latency
    buckets = [(min(bound, found.longest), count) for bound, count in found.buckets]
    figures = {name: getattr(found, name) for name in ("results", "p50", "p90", "p99", "longest")}
    return {**figures, "buckets": buckets}


def _show(page: Report, data: Data) -> None:
    rows = [
        (
            p["algorithm"], f"{p['sustained']:,.0f}", f"{p['rate']:,.0f}", f"{p['results']:,}",
            *(f"{p[name] * 1e3:,.2f}" for name in ("p50", "p90", "p99", "longest")),
        )
        for p in data["points"]
    ]  # fmt: skip
    heads = (
        "arrangement",
        "sustained",
        "at, tuples/s/stream",
        "results",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "longest ms",
    )
    page.table(f"scan, cores: {data['cores']}, windows of {data['window']:,.0f} s", heads, rows)
    page.say(f"A batch of each stream comes every {data['tick'] * 1e3:g} ms, with all tuples of that time.")
    page.say(f"Meant for low_latency: p50 up to {_P50 * 1e3:g} ms, p99 up to {_P99 * 1e3:g} ms.")
    page.result(
        **{f"{p['algorithm']}_{name}_ms": p[name] * 1e3 for p in data["points"] for name in ("p50", "p99")}
    )


def _draw(data: Data, folder: Path) -> None:
    from handshake.bench import plots

    length = plots.length(data["window"])
    title = f"Latency at half of the sustained rate: scan, {data['cores']} cores, windows of {length}"
    with plots.figure(folder / "latency.svg", 1, title) as (_, (axes,)):
        for point in data["points"]:
            total, seen, line = point["results"], 0, []
            for bound, count in point["buckets"]:
                seen += count
                line.append((bound * 1e3, seen / total))
            label = f"{point['algorithm']} at {point['rate']:,.0f}/s: p50 {point['p50'] * 1e3:.1f} ms"
            if line:
                axes.step(
                    *zip(*line, strict=True),
                    where="post",
                    color=plots.COLOURS[point["algorithm"]],
                    label=label,
                )
        for at, share in ((_P50, 0.5), (_P99, 0.99)):
            axes.plot([at * 1e3], [share], "k<", markersize=7)
        axes.plot([], [], "k<", label="meant for low_latency: p50, p99")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_xlabel("milliseconds from the later tuple's arrival to the result")
        axes.set_ylabel("share of results")
        axes.set_ylim(0, 1.02)
        axes.legend(loc="best", fontsize=8)
        plots.machine(axes, data)
