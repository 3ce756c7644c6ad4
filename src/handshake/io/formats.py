"""The interface of a file format. `files.FORMATS` lists the formats that there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from handshake.schema import Schema

AddBadRow = Callable[[str, int, str, str], None]
"""Takes a row that does not fit its declared schema: stream, row number, reason and text."""
Rows = tuple[list[pa.RecordBatch], int]
"""The rows that fit a declared schema, and the number of rows that were read."""


class Writer(Protocol):
    """An open output file of one format."""

    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None:
        """Write the footer of the format, if it has one. The stream stays open."""


@dataclass(frozen=True)
class FileFormat:
    """How files of one format are named, read and written."""

    kind: str
    """The name that users read. A folder may hold files of one kind only."""
    suffixes: tuple[str, ...]
    """The suffixes that help texts and errors name."""
    read: Callable[[Path, str | None], pa.Table]
    """Reads a file with the given compression and infers the types."""
    open_writer: Callable[[Any, pa.Schema], Writer]
    """Starts an output file on a binary stream."""
    aliases: tuple[str, ...] = ()
    """Further suffixes."""
    is_text: bool = False
    """Whether a file may be compressed and then end in `.gz`, `.bz2` or `.zst`."""
    read_declared: Callable[[Path, str | None, Schema, AddBadRow], Rows] | None = None
    """Reads a file by a declared schema. Without it, the table that `read` returns is converted."""
