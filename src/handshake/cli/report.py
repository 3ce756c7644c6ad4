"""The common part of all commands: texts, and the delivery of results, summaries and metrics."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from handshake.cli.errors import INTERRUPTED
from handshake.cli.live_page import hold, showing
from handshake.engines.engine import Run, plain_table
from handshake.errors import HandshakeError, InputError, format_count
from handshake.io import check_output, sink_for
from handshake.io.declared import BAD, BadRows
from handshake.io.files import is_number
from handshake.io.sinks import whole_file
from handshake.joins.replay import spare_old_objects

if TYPE_CHECKING:
    from handshake.page.live import Page

_ROWS, _CELL = 10, 28
_EVERY = 1.0
"""Seconds between two lines of progress."""


def read_text(path: str) -> str:
    """Read a query from a file; `-` is standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise InputError(f"query '{path}' is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"query '{path}' cannot be read: {error.strerror or error}") from None


def write_text(path: str, text: str) -> None:
    """Write a text file; `-` is standard output."""
    if path == "-":
        print(text, end="")
        return
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise InputError(f"'{path}' cannot be written: {error.strerror}") from None


# Results


@dataclass(frozen=True)
class Delivery:
    """The targets of a run's results, metrics and bad rows. All commands and engines deliver by it."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    """The file of each result by name; without any, the first rows of all results are shown."""
    metrics: str | None = None
    bad: BadRows | None = None
    bad_file: str | None = None
    named: bool = False
    """Whether the names of results stand above their first rows."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Files and folders that are read, by the words for them. No output replaces one."""

    def check(self) -> None:
        """Raise `InputError` if something cannot be written; call it before anything runs."""
        targets = {name if self.named else "--output": path for name, path in self.outputs.items()}
        if self.bad_file is not None:
            targets["--bad"] = self.bad_file
        for path in targets.values():
            check_output(path)
        if list(targets.values()).count("-") > 1:
            raise HandshakeError("only one result can go to standard output; give each other one a file")
        files = {name: path for name, path in targets.items() if path != "-"}
        if self.metrics is not None:
            files["--metrics"] = self.metrics
        taken: dict[Path, str] = {}
        for name, path in files.items():
            first = taken.setdefault(Path(path).resolve(), name)
            if first != name:
                raise HandshakeError(f"{first} and {name} both go to '{path}'; give each a file of its own")
            self._check_inputs(name, path)
        if self.metrics is not None:
            _check_metrics(Path(self.metrics))

    def _check_inputs(self, name: str, path: str) -> None:
        """Refuse an output that replaces an input, or a file of an input folder."""
        target = Path(path).resolve()
        for what, given in self.inputs.items():
            read = Path(given).resolve()
            if given != "-" and (target == read or (target.parent == read and target.exists())):
                raise HandshakeError(f"{name} would replace {what}, '{path}'; give it another file")

    @property
    def interrupted(self) -> str:
        """The message after Ctrl-C."""
        files = [path for path in self.outputs.values() if path != "-"]
        return f"interrupted; '{files[0]}' was not written" if files else "interrupted"

    def deliver(self, run: Run, page: Page | None = None, inputs: Sequence[str] = ()) -> int:
        """Do the work of a run: write its results, then its metrics and its summary.

        Args:
            run: The run, which has not started.
            page: A live page that shows the run, and stays after it.
            inputs: The files or streams by which the page calls the run.

        Returns:
            The exit status: 130 if Ctrl-C ended the inputs, else 0.
        """
        previews = {} if self.outputs else {name: Preview(schema) for name, schema in run.schemas.items()}
        write: dict[str, Callable[[pa.RecordBatch], None]] = {n: each.add for n, each in previews.items()}
        with contextlib.ExitStack() as stack:
            for name, path in self.outputs.items():
                write[name] = stack.enter_context(sink_for(path, run.schemas[name])).write
            aside = None if self.bad_file is None else stack.enter_context(sink_for(self.bad_file, BAD))
            if run.stoppable:
                stack.enter_context(_stop_on_interrupt(run))
            stack.enter_context(self._progress(run))
            show = stack.enter_context(showing(page, run, inputs))
            stack.enter_context(spare_old_objects())
            for name, batch in run:
                show(name, batch)
                if name in write:
                    write[name](batch)
                if aside is not None and self.bad is not None and self.bad.rows:
                    aside.write(self.bad.take())
            if aside is not None and self.bad is not None and self.bad.rows:
                aside.write(self.bad.take())
        self._report(run, previews)
        if not run.stopped:
            hold(page)
        return INTERRUPTED if run.stopped else 0

    def _progress(self, run: Run) -> contextlib.AbstractContextManager[Any]:
        """Show a bar if standard error is a terminal without rows, or lines if the inputs have no end."""
        rows_in_terminal = "-" in self.outputs.values() and sys.stdout.isatty()
        if sys.stderr.isatty() and not rows_in_terminal:
            return _Bar(run)
        return _lines_of_progress(run) if run.endless else contextlib.nullcontext()

    def _report(self, run: Run, previews: Mapping[str, Preview]) -> None:
        out: IO[str] = sys.stderr if "-" in self.outputs.values() else sys.stdout
        figures, facts = run.metrics(), run.facts()
        if self.bad is not None:
            figures["bad"] = self.bad.count
            if self.bad.count:
                hint = "" if self.bad_file else "; --bad FILE keeps them"
                facts.append(("bad", f"{format_count(self.bad.count, 'row')}{hint}"))
        elif self.outputs and "-" not in self.outputs.values():
            facts.append(("output", ", ".join(self.outputs.values())))
        if run.stopped:
            facts.append(("ended by", "Ctrl-C, after the rows above"))
        if self.metrics is not None:
            _write_metrics(Path(self.metrics), figures)
        for name, preview in previews.items():
            for line in ([name] if self.named else []) + list(preview.lines()):
                print(line, file=out)
        for line in plain_table(facts):
            print(line, file=out)


def _check_metrics(target: Path) -> None:
    if target.is_dir():
        raise InputError(f"metrics file '{target}' is a folder; name a file in it")
    try:
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise InputError(f"metrics file '{target}' cannot be written: {error.strerror}") from None


def _write_metrics(target: Path, figures: Mapping[str, Any]) -> None:
    """Write the figures of a run as JSON, whole or not at all."""
    try:
        with whole_file(target) as file:
            file.write(f"{json.dumps(figures, indent=2)}\n".encode())
    except OSError as error:
        raise InputError(f"metrics file '{target}' cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _stop_on_interrupt(run: Run) -> Iterator[None]:
    """Let Ctrl-C end the inputs, so that what has come is finished. A second one does not wait."""

    def stop(number: int, frame: FrameType | None) -> None:
        if run.stopped:
            raise KeyboardInterrupt
        run.stop()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# Progress


class _Bar(Progress):
    """A bar on standard error that asks a run for its progress each time it is drawn, on its own thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        text, _, total = run.progress()
        columns = (
            (BarColumn(), TaskProgressColumn(), TextColumn("{task.completed:,} of {task.total:,} rows"),
             TimeRemainingColumn())
            if total is not None
            else ()
        )  # fmt: skip
        super().__init__(
            TextColumn("{task.description}"), *columns, console=Console(stderr=True), transient=True
        )
        self.add_task(text, total=total)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bar as it is now."""
        text, done, total = self._run.progress()
        for task in self.tasks:
            self.update(task.id, description=text, completed=done, total=total)
        yield from super().get_renderables()


@contextlib.contextmanager
def _lines_of_progress(run: Run) -> Iterator[None]:
    """Print a line of progress on standard error once per second."""
    over = threading.Event()

    def report() -> None:
        while not over.wait(_EVERY):
            print(run.progress()[0], file=sys.stderr, flush=True)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# The first rows


class Preview:
    """Keeps the first rows of a result, and counts the rest."""

    def __init__(self, schema: pa.Schema, rows: int = _ROWS) -> None:
        self._schema, self._most = schema, rows
        self._kept: list[pa.RecordBatch] = []
        self._rows = 0
        self._total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep the rows of a batch that are still wanted, and count all of them."""
        wanted = min(batch.num_rows, self._most - self._rows)
        if wanted:
            self._kept.append(batch.slice(0, wanted))
        self._rows += wanted
        self._total += batch.num_rows

    def lines(self) -> Iterator[str]:
        """Yield the rows as an aligned table and an empty line; nothing if there are no rows."""
        if not self._rows:
            return
        table = pa.Table.from_batches(self._kept, self._schema)
        columns = [
            [name, *map(_cell, _texts(table.column(at)))] for at, name in enumerate(table.column_names)
        ]
        right = [is_number(kind) for kind in self._schema.types]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        yield from _align(columns, right, width)
        if self._total > self._rows:
            yield f"… {self._total - self._rows:,} more"
        yield ""


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    if not pa.types.is_nested(column.type) and not pa.types.is_binary(column.type):
        with contextlib.suppress(pa.ArrowException):
            texts: list[str | None] = column.cast(pa.string()).to_pylist()
            return texts
    return [None if value is None else str(value) for value in column.to_pylist()]


def _cell(text: str | None) -> str:
    flat = "" if text is None else " ".join(text.split())
    return flat if len(flat) <= _CELL else flat[: _CELL - 1] + "…"


def _align(columns: Sequence[Sequence[str]], right: Sequence[bool], width: int | None) -> Iterator[str]:
    """Pad cells to columns; leave out the last columns if a line would be too long."""
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
