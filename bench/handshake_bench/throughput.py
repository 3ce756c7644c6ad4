"""`handshake bench throughput`: sustained rates against the number of cores (handshake join, figure 16).

Windows of 10 and 15 minutes, scans, and three arrangements.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from handshake.errors import UnsupportedError
from handshake.joins.plan import usable_cores
from handshake_bench import report
from handshake_bench.options import parse_numbers
from handshake_bench.published import POINTS
from handshake_bench.report import Data, Report
from handshake_bench.search import band_plan, highest, warm

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ARRANGEMENTS", "core_counts", "draw_rates", "figures", "measure", "run", "show", "show_rates"]

ARRANGEMENTS = ("handshake", "low_latency", "cell")
_MINUTES = (15, 10)


def run(
    cores: str | None = None, quick: bool = False, out: str | None = None, source: str | None = None
) -> None:
    """Measure, or take an earlier run's figures; give the rate of each arrangement on most cores."""
    if source:
        data = report.load(source, "throughput")
    else:
        data = {"benchmark": "throughput", "machine": report.machine(), "quick": quick}
        data |= measure(core_counts(cores), seconds=0.5 if quick else 3.0, scale=1 / 60 if quick else 1.0)
    report.publish("throughput", data, show, _draw, out)


def core_counts(text: str | None) -> list[int]:
    """Parse numbers of cores such as '1,2,4'; by default powers of two up to all cores."""
    most = usable_cores()
    if text is None:
        return sorted({2**k for k in range(most.bit_length()) if 2**k <= most} | {most})
    counts = parse_numbers(text, "1,2,4", UnsupportedError)
    if counts[-1] > most:
        raise UnsupportedError(f"{counts[-1]} cores cannot be measured: this process may use {most}")
    return counts


def measure(counts: list[int], seconds: float, scale: float = 1.0, deadline: float = math.inf) -> Data:
    """Find the highest rate for each window, arrangement and number of cores, as far as time allows.

    A search begins at an estimate from the last one: rates grow with the square root of the cores and
    fall with that of the window. After `deadline`, a value of `perf_counter`, no new search begins.
    """
    points, skipped = [], []
    rates: dict[str, float] = {}
    for minutes in _MINUTES:
        window = 60.0 * minutes * scale
        warm(band_plan("handshake", counts[0], window), window)
        for cores in counts:
            for algorithm in ARRANGEMENTS:
                if time.perf_counter() > deadline:
                    skipped.append((minutes, algorithm, cores))
                    continue
                guess = rates.get(algorithm, 2000.0 / math.sqrt(counts[0])) * math.sqrt(cores * 900 / window)
                plan = band_plan(algorithm, cores, window)
                rate, samples = highest(plan, window, round(guess, -1), seconds, _tries(deadline))
                last = samples[-1]
                points.append(
                    {"minutes": minutes, "algorithm": algorithm, "cores": cores, "rate": rate,
                     "samples": [(s.rate, s.load) for s in samples]}
                )  # fmt: skip
                rates[algorithm] = last.rate / math.sqrt(max(last.load, 0.05) * cores * 900 / window)
    return {"counts": counts, "scale": scale, "points": points, "skipped": skipped}


def _tries(deadline: float) -> int:
    left = deadline - time.perf_counter()
    return 4 if left > 240 else 3 if left > 120 else 2


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    show_rates(page, data)
    page.result(**figures(data))


def figures(data: Data) -> dict[str, float | str]:
    """Return rates and gains in work on most cores, 15-minute windows."""
    most = data["counts"][-1]
    found: dict[str, float | str] = {"cores": most}
    for point in data["points"]:
        if point["minutes"] == 15 and point["cores"] == most:
            found[f"{point['algorithm']}_15min"] = round(point["rate"])
            found[f"{point['algorithm']}_speedup"] = _speedup(data, point)
    return found


