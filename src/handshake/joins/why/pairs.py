"""Why two rows are a pair of a join of two streams, or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from handshake.joins.plan import JoinPlan, predicate_of
from handshake.joins.spec import SIDES, JoinSpec, join_spec
from handshake.joins.why.answer import Condition, Why
from handshake.joins.why.conditions import (
    Places,
    in_time,
    is_matchable,
    pair_of,
    predicate_of_pair,
    waiting,
    window_conditions,
)
from handshake.joins.why.places import Stream, places_of
from handshake.joins.why.rows import conform_pair, one_row, row_time, watermark_of, whole_input
from handshake.kinds import INNER, JoinKind
from handshake.plan.build import Expression
from handshake.windows import Windows


def why_rows(
    given: tuple[Any, Any], inputs: tuple[Any, Any], on: str | Expression | None, windows: Windows,
    times: tuple[str | None, str | None], *, watermark: Any = None, aliases: tuple[str, str] | None = None,
    kind: JoinKind = INNER,
) -> Why:  # fmt: skip
    """Explain two rows of inputs; see `handshake.why`.

    Args:
        given: The rows: dicts, frames of one row, or their numbers in the inputs.
        inputs: The inputs, or their schemas; None if they are not known.
        on: The predicate.
        windows: The windows of both sides.
        times: The time columns.
        watermark: The watermark when the later of the rows arrived.
        aliases: Other names for `l` and `r` in the predicate.
        kind: The kind of join, which says what becomes of rows without a match.
    """
    asked = given_rows(given, inputs)
    spec = join_spec(
        asked.rows[0].schema, asked.rows[1].schema, predicate_of(on), windows, times=times, aliases=aliases,
        kind=kind,
    )  # fmt: skip
    mark = None if watermark is None else watermark_of(spec, watermark)
    return explain_pair(spec, asked.rows, mark, asked.places(spec))


class Given(NamedTuple):
    """A left row and a right row, and the inputs that they are from."""

    rows: list[pa.RecordBatch]
    wholes: list[pa.Table | pa.Schema | None]
    numbers: list[int] | None
    """The numbers of the rows in the inputs, if both are given by these."""

    def places(self, spec: JoinSpec) -> Places | None:
        """Return where the rows come when both inputs are replayed; None if that is not known."""
        if self.numbers is None:
            return None
        streams = [
            Stream(whole, side.time, side.name) for whole, side in zip(self.wholes, spec.sides, strict=True)
        ]
        return places_of(streams, self.numbers, spec.unit, timed=spec.windows.timed)


def given_rows(given: Sequence[Any], inputs: Sequence[Any]) -> Given:
    """Return the rows that are asked about.

    Args:
        given: The rows: dicts, frames of one row, or their numbers in the inputs.
        inputs: The inputs, or their schemas; None if they are not known.
    """
    wholes = [
        None if whole is None else whole_input(whole, name) for whole, name in zip(inputs, SIDES, strict=True)
    ]
    rows = [one_row(*each) for each in zip(given, wholes, SIDES, strict=True)]
    numbered = all(isinstance(whole, pa.Table) for whole in wholes) and all(isinstance(n, int) for n in given)
    return Given(rows, wholes, list(given) if numbered else None)


def ask_pair(join: Any) -> Callable[[Any, Any], Why] | None:
    """Return what explains two rows of a running join or of a plan; None if the value is neither."""
    if isinstance(join, JoinPlan):
        return lambda left, right: explain_pair(join.spec, conform_pair(join.spec, left, right))
    found = None if isinstance(join, Expression) else getattr(join, "why", None)
    return found if callable(found) else None


def explain_pair(
    spec: JoinSpec, rows: Sequence[pa.RecordBatch], mark: int | None = None, places: Places | None = None
) -> Why:
    """Explain two rows, one per batch.

    Args:
        spec: The join.
        rows: The rows, one of each side.
        mark: The watermark when the later of the rows came, in the unit of the join's times.
        places: Where each row came; None if that is not known.
    """
    conditions, notes = conditions_of(spec, rows, places), tuple[str, ...]()
    if mark is not None and spec.windows.timed:
        members = pair_of(spec, rows)
        conditions = (*conditions, *in_time(members, spec.unit, mark))
        notes = tuple(waiting(members, spec.unit, mark))
    return conclude(spec, rows, conditions, notes)


def conditions_of(
    spec: JoinSpec, rows: Sequence[pa.RecordBatch], places: Places | None = None
) -> tuple[Condition, ...]:
    """Return the conditions of the predicate and of the windows; see `explain_pair`."""
    windows = window_conditions(pair_of(spec, rows), spec.unit, places)
    return (*predicate_of_pair(spec.analysis.predicate, rows), *windows)


def conclude(
    spec: JoinSpec, rows: Sequence[pa.RecordBatch], conditions: tuple[Condition, ...],
    notes: tuple[str, ...], matched: tuple[bool, bool] = (False, False),
) -> Why:  # fmt: skip
    """Return conditions and notes, and what becomes of each row by the kind of the join.

    Args:
        spec: The join.
        rows: The rows, one of each side.
        conditions: All conditions.
        notes: Lines that come before.
        matched: Whether each row is known to have matched another one.
    """
    joined = Why(conditions).joined
    return Why(conditions, (*notes, *_outcomes_by_kind(spec, rows, matched, joined=joined)))


def _outcomes_by_kind(
    spec: JoinSpec, rows: Sequence[pa.RecordBatch], matched: tuple[bool, bool], *, joined: bool | None
) -> Iterator[str]:
    """Yield what becomes of each row, if the kind of join says more than whether it is in a pair."""
    kind = spec.kind
    for side, name in enumerate(SIDES if kind != INNER else ()):
        if not kind.shown[side]:
            continue
        if not joined and not matched[side]:
            yield _alone(spec, side, rows[side], row_time(rows[side], spec.sides[side].time, spec.unit, name))
        elif kind.pairs == "first":
            yield f"the {name} row is a result with its first match"
        elif kind.pairs == "none":
            yield f"the {name} row has a match, so it is no result"


def _alone(spec: JoinSpec, side: int, row: pa.RecordBatch, time: int | None) -> str:
    """Return what becomes of a row that has no match."""
    name, window = SIDES[side], spec.windows[side]
    if not spec.kind.preserved[side]:
        return f"without a match, the {name} row is no result"
    comes = "comes with NULLs" if spec.kind.shown[1 - side] else "comes"
    if not is_matchable(spec, side, row) or (spec.windows.timed and time is None):
        return f"the {name} row can match nothing, so it {comes} at once"
    end = "at the end of the input" if window is None else f"once it has left its window of {window}"
    return f"without a match, the {name} row {comes} {end}"
