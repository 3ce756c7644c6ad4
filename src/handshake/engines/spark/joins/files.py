"""Parquet files that segments write in their tasks, exactly once: late rows, and results with `results_to`.

A segment writes at most one file per folder and micro-batch. The name contains the micro-batch, the segment
and the run of the query. Attempts of one run write the same rows, and the last one replaces the file. Another
run may divide the rows among segments in another way. In its first micro-batch of a run, each segment
therefore removes the files that other runs wrote for this micro-batch or a later one: none was committed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from handshake.engines.spark.batches import large_pieces
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.state.store import StateError, Store, open_store
from handshake.errors import UnsupportedError
from handshake.joins.late import check_late_columns, with_lag
from handshake.joins.spec import SIDES

_NAME = re.compile(r"\.?part-(\d+)-(\d+)-([0-9a-f]{12})-.*-([0-9a-f]{8})\.parquet")
"""A file, or the draft of one: micro-batch, segment, and marks of the query and of the run."""
_OWNER = "_handshake"
"""The file that names the query whose results a folder holds; readers ignore names of this form."""
_ROWS, _BYTES = 1 << 18, 1 << 26
"""The size of a row group: it ends when one of them is reached."""


def check_late(definition: Definition) -> None:
    """Raise if late rows are wanted and cannot be kept."""
    if not definition.keeps_late:
        return
    if not all(definition.streaming):
        raise UnsupportedError("late_to is for joins of two streams; no row of a batch DataFrame is late")
    if definition.calls_late and definition.options.state == "store":
        raise UnsupportedError(
            'a function for late_to gets them from files in the state directory, and state="store" has none; '
            "name a folder for late_to, or leave state out"
        )
    check_late_columns(definition.spec.sides)


def check_results(definition: Definition) -> None:
    """Raise if segments are to write the results to files and cannot."""
    folder = definition.options.results_to
    if folder is None:
        return
    if not all(definition.streaming):
        raise UnsupportedError(
            "results_to is for joins of two streams, and an input is a batch DataFrame; leave results_to out "
            "and write the DataFrame: joined.write.parquet(…)"
        )
    if folder == definition.options.late_to:
        raise UnsupportedError(f"results_to and late_to are both '{folder}'; name two different folders")
    for field in definition.output:
        try:
            pq.write_table(pa.schema([field]).empty_table(), pa.BufferOutputStream())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise UnsupportedError(
                f"results_to: Parquet has no type for column '{field.name}' ({field.type}): {error}; cast or "
                "drop it"
            ) from error


@dataclass(frozen=True)
class WrittenFile:
    """A file of results."""

    path: str
    rows: int
    bytes: int


class SegmentFiles:
    """The files that a segment writes in one micro-batch, one per folder.

    Args:
        segment: The number of the segment.
        segments: The number of segments.
        batch: The number of the micro-batch.
        folder: The folder of the join's state, which names query and join.
        run: The run of the query.
        begins: Whether this is the segment's first micro-batch in this run.
    """

    def __init__(
        self, segment: int, segments: int, batch: int, folder: str, run: str, *, begins: bool
    ) -> None:  # fmt: skip
        self._segment, self._segments, self._batch, self._begins = segment, segments, batch, begins
        self.folder = folder
        self.query, _, place = folder.partition("/")
        self._query, self._run = _mark(self.query, 12), _mark(run, 8)
        label = place.removeprefix("join-").replace("/", "-")
        self._name = f"part-{batch:06}-{segment:04}-{self._query}-{label}-{self._run}.parquet"

    def write(
        self, store: Store, folder: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> WrittenFile | None:
        """Write rows to this micro-batch's file in a folder; no file if there are none."""
        if self._begins:
            self.remove_uncommitted(store, folder)
        pieces = large_pieces(batches, _ROWS, _BYTES)
        first = next(pieces, None)
        if first is None:
            return None
        name, rows = f"{folder}{self._name}", 0
        with store.create(name) as sink:
            # dictionaries cost more time than they save: rows of one probe are neighbours, and compress well
            with pq.ParquetWriter(sink, schema, use_dictionary=False) as writer:
                for piece in chain([first], pieces):
                    table = pa.Table.from_batches(piece)
                    writer.write_table(table, row_group_size=table.num_rows)
                    rows += table.num_rows
            size = sink.tell()
        return WrittenFile(store.path(name), rows, size)

    def write_results(self, definition: Definition, results: Iterable[pa.RecordBatch]) -> WrittenFile | None:
        """Write results, as they are found, to this micro-batch's file in the folder `results_to`.

        Raises:
            StateError: The folder holds the results of another query.
        """
        store = open_store(str(definition.options.results_to))
        if self._begins:
            held = store.publish(_OWNER, pa.py_buffer(self.query.encode())).to_pybytes().decode()
            if held != self.query:
                raise StateError(
                    f"'{store.root}' holds results of another query or checkpoint ({held}); choose another "
                    "folder for results_to, or empty this one"
                )
        return self.write(store, "", results, definition.output)

    def remove_uncommitted(self, store: Store, folder: str) -> None:
        """Remove what other runs of the query have left for this micro-batch and later ones.

        A run with other segments may have left files of segments that are no more. Drafts go in any case.
        """
        for name in store.list(folder):
            found = _NAME.match(name)
            if found is None or found[3] != self._query or found[4] == self._run:
                continue
            stale = int(found[1]) >= self._batch or name.startswith(".")
            if stale and int(found[2]) % self._segments == self._segment:
                store.remove(f"{folder}{name}")


def batch_of(name: str) -> int | None:
    """Return the micro-batch of a file; None for a draft, and for files of others.

    >>> batch_of("part-000007-0001-0123456789ab-j-01234567.parquet")
    7
    """
    found = None if name.startswith(".") else _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def _mark(name: str, length: int) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:length]


class LateFiles:
    """The late rows of one micro-batch of a segment."""

    def __init__(self, definition: Definition, files: SegmentFiles) -> None:
        self._definition, self._files = definition, files
        self._rows: tuple[list[pa.RecordBatch], ...] | None = ([], []) if definition.keeps_late else None

    def add(self, side: int, batch: pa.RecordBatch, times: Any, late: Any, mark: int) -> None:
        """Take the late rows of a batch, whose times are those given."""
        if self._rows is None or not late.any():
            return
        spec = self._definition.spec
        # differences of 64-bit times fit unsigned words
        lag = np.full(len(times), mark, np.int64).view(np.uint64) - times.astype(np.int64).view(np.uint64)
        late_rows = batch.filter(pa.array(late))
        self._rows[side].append(with_lag(late_rows, spec.sides[side].schema.names, lag[late], spec.unit))

    def write(self) -> None:
        """Write the files of both sides."""
        place, folder = self._definition.options.late_to, ""
        if self._definition.calls_late:
            place, folder = self._definition.root, f"{self._files.folder}/late/"
        for side, batches in enumerate(self._rows or ()):
            schema = batches[0].schema if batches else pa.schema([])
            self._files.write(open_store(str(place)), f"{folder}{SIDES[side]}/", batches, schema)
