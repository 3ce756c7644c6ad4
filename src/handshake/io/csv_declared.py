"""CSV by a declared schema: files, and standard input as it arrives."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from handshake.errors import InputError, format_count, one_line
from handshake.io.csv_rows import rows_of, split_rows
from handshake.io.declared import find_column, fit_rows, is_utf8, row_text
from handshake.io.formats import AddBadRow, Rows
from handshake.schema import Schema

NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
"""How NULL is written: as an empty field without quotes."""
_BLOCK = 1 << 20


def read_declared(
    delimiter: str, path: Path, compression: str | None, schema: Schema, add_bad: AddBadRow
) -> Rows:
    """Read a file of delimited text by a declared schema."""
    text = _Text(partial(pa.input_stream, str(path), compression=compression), delimiter)
    batches: list[pa.RecordBatch] = []
    parts = _parse(text, schema, add_bad)
    while True:
        try:
            batches.append(next(parts))
        except StopIteration as end:
            return batches, end.value


def read_standard_input(
    schema: Schema, add_bad: AddBadRow, read: Callable[[], bytes] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of CSV on standard input as they arrive.

    Args:
        schema: The declared columns and types.
        add_bad: Called for each row that does not fit.
        read: Reads the next bytes, none at the end; standard input by default.
    """
    row = None
    for piece in split_rows(read or _standard_input()):
        row = yield from _parse(_Text(partial(pa.BufferReader, piece), ","), schema, add_bad, row or 0)
    if row is None:
        raise InputError(f"standard input is empty; stream {schema.stream} needs a header at least")


def _standard_input() -> Callable[[], bytes]:
    """Return a function that reads the descriptor of standard input directly.

    A thread that waits there may outlive the run after Ctrl-C. If it waited inside Python's buffer or Arrow's
    reader, the interpreter would crash at its exit.
    """
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):  # not a file, as in a notebook
        return lambda: sys.stdin.buffer.readline(_BLOCK)
    with contextlib.suppress(ImportError, AttributeError, OSError):  # not a pipe, or not Linux
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _BLOCK)
    return lambda: os.read(descriptor, _BLOCK)


@dataclass(frozen=True)
class _Text:
    """Delimited text that can be read several times."""

    open: Callable[[], Any]
    delimiter: str

    def rows(self) -> Iterator[bytes]:
        """Yield the header and the rows as they stand."""
        return rows_of(self._blocks(), self.delimiter)

    def source(self, columns: int) -> Any:
        """Open the text for Arrow. Rows that are not UTF-8 are replaced by rows with a field too many."""
        if self._is_utf8():
            return self.open()
        ragged = self.delimiter.encode() * columns
        return pa.BufferReader(b"".join((row if is_utf8(row) else ragged) + b"\n" for row in self.rows()))

    def _is_utf8(self) -> bool:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for block in self._blocks():
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
        return True

    def _blocks(self) -> Iterator[bytes]:
        with self.open() as stream:
            while block := stream.read(_BLOCK):
                yield block


def _parse(
    text: _Text, schema: Schema, add_bad: AddBadRow, before: int = 0
) -> Generator[pa.RecordBatch, None, int]:
    """Parse the declared columns as texts, then convert them by their types.

    `before` rows came before this text. Returns the number of rows up to the end.
    """
    names = _column_names(next(text.rows(), b""), text.delimiter, schema.stream)
    wanted = [find_column(f.name, names, schema.stream) for f in schema]
    report = _Reporter(schema.stream, text, add_bad, before)
    parsing = csv.ParseOptions(
        delimiter=text.delimiter, invalid_row_handler=report.skip_ragged, newlines_in_values=True
    )
    types = dict.fromkeys(wanted, pa.string())
    converting = csv.ConvertOptions(column_types=types, include_columns=wanted, check_utf8=False, **NULLS)
    with text.source(len(names)) as source:
        try:
            reader = csv.open_csv(source, csv.ReadOptions(use_threads=False), parsing, converting)
            for batch in reader:
                yield fit_rows(pa.Table.from_batches([batch]), schema, report.add)
                report.pass_batch(batch.num_rows)
        except pa.ArrowInvalid as error:
            if "cannot infer number of columns" not in str(error):  # a header without a line break
                raise InputError(f"{schema.stream} input cannot be read as CSV: {one_line(error)}") from None
    return report.finish()


def _column_names(header: bytes, delimiter: str, stream: str) -> list[str]:
    if not header.strip():
        raise InputError(f"{stream} input is empty: it has no header line")
    parsing = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        names: list[str] = csv.read_csv(pa.BufferReader(header + b"\n"), parse_options=parsing).column_names
    except UnicodeDecodeError:
        raise InputError(f"{stream} input is not UTF-8 text; convert it to UTF-8") from None
    except pa.ArrowInvalid as error:
        raise InputError(f"{stream} input cannot be read as CSV: {one_line(error)}") from None
    return names


@dataclass
class _Reporter:
    """Reports the bad rows of one text in their order, each as it stood."""

    stream: str
    text: _Text
    add_bad: AddBadRow
    before: int
    """Rows before this text."""
    good: int = 0
    """Rows with the right number of fields in the batches so far."""
    noted: int = 0
    """Rows with another number of fields, as far as Arrow has read."""
    ragged: deque[tuple[int, str]] = field(default_factory=deque)
    """Those of them that are not reported yet: the number of good rows before each, and the reason."""
    reported: int = 0
    """How many of them have been reported."""
    rows: Iterator[tuple[int, bytes]] | None = None
    """Numbers and texts of the rows that have not been passed."""

    def skip_ragged(self, invalid: Any) -> str:
        """Note a row with too many or too few fields. Arrow may read ahead of the batches."""
        fields = format_count(invalid.actual_columns, "field")
        good = max(0, (invalid.number or 1) - 2) - self.noted
        self.noted += 1
        self.ragged.append((good, f"{fields} where the header has {invalid.expected_columns}"))
        return "skip"

    def add(self, at: int, reason: str) -> None:
        """Report a row of the present batch, and the ragged ones before it."""
        self._report_ragged(self.good + at)
        self._report(self.good + at + self.reported + 1, reason)

    def pass_batch(self, rows: int) -> None:
        """Go on to the next batch."""
        self.good += rows
        self._report_ragged(self.good - 1)

    def finish(self) -> int:
        """Report the last rows. Return the number of rows up to the end of this text."""
        self._report_ragged(self.good)
        return self.before + self.good + self.reported

    def _report_ragged(self, good: int) -> None:
        """Report the ragged rows before the good row of this position."""
        while self.ragged and self.ragged[0][0] <= good:
            before, reason = self.ragged.popleft()
            self._report(before + self.reported + 1, reason)
            self.reported += 1

    def _report(self, number: int, reason: str) -> None:
        if self.rows is None:
            self.rows = enumerate(self.text.rows())
        row = next((row for at, row in self.rows if at == number), b"")
        if not is_utf8(row):
            reason = "the row is not UTF-8 text"
        self.add_bad(self.stream, self.before + number, reason, row_text(row))
