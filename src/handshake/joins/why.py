"""Why two rows join, or do not: the conditions of a join one by one, with their values."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from typing import Literal as OneOf

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, InputError, UnsupportedError
from handshake.html import card
from handshake.io.frames import conform, is_spark, schema_of, table_of
from handshake.joins.driver import arrays_of, can_match, times_of
from handshake.joins.plan import JoinPlan, predicate_of
from handshake.joins.spec import SIDES, JoinSpec, join_spec
from handshake.kernels.evaluate import evaluate
from handshake.kinds import INNER, JoinKind
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Compare, Expr, Literal, conjuncts, show, walk
from handshake.schema import UNITS
from handshake.windows import Window, Windows, is_late

__all__ = [
    "Condition",
    "Places",
    "Why",
    "ask_pair",
    "conclude",
    "conditions_of",
    "conform_pair",
    "explain_pair",
    "is_matchable",
    "length",
    "no_answer",
    "parse_row",
    "row_time",
    "typed_row",
    "waiting",
    "why_rows",
]

Array = np.ndarray[Any, Any]
Places = tuple[tuple[int, int], tuple[int, int]]
Outcome = OneOf["holds", "fails", "null", "unknown"]
_SIGNS = {"holds": "yes", "fails": "no", "null": "NULL", "unknown": "?"}
_OUTCOMES: dict[bool | None, Outcome] = {True: "holds", False: "fails", None: "null"}
_HEADS = {
    True: "the rows join",
    False: "the rows do not join",
    None: "the rows join if what is marked ? holds",
}
_SHOWN = 60
"""The most characters of a value in an explanation."""
_LONGEST = 20_000
"""The most characters of a row in JSON."""
_LAST = np.iinfo(np.int64).max
_LONG = {"day": 86_400, "hour": 3_600, "minute": 60}
"""Seconds of the units of long times."""


@dataclass(frozen=True)
class Condition:
    """One condition of a join, for two rows."""

    what: str
    """A part of the predicate, a window, or that a row is in time."""
    outcome: Outcome
    """`null` if it is NULL, as a comparison with NULL is; `unknown` if what is given does not tell."""
    detail: str
    """The values behind it."""

    def __str__(self) -> str:
        return f"{_SIGNS[self.outcome]:<5}{self.what}: {self.detail}"


@dataclass(frozen=True)
class Why:
    """Why two rows join, or do not; printed, it has a line per condition."""

    conditions: tuple[Condition, ...]
    """All conditions: those of the predicate, of the windows, and of the watermark."""
    notes: tuple[str, ...] = ()
    """How long each row waits for matches, if a watermark is given, and what becomes of it without one."""

    @property
    def joined(self) -> bool | None:
        """True if the rows are a pair, False if they are not, None if that is not known."""
        outcomes = {condition.outcome for condition in self.conditions}
        if outcomes & {"fails", "null"}:
            return False
        return None if "unknown" in outcomes else True

    @property
    def reasons(self) -> tuple[Condition, ...]:
        """The conditions that do not hold."""
        return tuple(condition for condition in self.conditions if condition.outcome != "holds")

    def _repr_html_(self) -> str:
        rows = [(_SIGNS[each.outcome], each.what, each.detail) for each in self.conditions]
        head = ("", "condition", "values")
        return card(_HEADS[self.joined].capitalize(), rows=(head, *rows), text="\n".join(self.notes))

    def __str__(self) -> str:
        lines = (*map(str, self.conditions), *self.notes)
        return "\n".join((_HEADS[self.joined], *(f"  {line}" for line in lines)))


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
    wholes = [
        None if whole is None else _whole(whole, name) for whole, name in zip(inputs, SIDES, strict=True)
    ]
    rows = [_row(*each) for each in zip(given, wholes, SIDES, strict=True)]
    spec = join_spec(
        rows[0].schema, rows[1].schema, predicate_of(on), windows, times=times, aliases=aliases, kind=kind
    )
    places = None
    if all(isinstance(whole, pa.Table) for whole in wholes) and all(isinstance(row, int) for row in given):
        places = _places(spec, wholes, given)
    return explain_pair(spec, rows, None if watermark is None else _instant(spec, watermark), places)


def no_answer(name: str) -> UnsupportedError:
    """Return the error of a thing that cannot explain two rows, by the name of its class."""
    article = "an" if name[0] in "AEIOU" else "a"
    return UnsupportedError(
        f"{article} {name} has no answer for a pair of rows; ask for the conditions of two streams, by "
        "handshake.why(left_row, right_row, condition, window=…, time=…)"
    )


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
        places: Per row, its position in its own stream and how many rows of the other came before it.
    """
    times = [row_time(spec, side, row) for side, row in enumerate(rows)]
    conditions, notes = conditions_of(spec, rows, places), tuple[str, ...]()
    if mark is not None and spec.windows.timed:
        conditions = (*conditions, *_in_time(spec, times, mark))
        notes = tuple(waiting(spec, times, mark))
    return conclude(spec, rows, conditions, notes)


