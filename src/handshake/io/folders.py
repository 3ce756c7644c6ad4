"""Several files with one schema: columns in any order, types widened where no value changes by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from handshake.errors import InputError, suggest

__all__ = ["combine", "wider"]

_WIDEST_DECIMAL = 38


@dataclass(frozen=True)
class _Column:
    """The type that a column has so far, and the file that it has it from."""

    type: pa.DataType
    path: Path


def combine(parts: Sequence[tuple[Path, pa.Table]]) -> pa.Table:
    """Put the tables of a folder's files one after the other."""
    first, table = parts[0]
    columns = {field.name: _Column(field.type, first) for field in table.schema}
    for path, other in parts[1:]:
        _check_names(first, table, path, other)
        for field in other.schema:
            columns[field.name] = _widened(field.name, columns[field.name], _Column(field.type, path))
    converted = [_converted(path, part.select(list(columns)), columns) for path, part in parts]
    return pa.concat_tables(converted).unify_dictionaries()


def _check_names(first: Path, table: pa.Table, path: Path, other: pa.Table) -> None:
    for has, lacks, names, known in (
        (first, path, table.column_names, other.column_names),
        (path, first, other.column_names, table.column_names),
    ):
        missing = [name for name in names if name not in known]
        if missing:
            raise InputError(
                f"column '{missing[0]}' is in '{has}' but not in '{lacks}' ({', '.join(known)})"
                f"{suggest(missing[0], known)}; all files of a folder must have the same columns"
            )


def _widened(name: str, before: _Column, after: _Column) -> _Column:
    kind = wider(before.type, after.type)
    if kind is None:
        raise InputError(
            f"column '{name}' is {before.type} in '{before.path}' but {after.type} in '{after.path}'; "
            "all files of a folder must have the same columns"
        )
    return _Column(kind, before.path if kind == before.type else after.path)


def _converted(path: Path, table: pa.Table, columns: dict[str, _Column]) -> pa.Table:
    arrays = [_cast(path, name, table.column(name), column) for name, column in columns.items()]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _cast(path: Path, name: str, values: pa.ChunkedArray, column: _Column) -> pa.ChunkedArray:
    try:
        return values.cast(column.type)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"column '{name}' of '{path}' is {values.type} with values that do not fit {column.type}, "
            f"its type in '{column.path}'; all files of a folder must have the same columns"
        ) from error


def wider(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both, or None where there is none.

    >>> import pyarrow as pa
    >>> wider(pa.int64(), pa.float64())
    DataType(double)
    """
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        return wider(*(t.value_type if pa.types.is_dictionary(t) else t for t in (a, b)))
    if all(map(_is_number, (a, b))):
        return _wider_number(a, b)
    if all(map(_is_text, (a, b))):
        return pa.large_string()
    return _wider_time(a, b)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _wider_number(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(a) and pa.types.is_floating(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    if pa.types.is_floating(a) or pa.types.is_floating(b):
        return pa.float64()
    if pa.types.is_decimal(a) or pa.types.is_decimal(b):
        scale = max(kind.scale if pa.types.is_decimal(kind) else 0 for kind in (a, b))
        return pa.decimal128(_WIDEST_DECIMAL, scale)
    if pa.types.is_signed_integer(a) == pa.types.is_signed_integer(b):
        return max(a, b, key=lambda kind: kind.bit_width)
    return pa.decimal128(_WIDEST_DECIMAL, 0) if pa.uint64() in (a, b) else pa.int64()


def _wider_time(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and (a.tz is None) == (b.tz is None):
        finest = next(unit for unit in ("ns", "us", "ms", "s") if unit in (a.unit, b.unit))
        return pa.timestamp(finest, a.tz)
    for day, stamp in ((a, b), (b, a)):
        if pa.types.is_date(day) and pa.types.is_timestamp(stamp) and stamp.tz is None:
            return stamp
    return None
