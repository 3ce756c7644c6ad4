"""`handshake bench work`: counted work of up to 64 simulated cores.

The engine's own code runs in one thread (`simulated.py`), without a clock. Comparisons and messages are
counted per core while full windows move on. Each core should have 1/N of both; the table marks cores that do
not. It also has comparisons weighted by cost (an index candidate costs more than a scanned pair) and the
tuples in the messages.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.join import prepare
from handshake_bench import report
from handshake_bench.options import parse_numbers
from handshake_bench.report import Data, Report
from handshake_bench.simulated import ARRANGEMENTS, COMPARISON, Counts, simulate
from handshake_bench.workload import BAND

__all__ = ["INPUTS", "count_work", "draw_shares", "figures", "measure", "run", "show", "show_shares"]

TICKS = 256
"""Ticks in a window; a batch of each stream comes every tick."""
BATCH = 8192
"""Tuples of a stream and tick, on average."""
WITHIN = 0.10
WHAT = ("comparisons", "messages", "work", "tuples")


@dataclass(frozen=True)
class Input:
    """Arrivals per tick, as shares of the average, and the distribution of values."""

    share: Callable[[int, int], float]
    """Share of a stream (0 or 1) in a tick."""
    method: str = "scan"
    skewed: bool = False
    load: float = 0.5
    """Load relative to evenly shared work; only the handshake line depends on it."""
    most: int = 64
    ticks: int = TICKS
    """The most simulated cores and ticks in a window: index probes are real, and slow to simulate."""


INPUTS = {
    "uniform": Input(lambda side, tick: 1.0),
    "bursty": Input(lambda side, tick: 3.25 if tick % 16 < 4 else 0.25),
    "uneven": Input(lambda side, tick: (1.5, 0.5)[side]),
    "pressed": Input(lambda side, tick: 1.0, load=0.9),
    "skewed": Input(lambda side, tick: 1.0, "band", True, most=8, ticks=32),
}
"""Uneven: R has three times the rate of S. Pressed: uniform, at 90 % of what the cores could do. Skewed: four
in five tuples have an x in 1 % of its range, which matters to the band index alone."""
_SCHEMAS = tuple(
    pa.schema([("ts", pa.timestamp("us")), (whole, pa.int32()), (real, pa.float32())])
    for whole, real in (("x", "y"), ("a", "b"))
)


def run(
    cores: str | None = None, quick: bool = False, out: str | None = None, source: str | None = None
) -> None:
    """Count, or take an earlier run's figures; give the largest share of a core, times N."""
    if source:
        data = report.load(source, "work")
    else:
        most = 4 if quick else 64
        counts = (
            parse_numbers(cores, "1,8,64", UnsupportedError)
            if cores is not None
            else [1 << k for k in range(most.bit_length())]
        )
        data = {"benchmark": "work", "machine": report.machine(), "quick": quick}
        data |= measure(counts, quick)
    report.publish("work", data, show, _draw, out)


def measure(counts: Sequence[int], quick: bool = False, deadline: float = math.inf) -> Data:
    """Count for each input, arrangement and number of cores; begin nothing after `deadline`."""
    ticks, batch = (64, 8192) if quick else (TICKS, BATCH)
    points = []
    for cores in counts:
        for name in INPUTS:
            for arrangement in ARRANGEMENTS:
                if cores > INPUTS[name].most or time.perf_counter() > deadline:
                    continue
                found = count_work(arrangement, cores, name, ticks, batch)
                points.append({"input": name, "arrangement": arrangement, "cores": cores, **_spread(found)})
                report.progress(f"{name}, {arrangement}, cores: {cores}")
    return {"counts": list(counts), "ticks": ticks, "batch": batch, "points": points}


def _spread(found: Counts) -> Data:
    return {
        what: {"mean": sum(values) / len(values), "shares": _shares(values)}
        for what, values in ((what, getattr(found, what)) for what in WHAT)
    }


