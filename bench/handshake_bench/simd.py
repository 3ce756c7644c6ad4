"""`handshake bench simd`: the effect of vectors (handshake join, figure 15).

The compiled scan beside the same scan compiled without vectors (`child.py`): comparisons per second, and the
rate that a handshake line sustains with full 15-minute windows.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from handshake.joins.plan import usable_cores
from handshake_bench import report
from handshake_bench.child import in_child
from handshake_bench.published import SIMD_GAIN
from handshake_bench.report import Data, Report
from handshake_bench.scan import INNER, OUTER, best_of, kernel_of, tuples
from handshake_bench.search import band_plan, highest, warm
from handshake_bench.workload import BAND

__all__ = ["kernel_figures", "run", "show", "sustained_rates"]

KERNELS = ("scalar", "vector")
_PACKED = re.compile(r"\bv?(?:p?cmp\w*p[sd]|pcmp\w+)\s")
"""Comparisons of several values at once, in x86 assembly."""


def run(quick: bool = False, out: str | None = None, source: str | None = None) -> None:
    """Measure, or take an earlier run's figures; give `kernel_gain` and `work_gain`."""
    data = report.load(source, "simd") if source else _measure(quick)
    report.publish("simd", data, show, _draw, out)


def _measure(quick: bool) -> Data:
    window, seconds = (20.0, 0.5) if quick else (900.0, 3.0)
    cores = sorted({1, usable_cores()})
    data: Data = {"benchmark": "simd", "machine": report.machine(), "quick": quick, "window": window}
    for kernel in KERNELS:
        scalar = kernel == "scalar"
        found = in_child("simd:kernel_figures", scalar=scalar, seconds=0.2 if quick else 2.0)
        rates = in_child("simd:sustained_rates", scalar=scalar, cores=cores, window=window, seconds=seconds)
        data[kernel] = {**found, "rates": rates}
    return data


def kernel_figures(seconds: float) -> Data:
    """Measure comparisons per second of the scan in this process; count its vector instructions."""
    kernel, call, _ = kernel_of(BAND, tuples(OUTER, 1, ("x", "y")), tuples(INNER, 2, ("a", "b")))
    rate = OUTER * INNER / best_of({"it": call}, seconds)["it"]
    packed = sum(len(_PACKED.findall(text)) for text in kernel.inspect_asm().values())
    return {"comparisons_per_s": rate, "packed_comparisons": packed, "results": call()}


def sustained_rates(cores: list[int], window: float, seconds: float) -> list[tuple[int, float]]:
    """Find the highest rate of a handshake line for each number of cores."""
    rates, guess = [], 700.0 * np.sqrt(900 / window)
    for count in cores:
        plan = band_plan("handshake", count, window)
        warm(plan, window)
        rate, samples = highest(plan, window, guess, seconds)
        rates.append((count, rate))
        guess = round(max(rate, samples[-1].rate / 2) * 1.35, -1)
    return rates


def show(page: Report, data: Data) -> None:
    """Show the figures, beside those that the paper states."""
    scalar, vector = (data[kernel] for kernel in KERNELS)
    if scalar["results"] != vector["results"]:
        raise AssertionError(f"the scans disagree: {scalar['results']} and {vector['results']} results")
    page.table(
        f"{OUTER:,} tuples against {INNER:,}, one core",
        ("kernel", "billion comparisons/s", "comparisons of several tuples in its code"),
        [
            (k, f"{data[k]['comparisons_per_s'] / 1e9:.2f}", str(data[k]["packed_comparisons"]))
            for k in KERNELS
        ],
    )
    gains = _gains(data)
    rows = [
        (f"{cores}", f"{slow:,.0f}", f"{fast:,.0f}", f"{gain:.1f}", f"> {SIMD_GAIN:.0f}")
        for (cores, slow), (_, fast), gain in zip(scalar["rates"], vector["rates"], gains, strict=True)
    ]
    heads = ("cores", "scalar, tuples/s/stream", "vector, tuples/s/stream", "gain in work", "published gain")
    page.table(f"handshake, windows of {data['window']:,.0f} s, sustained (figure 15)", heads, rows)
    page.say(
        "Work grows with the square of the rate. Published: 128-bit SIMD on Opteron (handshake join 5.3)."
    )
    page.result(
        kernel_gain=vector["comparisons_per_s"] / scalar["comparisons_per_s"],
        work_gain=gains[-1], cores=vector["rates"][-1][0],
        scalar_rate=round(scalar["rates"][-1][1]), vector_rate=round(vector["rates"][-1][1]),
    )  # fmt: skip


def _gains(data: Data) -> list[float]:
    pairs = zip(data["scalar"]["rates"], data["vector"]["rates"], strict=True)
    return [(fast / slow) ** 2 if slow else float("nan") for (_, slow), (_, fast) in pairs]


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    with plots.figure(folder / "simd.svg", 2, "Handshake join, figure 15: SIMD against scalar") as (_, axes):
        names = ("scalar", "vector")
        billions = [data[name]["comparisons_per_s"] / 1e9 for name in names]
        bars = axes[0].bar(
            names, billions, color=[plots.COLOURS["scalar"], plots.COLOURS["vector"]], width=0.6
        )
        axes[0].bar_label(bars, fmt="%.1f")
        axes[0].set_ylabel("comparisons (10⁹/s/core)")
        axes[0].set_title("the scan alone, one core")
        cores = [cores for cores, _ in data["vector"]["rates"]]
        for name in names:
            axes[1].plot(
                cores, [r for _, r in data[name]["rates"]], "o-", color=plots.COLOURS[name], label=name
            )
        axes[1].set_title(f"handshake, windows of {plots.length(data['window'])}")
        axes[1].set_xlabel("cores")
        axes[1].set_ylabel("sustained rate (tuples/s/stream)")
        axes[1].set_xticks(cores)
        plots.quadratic(axes[1])
        axes[1].legend(loc="center right")
        gains = " and ".join(f"{gain:.1f}" for gain in _gains(data))
        plots.caption(axes[1], f"gain in work: {gains} times; published: more than {SIMD_GAIN:.0f} times")
        plots.machine(axes[0], data)
