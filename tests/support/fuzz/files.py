"""Mutated files: CSV, JSON lines, Parquet and Arrow."""

from __future__ import annotations

import csv
import io
import json
import re
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.mutate import Mutant, mutate_bytes
from fuzz.run import refusal
from handshake.errors import HandshakeError
from handshake.io.declared import BadRows
from handshake.io.files import read, read_declared
from handshake.plan.query import parse_query
from handshake.schema import Schema

__all__ = ["check_columnar", "check_csv", "check_json", "make_columnar", "make_csv", "make_json"]

CSV_TEXT = (
    b"x,s,f,t\n1,a,0.5,2024-01-01 00:00:00\n"
    b'-2,"b, c",1e3,2024-01-01 00:00:05.25\n'
    b',"say ""hi""",,\n'
    b"300,,-0.0,2024-02-29T12:00:00\n"
    b"9223372036854775807,Z\xc3\xbcrich,nan,1970-01-01 00:00:00\n"
    b'7,"two\nlines",12345.678,2024-01-01 00:00:09\n'
)
JSON_TEXT = b"""{"x": 1, "s": "a", "f": 0.5, "t": "2024-01-01 00:00:00"}
{"x": -2, "s": "b\\n", "f": 1e3, "t": "2024-01-01 00:00:05.25"}
{"x": null, "s": "\\u00fc\\ud83d\\ude00", "f": -0.0, "t": null}
{"x": 300, "f": 12, "extra": [1, {"y": 2}]}
{"s": "", "x": 9223372036854775807, "f": -1.5e-7, "t": "1970-01-01"}
"""


@lru_cache(maxsize=1)
def _schema() -> Schema:
    plan = parse_query("CREATE INPUT STREAM R (x long, s string, f double, t timestamp); SELECT * FROM R")
    return plan.inputs[0].fields


def _write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _read_both(path: Path, data: bytes) -> tuple[pa.Table | None, BadRows]:
    """Read a file as it is and by a declaration; return the rows by the declaration."""
    try:
        read(path).validate(full=True)
    except HandshakeError as error:
        refusal(error)
    bad = BadRows()
    try:
        table = read_declared(path, _schema(), bad)
    except HandshakeError as error:
        refusal(error)
        return None, bad
    table.validate(full=True)
    for row in bad.rows:
        assert "\n" not in row["reason"] or "\n" in data.decode("latin1"), row
    return table, bad


# Text


def make_csv(rng: Random) -> bytes:
    """Make a mutated CSV file."""
    return mutate_bytes(rng, CSV_TEXT)


def check_csv(data: bytes, rng: Random, folder: Path) -> bool | str:
    """Read a CSV file: plain rows come with the values that Python's `csv` finds, in order."""
    table, bad = _read_both(_write(folder, "input.csv", data), data)
    if table is None:
        return False
    rows = _csv_rows(data)
    if rows is None:
        return True
    assert table.num_rows + bad.count == len(rows), (
        f"{table.num_rows} + {bad.count} of {len(rows)} rows: {data!r}"
    )
    wrong = {row["row"] for row in bad.rows}
    kept = [row for number, row in enumerate(rows, 1) if number not in wrong]
    for row, (x, s) in zip(kept, zip(*(table.column(n).to_pylist() for n in "xs"), strict=True), strict=True):
        if re.fullmatch(r"-?\d{1,18}", row["x"]):
            assert x == int(row["x"]), (row, x, data)
        if row["s"]:
            assert s == row["s"], (row, s, data)
    return "compared"


def _csv_rows(data: bytes) -> list[dict[str, str]] | None:
    """Read rows by Python's reader; return None if the file is not plain, so that readers may differ."""
    try:
        text = data.removeprefix(b"\xef\xbb\xbf").decode()
        head, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (UnicodeDecodeError, csv.Error, ValueError):
        return None
    odd = re.search(
        r'[^",\n]"|"[^",\n]|\r|\0|\n\n|^\n', re.sub(r'"(?:[^"]|"")*"', '""', text).replace('""', "")
    )
    if odd or sorted(head) != ["f", "s", "t", "x"] or any(len(row) != 4 for row in rows):
        return None
    return [dict(zip(head, row, strict=True)) for row in rows]


def make_json(rng: Random) -> bytes:
    """Make a mutated file of JSON lines."""
    return mutate_bytes(rng, JSON_TEXT)


def check_json(data: bytes, rng: Random, folder: Path) -> bool | str:
    """Read a file of JSON lines: whole numbers and texts are those that Python's `json` finds."""
    table, bad = _read_both(_write(folder, "input.jsonl", data), data)
    if table is None:
        return False
    rows = _json_rows(data)
    if rows is None:
        return True
    assert table.num_rows + bad.count == len(rows), (
        f"{table.num_rows} + {bad.count} of {len(rows)} rows: {data!r}"
    )
    wrong = {row["row"] for row in bad.rows}
    kept = [row for number, row in enumerate(rows, 1) if number not in wrong]
    for row, (x, s) in zip(kept, zip(*(table.column(n).to_pylist() for n in "xs"), strict=True), strict=True):
        if type(row.get("x")) is int:
            assert x == row["x"], (row, x, data)
        if isinstance(row.get("s"), str):
            assert s == row["s"], (row, s, data)
    return "compared"


def _json_rows(data: bytes) -> list[dict[str, Any]] | None:
    """Read lines by Python's reader; return None if a line is no object with each name once."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a name comes twice")
        return dict(pairs)

    def no_constant(text: str) -> Any:
        raise ValueError(text)

    rows = []
    try:
        for line in data.decode().removesuffix("\n").split("\n"):
            rows.append(json.loads(line, object_pairs_hook=once, parse_constant=no_constant))
    except ValueError:
        return None
    return rows if all(isinstance(row, dict) for row in rows) else None


# Columns


@lru_cache(maxsize=1)
def _columnar() -> tuple[tuple[str, bytes], ...]:
    table = pa.table(
        {
            "x": pa.array([1, None, 3, 4], pa.int64()),
            "s": pa.array(["a", "", None, "é" * 20]),
            "f": pa.array([0.5, None, 1e300, -0.0]),
            "t": pa.array([0, 1, None, 3], pa.timestamp("us")),
            "d": pa.array(["u", "v", "u", None]).dictionary_encode(),
            "n": pa.array([[1, 2], [], None, [3]]),
        }
    )
    files = []
    for compression in (None, "zstd"):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression=compression or "none")
        files.append(("input.parquet", sink.getvalue().to_pybytes()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(
            sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
        ) as writer:
            writer.write_table(table)
        files.append(("input.arrow", sink.getvalue().to_pybytes()))
    return tuple(files)


def make_columnar(rng: Random) -> tuple[str, Mutant]:
    """Make a mutated Parquet or Arrow file."""
    name, whole = rng.choice(_columnar())
    return name, Mutant(whole, mutate_bytes(rng, whole))


def check_columnar(given: tuple[str, Mutant], rng: Random, folder: Path) -> bool | str:
    """Read a Parquet or Arrow file."""
    name, mutant = given
    table, _ = _read_both(_write(folder, name, mutant.data), mutant.data)
    return table is not None
