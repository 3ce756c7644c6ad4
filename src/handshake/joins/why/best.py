"""Rows of joins that choose best matches: those that wait, and those that are taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from handshake.joins.why.answer import Condition, length
from handshake.joins.why.conditions import Member, shown_row
from handshake.joins.why.presence import Asked, equal_rows
from handshake.kinds import JoinKind

BEST = "best match"
"""The condition that no other right row is a better match."""
UNKNOWN = "the other right rows are not known; give the right input (right=…)"
_SHOWN = 3
"""Right rows that a note lists, at most."""


@dataclass(frozen=True)
class LeftRow:
    """The left row of a streaming join, which takes its best matches once it is final."""

    member: Member
    unit: str
    mark: int | None
    """The watermark; None if there is none yet."""
    held: bool
    """Whether the join holds it."""

    @property
    def final(self) -> bool:
        """True if the watermark says that no better match can come."""
        left = self._left
        return left is not None and left <= 0

    @property
    def _left(self) -> int | None:
        """How far the watermark is from making it final; None if that is not known."""
        member, mark = self.member, self.mark
        if member.window is None or member.rule is None or not member.window.timed:
            return None
        return None if member.time is None or mark is None else member.time + member.rule.reach + 1 - mark

    @property
    def until(self) -> str:
        """How long it waits, as text."""
        window = self.member.window
        if window is not None and not window.timed:
            return f"until {window} have come after it"
        if self._left is None:
            return "until a watermark has passed it"
        if self.final:
            return "until the next micro-batch"
        return f"until the watermark is {length(self._left, self.unit)} later"

    def explain(self, asked: Asked) -> Condition:
        """Return whether the row waits for its best matches in a running join, or why it does not."""
        if self.held or not self.final or not asked.matchable:
            return asked.explain(self.held, f", and waits {self.until}")
        reasons = ", or ".join(("its result has come", *asked.explain_loss(), "it has not come"))
        behind = f"it is {asked.behind} behind the watermark: " if asked.behind else ""
        return Condition(f"{self.member.row} in the join", "unknown", f"not held: {behind}{reasons}")


REPLACED = "a later row of its keys has replaced it"
"""How a right row can have gone from an as-of join that only times decide."""


def add_replacement(found: Condition, left: LeftRow) -> Condition:
    """Add that a right row may have been replaced, so that no left row that waits or comes can take it."""
    outcome = found.outcome if left.held else "unknown"  # a left row that is final may have taken it
    return Condition(found.what, outcome, f"{found.detail}, or {REPLACED}")


def explain_presence(right: pa.Table, row: pa.RecordBatch) -> Condition | None:
    """Return that no right row has the values of a row; None if one has."""
    if any(equal_rows(batch, row).any() for batch in right.to_batches()):
        return None
    return Condition("right row in the right input", "fails", "no row there has these values")


def note_taken(taken: Sequence[pa.RecordBatch], kind: JoinKind, *, so_far: bool) -> str:
    """Return which right rows a left row takes.

    Args:
        taken: The right rows, the best one first.
        kind: The kind of the join.
        so_far: Whether better ones may come.
    """
    until = " so far" if so_far else ""
    if not taken:
        alone = "comes with NULLs" if kind.preserves else "is no result"
        return f"no right row matches the left row{until}; without a match, it {alone}"
    more = f", and {len(taken) - _SHOWN} more" if len(taken) > _SHOWN else ""
    rows = "; ".join(shown_row(row) for row in taken[:_SHOWN])
    return f"the left row takes{until}: {rows}{more}"