def conditions_of(
    spec: JoinSpec, rows: Sequence[pa.RecordBatch], places: Places | None = None
) -> tuple[Condition, ...]:
    """Return the conditions of the predicate and of the windows; see `explain_pair`."""
    times = [row_time(spec, side, row) for side, row in enumerate(rows)]
    return (*_predicate(spec, rows), *_windows(spec, times, places))


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


# The rows


def conform_pair(spec: JoinSpec, *rows: Any) -> list[pa.RecordBatch]:
    """Return a left row and a right row, such as dicts of values, in the columns of a join."""
    return [
        conform([row] if isinstance(row, Mapping) else row, side.schema, side.name)
        for row, side in zip(rows, spec.sides, strict=True)
    ]


def _whole(value: Any, stream: str) -> pa.Table | pa.Schema:
    if is_spark(value):
        raise InputError(
            f"why() looks at rows in this process; collect the rows of the {stream} DataFrame that matter "
            "(toPandas)"
        )
    return schema_of(value, stream) if isinstance(value, pa.Schema) else table_of(value)


def _row(row: Any, whole: pa.Table | pa.Schema | None, stream: str) -> pa.RecordBatch:
    """Return a row as a batch of one row."""
    if isinstance(row, int) and not isinstance(row, bool):
        if not isinstance(whole, pa.Table):
            raise InputError(
                f"the {stream} row is given by its number, {row}, so the whole input is needed ({stream}=…)"
            )
        if not 0 <= row < whole.num_rows:
            raise InputError(f"no row {row} in the {stream} input of {whole.num_rows} rows, counted from 0")
        return whole.slice(row, 1).combine_chunks().to_batches()[0]
    schema = None if whole is None else whole if isinstance(whole, pa.Schema) else whole.schema
    if isinstance(row, Mapping) and not any(isinstance(value, (list, pa.Array)) for value in row.values()):
        row = [dict(row)]
    found = table_of(row, schema)
    if found.num_rows != 1:
        raise InputError(f"one {stream} row is explained, and {found.num_rows} were given")
    return conform(found, schema or found.schema, stream)


def parse_row(text: str, side: str) -> dict[str, Any]:
    """Return a row that is written in JSON.

    >>> parse_row('{"id": 17}', "left")
    {'id': 17}
    """
    try:
        row = json.loads(text) if len(text) <= _LONGEST else None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f'the {side} row is an object in JSON, such as {{"x": 1}}')
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError(f"the {side} row has half of a surrogate pair, which is no character") from None
    return row


def typed_row(row: Mapping[str, Any], schema: pa.Schema, stream: str) -> pa.RecordBatch:
    """Return a row, whose texts may stand for values of other types, such as times, as a batch of one row.

    Raises:
        InputError: A text is no value of its column.
    """
    found = dict(row)
    for field in schema:
        value = found.get(field.name)
        if isinstance(value, str) and not pa.types.is_string(field.type):
            try:
                found[field.name] = _value_of(value, field.type).as_py()
            except pa.ArrowException as error:
                raise InputError(f"column '{field.name}' is {field.type}: {error}") from error
    return conform([found], schema, stream)


