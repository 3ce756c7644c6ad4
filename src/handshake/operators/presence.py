"""Rows in the joins of a running query: held, expired, late, or not come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from handshake.joins.why.answer import Condition
from handshake.joins.why.best import LeftRow, add_replacement
from handshake.joins.why.conditions import Member, Places
from handshake.joins.why.presence import MATCHED, Asked, equal_rows
from handshake.kernels.columns import integers
from handshake.operators.join_asof import AsOfKind
from handshake.operators.joins import POSITION, JoinOperator
from handshake.operators.pipeline import Pipeline
from handshake.plan.algebra import MEMBER_TIME, chain
from handshake.windows import Window


class Given(NamedTuple):
    """A row of an input of a join."""

    batch: pa.RecordBatch
    """Its columns, below selections, projections and computed columns."""
    time: int | None
    """Its time in the unit of the join."""
    column: str | None
    """The time column; None if the time of the row is not known."""


@dataclass(frozen=True)
class Presence:
    """The fate of the rows of a join, one per input."""

    found: tuple[Condition, ...]
    places: Places | None = None
    """Where the rows came, if windows count rows and the join holds each once."""
    left: LeftRow | None = None
    """The left row of an as-of join."""
    right: pa.Table | None = None
    """The right rows that an as-of join holds, with their times in the last column."""


def find_rows(operator: JoinOperator, given: Sequence[Given]) -> Presence:
    """Return what has become of rows, one per input of a join; no push runs."""
    rows = [_row(operator, k, each) for k, each in enumerate(given)]
    kind = operator.kind
    if isinstance(kind, AsOfKind):
        return _find_as_of(operator, kind, given, rows)
    engine = operator.engine
    assert engine is not None
    held, places = engine.find(rows)
    found = []
    for k, (row, one) in enumerate(zip(rows, held, strict=True)):
        unknown = operator.timed and given[k].column is None
        matchable = row is not None and (unknown or engine.can_match(k, row))
        asked = _ask(operator, k, given[k], operator.node.windows, matchable)
        matched = None
        if one is not None and kind is not None:
            matched = kind.has_matched(k, integers(one.column(f"{operator.node.names[k]}.{POSITION}")))
        found.append(_explain(asked, one is not None, MATCHED[matched]))
    return Presence(tuple(found), places)


def _row(operator: JoinOperator, k: int, given: Given) -> pa.RecordBatch | None:
    """Return a row as the join stores it; None if it is dropped before: by a selection, or without a time."""
    node, name = operator.node, operator.node.names[k]
    if operator.timed and given.time is None and given.column is not None:
        return None
    below, nodes = chain(node.inputs[k])
    columns = {f.name: given.batch.column(f.name) for f in below.schema}
    columns, count, _ = Pipeline(below.schema.fields, nodes).run(columns, 1)
    if not count:
        return None
    stored = {f"{name}.{f.name}": columns[f.name] for f in node.inputs[k].schema}
    if operator.timed and given.time is not None:
        stored[f"{name}.{MEMBER_TIME}"] = pa.array([given.time]).view(pa.timestamp(node.clock.unit))
    return pa.RecordBatch.from_arrays([*stored.values()], names=[*stored])


def _ask(
    operator: JoinOperator, k: int, given: Given, windows: Sequence[Window | None], matchable: bool
) -> Asked:
    node, window = operator.node, windows[k]
    unit = node.clock.unit
    rule = None if window is None else window.rule(unit)
    member = Member(node.names[k], window, rule, given.time, given.column, sided=False)
    return Asked(member, unit, operator.mark, operator.timed, matchable, operator.counts(k))


def _is_unknown(asked: Asked) -> bool:
    """Return whether the time of a row matters, and is not known."""
    return asked.timed and asked.member.column is None and asked.matchable


def _explain(asked: Asked, held: bool, more: str = "") -> Condition:
    if held or not _is_unknown(asked):
        return asked.explain(held, more)
    detail = "not held: its time is not known, so it may have expired or been late, or it has not come"
    return Condition(f"{asked.member.row} in the join", "unknown", detail)


def _find_as_of(
    operator: JoinOperator, kind: AsOfKind, given: Sequence[Given], rows: Sequence[pa.RecordBatch | None]
) -> Presence:
    """Return what has become of the rows of an as-of join."""
    tables = [kind.held_rows(side) for side in (0, 1)]
    held = [row is not None and _holds(table, row) for table, row in zip(tables, rows, strict=True)]
    # right rows are held whatever their values, as long as a left row may look for them
    matchable = [rows[0] is not None and kind.can_match(rows[0]), rows[1] is not None]
    asked = [_ask(operator, k, each, kind.waiting.each, matchable[k]) for k, each in enumerate(given)]
    left = LeftRow(asked[0].member, asked[0].unit, asked[0].mark, held[0])
    right = _explain(asked[1], held[1])
    if kind.replaces and not held[1] and matchable[1] and asked[1].behind:
        right = add_replacement(right, left)
    mine = _explain(asked[0], held[0]) if _is_unknown(asked[0]) else left.explain(asked[0])
    return Presence((mine, right), left=left, right=tables[1])


def _holds(table: pa.Table, row: pa.RecordBatch) -> bool:
    return any(bool(equal_rows(batch, row).any()) for batch in table.to_batches())
