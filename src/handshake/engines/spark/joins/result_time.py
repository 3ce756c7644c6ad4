"""The time of results: a column with a watermark by which no result is late.

The time of a pair is the later time of both rows. Spark computes it, except in joins of streams that are not
inner joins: there, segments compute it. A row without a match belongs to the end of its window, when it is
final. A row of a semi join belongs to the earliest of the pairs in the micro-batch that brings its match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.private import WATERMARK
from handshake.errors import UnsupportedError, WindowError
from handshake.joins.ordering import InOrder
from handshake.joins.spec import MOMENT, ROW
from handshake.joins.states import RowStates
from handshake.kernels.columns import integers
from handshake.kinds import INNER
from handshake.schema import concat_batches

Array = np.ndarray[Any, Any]


def check_result_time(definition: Definition) -> None:
    """Raise an error if results are to have a time column and cannot."""
    name = definition.options.result_time
    if name is None:
        return
    if definition.times[0] is None or definition.times[1] is None:
        raise WindowError("result_time needs time columns on both inputs; name them (time=…)")
    if name.casefold() in [known.casefold() for known in definition.spec.output.names]:
        raise UnsupportedError(f"result_time='{name}' is the name of a column already; choose another")
    if definition.result_time is not None and definition.kind != INNER and not definition.windows.timed:
        raise WindowError(
            f"result_time of a {definition.kind.name} join needs a time window, since its results may come "
            "later than their rows; give one side a time window, or leave result_time out"
        )


def add_result_time(
    joined: DataFrame, left: DataFrame, right: DataFrame, definition: Definition
) -> DataFrame:
    """Return a join with the time of its results, and a watermark on it."""
    times, name = definition.times, definition.options.result_time
    assert name is not None
    assert times[0] is not None
    assert times[1] is not None
    delay = max(delay or 0 for delay in definition.delays)
    if definition.result_time is None:
        start = len(left.columns) if definition.kind.shown[0] else 0
        places = [left.columns.index(times[0])] if definition.kind.shown[0] else []
        places += [start + right.columns.index(times[1])] if definition.kind.shown[1] else []
        shown = [F.col(joined.columns[place]) for place in places]
        joined = joined.withColumn(name, F.greatest(*shown) if len(shown) > 1 else shown[0])
    return joined.withMetadata(name, {WATERMARK: delay})


class Dating:
    """The times of the results of one micro-batch of a segment."""

    def __init__(self, definition: Definition, states: tuple[RowStates | None, ...]) -> None:
        spec = definition.spec
        self._schema = definition.output
        self._order = None if spec.dated else InOrder(spec)
        side = spec.kind.shown.index(True)
        held = states[side] if spec.dated else None
        self._before = None if held is None else RowStates.load(held.dump())
        """Which rows of a semi join had matched before."""

    def date(self, batches: Iterable[pa.RecordBatch], mark: int | None) -> Iterator[pa.RecordBatch]:
        """Yield results with their times, at a watermark."""
        if self._order is None:
            yield from self._date_firsts(list(batches))
            return
        for batch in batches:
            yield self._with_times(batch.columns, self._order.moments(batch, mark))

    def _date_firsts(self, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a semi join that had not matched before, with the times of their first pairs."""
        if not batches:
            return
        assert self._before is not None
        pairs = concat_batches(batches)
        numbers, moments = (integers(pairs.column(name)) for name in (ROW, MOMENT))
        order = np.argsort(moments, kind="stable")
        first = order[np.unique(numbers[order], return_index=True)[1]]
        rows = np.sort(first[~self._before.are_matched(numbers[first])])
        columns = pairs.take(pa.array(rows)).columns[: len(self._schema) - 1]
        yield self._with_times(columns, moments[rows])

    def _with_times(self, columns: list[pa.Array], moments: Array) -> pa.RecordBatch:
        # a row without a time has the watermark's, and none before there is a watermark
        unknown = moments == np.iinfo(np.int64).min
        times = pa.array(moments, mask=unknown if unknown.any() else None).cast(self._schema.types[-1])
        return pa.RecordBatch.from_arrays([*columns, times], schema=self._schema)
