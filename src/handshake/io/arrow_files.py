"""Parquet and Arrow files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
from pyarrow import feather, ipc, parquet

from handshake.io.formats import FileFormat


def _read_parquet(path: Path, _: str | None) -> pa.Table:
    # Not read_table: it would add columns for 'name=value' folders on the way to the file.
    with parquet.ParquetFile(path) as file:
        return file.read()


def _read_arrow(path: Path, _: str | None) -> pa.Table:
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        return feather.read_table(path, memory_map=False)
    with pa.OSFile(os.fspath(path)) as file:
        reader = ipc.open_file(file) if magic == b"ARROW1" else ipc.open_stream(file)
        return reader.read_all()


PARQUET = FileFormat("Parquet", (".parquet",), _read_parquet, parquet.ParquetWriter, aliases=(".pq",))
ARROW = FileFormat("Arrow", (".arrow", ".feather"), _read_arrow, ipc.new_file, aliases=(".arrows", ".ipc"))
