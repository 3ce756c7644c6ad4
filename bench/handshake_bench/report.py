"""Output of all benchmarks: tables, result lines, and files with text, figures and plots."""

from __future__ import annotations

import io
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from handshake.errors import InputError

__all__ = ["Data", "Report", "load", "machine", "progress", "publish", "result", "table"]

Data = dict[str, Any]
"""Figures of a benchmark as JSON values, from which tables and plots can be made later."""


def machine() -> str:
    """Describe the processor, the number of cores and the Python version."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.split(":", 1)[1] for line in info.read_text().splitlines() if "model name" in line]
        model = named[0].strip() if named else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def progress(text: str) -> None:
    """Print the progress of a long measurement to standard error."""
    print(f"  {text}", file=sys.stderr, flush=True)


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: first column text, the others numbers."""
    Console(width=max(100, Console().width)).print(_table(title, heads, rows, machine()))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Table:
    view = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for position, head in enumerate(heads):
        view.add_column(head, justify="left" if position == 0 else "right")
    for row in rows:
        view.add_row(*row)
    return view


def result(**figures: float | str) -> None:
    """Print the last line of a benchmark, which scripts read."""
    print(_result(figures), flush=True)


def _result(figures: dict[str, float | str]) -> str:
    shown = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in figures.items())
    return " ".join(("RESULT", *shown))


@dataclass
class Report:
    """Text that a benchmark prints and stores."""

    caption: str
    text: list[str] = field(default_factory=list)

    def table(self, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table: the first column is text, the others are numbers."""
        page = io.StringIO()
        Console(file=page, width=120).print(_table(title, heads, list(rows), self.caption))
        self.say("\n".join(line.rstrip() for line in page.getvalue().splitlines()))

    def beside(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Add a table of figures beside those that the text of a paper states."""
        self.table("Beside the figures that the paper states", ("figure", "here", "published"), rows)

    def say(self, text: str) -> None:
        """Print and store some lines of text."""
        print(text, flush=True)
        self.text.append(text)

    def result(self, **figures: float | str) -> None:
        """Store the last line, which scripts read."""
        self.text.append(_result(figures))


Show = Callable[[Report, Data], None]
Draw = Callable[[Data, Path], None]


def publish(name: str, data: Data, show: Show, draw: Draw | None, out: str | None) -> None:
    """Show the figures; if `out` is a folder, also write text, JSON and, with matplotlib, a plot."""
    report = Report(data["machine"])
    show(report, data)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text("\n".join(report.text) + "\n")
        (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
        if draw is None:
            pass
        elif find_spec("matplotlib") is not None:
            draw(data, folder)
        else:
            print(f"no plot without matplotlib: handshake bench {name} --from {folder / name}.json --out .")
    print(report.text[-1], flush=True)


def load(path: str, name: str) -> Data:
    """Load the figures of an earlier run of a benchmark."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read '{path}' as JSON of an earlier run: {error}") from None
    kind = dict(data).get("benchmark") if isinstance(data, dict) else None
    if kind != name:
        raise InputError(
            f"'{path}' is from benchmark {kind!r}, not '{name}'; give the {name}.json that --out wrote"
        )
    found: Data = data
    return found
