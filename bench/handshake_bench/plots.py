"""Plots in one style, reproducible byte by byte: no dates and no random names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "caption",
    "figure",
    "length",
    "machine",
    "mark_published",
    "plain_logarithmic",
    "quadratic",
]

COLOURS = {
    "scalar": "#d55e00", "vector": "#0072b2",
    "cell": "#e69f00", "handshake": "#0072b2", "low_latency": "#009e73", "three_step": "#777777",
    "uniform": "#0072b2", "bursty": "#d55e00", "uneven": "#cc79a7", "skewed": "#009e73", "pressed": "#777777",
    "published": "#000000",
}  # fmt: skip
"""Colours of Okabe and Ito, which are distinct for any colour vision."""
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_STYLE: Any = {
    "svg.hashsalt": "handshake", "svg.fonttype": "path", "font.size": 10.0, "axes.titlesize": 10.5,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "legend.framealpha": 0.85, "legend.edgecolor": "none", "axes.axisbelow": True,
    "figure.titlesize": 11.5, "lines.markersize": 5.0,
}  # fmt: skip


@contextlib.contextmanager
def figure(path: Path, columns: int, title: str) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    """Create a row of axes; write the figure to `path` (.svg or .png) at the end."""
    with plt.rc_context(_STYLE):
        view, axes = plt.subplots(
            1,
            columns,
            figsize=(5.2 * columns + 1.8 * (columns == 1), 4.2),
            layout="constrained",
            squeeze=False,
        )
        view.suptitle(title)
        yield view, list(axes[0])
        view.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
        plt.close(view)


def quadratic(axes: Axes) -> None:
    """Scale the y-axis quadratically: work grows with the square of the rate."""
    axes.set_yscale("function", functions=(np.square, lambda y: np.sqrt(np.maximum(y, 0))))
    axes.set_ylim(bottom=0)
    top = axes.get_ylim()[1]
    step = next(s for s in _steps() if top / s <= 6)
    ticks = np.arange(0, top + step / 2, step)
    axes.set_yticks(ticks[(ticks == 0) | (ticks >= 0.3 * top)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _steps() -> Iterator[float]:
    size = 1.0
    while True:
        yield from (size, 2 * size, 5 * size)
        size *= 10


def mark_published(axes: Axes, x: float, y: float, text: str, turned: bool = False) -> None:
    """Mark a point that a paper states."""
    axes.plot([x], [y], marker="*", markersize=11, color=COLOURS["published"], linestyle="none")
    axes.annotate(
        text,
        (x, y),
        textcoords="offset points",
        xytext=(2, 8) if turned else (8, -3),
        fontsize=8,
        rotation=60 if turned else 0,
        color=COLOURS["published"],
    )


def plain_logarithmic(axis: Axis) -> None:
    """Format the numbers of a logarithmic axis without exponents."""
    axis.set_major_formatter(lambda value, _: f"{value:,.15g}")
    axis.set_minor_formatter(lambda value, _: f"{value:,.15g}" if f"{value:.0e}"[0] in "25" else "")


def caption(axes: Axes, text: str) -> None:
    """Write small print above the plot area."""
    axes.text(0.5, 1.0, text, transform=axes.transAxes, ha="center", va="bottom", fontsize=8)
    axes.set_title(axes.get_title(), pad=18)


def machine(axes: Axes, data: dict[str, Any]) -> None:
    """Write the machine below the plot."""
    short = " (short run)" if data.get("quick") else ""
    axes.figure.supxlabel(f"{data['machine']}{short}", fontsize=8, color="#555555")


def length(seconds: float) -> str:
    """Format the length of a window."""
    if seconds < 60:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} minute{'s' * (seconds != 60)}"
