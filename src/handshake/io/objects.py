"""JSON lines by a declared schema, where Arrow cannot read a file as a whole.

There a column has values of one type. Lines whose values are of the same kinds are read together here; what
does not fit is put aside, line by line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import InputError
from handshake.io.fitting import Aside, declared, typed
from handshake.io.text import json_lines, read_json
from handshake.schema import Schema

__all__ = ["read_objects"]

Kinds = frozenset[tuple[str, str]]
NO_OBJECT = "the line is not a JSON object"
UNREADABLE = "the line cannot be read as a JSON object"


@dataclass
class _Lines:
    """The lines of a file, by the kinds of their values, and those that are put aside."""

    groups: dict[Kinds, list[tuple[int, bytes]]] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    """All keys, in the order in which they come."""
    aside: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    count: int = 0


def read_objects(
    path: Path, compression: str | None, schema: Schema, bad: Aside
) -> tuple[pa.RecordBatch | None, int]:
    """Lines that fit the schema, and how many there were; None where no line is at fault."""
    lines = _lines(path, compression)
    if not lines.names and not lines.aside:
        return None, lines.count
    parts = list(_parts(path, lines, schema))
    if not lines.aside and len(lines.groups) < 2:
        return None, lines.count
    for number, (reason, line) in sorted(lines.aside.items()):
        bad.add(schema.stream, number, reason, line.decode(errors="replace"))
    return _in_order(parts, lines, schema), lines.count


def _lines(path: Path, compression: str | None) -> _Lines:
    lines = _Lines()
    for number, (line, found) in enumerate(json_lines(path, compression), 1):
        lines.count = number
        if found is None:
            lines.aside[number] = (NO_OBJECT, line)
        elif line.strip():
            lines.names |= dict.fromkeys(found)
            lines.groups.setdefault(_kinds(found), []).append((number, line.strip() if found else b"{}"))
    return lines


def _kinds(found: dict[str, Any]) -> Kinds:
    """What each value is; whole numbers and others are read together."""
    numbers = {"int": "float"}
    kinds = ((name, type(value).__name__) for name, value in found.items() if value is not None)
    return frozenset((name, numbers.get(kind, kind)) for name, kind in kinds)


def _parts(path: Path, lines: _Lines, schema: Schema) -> Iterator[tuple[list[int], pa.RecordBatch]]:
    """Rows of lines that are read together, and their numbers; notes those that do not fit."""
    for group in lines.groups.values():
        for some, table in _tables(path, group, lines):
            numbers = [number for number, _ in some]
            batch, reasons = typed(_completed(table, lines, len(some)), schema, mixed=True)
            lines.aside |= {numbers[at]: (reason, some[at][1]) for at, reason in reasons.items()}
            yield numbers, batch


def _tables(
    path: Path, group: list[tuple[int, bytes]], lines: _Lines
) -> Iterator[tuple[list[tuple[int, bytes]], pa.Table]]:
    """The group as a table; or each of its lines, less those that Arrow does not read (a key twice)."""
    try:
        yield group, _table(path, [line for _, line in group])
    except (pa.ArrowInvalid, InputError):
        for number, line in group:
            try:
                yield [(number, line)], _table(path, [line])
            except (pa.ArrowInvalid, InputError):
                lines.aside[number] = (UNREADABLE, line)


def _table(path: Path, lines: Sequence[bytes]) -> pa.Table:
    return read_json(path, None, b"\n".join(lines) + b"\n")


def _completed(table: pa.Table, lines: _Lines, rows: int) -> pa.Table:
    """With all columns of the file: a key that these lines lack is NULL."""
    if table.num_columns == 0:
        return pa.table({name: pa.nulls(rows) for name in lines.names})
    for name in lines.names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(rows))
    return table


def _in_order(
    parts: Sequence[tuple[list[int], pa.RecordBatch]], lines: _Lines, schema: Schema
) -> pa.RecordBatch:
    """Rows that fit, as they stand in the file."""
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=declared(schema))
    numbers = np.concatenate([np.array(some) for some, _ in parts])
    order = np.argsort(numbers)
    order = order[[number not in lines.aside for number in numbers[order].tolist()]]
    whole = pa.Table.from_batches([batch for _, batch in parts]).combine_chunks()
    return whole.take(pa.array(order, pa.int64())).to_batches()[0]
