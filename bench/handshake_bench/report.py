"""Tables and result lines, alike for all benchmarks; with a folder, text, figures and pictures kept there."""

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
"""What a benchmark measured, as JSON has it: pictures and tables can be made of it later, elsewhere."""


def machine() -> str:
    """What this ran on: a benchmark without that says nothing."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        named = [line.split(":", 1)[1] for line in info.read_text().splitlines() if "model name" in line]
        model = named[0].strip() if named else model
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def progress(text: str) -> None:
    """What a long measurement is at; not on standard output, where its table will be."""
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
    """The last line of a benchmark, for scripts."""
    print(_result(figures), flush=True)


def _result(figures: dict[str, float | str]) -> str:
    shown = (f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in figures.items())
    return " ".join(("RESULT", *shown))


@dataclass
class Report:
    """What a benchmark shows, printed and remembered."""

    caption: str
    text: list[str] = field(default_factory=list)

    def table(self, title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table: first column text, the others numbers."""
        page = io.StringIO()
        Console(file=page, width=120).print(_table(title, heads, list(rows), self.caption))
        self.say("\n".join(line.rstrip() for line in page.getvalue().splitlines()))

    def say(self, text: str) -> None:
        """Some lines."""
        print(text, flush=True)
        self.text.append(text)

    def result(self, **figures: float | str) -> None:
        """The last line, for scripts."""
        self.text.append(_result(figures))


Show = Callable[[Report, Data], None]
Draw = Callable[[Data, Path], None]


def publish(name: str, data: Data, show: Show, draw: Draw, out: str | None) -> None:
    """Show what was measured; with a folder, keep it there as text, JSON and, where possible, a picture."""
    report = Report(data["machine"])
    show(report, data)
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text("\n".join(report.text) + "\n")
        (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
        if find_spec("matplotlib") is not None:
            draw(data, folder)
        else:
            print(
                f"no picture without matplotlib: handshake bench {name} --from {folder / name}.json --out ."
            )
    print(report.text[-1], flush=True)


def load(path: str, name: str) -> Data:
    """What an earlier run of a benchmark has kept."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read '{path}', which should be JSON of an earlier run: {error}") from None
    kind = dict(data).get("benchmark") if isinstance(data, dict) else None
    if kind != name:
        raise InputError(
            f"'{path}' is not of 'bench {name}' but of {kind!r}; give the {name}.json that --out has written"
        )
    found: Data = data
    return found
