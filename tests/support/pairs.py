"""Rows with numbers, so that the pairs of a result can be compared with those of the oracle."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import HealthCheck, settings

from strategies import Case

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


def with_row_numbers(case: Case) -> tuple[pa.Table, pa.Table]:
    """Add the row number to both tables as their last column."""
    tables = ((case.left, "row of left"), (case.right, "row of right"))
    return tuple(t.append_column(name, pa.array(range(t.num_rows), pa.int64())) for t, name in tables)


def pairs_of(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Return the pairs of row numbers in a result, sorted."""
    names = ("row of left", "row of right")
    return sorted(p for b in batches for p in zip(*(b.column(n).to_pylist() for n in names), strict=True))


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple]:
    return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=repr)
