"""`handshake bench windows`: time per tuple against the size of basic windows (CellJoin, figure 13)."""

from __future__ import annotations

from pathlib import Path

from handshake.joins.arrangements.cell.cost import UNIT_BLOCK
from handshake.joins.plan import usable_cores
from handshake_bench import report
from handshake_bench.published import CELL_SUBOPTIMAL
from handshake_bench.report import Data, Report
from handshake_bench.tuple_time import ROW_BYTES, TupleTime, chosen_rows

__all__ = ["run", "show"]

_BLOCKS = 16
"""Unit blocks in a batch: 256 tuples."""


def run(quick: bool = False, out: str | None = None, source: str | None = None) -> None:
    """Measure, or take an earlier run's figures; give what the cost model's choice costs over the best."""
    data = report.load(source, "windows") if source else _measure(quick)
    report.publish("windows", data, show, _draw, out)


def _measure(quick: bool) -> Data:
    windows = (10.0, 40.0) if quick else (60.0, 300.0, 900.0)
    sizes = [1 << n for n in (range(9, 14, 2) if quick else range(8, 18))]
    series = []
    for window in windows:
        measure, points = TupleTime(window, 0.05 if quick else 0.6), []
        for rows in sizes:
            points.append((rows * ROW_BYTES, measure.measure(_BLOCKS, rows) * 1e6))
            report.progress(f"windows of {window:g} s, basic windows of {rows}: {points[-1][1]:.1f} us")
        chosen = chosen_rows(window, _BLOCKS * UNIT_BLOCK)
        at_choice = measure.measure(_BLOCKS, chosen) * 1e6
        series.append(
            {"window": window, "points": points, "chosen": chosen * ROW_BYTES, "at_choice": at_choice}
        )
    head = {"benchmark": "windows", "machine": report.machine(), "quick": quick}
    return {**head, "cores": usable_cores(), "series": series}


def _excess(one: Data) -> float:
    return float(one["at_choice"] / min(time for _, time in one["points"]))


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    series = data["series"]
    heads = ("basic window, bytes (tuples)", *(f"{one['window']:g} s window, us/tuple" for one in series))
    rows = [
        (f"{size:,} ({size // ROW_BYTES:,})", *(_mark_least(one, n) for one in series))
        for n, (size, _) in enumerate(series[0]["points"])
    ]
    chosen = [f"{one['at_choice']:.2f} ({one['chosen']:,} bytes)" for one in series]
    rows.append(("chosen by the cost model", *chosen))
    page.table(
        f"cell, cores: {data['cores']}, batches of {_BLOCKS * UNIT_BLOCK} tuples (figure 13)", heads, rows
    )
    page.say("* the least. Published: longer windows want larger basic windows.")
    excess = " / ".join(f"{_excess(one) - 1:.0%}" for one in series)
    page.beside([("cost of a size that is not the best", excess, f"up to {CELL_SUBOPTIMAL - 1:.0%}")])
    page.say("Here: the size that the cost model chooses, for each window. Published: of 128 bytes to 16 KB.")
    figures = {f"choice_vs_best_{one['window']:g}s": _excess(one) for one in series}
    page.result(cores=data["cores"], **figures)


def _mark_least(one: Data, n: int) -> str:
    time = one["points"][n][1]
    return f"{time:.2f} *" if time == min(t for _, t in one["points"]) else f"{time:.2f}"


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = "CellJoin, figure 13: time per tuple against the size of basic windows"
    with plots.figure(folder / "windows.svg", 1, title) as (_, (axes,)):
        for one, colour in zip(data["series"], plots.SERIES, strict=False):
            sizes, times = zip(*one["points"], strict=True)
            axes.plot(sizes, times, "o-", color=colour, label=f"windows of {plots.length(one['window'])}")
            axes.plot([one["chosen"]], [one["at_choice"]], "D", color=colour, markersize=9, fillstyle="none")
        best = [min(one["points"], key=lambda point: point[1]) for one in data["series"]]
        axes.plot(
            *zip(*best, strict=True), ":", color="#777777", label="least time (as the paper connects them)"
        )
        axes.plot(
            [], [], "D", color="#777777", markersize=9, fillstyle="none", label="the cost model's choice"
        )
        axes.axvspan(128, 16384, color="#000000", alpha=0.05, label="sizes that the paper's DMA allows")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(left=1024)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1024:g} KB")
        plots.plain_logarithmic(axes.yaxis)
        axes.set_xlabel("basic window (join attributes)")
        axes.set_ylabel(f"time per tuple (µs), {data['cores']} cores")
        axes.set_ylim(top=axes.get_ylim()[1] * 2)  # room for the legend
        axes.legend(loc="upper center", fontsize=8, ncols=2)
        plots.machine(axes, data)
