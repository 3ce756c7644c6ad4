"""Conditions on given rows, one per stream: the parts of the predicate, windows, and being in time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.driver import arrays_of, can_match
from handshake.joins.spec import SIDES, JoinSpec
from handshake.joins.why.answer import OUTCOMES, Condition, length
from handshake.joins.why.rows import row_time
from handshake.kernels.evaluate import evaluate
from handshake.plan.expr import Column, Compare, Expr, Literal, conjuncts, show, walk
from handshake.windows import Rule, Window, is_late

Places = Sequence[Sequence[int]]
"""Per row, how many rows of each stream came before it; of its own stream, that is its position."""
_SHOWN = 60
"""The most characters of a value in an explanation."""


@dataclass(frozen=True)
class Member:
    """A row that is asked about, as its stream sees it."""

    name: str
    """The name of its stream."""
    window: Window | None
    rule: Rule | None
    """The rule of the window; None without one."""
    time: int | None = None
    """Its time in the unit of the join."""
    column: str | None = None
    """The time column."""
    sided: bool = True
    """Whether the stream is the left or the right one of two."""

    @property
    def row(self) -> str:
        """The words for the row: `left row`, or `row of trades`."""
        return f"{self.name} row" if self.sided else f"row of {self.name}"

    @property
    def shown_window(self) -> str:
        """The words for its window: `left window of 5 seconds`, or `window of trades, 5 seconds`."""
        return (
            f"{self.name} window of {self.window}" if self.sided else f"window of {self.name}, {self.window}"
        )


def pair_of(spec: JoinSpec, rows: Sequence[pa.RecordBatch]) -> list[Member]:
    """Return a left row and a right row as members of a join."""
    streams = zip(SIDES, spec.windows, spec.rules, spec.sides, strict=True)
    return [
        Member(name, window, rule, row_time(rows[k], side.time, spec.unit, name), side.time)
        for k, (name, window, rule, side) in enumerate(streams)
    ]


# The predicate


def predicate_of_pair(predicate: Expr, rows: Sequence[pa.RecordBatch]) -> Iterator[Condition]:
    """Yield the parts of a bound predicate of two streams."""
    parts = conjuncts(predicate)
    arrays = {**arrays_of(rows[0], 0, parts), **arrays_of(rows[1], 1, parts)}
    return show_parts(((show(part), part) for part in parts), arrays, show)


def show_parts(
    parts: Iterable[tuple[str, Expr]], arrays: Mapping[Column, pa.Array], name: Callable[[Column], str]
) -> Iterator[Condition]:
    """Yield whether each part of a predicate holds, with its values.

    Args:
        parts: The parts as written, and bound.
        arrays: The columns that they read, of one row.
        name: Returns a column as the predicate writes it.
    """
    for text, part in parts:
        if isinstance(part, Literal) and part.value is True:
            continue
        yield Condition(text, OUTCOMES[evaluate(part, arrays, 1)[0].as_py()], _values(part, arrays, name))


def _values(part: Expr, arrays: Mapping[Column, pa.Array], name: Callable[[Column], str]) -> str:
    """Return the values of both operands of a comparison, or of all columns."""
    if isinstance(part, Compare):
        with contextlib.suppress(UnsupportedError):  # an operand of more than 128 bits has no value to show
            left, right = (_text(evaluate(operand, arrays, 1)) for operand in (part.left, part.right))
            return f"{left} {part.op} {right}"
    columns = sorted({node for node in walk(part) if isinstance(node, Column)}, key=name)
    return ", ".join(f"{name(c)} = {_text(arrays[c])}" for c in columns) or "a constant"


def _text(array: pa.Array) -> str:
    return shown_value(array[0].as_py())


def shown_value(value: object) -> str:
    """Return a value as an explanation shows it."""
    text = "NULL" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def shown_row(row: pa.RecordBatch) -> str:
    """Return a row as an explanation shows it: its columns with their values, without hidden ones."""
    values = row.to_pylist()[0].items()
    return ", ".join(f"{name} = {shown_value(value)}" for name, value in values if "\0" not in name)


# Windows


def window_conditions(members: Sequence[Member], unit: str, places: Places | None) -> Iterator[Condition]:
    """Yield the rule of each window: all other rows come while the row is in it.

    Args:
        members: The rows, one per stream.
        unit: The unit of their times.
        places: Where each row came; None if that is not known.
    """
    if any(member.window is not None and member.window.timed for member in members):
        for member in members:
            if member.time is None:
                yield Condition(f"time of the {member.row}", "fails", f"'{member.column}' is NULL")
    for k, member in enumerate(members):
        if member.window is None or member.rule is None:
            continue
        others = [n for n in range(len(members)) if n != k]
        if not member.window.timed:
            yield _by_position(member, members, k, others, places)
        elif member.time is not None:
            yield from _by_time(member, [members[n] for n in others], unit)


def _by_time(member: Member, others: Sequence[Member], unit: str) -> Iterator[Condition]:
    """Yield whether the latest of the other rows comes while a row is in its window."""
    latest = max(others, key=lambda other: -(2**63) if other.time is None else other.time)
    if latest.time is None:
        return
    assert member.time is not None
    assert member.rule is not None
    detail = f"the {latest.row} is {_later(latest.time - member.time, unit)}"
    yield Condition(member.shown_window, OUTCOMES[member.rule.holds(member.time, latest.time)], detail)


def _by_position(
    member: Member, members: Sequence[Member], k: int, others: Sequence[int], places: Places | None
) -> Condition:
    assert member.window is not None
    if places is None:
        detail = "rows have no positions; give whole inputs and row numbers"
        return Condition(member.shown_window, "unknown", detail)
    last = max(others, key=lambda n: places[n][k])
    own, seen, other = places[k][k], places[last][k], members[last].row
    outcome = OUTCOMES[seen - own <= member.window.size]
    if seen <= own:
        return Condition(member.shown_window, outcome, f"the {other} comes before it")
    newer = seen - own - 1
    return Condition(member.shown_window, outcome, f"when the {other} comes, {newer} newer rows are in it")


def _later(distance: int, unit: str) -> str:
    return "not later" if distance <= 0 else f"{length(distance, unit)} later"


# The watermark


def in_time(members: Sequence[Member], unit: str, mark: int) -> Iterator[Condition]:
    """Yield whether two rows were in time, by the watermark when the later of them came."""
    behind = [
        None if m.time is None or not is_late(m.time, mark) else length(mark - m.time, unit) for m in members
    ]
    if None not in behind:
        detail = (
            f"the left row is {behind[0]} and the right row {behind[1]} behind the watermark, so the one "
            "that came later was late"
        )
        yield Condition("rows in time", "fails", detail)
        return
    for member, other, far in zip(members, reversed(members), behind, strict=True):
        if member.time is None:
            continue
        what = f"{member.row} in time"
        if far is None:
            yield Condition(what, "holds", "the watermark has not passed it")
        else:
            detail = f"it is {far} behind the watermark, so it was late unless it came before the {other.row}"
            yield Condition(what, "unknown", detail)


def waiting(members: Sequence[Member], unit: str, mark: int) -> Iterator[str]:
    """Yield how long each row waits for matches, or that it has left its window."""
    for member in members:
        if member.time is None or member.window is None or member.rule is None or not member.window.timed:
            continue
        left = member.time + member.rule.reach + 1 - mark
        if left <= 0:
            yield f"the {member.row} has left its window"
        else:
            more = length(left, unit)
            yield f"the {member.row} waits for matches until the watermark is {more} later"


def is_matchable(spec: JoinSpec, side: int, row: pa.RecordBatch) -> bool:
    """Return whether a row can match any other: its keys have values, and conditions on it alone hold."""
    mask = can_match(row, spec.sides[side])
    return mask is None or bool(mask[0])
