"""Why a left row takes a right row in an as-of join, or takes another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from handshake.joins.asof import AsOf
from handshake.joins.lengths import length_of
from handshake.joins.metrics import StreamMetrics
from handshake.joins.spec import SIDES
from handshake.joins.waiting import WaitingJoin, show_columns
from handshake.joins.why.answer import OUTCOMES, Condition, Why, length
from handshake.joins.why.best import (
    BEST,
    UNKNOWN,
    LeftRow,
    add_replacement,
    explain_presence,
    note_taken,
)
from handshake.joins.why.conditions import is_matchable, pair_of, predicate_of_pair, shown_row
from handshake.joins.why.presence import Asked, equal_rows
from handshake.joins.why.rows import row_time
from handshake.plan.expr import conjunction

_PLACES = {
    ("backward", False): "at or before", ("backward", True): "before", ("forward", False): "at or after",
    ("forward", True): "after", ("nearest", True): "not at the time of",
}  # fmt: skip
"""Where right rows match, by direction, and by whether rows of equal times do not."""


def explain_asof(
    join: AsOf, rows: Sequence[pa.RecordBatch], right: pa.Table | None,
    *, predicate: Sequence[Condition] | None = None, within: str | None = None, unknown: str = UNKNOWN,
) -> Why:  # fmt: skip
    """Explain two rows, one per batch, of an as-of join of tables.

    Args:
        join: The join, with the columns of the rows.
        rows: A left row and a right row.
        right: The right input; None if it is not known.
        predicate: The conditions of the predicate, if they have been looked at.
        within: How far a right row may be, as text, if it is not the tolerance.
        unknown: The reason if the right input is not known.
    """
    conditions = _pair_conditions(join, rows, predicate, within)
    if right is None:
        return Why((*conditions, Condition(BEST, "unknown", unknown)))
    choice = _Choice(join, rows, right)
    absent = explain_presence(right, rows[1])
    conditions += [] if absent is None else [absent]
    if Why(tuple(conditions)).joined:
        conditions.append(choice.explain())
    why = Why(tuple(conditions))
    return why if why.joined else replace(why, notes=(note_taken(choice.taken, join.kind, so_far=False),))


def explain_waiting_asof(
    join: WaitingJoin, best: AsOf, rows: Sequence[pa.RecordBatch], counts: Sequence[StreamMetrics]
) -> Why:
    """Explain two rows, one per batch, by what a running as-of join holds.

    Args:
        join: The join; no push runs.
        best: The request.
        rows: A left row and a right row.
        counts: The rows of each side by what became of them.
    """
    spec, members, mark = join.spec, pair_of(join.spec, rows), join.driver.mark()
    tables = [show_columns(spec, side, join.held_rows(side)) for side in (0, 1)]
    held = [explain_presence(table, row) is None for table, row in zip(tables, rows, strict=True)]
    asked = [
        Asked(member, spec.unit, mark, True, is_matchable(spec, side, rows[side]), counts[side])
        for side, member in enumerate(members)
    ]
    left, right = LeftRow(members[0], spec.unit, mark, held[0]), asked[1].explain(held[1])
    if best.replaces and not held[1] and asked[1].matchable and asked[1].behind:
        right = add_replacement(right, left)
    return explain_held_asof(best, rows, tables[1], left, (left.explain(asked[0]), right))


def explain_held_asof(
    join: AsOf, rows: Sequence[pa.RecordBatch], right: pa.Table, left: LeftRow, found: Sequence[Condition],
    *, predicate: Sequence[Condition] | None = None, within: str | None = None,
) -> Why:  # fmt: skip
    """Explain two rows, one per batch, by the right rows that an as-of join of streams holds.

    Args:
        join: The request.
        rows: A left row and a right row.
        right: The right rows that are held.
        left: The left row in the join.
        found: Whether both rows are held, or why not.
        predicate: The conditions of the predicate, if they have been looked at.
        within: How far a right row may be, as text, if it is not the tolerance.
    """
    conditions = [*_pair_conditions(join, rows, predicate, within), *found]
    choice = _Choice(join, rows, right)
    if Why(tuple(conditions)).joined is not False:
        conditions.append(choice.explain(left))
    why = Why(tuple(conditions))
    if left.final and not left.held:
        return why
    return replace(why, notes=(note_taken(choice.taken, join.kind, so_far=True),))


def _pair_conditions(
    join: AsOf, rows: Sequence[pa.RecordBatch], predicate: Sequence[Condition] | None, within: str | None
) -> list[Condition]:
    """Return the conditions of the predicate and on times."""
    pair = _predicate(join, rows) if predicate is None else predicate
    return [*pair, *_time_conditions(join, rows, within)]


def _predicate(join: AsOf, rows: Sequence[pa.RecordBatch]) -> Iterator[Condition]:
    """Yield the parts of the predicate: keys are equal, and the condition."""
    wanted = join.bound
    return predicate_of_pair(conjunction((*wanted.keys, *([] if wanted.on is None else [wanted.on]))), rows)


def _time_conditions(
    join: AsOf, rows: Sequence[pa.RecordBatch], within: str | None = None
) -> Iterator[Condition]:
    """Yield the conditions on times: those of the direction and of the tolerance."""
    wanted = join.bound
    times = [
        row_time(row, name, wanted.unit, side)
        for row, name, side in zip(rows, wanted.times, SIDES, strict=True)
    ]
    for side, name, time in zip(SIDES, wanted.times, times, strict=True):
        if time is None:
            yield Condition(f"time of the {side} row", "fails", f"'{name}' is NULL")
    left, right = times
    if left is None or right is None:
        return
    ahead, unit = right - left, wanted.unit
    place = _PLACES.get((wanted.direction, wanted.strict))
    if place is not None:
        held = (ahead != 0 or not wanted.strict) and (
            wanted.direction == "nearest" or (ahead <= 0 if wanted.direction == "backward" else ahead >= 0)
        )
        yield Condition(f"right row {place} the left row", OUTCOMES[held], f"it is {_distance(ahead, unit)}")
    if join.tolerance is not None:
        over = abs(ahead) - wanted.within
        far = f", {length(over, unit)} too far" if over > 0 else ""
        what = within or f"within {length_of(join.tolerance, 'tolerance')}"
        yield Condition(what, OUTCOMES[over <= 0], f"the right row is {_distance(ahead, unit)}{far}")


def _distance(ahead: int, unit: str) -> str:
    """Return how far a right row is from its left row, as text."""
    if ahead == 0:
        return "at the same time"
    return f"{length(abs(ahead), unit)} {'later' if ahead > 0 else 'earlier'}"


@dataclass(frozen=True)
class _Choice:
    """The right row that a left row takes, of those that are known and the one that is asked about."""

    join: AsOf
    rows: Sequence[pa.RecordBatch]
    right: pa.Table

    @cached_property
    def best(self) -> pa.RecordBatch | None:
        """The best right row; None if no row matches."""
        return self._find(pa.concat_tables([self.right, pa.Table.from_batches([self.rows[1]])]))

    @property
    def taken(self) -> list[pa.RecordBatch]:
        """The best of the right rows that are known, if one matches."""
        found = self._find(self.right)
        return [] if found is None else [found]

    def _find(self, right: pa.Table) -> pa.RecordBatch | None:
        left = pa.Table.from_batches([self.rows[0]])
        found = replace(self.join, how="left", cores=1).find(left, right)
        if not found.matched[0]:
            return None
        columns = found.table.combine_chunks().to_batches()[0].columns[left.num_columns :]
        return pa.RecordBatch.from_arrays(columns, schema=right.schema)

    def explain(self, left: LeftRow | None = None) -> Condition:
        """Return whether the right row is the best match, or which one is better.

        Args:
            left: The left row of a running join; None for tables.
        """
        best = self.best
        assert best is not None
        if not equal_rows(best, self.rows[1])[0]:
            return Condition(BEST, "fails", self._explain_better(best))
        if left is None:
            return Condition(BEST, "holds", "no other right row is better")
        if left.held:
            detail = f"no right row is better so far; the left row waits {left.until}"
            return Condition(BEST, "unknown", detail)
        return Condition(BEST, "unknown", "no right row that is held is better")

    def _explain_better(self, best: pa.RecordBatch) -> str:
        """Return how another right row is better."""
        wanted = self.join.bound
        left, own, better = (
            int(row_time(row, wanted.times[side], wanted.unit, SIDES[side]) or 0)
            for side, row in ((0, self.rows[0]), (1, self.rows[1]), (1, best))
        )
        if better == own:
            reason = "of rows at one time, the last one in the order of their columns is best"
        elif abs(better - left) == abs(own - left):
            reason = "of equally near rows, the earlier one is best"
        else:
            near, far = (length(abs(time - left), wanted.unit) for time in (better, own))
            reason = f"it is {near} away, not {far}"
        return f"another right row is better, {shown_row(best)}: {reason}"
