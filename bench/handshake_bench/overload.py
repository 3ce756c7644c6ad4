"""`handshake bench overload`: output and drops against the input rate (CellJoin, figures 10 and 11).

Streams arrive in real time; tuples that find the queue before the join full are shed and counted. Figure 10
compares kernels with and without vectors, figure 11 numbers of cores. Above its capacity a join holds only
the tuples it accepted, so windows are filled at the sustained rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from handshake_bench import report
from handshake_bench.child import in_child
from handshake_bench.paced import feed
from handshake_bench.published import CELL_RATES, outputs
from handshake_bench.report import Data, Report
from handshake_bench.search import band_plan, highest, warm
from handshake_bench.throughput import core_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curve", "run", "show"]

_TICK, _ROOM = 0.05, 0.25
"""Seconds of stream in a batch, and in the queue before the join."""
_GUESS = {"vector": 2000.0, "scalar": 700.0}
"""First guess of tuples/s/stream for one core with 15-minute windows."""


def run(quick: bool = False, out: str | None = None, source: str | None = None) -> None:
    """Measure, or take an earlier run's figures; give the highest rates without drops."""
    data = report.load(source, "overload") if source else _measure(quick)
    report.publish("overload", data, show, _draw, out)


def _measure(quick: bool) -> Data:
    # Queues fill up in the first half of a run; drops are counted in the second.
    window, seconds = (20.0, 1.0) if quick else (900.0, 12.0)
    counts = core_counts(None)
    series: list[Data] = []
    # The fastest configuration first: its sustained rate determines the rates of the others.
    for scalar, cores in [(False, cores) for cores in reversed(counts)] + [(True, counts[-1])]:
        found = in_child(
            "overload:curve", scalar=scalar, cores=cores, window=window, seconds=seconds,
            kernel="scalar" if scalar else "vector", steps=4 if quick else 6,
            most=series[0]["capacity"] if series else None,
        )  # fmt: skip
        series.append(found)
    series.sort(key=lambda one: (one["kernel"] == "scalar", one["cores"]))
    machine = report.machine()
    return {"benchmark": "overload", "machine": machine, "quick": quick, "window": window, "series": series}


def _grid(most: float, steps: int) -> list[float]:
    """Return rates up to 1.5 times `most`."""
    return [max(10.0, round(1.5 * most * n / steps, -1)) for n in range(1, steps + 1)]


def curve(cores: int, window: float, seconds: float, kernel: str, steps: int, most: float | None) -> Data:
    """Measure the sustained rate, and output and drops per second at rates up to 1.5 times `most`.

    `most` is the sustained rate by default.
    """
    plan = band_plan("cell", cores, window)
    warm(plan, window)
    guess = _GUESS[kernel] * (cores * 900 / window) ** 0.5
    found, samples = highest(plan, window, guess, seconds / 6, tries=3)
    capacity = found or samples[-1].rate
    rates = _grid(most or capacity, steps)
    points = [_point(cores, window, seconds, rate, min(rate, capacity)) for rate in rates]
    return {"kernel": kernel, "cores": cores, "capacity": capacity, "points": points}


def _point(cores: int, window: float, seconds: float, rate: float, held: float) -> Data:
    plan = band_plan("cell", cores, window, room=max(1, int(rate * _ROOM)))
    run = feed(plan, rate, window, seconds, tick=_TICK, held=held)
    report.progress(f"cell, cores: {cores}: {rate:,.0f} tuples/s/stream, {run.shed_share:.0%} shed")
    return {
        "rate": rate, "output": run.results / run.seconds, "dropped": run.shed_share * rate,
        "share": run.shed_share,
    }  # fmt: skip


