"""The parts of tasks that nearest joins need: hidden columns of rows, and the choice of the best pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.joins.nearest import Chooser

Batches = Iterator[pa.RecordBatch]
_PARTITION = 1 << 40
"""Rows of a partition are fewer than this, so numbers of different partitions differ."""


def add_hidden(definition: Definition, side: int, batches: Batches, partition: int) -> Batches:
    """Add numbers to the rows of a left partition, and marks to those of a right one."""
    schema, count = (definition.left, definition.right)[side], partition * _PARTITION
    for batch in batches:
        rows = batch.num_rows
        hidden: Any = np.ones(rows, np.bool_) if side else np.arange(count, count + rows)
        count += rows
        yield pa.RecordBatch.from_arrays([*batch.columns, pa.array(hidden)], schema=schema)


def choose_best(definition: Definition, results: Batches) -> Batches:
    """Yield the best pairs of each left row of a segment, from all pairs and all left rows."""
    assert definition.ranking is not None
    width = len(definition.left) - 1
    left, right = (pa.schema(list(schema)[:-1]) for schema in (definition.left, definition.right))
    chooser, places = Chooser(definition.ranking, left, right), dict[int, int]()
    for batch in results:
        columns = batch.columns
        columns[width] = _number_densely(columns[width], places)
        yield from chooser.choose([pa.RecordBatch.from_arrays(columns, schema=batch.schema)])


def _number_densely(numbers: pa.Array, places: dict[int, int]) -> pa.Array:
    """Return small numbers for rows, from 0 up, and remember them."""
    encoded = numbers.dictionary_encode()
    found = [places.setdefault(number, len(places)) for number in encoded.dictionary.to_pylist()]
    return pa.array(np.array(found, np.int64)[np.asarray(encoded.indices)])
