"""Small pictures for a terminal: the first rows of a result, facts in two columns, a bar."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["Preview", "plain_table", "progress_bar"]

_ROWS, _CELL = 10, 28


class Preview:
    """Keeps the first rows of a result, and counts the rest."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._kept: list[pa.RecordBatch] = []
        self._rows = 0
        self._total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Look at one batch."""
        wanted = min(batch.num_rows, _ROWS - self._rows)
        if wanted:
            self._kept.append(batch.slice(0, wanted))
        self._rows += wanted
        self._total += batch.num_rows

    def lines(self) -> Iterator[str]:
        """The rows as an aligned table, ended by an empty line; nothing where there are none."""
        if not self._rows:
            return
        table = pa.Table.from_batches(self._kept, self._schema)
        columns = [
            [name, *map(_cell, _texts(table.column(at)))] for at, name in enumerate(table.column_names)
        ]
        right = [_is_number(kind) for kind in self._schema.types]
        yield from _aligned(columns, right, _width())
        if self._total > self._rows:
            yield f"… {self._total - self._rows:,} more"
        yield ""


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
        return [None if value is None else str(value) for value in column.to_pylist()]
    try:
        texts: list[str | None] = column.cast(pa.string()).to_pylist()
        return texts
    except pa.ArrowException:
        return [None if value is None else str(value) for value in column.to_pylist()]


def _cell(text: str | None) -> str:
    flat = "" if text is None else " ".join(text.split())
    return flat if len(flat) <= _CELL else flat[: _CELL - 1] + "…"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _width() -> int | None:
    """Characters in a line of the terminal; None where the output is not one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _aligned(columns: Sequence[Sequence[str]], right: Sequence[bool], width: int | None) -> Iterator[str]:
    """Pad cells to columns; leave out the last columns where a line would be too long."""
    sizes = [max(map(len, column)) for column in columns]
    shown = len(columns)
    while width is not None and shown > 1 and sum(sizes[:shown]) + 2 * shown + 2 > width:
        shown -= 1
    for row in zip(*columns[:shown], strict=True):
        cells = (
            cell.rjust(size) if numeric else cell.ljust(size)
            for cell, size, numeric in zip(row, sizes, right, strict=False)
        )
        yield ("  ".join(cells) + ("  …" if shown < len(columns) else "")).rstrip()


def plain_table(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Names and values in two columns.

    >>> list(plain_table([("left", "1 row"), ("results", "2")]))
    ['left     1 row', 'results  2']
    """
    pairs = list(facts)
    size = max(len(name) for name, _ in pairs)
    return (f"{name:<{size}}  {value}" for name, value in pairs)


class _Watching(Progress):
    """A bar that asks how far things are each time it is drawn, from its own thread."""

    def __init__(self, ask: Callable[[], tuple[int, int]]) -> None:
        self._ask = ask
        super().__init__(
            TextColumn("joining"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.completed:,} of {task.total:,} rows"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        done, total = self._ask()
        for task in self.tasks:
            self.update(task.id, completed=done, total=total)
        yield from super().get_renderables()


def progress_bar(ask: Callable[[], tuple[int, int]]) -> Progress:
    """A bar on standard error that follows `ask`, which gives rows done and rows in all."""
    bar = _Watching(ask)
    bar.add_task("join", total=ask()[1])
    return bar
