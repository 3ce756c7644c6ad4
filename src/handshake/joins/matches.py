"""Rows without a match, which are results of outer and anti joins once no match can come any more.

Rows of a tracked side are numbered as they enter their window. The number is a hidden column, so it stays
with the row while basic windows are merged, clustered and passed on. Join cores mark the rows of all pairs
that they find (`RowStates`). When the join is at rest, rows that have left their window are final.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import Tracked, stored_column
from handshake.joins.spec import JoinSpec
from handshake.kernels.columns import integers
from handshake.kernels.gather import gather

Array = np.ndarray[Any, Any]


class Finals:
    """The rows of one side that leave its window."""

    def __init__(self, spec: JoinSpec, side: int, tracked: Tracked) -> None:
        self._spec, self._side, self._tracked = spec, side, tracked
        self._preserved = spec.kind.preserved[side]
        self._leaving: dict[int, _Leaving] = {}
        """Basic windows of which some rows have left, by identity."""

    def take(self, windows: Iterable[BasicWindow], oldest: int | None) -> Iterator[pa.RecordBatch]:
        """Yield results for the rows that have left without a match since the last call.

        Args:
            windows: The basic windows of the side, and those dropped since the last call.
            oldest: Rows with an expiring stamp below this have left; None if all have.
        """
        if self._preserved:
            for batch in self._tracked.take_alone():
                yield lone_rows(self._spec, self._side, batch, None)
        leaving: dict[int, _Leaving] = {}
        for window in windows:
            low, high = window.second if self._side == 0 else window.first
            if oldest is not None and low >= oldest:
                continue
            if oldest is None or high < oldest:
                began = self._leaving.get(id(window))
                rows = None if began is None else began.rest()
            else:
                began = self._leaving.get(id(window)) or _Leaving(window)
                leaving[id(window)] = began
                rows = began.until(oldest)
            yield from self._leave(window, rows)
        self._leaving = leaving
        self._tracked.states.forget()

    def _leave(self, window: BasicWindow, rows: Array | None) -> Iterator[pa.RecordBatch]:
        numbers = window.numbers if rows is None else window.numbers[rows]
        if not len(numbers):
            return
        final = self._tracked.states.leave(numbers, matched=self._spec.kind.announced)
        if self._preserved and final.any():
            chosen = np.flatnonzero(final) if rows is None else rows[final]
            yield lone_rows(self._spec, self._side, window.batch, chosen)


def lone_rows(spec: JoinSpec, side: int, batch: pa.RecordBatch, rows: Array | None) -> pa.RecordBatch:
    """Return rows of one side as results, with NULLs for the other side; all rows if `rows` is None."""
    columns = batch.columns[: len(spec.sides[side].schema)]
    if rows is not None:
        columns = [gather(column, rows) for column in columns]
    if spec.kind.shown[1 - side]:
        count = batch.num_rows if rows is None else len(rows)
        missing = [pa.nulls(count, kind) for kind in spec.sides[1 - side].schema.types]
        columns = [*columns, *missing] if side == 0 else [*missing, *columns]
    return pa.RecordBatch.from_arrays(columns, schema=spec.output)


class _Leaving:
    """A basic window that some rows have left; its rows leave in the order of their stamps."""

    def __init__(self, window: BasicWindow) -> None:
        self._window = window  # keeps its identity from being used again
        stamp = window.spec.expiring
        assert stamp is not None
        self._stamps = integers(stored_column(window.batch, window.spec, stamp.name))
        self._order: Array | None = None
        """The rows by stamp, from the second call of `until` on: sorting costs more than one look at all."""
        self._passed: int | None = None

    def until(self, oldest: int) -> Array:
        """Return the rows with stamps below `oldest` that have not been returned before."""
        passed, self._passed = self._passed, oldest
        if passed is None:
            return np.flatnonzero(self._stamps < oldest)
        if self._order is None:
            self._order = np.argsort(self._stamps, kind="stable")
            self._stamps = self._stamps[self._order]
        start, end = np.searchsorted(self._stamps, [passed, oldest])
        return self._order[start:end]

    def rest(self) -> Array:
        """Return the rows that have not been returned before."""
        rest = np.flatnonzero(self._stamps >= self._passed)
        return rest if self._order is None else self._order[rest]
