"""`handshake bench scaling`: rates (figure 16) and counted work on many cores, in limited time.

Needs only the package itself: figures are stored as JSON, and plots can be drawn from it on another machine.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

from handshake_bench import report, throughput, work
from handshake_bench.report import Data, Report

__all__ = ["run", "show"]

_FOR_COUNTS = 0.2
"""Share of the time reserved for the counts."""
_LAST_COUNT = 30.0
"""Seconds for a count that begins just before the end."""


def run(
    cores: str | None = None, minutes: float = 8.0, quick: bool = False,
    out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure, or take an earlier run's figures; give rates and speed-ups on most cores."""
    data = report.load(source, "scaling") if source else _measure(cores, 60 * minutes, quick)
    report.publish("scaling", data, show, _draw, out)


def _measure(cores: str | None, seconds: float, quick: bool) -> Data:
    start, counts = time.perf_counter(), throughput.core_counts(cores)
    data: Data = {"benchmark": "scaling", "machine": report.machine(), "quick": quick}
    data["throughput"] = throughput.measure(
        counts, seconds=0.5 if quick else 2.0, scale=1 / 60 if quick else 1.0,
        deadline=start + (1 - _FOR_COUNTS) * seconds - _last_search(counts),
    )  # fmt: skip
    data["work"] = work.measure(counts, quick=True, deadline=start + seconds - _LAST_COUNT)
    data["seconds"] = time.perf_counter() - start
    return data


def _last_search(counts: list[int]) -> float:
    """Estimate the seconds of a search that begins just before the deadline; most of it fills windows."""
    return 10.0 + 2.0 * math.sqrt(counts[-1])


def show(page: Report, data: Data) -> None:
    """Show the figures."""
    throughput.show_rates(page, data["throughput"])
    work.show_shares(page, data["work"])
    page.say(f"Took {data['seconds']:.0f} s.")
    page.result(**throughput.figures(data["throughput"]), **_shares(data["work"]))


def _shares(data: Data) -> dict[str, float | str]:
    return {f"work_{name}": value for name, value in work.figures(data).items() if name != "cores"}


def _draw(data: Data, folder: Path) -> None:
    head = {"machine": data["machine"], "quick": data["quick"]}
    throughput.draw_rates({**data["throughput"], **head}, folder / "scaling.svg")
    work.draw_shares({**data["work"], **head}, folder / "scaling_work.svg")