def _speedup(data: Data, point: Data) -> float:
    """Return work per second relative to the same arrangement on the fewest cores."""
    same = [
        p for p in data["points"] if (p["minutes"], p["algorithm"]) == (point["minutes"], point["algorithm"])
    ]
    base: float = same[0]["rate"]
    return (point["rate"] / base) ** 2 if base else math.nan


def show_rates(page: Report, data: Data) -> None:
    """Show the table with the published rates."""
    heads = (
        "window, cores",
        *ARRANGEMENTS,
        "published",
        "work, times that on fewest cores",
    )
    rows = []
    for minutes in _MINUTES:
        stated = [p.cores for p in POINTS if p.minutes == minutes]
        for cores in sorted({*data["counts"], *stated}):
            found = {
                p["algorithm"]: p for p in data["points"] if p["minutes"] == minutes and p["cores"] == cores
            }
            rates = [f"{found[a]['rate']:,.0f}" if a in found else "-" for a in ARRANGEMENTS]
            gains = " / ".join(f"{_speedup(data, found[a]):.2f}" if a in found else "-" for a in ARRANGEMENTS)
            rows.append((f"{minutes} min, {cores}", *rates, _published_rates(minutes, cores), gains))
    page.table("highest sustained rate by scan, tuples/s/stream (figure 16)", heads, rows)
    if data["scale"] != 1:
        page.say(f"A short run: windows are scaled by {data['scale']:.3g}; rates are not comparable.")
    page.say(f"Published: {' / '.join(p.system for p in POINTS)}.")
    if data["skipped"]:
        left_out = (f"{minutes} min, {name}, {cores}" for minutes, name, cores in data["skipped"])
        page.say(f"No time was left for these windows, arrangements and cores: {'; '.join(left_out)}.")


def _published_rates(minutes: int, cores: int) -> str:
    stated = [f"{p.rate:,.0f}" for p in POINTS if (p.minutes, p.cores) == (minutes, cores)]
    return " / ".join(stated) or "-"


def _draw(data: Data, folder: Path) -> None:
    draw_rates(data, folder / "throughput.svg")


def draw_rates(data: Data, path: Path) -> None:
    """Draw rates against cores, and the published points."""
    from handshake_bench import plots

    with plots.figure(path, 2, "Handshake join, figure 16: throughput against cores, by scan") as (_, axes):
        for place, minutes in zip(axes, _MINUTES, strict=True):
            _lines(place, data, minutes)
            place.set_title(f"windows of {plots.length(60 * minutes * data['scale'])}")
        plots.machine(axes[0], data)


def _lines(axes: Axes, data: Data, minutes: int) -> None:
    from handshake_bench import plots

    for algorithm in ARRANGEMENTS:
        line = [p for p in data["points"] if (p["minutes"], p["algorithm"]) == (minutes, algorithm)]
        places, rates = [p["cores"] for p in line], [p["rate"] for p in line]
        axes.plot(places, rates, "o-", color=plots.COLOURS[algorithm], label=algorithm)
    published = [p for p in POINTS if p.minutes == minutes] if data["scale"] == 1 else []
    for point in published:  # they are close together, so they share a label
        plots.mark_published(axes, point.cores, point.rate, "")
    if published:
        top = max(published, key=lambda p: p.rate)
        label = "\n".join(("published:", *(f"{p.system}: {p.rate:,.0f}" for p in published)))
        axes.annotate(
            label, (top.cores, top.rate), textcoords="offset points", xytext=(9, -2), va="bottom", fontsize=8,
            color=plots.COLOURS["published"],
        )  # fmt: skip
    axes.set_xlabel("cores")
    axes.set_ylabel("sustained rate (tuples/s/stream), quadratic scale")
    stated = [p.cores for p in POINTS if p.minutes == minutes and data["scale"] == 1]
    axes.set_xlim(0, max([*data["counts"], *stated]) * 1.08 + 0.5 + 4 * bool(stated))
    axes.set_xticks(sorted({*data["counts"], *stated}))
    plots.quadratic(axes)
    axes.legend(loc="best")
