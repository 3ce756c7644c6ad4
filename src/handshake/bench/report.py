"""Tables and result lines, alike for all benchmarks."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

__all__ = ["machine", "result", "table"]


def machine() -> str:
    """What this ran on: a benchmark without that says nothing."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.split(":", 1)[1] for line in info.read_text().splitlines() if "model name" in line]
        model = named[0].strip() if named else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: first column text, the others numbers."""
    view = Table(title=title, title_justify="left", caption=machine(), caption_justify="left")
    for position, head in enumerate(heads):
        view.add_column(head, justify="left" if position == 0 else "right")
    for row in rows:
        view.add_row(*row)
    Console(width=max(100, Console().width)).print(view)


def result(**figures: float | str) -> None:
    """The last line of a benchmark, for scripts."""
    shown = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in figures.items())
    print("RESULT", *shown, flush=True)