def _name(one: Data) -> str:
    return f"{one['kernel']}, cores: {one['cores']}"


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    heads = (
        "kernel, input tuples/s/stream",
        "output, results/s",
        "if none dropped",
        "dropped/s/stream",
        "share",
    )
    for one in data["series"]:
        rows = [
            (
                f"{one['kernel']}, {p['rate']:,.0f}",
                f"{p['output']:,.0f}",
                f"{outputs(p['rate'], data['window']):,.0f}",
                f"{p['dropped']:,.0f}",
                f"{p['share']:.1%}",
            )
            for p in one["points"]
        ]
        page.table(
            f"cell, cores: {one['cores']}, {data['window']:,.0f} s windows (figures 10, 11)", heads, rows
        )
    best = {_name(one): max(p["output"] for p in one["points"]) for one in data["series"]}
    vector = [one for one in data["series"] if one["kernel"] == "vector"]
    scalar = next(one for one in data["series"] if one["kernel"] == "scalar")
    top = best[_name(vector[-1])]
    rate = "highest rate without drops, tuples/s/stream"
    page.beside(
        [
            (f"{rate}: vector (SIMD)", f"{_no_drop(vector[-1]):,.0f}", f"{CELL_RATES['SIMD']:,.0f}"),
            (f"{rate}: SIMD without unrolling", "-", f"{CELL_RATES['SIMD-Noopt']:,.0f}"),
            (f"{rate}: scalar (No-SIMD)", f"{_no_drop(scalar):,.0f}", f"{CELL_RATES['No-SIMD']:,.0f}"),
            ("output of vector over scalar", f"{top / best[_name(scalar)]:.1f}", "up to 3.5"),
            ("output per core, times that of one core", _gain(top / best[_name(vector[0])], vector), "1.0"),
        ]
    )
    page.say("Published: 8 SPEs, 15-minute windows.")
    page.result(
        no_drop_vector=_no_drop(vector[-1]), no_drop_scalar=_no_drop(scalar), cores=vector[-1]["cores"],
        output_vs_scalar=top / best[_name(scalar)], output_vs_one_core=top / best[_name(vector[0])],
    )  # fmt: skip


def _gain(output: float, vector: list[Data]) -> str:
    return f"{output * vector[0]['cores'] / vector[-1]['cores']:.2f}"


def _no_drop(one: Data) -> float:
    """Return the highest rate up to which less than 1 % of the tuples were dropped."""
    kept = 0.0
    for point in one["points"]:
        if point["share"] >= 0.01:
            break
        kept = point["rate"]
    return float(kept)


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    most = max(one["cores"] for one in data["series"])
    kernels = [one for one in data["series"] if one["cores"] == most]
    cores = [one for one in data["series"] if one["kernel"] == "vector"]
    length = plots.length(data["window"])
    title = f"CellJoin, figure 10: output and drops, cell, {most} cores, windows of {length}"
    _panels(data, kernels, title, folder / "overload_figure_10.svg")
    title = f"CellJoin, figure 11: output and drops by number of cores, cell, windows of {length}"
    _panels(data, cores, title, folder / "overload_figure_11.svg")


def _panels(data: Data, series: list[Data], title: str, path: Path) -> None:
    from handshake_bench import plots

    with plots.figure(path, 2, title) as (_, axes):
        rates = [p["rate"] for p in series[0]["points"]]
        full = [outputs(rate, data["window"]) for rate in rates]
        axes[0].plot(rates, full, ":", color="#777777", label="if nothing were dropped")
        for one, colour in zip(series, plots.SERIES, strict=False):
            axes[0].plot(rates, [p["output"] for p in one["points"]], "o-", color=colour, label=_name(one))
            axes[1].plot(rates, [p["dropped"] for p in one["points"]], "o--", color=colour, label=_name(one))
        axes[0].set_ylabel("output (results/s)")
        axes[0].set_ylim(0, 1.7 * max(p["output"] for one in series for p in one["points"]))
        axes[1].set_ylabel("dropped (tuples/s/stream)")
        most = max(1.0, *(p["dropped"] for one in series for p in one["points"]))
        axes[1].set_ylim(-0.04 * most, 1.5 * most)
        if not data["quick"]:
            _draw_published(axes)
        for place in axes:
            place.set_xlabel("input (tuples/s/stream)")
            place.set_xlim(left=0)
            place.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            place.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            place.legend(loc="upper left")
        plots.machine(axes[0], data)


def _draw_published(axes: Sequence[Axes]) -> None:
    """Mark the paper's highest rates without drops, and the output there."""
    from handshake_bench import plots

    for name, rate in CELL_RATES.items():
        plots.mark_published(axes[0], rate, outputs(rate, 900.0), "")
        plots.mark_published(axes[1], rate, 0.0, name, turned=True)
    axes[1].plot([], [], "*", color="black", label="published: no drops up to here (8 SPEs)")
    axes[0].plot([], [], "*", color="black", label="published rates without drops (8 SPEs)")
