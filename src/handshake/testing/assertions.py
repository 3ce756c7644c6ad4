"""Assertions on results whose order means nothing, with differences that people can read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from handshake.io.frames import is_spark, table_of

Row = tuple[tuple[str, str], ...]
"""The columns of a row, by name, with their values as text."""
_SHOWN = 10


def assert_same_rows(found: Any, expected: Any, *, message: str = "") -> None:
    """Assert that two results have the same rows, each as often, in any order.

    Columns are compared by name, so their order means nothing either. NULL equals NULL and NaN equals NaN.
    Values of other types or signs differ: 0.0 from -0.0, and 1 from 1.0.

    Args:
        found: The result: an Arrow table, a list of Arrow batches, a frame, or a batch DataFrame of Spark.
        expected: The result that is right, in any of these forms.
        message: The first line of the error.

    Raises:
        AssertionError: They differ. The text shows rows that are missing and rows that should not be there;
            where two differ in few columns, it shows these.

    Examples:
        >>> assert_same_rows({"x": [1, 2]}, {"x": [2, 1]})
        >>> assert_same_rows({"x": [1], "y": ["a"]}, {"x": [1], "y": ["b"]})
        Traceback (most recent call last):
            ...
        AssertionError: results differ: 1 row is missing, 1 row is unexpected
          differs   x=1, y='a' instead of 'b'
    """
    got, want = as_table(found), as_table(expected)
    if set(got.column_names) != set(want.column_names) and (len(got) or len(want)):
        raise AssertionError(
            f"{message}{': ' if message else ''}columns differ: {', '.join(got.column_names)} "
            f"instead of {', '.join(want.column_names)}"
        )
    missing, unexpected = row_counts(want), row_counts(got)
    missing, unexpected = missing - unexpected, unexpected - missing
    if missing or unexpected:
        text = f"{_rows(missing.total(), 'missing')}, {_rows(unexpected.total(), 'unexpected')}"
        lines = [f"{message or 'results differ'}: {text}", *_differences(missing, unexpected)]
        raise AssertionError("\n".join(lines))


def as_table(value: Any) -> pa.Table:
    """Return results as an Arrow table."""
    if is_spark(value):
        return value.toArrow()
    if isinstance(value, list) and value and isinstance(value[0], pa.RecordBatch):
        return pa.Table.from_batches(value)
    return table_of(value)


def row_counts(table: pa.Table) -> Counter[Row]:
    """Return how often each row is there."""
    names = sorted(table.column_names)
    return Counter(tuple((n, _text(row[n])) for n in names) for row in table.select(names).to_pylist())


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        return str(value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value)
    return repr(value)


def _rows(count: int, word: str) -> str:
    return f"{count} {'row is' if count == 1 else 'rows are'} {word}"


def _differences(missing: Counter[Row], unexpected: Counter[Row]) -> Iterator[str]:
    """Show rows that differ, nearest ones together, up to a number of lines."""
    lines, left = [], list(unexpected.elements())
    for row in missing.elements():
        near = min(left, key=lambda other: _distance(row, other), default=None)
        if near is None or 2 * _distance(row, near) > len(row):
            lines.append(f"  missing   {_show(row)}")
        else:
            left.remove(near)
            lines.append(f"  differs   {_compare(near, row)}")
        if len(lines) > _SHOWN:
            break
    lines += [f"  unexpected {_show(row)}" for row in left]
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield "  …"


def _distance(row: Row, other: Row) -> int:
    return sum(a != b for a, b in zip(row, other, strict=True))


def _show(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in row)


def _compare(found: Row, expected: Row) -> str:
    return ", ".join(
        f"{name}={value}" if value == want else f"{name}={value} instead of {want}"
        for (name, value), (_, want) in zip(found, expected, strict=True)
    )
