"""Why two rows are a pair of a streaming join, or not, by the rows that its state holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.state.chunks import read_parts
from handshake.engines.spark.state.reading import JoinState, SegmentState, read_state
from handshake.errors import ExpressionError, InputError, suggest
from handshake.joins import asof, nearest
from handshake.joins.asof import AsOf, split_keys
from handshake.joins.nearest import Nearest
from handshake.joins.numbered import APART
from handshake.joins.spec import OTHER, OWN, ROW, SIDES, JoinSpec, join_spec
from handshake.joins.waiting import show_columns
from handshake.joins.why.answer import Condition, Why, length
from handshake.joins.why.asof import explain_held_asof
from handshake.joins.why.best import LeftRow, add_replacement
from handshake.joins.why.conditions import Member, is_matchable, pair_of, waiting
from handshake.joins.why.nearest import explain_held_nearest
from handshake.joins.why.pairs import explain_pair
from handshake.joins.why.presence import equal_rows
from handshake.joins.why.rows import typed_row
from handshake.kinds import BEST, KINDS
from handshake.plan.bind import Scope
from handshake.plan.expr import Column, walk
from handshake.plan.parse import parse
from handshake.schema import Schema
from handshake.windows import Windows, is_late, parse_window

Row = Mapping[str, Any]
_TYPED = re.compile(r"(?P<name>.*) (?P<type>[a-z0-9_]+(?:[\[(<].*)?)", re.DOTALL)
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal(128|256)\((\d+), (-?\d+)\)")


def why_in_state(
    root: str, left: Row, right: Row, *, query: str | None = None, join: str | None = None,
    aliases: tuple[str, str] | None = None,
) -> Why:  # fmt: skip
    """Explain two rows by the state of a streaming join: its conditions, and whether segments hold the rows.

    Args:
        root: The state directory: a path or a URI.
        left: Values of the left row by column. If the state holds exactly one row with these values, some of
            the columns suffice.
        right: Values of the right row.
        query: The start of the query's id, if there are several.
        join: The name of the join, if there are several.
        aliases: The names of both inputs in the predicate, if they are not `l` and `r`.

    Raises:
        InputError: There is no such join, or the rows are not complete.
    """
    found = read_state(root).select(query, join)
    if len(found) > 1:
        names = ", ".join(f"'{each.name}' of query {each.query}" for each in found)
        raise InputError(f"there are several joins: {names}; choose one by its query and its name")
    return _Asked(found[0], aliases).explain((left, right))


@dataclass(frozen=True)
class _Held:
    """A row in the state, with its hidden columns."""

    segment: SegmentState
    batch: pa.RecordBatch


class _Asked:
    """A join in a state, to which questions are put."""

    def __init__(self, state: JoinState, aliases: tuple[str, str] | None) -> None:
        plan = state.plan
        self._state = state
        marks = [each.manifest.watermark for each in state.segments]
        self._mark = max((mark for mark in marks if mark is not None), default=None)
        left, right = (_schema(state, side) for side in (0, 1))
        times, kinds = plan["time columns"], BEST if "best match" in plan else KINDS
        try:
            self._spec = join_spec(
                left, right, parse(plan["predicate"]), _windows(plan["windows"]), times=(times[0], times[1]),
                aliases=aliases, kind=kinds[plan.get("kind", "inner")],
            )  # fmt: skip
            self._best = best_match(plan, self._spec, aliases)
        except ExpressionError as error:
            raise ExpressionError(
                f"cannot read the predicate in the state, {plan['predicate']}: {error}; if it has other "
                "names than l and r, give the names of the inputs: aliases=…"
            ) from error

    def explain(self, given: Sequence[Row]) -> Why:
        """Explain two rows, given by some or all of their columns."""
        held = [self._find(side, row) for side, row in enumerate(given)]
        rows = [
            self._complete(side, row)
            if one is None
            else one.batch.select(self._spec.sides[side].schema.names)
            for side, (row, one) in enumerate(zip(given, held, strict=True))
        ]
        members = pair_of(self._spec, rows)
        asked = enumerate(zip(held, rows, (member.time for member in members), strict=True))
        found = [self._presence(side, *each) for side, each in asked]
        known = [member for member, one in zip(members, held, strict=True) if one is not None]
        notes = tuple(self._notes(known))
        if self._best is None:
            why = explain_pair(self._spec, rows, None, self._places(held))
            return Why((*why.conditions, *found), notes)
        left = LeftRow(members[0], self._spec.unit, self._mark, held[0] is not None)
        if self._can_be_replaced(members[1].time, held[1], rows[1]):
            found[1] = add_replacement(found[1], left)
        why = self._choose(self._best, rows, left, held[0], found)
        return Why(why.conditions, (*why.notes, *notes) if left.held else notes)

    def _choose(
        self, best: AsOf | Nearest, rows: Sequence[pa.RecordBatch], left: LeftRow, held: _Held | None,
        found: Sequence[Condition],
    ) -> Why:  # fmt: skip
        """Explain two rows by the right rows in the segment that is the home of the left row.

        If no segment holds the left row, each may have been its home. All its matches visit its home, so a
        row that is better in any segment is better there.
        """
        homes = self._state.segments if held is None else [held.segment]
        answers = [
            explain_held_asof(best, rows, right, left, found)
            if isinstance(best, AsOf)
            else explain_held_nearest(best, rows, right, left, found)
            for right in map(self._right_rows, homes)
        ]
        return min(answers, key=lambda why: why.joined is not False)

    def _right_rows(self, segment: SegmentState) -> pa.Table:
        """Return the right rows that a segment holds, without hidden columns."""
        held = [read_parts(self._state.store, ref)[0] for ref in segment.manifest.windows[1]]
        kept = [batch.filter(pa.array(self._open(segment, 1, batch))) for batch in held]
        return show_columns(self._spec, 1, kept)

    def _can_be_replaced(self, time: int | None, held: _Held | None, row: pa.RecordBatch) -> bool:
        """Return whether a right row may have gone because a later one of its keys is there."""
        gone = held is None and is_matchable(self._spec, 1, row) and self._behind(time)
        return bool(gone) and self._best is not None and self._best.replaces

    # The rows

    def _find(self, side: int, given: Row) -> _Held | None:
        """Return the row of a side that has the given values; None if no segment holds one."""
        schema = self._spec.sides[side].schema
        unknown = [name for name in given if name not in schema.names]
        if unknown or not given:
            hint = suggest(unknown[0], schema.names) if unknown else ""
            what = f"has no column '{unknown[0]}'" if unknown else "row has no values; its columns are"
            raise InputError(f"the {SIDES[side]} {what} ({', '.join(schema.names)}){hint}")
        asked = typed_row(given, pa.schema([schema.field(name) for name in given]), SIDES[side])
        found = list(self._search(side, asked))
        distinct = {str(each.batch.select(schema.names).to_pylist()): each for each in found}
        if len(distinct) > 1:
            values = ", ".join(f"{name} = {value}" for name, value in given.items())
            raise InputError(
                f"{len(distinct)} rows of the {SIDES[side]} stream that the state holds have {values}; give "
                f"more of their columns ({', '.join(schema.names)})"
            )
        return found[0] if found else None

    def _search(self, side: int, asked: pa.RecordBatch) -> Iterator[_Held]:
        for segment in self._state.segments:
            for ref in segment.manifest.windows[side]:
                batch = read_parts(self._state.store, ref)[0]
                mask = equal_rows(batch, asked) & self._open(segment, side, batch)
                for number in np.flatnonzero(mask).tolist():
                    yield _Held(segment, batch.slice(number, 1))

    def _open(self, segment: SegmentState, side: int, batch: pa.RecordBatch) -> Any:
        """Return which rows can still join; a file expires as a whole."""
        stamps, oldest = self._state.stamps(segment, side, batch), segment.manifest.about.oldest[side]
        return np.ones(batch.num_rows, np.bool_) if stamps is None or oldest is None else stamps >= oldest

    def _complete(self, side: int, given: Row) -> pa.RecordBatch:
        """Return a row that is not held; columns that the join does not read may be missing."""
        spec, predicate = self._spec.sides[side], self._spec.analysis.predicate
        read = {node.name for node in walk(predicate) if isinstance(node, Column) and node.side == side}
        ranked = self._best.bound.ranking.reads(side) if isinstance(self._best, Nearest) else ()
        needed = {*read, *ranked, spec.time}
        missing = [name for name in spec.schema.names if name in needed and name not in given]
        if missing:
            raise InputError(
                f"the state holds no row of the {SIDES[side]} stream with these values, so the join's other "
                f"columns are needed to say why: {', '.join(missing)}"
            )
        return typed_row({**dict.fromkeys(spec.schema.names), **given}, spec.schema, SIDES[side])

    def _places(self, held: Sequence[_Held | None]) -> Any:
        """Return the positions of both rows, if windows count rows and both are held."""
        if not self._spec.windows.counted or None in held:
            return None
        places = [
            tuple(int(one.batch.column(name)[0].as_py()) for name in (OWN, OTHER))
            for one in held
            if one is not None and {OWN, OTHER} <= {*one.batch.schema.names}
        ]
        return (places[0], places[1][::-1]) if len(places) == 2 else None

    # What became of them

    def _presence(self, side: int, held: _Held | None, row: pa.RecordBatch, time: int | None) -> Condition:
        what = f"{SIDES[side]} row in the state"
        if held is not None:
            number = held.segment.manifest.about.segment
            matched = _match(side, held) if self._best is None else ""
            return Condition(what, "holds", f"segment {number} holds it{matched}")
        if not is_matchable(self._spec, side, row):
            return Condition(what, "fails", "it can match nothing, so no segment keeps it")
        window, rule = self._spec.windows[side], self._spec.rules[side]
        if window is None or rule is None or not window.timed:
            detail = "no segment holds it: newer rows have pushed it out, or it has not come"
            return Condition(what, "unknown", detail)
        behind = self._behind(time)
        if time is None or self._mark is None or not behind:
            return Condition(what, "fails", "no segment holds it: it has not come")
        if time + rule.reach < self._mark:
            final = self._best is not None and side == 0
            gone = "is final" if final else "has expired"
            but = "its result has come if it came in time" if final else "it had to come in time"
            return Condition(what, "unknown", f"it {gone}, {behind} behind the watermark; {but}")
        detail = f"no segment holds it, and it is {behind} behind the watermark: it was late, or has not come"
        return Condition(what, "fails", detail)

    def _behind(self, time: int | None) -> str:
        """Return how far a time is behind the watermark; empty if it is not."""
        if time is None or self._mark is None or not is_late(time, self._mark):
            return ""
        return length(self._mark - time, self._spec.unit)

    def _notes(self, held: Sequence[Member]) -> Iterator[str]:
        mark, unit = self._mark, self._spec.unit
        if mark is not None and self._spec.windows.timed:
            yield from waiting(held, unit, mark)
        shown = "no watermark yet" if mark is None else f"watermark {_moment(mark, unit)}"
        yield f"this is the state after micro-batch {self._state.batch}, {shown}"
        since = self._state.segments[0].manifest.about.since
        if since > 0:
            yield f"rows that both came before micro-batch {since} were joined by an earlier definition"


def _match(side: int, held: _Held) -> str:
    """Return whether a row has matched, if the join knows it."""
    states = held.segment.manifest.states[side]
    if states is None or ROW not in held.batch.schema.names:
        return ""
    matched = states.are_matched(np.asarray(held.batch.column(ROW)))[0]
    return ", and it has matched" if matched else ", and it has not matched so far"


# The join, from the properties in its manifests


def _schema(state: JoinState, side: int) -> pa.Schema:
    """Return the columns of a side: those of its rows, or if none is held, those that the plan names."""
    for segment in state.segments:
        for ref in segment.manifest.windows[side]:
            names = [_column(text)[0] for text in state.plan[f"{SIDES[side]} columns"]]
            return read_parts(state.store, ref)[0].select(names).schema
    fields = [_column(text) for text in state.plan[f"{SIDES[side]} columns"]]
    return pa.schema([(name, kind) for name, kind in fields if kind is not None])


def _column(text: str) -> tuple[str, pa.DataType | None]:
    """Return the name of a column and its type; None for nested types, which no predicate compares.

    >>> _column("sent at timestamp[us, tz=UTC]")
    ('sent at', TimestampType(timestamp[us, tz=UTC]))
    """
    found = _TYPED.fullmatch(text)
    assert found is not None
    name, kind = found["name"], found["type"]
    if zoned := _TIMESTAMP.fullmatch(kind):
        return name, pa.timestamp(zoned[1], zoned[2])
    if number := _DECIMAL.fullmatch(kind):
        make = pa.decimal128 if number[1] == "128" else pa.decimal256
        return name, make(int(number[2]), int(number[3]))
    try:
        return name, pa.type_for_alias(kind)
    except ValueError:
        return name, None


def best_match(
    plan: Mapping[str, Any], spec: JoinSpec, aliases: tuple[str, str] | None
) -> AsOf | Nearest | None:
    """Return the as-of or nearest join that a plan describes; None if it is a join of pairs."""
    text = plan.get("best match")
    if text is None:
        return None
    left, right = spec.sides
    shared: dict[str, Any] = {
        "left": left.schema, "right": right.schema, "times": (left.time, right.time), "how": plan["kind"],
        "suffix": APART, "aliases": aliases, "cores": 1,
    }  # fmt: skip
    condition, given = parse(plan["predicate"]), asof.read_described(text)
    if given is None:
        return Nearest(on=condition, **shared, **nearest.read_described(text, plan["predicate"]))
    mine, theirs = (Schema.from_arrow(side.schema, side.name) for side in spec.sides)
    by, on = split_keys(condition, Scope.of(mine, theirs, aliases).qualifiers)
    return AsOf(on=on, by=by, **shared, **given)


def _windows(text: str) -> Windows:
    """Return windows from their text.

    >>> str(_windows("left unbounded, right 5 seconds"))
    'left unbounded, right 5 seconds'
    """
    left, _, right = text.removeprefix("left ").partition(", right ")
    return Windows(
        *(None if each in ("none", "unbounded") else parse_window(each) for each in (left, right or left))
    )


def _moment(mark: int, unit: str) -> str:
    return str(pa.scalar(mark, pa.timestamp(unit)).cast(pa.string()).as_py())
