"""Rows in a running join: whether it holds them, has expired them, or has never kept them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import stored_column
from handshake.joins.metrics import StreamMetrics
from handshake.joins.spec import OTHER, OWN, JoinSpec
from handshake.joins.why.answer import Condition, Outcome, Why, length
from handshake.joins.why.conditions import Member, Places, is_matchable, pair_of, waiting
from handshake.joins.why.pairs import conclude, conditions_of
from handshake.kernels.columns import integers
from handshake.windows import is_late

Array = np.ndarray[Any, Any]


class Held(NamedTuple):
    """The rows with some values that a join holds."""

    places: set[tuple[int, int]]
    """Their positions, if windows count rows: in their own stream, and how many of the other came before."""
    matched: bool | None
    """Whether one of them has matched; None if the join does not track that."""
    rows: list[pa.RecordBatch]
    """The rows, with their hidden columns."""


def explain_in_join(
    join: Arrangement, rows: Sequence[pa.RecordBatch], counts: Sequence[StreamMetrics], *, queued: bool
) -> Why:
    """Explain two rows, one per batch, by what a running join holds.

    Args:
        join: The join; no push runs.
        rows: The rows, one of each side.
        counts: The rows of each side by what became of them.
        queued: Whether rows may wait in front of the join.
    """
    spec, mark = join.spec, join.driver.mark()
    members = pair_of(spec, rows)
    held = [find_held(join, side, row) for side, row in enumerate(rows)]
    found = []
    for side, (member, one) in enumerate(zip(members, held, strict=True)):
        matchable = is_matchable(spec, side, rows[side])
        asked = Asked(member, spec.unit, mark, spec.windows.timed, matchable, counts[side], queued)
        found.append(asked.explain(one is not None, MATCHED[None if one is None else one.matched]))
    known = [member for member, one in zip(members, held, strict=True) if one is not None]
    notes = () if mark is None else tuple(waiting(known, spec.unit, mark))
    matched = [one is not None and bool(one.matched) for one in held]
    conditions = (*conditions_of(spec, rows, held_places(spec, held)), *found)
    return conclude(spec, rows, conditions, notes, (matched[0], matched[1]))


def find_held(join: Arrangement, side: int, row: pa.RecordBatch) -> Held | None:
    """Return the rows of a side that have the given values and can still join; None if there is none."""
    oldest, tracked = join.driver.oldest(side), join.driver.tracked[side]
    places, rows, matched = set[tuple[int, int]](), list[pa.RecordBatch](), False
    for window in join.held_windows(side):
        numbers = np.flatnonzero(equal_rows(window.batch, row) & _open(window, oldest))
        rows += [window.batch.take(pa.array(numbers))] if len(numbers) else []
        if join.spec.windows.counted:
            stamps = (window.batch.column(name).take(numbers).to_pylist() for name in (OWN, OTHER))
            places |= set(zip(*stamps, strict=True))
        if tracked is not None and len(numbers):
            matched |= bool(tracked.states.are_matched(window.numbers[numbers]).any())
    return Held(places, None if tracked is None else matched, rows) if rows else None


def _open(window: BasicWindow, oldest: int | None) -> Array:
    """Return which rows can still join; a basic window expires as a whole."""
    stamp = window.spec.expiring
    if stamp is None or oldest is None:
        return np.ones(window.rows, np.bool_)
    stamps: Array = integers(stored_column(window.batch, window.spec, stamp.name))
    return stamps >= oldest


def held_places(spec: JoinSpec, held: Sequence[Held | None]) -> Places | None:
    """Return where both rows came, if windows count rows and the join holds each once."""
    if not spec.windows.counted:
        return None
    found = [place for one in held if one is not None and len(one.places) == 1 for place in one.places]
    return (found[0], found[1][::-1]) if len(found) == 2 else None


@dataclass(frozen=True)
class Asked:
    """A row that is looked for in a running join."""

    member: Member
    unit: str
    mark: int | None
    """The watermark; None if there is none yet."""
    timed: bool
    """Whether a window needs times."""
    matchable: bool
    """Whether it can match any row."""
    counts: StreamMetrics
    """The rows of its stream by what became of them."""
    queued: bool = False
    """Whether rows may wait in front of the join."""

    def explain(self, held: bool, more: str = "") -> Condition:
        """Return whether the join holds the row, or why it does not.

        Args:
            held: Whether the join holds it.
            more: Added to the answer for a row that is held.
        """
        what = f"{self.member.row} in the join"
        if held:
            return Condition(what, "holds", f"it is held{more}")
        if self.timed and self.member.time is None:
            return Condition(what, "fails", "it has no time, so it is not kept")
        if not self.matchable:
            return Condition(what, "fails", "it can match nothing, so it is not kept")
        if self.member.window is not None and str(self.member.window) == "now":
            return Condition(what, "unknown", "the window is now, so rows are not kept")
        left = self._explain_exit()
        waits = ["it still waits before the join"] if self.queued else []
        reasons = [*left, *self.explain_loss(), *waits, "it has not come"]
        behind = f"it is {self.behind} behind the watermark: " if self.behind else ""
        outcome: Outcome = "unknown" if left or self.queued else "fails"
        return Condition(what, outcome, f"not held: {behind}{', or '.join(reasons)}")

    @property
    def behind(self) -> str:
        """How far the row is behind the watermark; empty if it is not."""
        time = self.member.time
        if time is None or self.mark is None or not is_late(time, self.mark):
            return ""
        return length(self.mark - time, self.unit)

    def _explain_exit(self) -> list[str]:
        """Return how the row can have left its window."""
        window, rule, time = self.member.window, self.member.rule, self.member.time
        if window is None or rule is None:
            return []
        if not window.timed:
            return ["newer rows have pushed it out"] if self.counts.rows > window.size else []
        if time is None or self.mark is None or time + rule.reach >= self.mark:
            return []
        return ["it has expired"]

    def explain_loss(self) -> Iterator[str]:
        """Yield how the row can have come without being kept."""
        stream = "side" if self.member.sided else "stream"
        if self.counts.late and self.behind:
            yield f"it was late, as {self.counts.late:,} of this {stream}"
        if self.counts.shed:
            yield f"it was shed, as {self.counts.shed:,} of this {stream}"


MATCHED = {None: "", True: ", and it has matched", False: ", and it has not matched so far"}
"""The end of the answer for a row that is held: whether it has matched, if the join knows it."""


def equal_rows(batch: pa.RecordBatch, asked: pa.RecordBatch) -> Array:
    """Return which rows of a batch have the values of a row; NULL equals NULL, and NaN equals NaN."""
    mask = np.ones(batch.num_rows, np.bool_)
    for name in asked.schema.names:
        column, value = batch.column(name), asked.column(name)[0]
        if not _compares(column.type):
            shown = repr(value.as_py())  # of NaN, too, which is in no value equal to itself
            mask &= np.array([repr(each) == shown for each in column.to_pylist()], np.bool_)
        elif not value.is_valid:
            mask &= np.asarray(column.is_null())
        elif value.as_py() != value.as_py():
            mask &= np.asarray(pc.fill_null(pc.is_nan(column), False))
        else:
            mask &= np.asarray(pc.fill_null(pc.equal(column, value), False))
    return mask


def _compares(kind: pa.DataType) -> bool:
    """Return whether Arrow compares values of a type."""
    others = (pa.types.is_nested, pa.types.is_dictionary, pa.types.is_float16, pa.types.is_interval)
    return not isinstance(kind, pa.BaseExtensionType) and not any(is_one(kind) for is_one in others)