def _shares(values: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest share, times the number of cores."""
    mean = sum(values) / len(values)
    return (min(values) / mean, max(values) / mean) if mean else (math.nan, math.nan)


def count_work(arrangement: str, cores: int, name: str, ticks: int, batch: int) -> Counts:
    """Count the work of each core in half a window, after a quarter of a window with full windows."""
    kind = INPUTS[name]
    ticks = min(ticks, kind.ticks)
    spec = prepare(
        _SCHEMAS[0],
        _SCHEMAS[1],
        BAND,
        f"{ticks} ms",
        time="ts",
        method=kind.method,
        algorithm=arrangement,
        cores=cores,
    ).spec
    line, random = simulate(arrangement, spec, cores), np.random.default_rng(5)
    pace = 2 * batch * batch * ticks * COMPARISON / cores / kind.load
    before = line.counts()
    for tick in range(ticks + 3 * ticks // 4):
        for side in (0, 1):
            tuples = _tuples(kind, side, tick, batch, random)
            if tick < ticks:
                line.fill(side, tuples)
            else:
                line.push(side, tuples, (tick - ticks) * pace)
        if tick == ticks + ticks // 4 - 1:
            before = line.counts()
    return line.counts().since(before)


def _tuples(kind: Input, side: int, tick: int, batch: int, random: np.random.Generator) -> pa.RecordBatch:
    rows = int(batch * kind.share(side, tick))
    times = tick * 1000 + np.arange(rows) * 1000 // rows
    whole = random.integers(1, 10_001, rows)
    if kind.skewed:
        whole = np.where(random.random(rows) < 0.8, 5000 + whole // 100, whole)
    real = random.uniform(1, 10_000, rows).astype(np.float32)
    arrays: list[Any] = [
        pa.array(times).view(pa.timestamp("us")),
        pa.array(whole.astype(np.int32)),
        pa.array(real),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMAS[side])


def show(page: Report, data: Data) -> None:
    """Show the figures."""
    show_shares(page, data)
    page.result(**figures(data))


def figures(data: Data) -> dict[str, float | str]:
    """Return the largest share of any core, times N, by arrangement."""
    found: dict[str, float | str] = {"cores": max(data["counts"])}
    for arrangement in ARRANGEMENTS:
        mine = [p for p in data["points"] if p["arrangement"] == arrangement]
        for what in ("comparisons", "messages"):
            found[f"{arrangement}_{what}"] = max((p[what]["shares"][1] for p in mine), default=math.nan)
    return found


def show_shares(page: Report, data: Data) -> None:
    """Show the least and the largest share of a core, times N, per input and arrangement."""
    heads = (
        "input, arrangement, cores",
        "comparisons/core",
        "comparisons",
        "messages",
        "(weighted)",
        "(tuples)",
    )
    rows = [
        (
            f"{p['input']}, {p['arrangement']}, {p['cores']}",
            f"{p['comparisons']['mean']:.3g}",
            *(_cell(p[what]["shares"]) for what in WHAT),
        )
        for p in sorted(
            data["points"], key=lambda p: (list(INPUTS).index(p["input"]), p["arrangement"], p["cores"])
        )
    ]
    title = f"least and largest share of a core, times N; windows of {data['ticks'] * data['batch']:,} tuples"
    page.table(title, heads, rows)
    page.say(
        f"! more than {WITHIN:.0%} away from 1/N. Skewed: by the band index; others by scan, where values"
    )
    page.say("do not matter. Skewed up to 8 cores. Cores run at 50 % of what they could do, pressed at 90 %.")
    off = [p for p in data["points"] if any(_off(p[what]["shares"]) for what in ("comparisons", "messages"))]
    page.say(f"Comparisons or messages beyond that in {len(off)} of {len(data['points'])} cases.")


def _cell(shares: tuple[float, float]) -> str:
    least, most = shares
    return f"{least:.2f} {most:.2f}{' !' if _off(shares) else '  '}"


def _off(shares: tuple[float, float]) -> bool:
    least, most = shares
    return most > 1 + WITHIN or least < 1 - WITHIN


def _draw(data: Data, folder: Path) -> None:
    draw_shares(data, folder / "work.svg")


def draw_shares(data: Data, path: Path) -> None:
    """Draw the largest share of a core, times N, against N."""
    from handshake_bench import plots

    title = "Work per core, counted: largest share of a core, times the number of cores"
    with plots.figure(path, len(ARRANGEMENTS), title) as (_, axes):
        for place, arrangement in zip(axes, ARRANGEMENTS, strict=True):
            for name in INPUTS:
                line = [p for p in data["points"] if (p["input"], p["arrangement"]) == (name, arrangement)]
                counts = [p["cores"] for p in line]
                colour = plots.COLOURS[name]
                place.plot(
                    counts, [p["comparisons"]["shares"][1] for p in line], "o-", color=colour, label=name
                )
                place.plot(counts, [p["messages"]["shares"][1] for p in line], "x:", color=colour)
            place.axhspan(1 - WITHIN, 1 + WITHIN, color="#000000", alpha=0.07)
            place.set_title(arrangement)
            place.set_xscale("log", base=2)
            place.set_xticks(data["counts"], [str(c) for c in data["counts"]])
            place.set_xlabel("simulated cores, N")
            place.set_ylim(0.8, max(1.5, min(4.0, place.get_ylim()[1])))
        axes[0].set_ylabel("N times the largest share")
        axes[0].legend(
            loc="upper left",
            title="solid: comparisons, dotted: messages; grey: within 10 % of 1/N",
            fontsize=8,
            title_fontsize=8,
        )
        plots.machine(axes[0], data)