def _value_of(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a text as a value; a time without a zone is in UTC."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        with contextlib.suppress(pa.ArrowInvalid):
            return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(pa.timestamp(kind.unit, "UTC"))
    return pa.scalar(text).cast(kind)


def _instant(spec: JoinSpec, watermark: Any) -> int:
    """Return a watermark in the unit of the join's times."""
    side = next((side for side in spec.sides if side.time is not None), None)
    if side is None or side.time is None:
        raise InputError(f"a watermark, {watermark!r}, says nothing without time columns; name them (time=…)")
    field = side.schema.field(side.time)
    try:
        row = typed_row({side.time: watermark}, pa.schema([field]), side.name)
    except HandshakeError as error:
        raise InputError(
            f"the watermark, {watermark!r}, is no value of column '{side.time}', which is {field.type}"
        ) from error
    times, valid = times_of(row.column(0), spec.unit, side.time, side.name)
    if valid is not None:
        raise InputError(f"{watermark!r} is not a time, so it is no watermark")
    return int(times[0])


def row_time(spec: JoinSpec, side: int, row: pa.RecordBatch) -> int | None:
    """Return the time of a row in the unit of the join; None without one."""
    name = spec.sides[side].time
    if name is None:
        return None
    times, valid = times_of(row.column(name), spec.unit, name, SIDES[side])
    return int(times[0]) if valid is None or valid[0] else None


# The predicate


def _predicate(spec: JoinSpec, rows: Sequence[pa.RecordBatch]) -> Iterator[Condition]:
    parts = conjuncts(spec.analysis.predicate)
    if parts == (Literal(True, type=parts[0].type),):
        return
    arrays = {**arrays_of(rows[0], 0, parts), **arrays_of(rows[1], 1, parts)}
    for part in parts:
        outcome = _OUTCOMES[evaluate(part, arrays, 1)[0].as_py()]
        yield Condition(show(part), outcome, _values(part, arrays))


def _values(part: Expr, arrays: Mapping[Column, pa.Array]) -> str:
    """Return the values of both operands of a comparison, or of all columns."""
    if isinstance(part, Compare):
        with contextlib.suppress(UnsupportedError):  # an operand of more than 128 bits has no value to show
            left, right = (_text(evaluate(operand, arrays, 1)) for operand in (part.left, part.right))
            return f"{left} {part.op} {right}"
    columns = sorted({node for node in walk(part) if isinstance(node, Column)}, key=show)
    return ", ".join(f"{show(c)} = {_text(arrays[c])}" for c in columns) or "a constant"


def _text(array: pa.Array) -> str:
    value = array[0].as_py()
    text = "NULL" if value is None else value if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


# Windows and the watermark


def _windows(spec: JoinSpec, times: Sequence[int | None], places: Places | None) -> Iterator[Condition]:
    """Yield the rule of each window: the other row comes while the row is in it."""
    if spec.windows.timed:
        for side, name in enumerate(SIDES):
            if times[side] is None:
                yield Condition(f"time of the {name} row", "fails", f"'{spec.sides[side].time}' is NULL")
    for side, (window, rule) in enumerate(zip(spec.windows, spec.rules, strict=True)):
        if window is None or rule is None:
            continue
        what, other = f"{SIDES[side]} window of {window}", SIDES[1 - side]
        if window.timed:
            held, asked = times[side], times[1 - side]
            if held is not None and asked is not None:
                detail = f"the {other} row is {_later(asked - held, spec.unit)}"
                yield Condition(what, _OUTCOMES[rule.holds(held, asked)], detail)
        elif places is None:
            yield Condition(what, "unknown", "rows have no positions; give whole inputs and row numbers")
        else:
            yield _by_position(what, window, places[side][0], places[1 - side][1], other)


def _by_position(what: str, window: Window, own: int, seen: int, other: str) -> Condition:
    outcome = _OUTCOMES[seen - own <= window.size]
    if seen <= own:
        return Condition(what, outcome, f"the {other} row comes before it")
    return Condition(what, outcome, f"when the {other} row comes, {seen - own - 1} newer rows are in it")


def _later(distance: int, unit: str) -> str:
    if distance <= 0:
        return "not later"
    return f"{length(distance, unit)} later"


def length(distance: int, unit: str) -> str:
    """Return a length of time as people write it.

    >>> [length(n, "ms") for n in (500, 4350, 90_000, 7_200_000)]
    ['500 ms', '4.35 seconds', '1 minute 30 seconds', '2 hours']
    """
    rest, parts = distance * UNITS[unit], []
    for name, size in _LONG.items():
        count, rest = divmod(rest, UNITS["s"] * size)
        if count:
            parts.append(f"{count} {name}{'s' * (count != 1)}")
    if rest and (parts or rest >= UNITS["s"]):
        parts.append(f"{_decimal(rest, UNITS['s'])} second{'s' * (rest != UNITS['s'])}")
    elif rest:
        short = next(short for short in ("ms", "us", "ns") if rest >= UNITS[short])
        parts.append(f"{_decimal(rest, UNITS[short])} {short}")
    return " ".join(parts) or "0 seconds"


def _decimal(nanoseconds: int, size: int) -> str:
    return f"{(Decimal(nanoseconds) / size).normalize():f}"


def _in_time(spec: JoinSpec, times: Sequence[int | None], mark: int) -> Iterator[Condition]:
    """Yield whether rows were in time, by the watermark when the later of them came."""
    behind = [
        None if time is None or not is_late(time, mark) else length(mark - time, spec.unit) for time in times
    ]
    if None not in behind:
        detail = (
            f"the left row is {behind[0]} and the right row {behind[1]} behind the watermark, so the one "
            "that came later was late"
        )
        yield Condition("rows in time", "fails", detail)
        return
    for name, other, time, far in zip(SIDES, reversed(SIDES), times, behind, strict=True):
        if time is None:
            continue
        what = f"{name} row in time"
        if far is None:
            yield Condition(what, "holds", "the watermark has not passed it")
        else:
            detail = f"it is {far} behind the watermark, so it was late unless it came before the {other} row"
            yield Condition(what, "unknown", detail)


def _outcomes_by_kind(
    spec: JoinSpec, rows: Sequence[pa.RecordBatch], matched: tuple[bool, bool], *, joined: bool | None
) -> Iterator[str]:
    """Yield what becomes of each row, if the kind of join says more than whether it is in a pair."""
    kind = spec.kind
    for side, name in enumerate(SIDES if kind != INNER else ()):
        if not kind.shown[side]:
            continue
        if not joined and not matched[side]:
            yield _alone(spec, side, rows[side], row_time(spec, side, rows[side]))
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


def is_matchable(spec: JoinSpec, side: int, row: pa.RecordBatch) -> bool:
    """Return whether a row can match any other: its keys have values, and conditions on it alone hold."""
    mask = can_match(row, spec.sides[side])
    return mask is None or bool(mask[0])


def waiting(spec: JoinSpec, times: Sequence[int | None], mark: int) -> Iterator[str]:
    """Yield how long each row waits for matches, or that it has left its window."""
    for name, time, window, rule in zip(SIDES, times, spec.windows, spec.rules, strict=True):
        if time is None or window is None or rule is None or not window.timed:
            continue
        left = time + rule.reach + 1 - mark
        if left <= 0:
            yield f"the {name} row has left its window"
        else:
            more = length(left, spec.unit)
            yield f"the {name} row waits for matches until the watermark is {more} later"


# Positions


def _places(spec: JoinSpec, wholes: Sequence[Any], numbers: Sequence[int]) -> Places:
    """Return the positions of two rows when their tables are replayed as streams."""
    if spec.sides[0].time is None:
        counts = [whole.num_rows for whole in wholes]
        return (
            (numbers[0], min(numbers[0], counts[1])),
            (numbers[1], min(numbers[1] + 1, counts[0])),
        )
    clocks = [_clock(spec, side, whole) for side, whole in enumerate(wholes)]
    return _place(clocks, numbers, 0), _place(clocks, numbers, 1)


def _clock(spec: JoinSpec, side: int, whole: pa.Table) -> tuple[Array, Array]:
    """Return the times of a table, and which rows arrive; rows without a time come last, or never."""
    name = spec.sides[side].time
    assert name is not None
    times, valid = times_of(whole.column(name).combine_chunks(), spec.unit, name, SIDES[side])
    if valid is None:
        return times, np.ones(len(times), np.bool_)
    arrives = valid if spec.windows.timed else np.ones(len(times), np.bool_)
    return np.where(valid, times, _LAST), arrives


def _place(clocks: Sequence[tuple[Array, Array]], numbers: Sequence[int], side: int) -> tuple[int, int]:
    """Return the position of a row, and how many rows of the other table arrive before it."""
    number, (mine, arrives), (theirs, there) = numbers[side], clocks[side], clocks[1 - side]
    at = mine[number]
    before = (mine < at) | ((mine == at) & (np.arange(len(mine)) < number))
    # of rows with the same time, left ones come first
    earlier = theirs < at if side == 0 else theirs <= at
    return int((before & arrives).sum()), int((earlier & there).sum())
