"""`handshake bench batches`: time per tuple against the largest batch (CellJoin, figure 12)."""

from __future__ import annotations

from pathlib import Path

from handshake.joins.arrangements.cell.cost import UNIT_BLOCK
from handshake.joins.plan import usable_cores
from handshake_bench import report
from handshake_bench.published import CELL_BATCH_BYTES
from handshake_bench.report import Data, Report
from handshake_bench.tuple_time import ROW_BYTES, TupleTime

__all__ = ["run", "show"]

_BYTES = UNIT_BLOCK * ROW_BYTES


def run(quick: bool = False, out: str | None = None, source: str | None = None) -> None:
    """Measure, or take an earlier run's figures; give the bytes from which batches bring little."""
    data = report.load(source, "batches") if source else _measure(quick)
    report.publish("batches", data, show, _draw, out)


def _measure(quick: bool) -> Data:
    windows = (5.0, 20.0) if quick else (60.0, 300.0, 900.0)
    blocks = (1, 8, 64) if quick else (1, 2, 4, 8, 16, 32, 64, 128)
    series = []
    for window in windows:
        measure, points = TupleTime(window, 0.05 if quick else 0.7), []
        for block in blocks:
            points.append((block * _BYTES, measure.measure(block) * 1e6))
            report.progress(
                f"windows of {window:g} s, batches of {points[-1][0]} bytes: {points[-1][1]:.1f} us"
            )
        series.append({"window": window, "points": points})
    head = {"benchmark": "batches", "machine": report.machine(), "quick": quick}
    return {**head, "cores": usable_cores(), "series": series}


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    series = data["series"]
    heads = ("largest batch, bytes (tuples)", *(f"{one['window']:g} s window, us/tuple" for one in series))
    rows = [
        (f"{size:,} ({size // ROW_BYTES:,})", *(f"{one['points'][n][1]:.2f}" for one in series))
        for n, (size, _) in enumerate(series[0]["points"])
    ]
    page.table(f"cell, cores: {data['cores']}, 500 tuples/s/stream (figure 12)", heads, rows)
    flat = max(_flat(one["points"]) for one in series)
    page.beside([("size beyond which batches gain little, bytes", f"{flat:,}", f"{CELL_BATCH_BYTES:,}")])
    page.say(
        "A unit block has 16 tuples here, 4 there; a core is given a batch by a thread here, by DMA there."
    )
    first, last = (series[-1]["points"][n][1] for n in (0, -1))
    page.result(
        flat_from_bytes=flat, published_bytes=CELL_BATCH_BYTES, gain=first / last, cores=data["cores"]
    )


def _flat(points: list[tuple[int, float]]) -> int:
    """Return the smallest size that is at most a quarter slower than the best."""
    best = min(time for _, time in points)
    return next(size for size, time in points if time <= 1.25 * best)


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = "CellJoin, figure 12: time per tuple against the largest batch"
    with plots.figure(folder / "batches.svg", 1, title) as (_, (axes,)):
        for one, colour in zip(data["series"], plots.SERIES, strict=False):
            sizes, times = zip(*one["points"], strict=True)
            axes.plot(sizes, times, "o-", color=colour, label=f"windows of {plots.length(one['window'])}")
        axes.axvline(CELL_BATCH_BYTES, color="black", linestyle=":")
        axes.text(
            CELL_BATCH_BYTES * 1.08, 0.98, "published: flat from here on", va="top", fontsize=8,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        plots.plain_logarithmic(axes.yaxis)
        axes.set_xlabel("largest batch (bytes of join attributes)")
        axes.set_ylabel(f"time per tuple (µs), {data['cores']} cores")
        axes.legend(loc="upper right", bbox_to_anchor=(1.0, 0.93))
        plots.machine(axes, data)
