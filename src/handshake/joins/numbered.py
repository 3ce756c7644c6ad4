"""Columns that joins add to their inputs: numbers by which rows are found again, and marks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa

APART = "\1right"
"""A suffix for doubled names in joins whose results are read by position."""


def number_rows(table: pa.Table, read: Collection[str], *more: Any) -> pa.Table:
    """Return these columns of a table, more columns, and last the numbers of the rows.

    >>> number_rows(pa.table({"x": [7, 8], "y": [0, 0]}), {"x"}).to_pylist()
    [{'x': 7, '__row': 0}, {'x': 8, '__row': 1}]
    """
    table = table.select([name for name in table.schema.names if name in read])
    for column in (*more, np.arange(table.num_rows)):
        table = table.append_column(_free_name(table.schema), pa.array(column))
    return table


def add_number(left: pa.Schema) -> pa.Schema:
    """Return the columns of a left input, and one for the numbers of its rows."""
    return left.append(pa.field(_free_name(left), pa.int64()))


def add_mark(right: pa.Schema) -> pa.Schema:
    """Return the columns of a right input, and one for a mark."""
    return right.append(pa.field(_free_name(right), pa.bool_()))


def _free_name(schema: pa.Schema) -> str:
    """Return a name that no column has."""
    return "_" * (1 + max((len(name) for name in schema.names), default=0)) + "row"
