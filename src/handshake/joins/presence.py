"""Two rows in a running join: whether it holds them, has expired them, or has never kept them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.joins.arrangements.arrangement import TwoStreamJoin
from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import stored_column
from handshake.joins.metrics import StreamMetrics
from handshake.joins.spec import OTHER, OWN, SIDES, JoinSpec
from handshake.joins.why import (
    Condition,
    Places,
    Why,
    conclude,
    conditions_of,
    is_matchable,
    length,
    row_time,
    waiting,
)
from handshake.kernels.columns import integers
from handshake.windows import Window, is_late

__all__ = ["equal_rows", "explain_in_join"]

Array = np.ndarray[Any, Any]


class _Held(NamedTuple):
    """The rows with some values that a join holds."""

    places: set[tuple[int, int]]
    """Their positions, if windows count rows: in their own stream, and how many of the other came before."""
    matched: bool | None
    """Whether one of them has matched; None if the join does not track that."""


def explain_in_join(
    join: TwoStreamJoin, rows: Sequence[pa.RecordBatch], counts: Sequence[StreamMetrics], *, queued: bool
) -> Why:
    """Explain two rows, one per batch, by what a running join holds.

    Args:
        join: The join; no push runs.
        rows: The rows, one of each side.
        counts: The rows of each side by what became of them.
        queued: Whether rows may wait in front of the join.
    """
    spec, mark = join.spec, join.driver.mark()
    times = [row_time(spec, side, row) for side, row in enumerate(rows)]
    held = [_find(join, side, row) for side, row in enumerate(rows)]
    asked = [_Asked(spec, side, rows[side], times[side], mark) for side in (0, 1)]
    found = [one.presence(held[side], counts[side], queued=queued) for side, one in enumerate(asked)]
    conditions = conditions_of(spec, rows, _places(spec, held))
    known = [time if one is not None else None for one, time in zip(held, times, strict=True)]
    notes = () if mark is None else tuple(waiting(spec, known, mark))
    matched = [one is not None and bool(one.matched) for one in held]
    return conclude(spec, rows, (*conditions, *found), notes, (matched[0], matched[1]))


def _find(join: TwoStreamJoin, side: int, row: pa.RecordBatch) -> _Held | None:
    """Return the rows of a side that have the given values and can still join; None if there is none."""
    oldest, tracked = join.driver.oldest(side), join.driver.tracked[side]
    places, some, matched = set[tuple[int, int]](), False, False
    for window in join.held_windows(side):
        numbers = np.flatnonzero(equal_rows(window.batch, row) & _open(window, oldest))
        some |= len(numbers) > 0
        if join.spec.windows.counted:
            places |= set(
                zip(
                    *(window.batch.column(name).take(numbers).to_pylist() for name in (OWN, OTHER)),
                    strict=True,
                )
            )
        if tracked is not None and len(numbers):
            matched |= bool(tracked.states.are_matched(window.numbers[numbers]).any())
    return _Held(places, None if tracked is None else matched) if some else None


def _open(window: BasicWindow, oldest: int | None) -> Array:
    """Return which rows can still join; a basic window expires as a whole."""
    stamp = window.spec.expiring
    if stamp is None or oldest is None:
        return np.ones(window.rows, np.bool_)
    stamps: Array = integers(stored_column(window.batch, window.spec, stamp.name))
    return stamps >= oldest


def _places(spec: JoinSpec, held: Sequence[_Held | None]) -> Places | None:
    """Return the positions of both rows, if windows count rows and the join holds each once."""
    if not spec.windows.counted:
        return None
    found = [place for one in held if one is not None and len(one.places) == 1 for place in one.places]
    return (found[0], found[1]) if len(found) == 2 else None


class _Asked(NamedTuple):
    """A row that is looked for in a running join."""

    spec: JoinSpec
    side: int
    row: pa.RecordBatch
    time: int | None
    mark: int | None

    def presence(self, held: _Held | None, counts: StreamMetrics, *, queued: bool) -> Condition:
        """Return whether the join holds the row, or why it does not."""
        what = f"{SIDES[self.side]} row in the join"
        if held is not None:
            return Condition(what, "holds", f"it is held{_MATCHED[held.matched]}")
        if self.spec.windows.timed and self.time is None:
            return Condition(what, "fails", "it has no time, so it is not kept")
        if not is_matchable(self.spec, self.side, self.row):
            return Condition(what, "fails", "it can match nothing, so it is not kept")
        window = self.spec.windows[self.side]
        if window is not None and str(window) == "now":
            return Condition(what, "unknown", "the window is now, so rows are not kept")
        left = self._explain_exit(window, counts)
        reasons = [
            *left,
            *self._explain_loss(counts),
            *(["it still waits before the join"] if queued else []),
        ]
        behind = "" if not self._behind else f"it is {self._behind} behind the watermark: "
        detail = f"not held: {behind}{_either([*reasons, 'it has not come'])}"
        return Condition(what, "unknown" if left or queued else "fails", detail)

    @property
    def _behind(self) -> str:
        """How far the row is behind the watermark; empty if it is not."""
        if self.time is None or self.mark is None or not is_late(self.time, self.mark):
            return ""
        return length(self.mark - self.time, self.spec.unit)

    def _explain_exit(self, window: Window | None, counts: StreamMetrics) -> list[str]:
        """Return how the row can have left its window."""
        rule = self.spec.rules[self.side]
        if window is None or rule is None:
            return []
        if not window.timed:
            return ["newer rows have pushed it out"] if counts.rows > window.size else []
        if self.time is None or self.mark is None or self.time + rule.reach >= self.mark:
            return []
        return ["it has expired"]

    def _explain_loss(self, counts: StreamMetrics) -> Iterator[str]:
        """Yield how the row can have come without being kept."""
        if counts.late and self._behind:
            yield f"it was late, as {counts.late:,} of this side"
        if counts.shed:
            yield f"it was shed, as {counts.shed:,} of this side"


_MATCHED = {None: "", True: ", and it has matched", False: ", and it has not matched so far"}


def _either(reasons: Sequence[str]) -> str:
    return ", or ".join(reasons)


def equal_rows(batch: pa.RecordBatch, asked: pa.RecordBatch) -> Array:
    """Return which rows of a batch have the values of a row; NULL equals NULL, and NaN equals NaN."""
    mask = np.ones(batch.num_rows, np.bool_)
    for name in asked.schema.names:
        column, value = batch.column(name), asked.column(name)[0]
        if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
            mask &= np.array([each == value.as_py() for each in column.to_pylist()], np.bool_)
        elif not value.is_valid:
            mask &= np.asarray(column.is_null())
        elif value.as_py() != value.as_py():
            mask &= np.asarray(pc.fill_null(pc.is_nan(column), False))
        else:
            mask &= np.asarray(pc.fill_null(pc.equal(column, value), False))
    return mask
