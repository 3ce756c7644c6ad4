"""Why a right row is among the best matches of a left row in a nearest join, or is not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.driver import arrays_of
from handshake.joins.metrics import StreamMetrics
from handshake.joins.nearest import Chooser, Nearest
from handshake.joins.numbered import number_rows
from handshake.joins.ranking import Ranking
from handshake.joins.why.answer import Condition, Why
from handshake.joins.why.best import BEST, UNKNOWN, LeftRow, explain_presence, note_taken
from handshake.joins.why.conditions import is_matchable, pair_of, shown_row, shown_value
from handshake.joins.why.pairs import Given, conditions_of
from handshake.joins.why.presence import Asked, Held, equal_rows, find_held, held_places
from handshake.kernels.evaluate import evaluate
from handshake.kinds import BEST as KINDS
from handshake.kinds import JoinKind
from handshake.plan.expr import show

_POSITIONS = "windows count rows, so give whole inputs and the numbers of the rows"


def explain_nearest(join: Nearest, given: Given) -> Why:
    """Explain two rows of a nearest join of tables.

    Args:
        join: The join, with the columns of the rows.
        given: A left row and a right row, and the inputs that they are from.
    """
    rows, right = given.rows, given.wholes[1]
    spec = join.plan_pairs(join.left, join.right).spec
    conditions = [*conditions_of(spec, rows, given.places(spec))]
    taken = None
    if isinstance(right, pa.Table):
        taken = _find_taken(join, given, right)
        absent = explain_presence(right, rows[1])
        conditions += [] if absent is None else [absent]
    if Why(tuple(conditions)).joined is not False:
        conditions.append(_explain_rank(join.bound.ranking, rows, taken, counted=spec.windows.counted))
    why = Why(tuple(conditions))
    if why.joined or taken is None:
        return why
    return replace(why, notes=(note_taken(taken, join.kind, so_far=False),))


def _find_taken(join: Nearest, given: Given, right: pa.Table) -> list[pa.RecordBatch] | None:
    """Return the right rows that a left row takes, the best one first; None if that is not known."""
    if not join.windows.counted:
        return _take_best(join, pa.Table.from_batches([given.rows[0]]), 0, right)
    if given.numbers is None:
        return None
    assert isinstance(given.wholes[0], pa.Table)
    return _take_best(join, given.wholes[0], given.numbers[0], right)


def _take_best(join: Nearest, left: pa.Table, number: int, right: pa.Table) -> list[pa.RecordBatch]:
    """Return the right rows that the left row of this number takes, the best one first."""
    left = number_rows(left, left.schema.names)
    found = replace(join, how="inner", rank=None, value=None, cores=1).find(left, right).table
    places = np.flatnonzero(np.asarray(found.column(left.num_columns - 1)) == number)
    chosen = found.take(pa.array(places)).columns[left.num_columns :]
    return _rows(pa.table(chosen, schema=right.schema))


def _rows(table: pa.Table) -> list[pa.RecordBatch]:
    """Return each row of a table as a batch."""
    return [table.slice(n, 1).combine_chunks().to_batches()[0] for n in range(table.num_rows)]


def _explain_rank(
    ranking: Ranking, rows: Sequence[pa.RecordBatch], taken: Sequence[pa.RecordBatch] | None, *, counted: bool
) -> Condition:
    """Return whether a right row is among those that a left row takes, or which ones are better."""
    what = _among(ranking)
    if taken is None:
        return Condition(what, "unknown", _POSITIONS if counted else UNKNOWN)
    rank = _rank_of(taken, rows[1])
    value = _value(ranking, *rows)
    if rank is not None:
        return Condition(what, "holds", f"{value}, rank {rank} of {len(taken)}")
    return Condition(what, "fails", _explain_better(ranking, rows, taken))


def _among(ranking: Ranking) -> str:
    return f"{BEST} by {show(ranking.by)}" if ranking.k == 1 else f"{ranking.k} best by {show(ranking.by)}"


def _rank_of(taken: Sequence[pa.RecordBatch], row: pa.RecordBatch) -> int | None:
    """Return the rank of a row among others, from 1 up; None if it is not there."""
    return next((rank for rank, one in enumerate(taken, 1) if equal_rows(one, row)[0]), None)


def _explain_better(ranking: Ranking, rows: Sequence[pa.RecordBatch], taken: Sequence[pa.RecordBatch]) -> str:
    last = taken[-1]
    own, other = _value(ranking, *rows), _value(ranking, rows[0], last)
    tie = "; of equal values, the last row in the order of columns is best" if own == other else ""
    if ranking.k == 1:
        return f"{own}; another right row is better, {shown_row(last)}: {other}{tie}"
    return f"{own}; {len(taken)} right rows are better, the last of them {shown_row(last)}: {other}{tie}"


def _value(ranking: Ranking, left: pa.RecordBatch, right: pa.RecordBatch) -> str:
    """Return the value of the ranking for two rows, as text."""
    arrays = {**arrays_of(left, 0, (ranking.by,)), **arrays_of(right, 1, (ranking.by,))}
    with contextlib.suppress(UnsupportedError):  # a number of more than 128 bits has no value to show
        return f"its value is {shown_value(evaluate(ranking.by, arrays, 1)[0].as_py())}"
    return "its value is beyond 128 bits"


def explain_running_nearest(
    join: Arrangement, chooser: Chooser, rows: Sequence[pa.RecordBatch],
    counts: Sequence[StreamMetrics], *, queued: bool,
) -> Why:  # fmt: skip
    """Explain two rows, one per batch, by what a running nearest join holds.

    Args:
        join: The join of pairs; no push runs.
        chooser: The best pairs so far.
        rows: A left row and a right row.
        counts: The rows of each side by what became of them.
        queued: Whether rows may wait in front of the join.
    """
    spec, mark = join.spec, join.driver.mark()
    held = [find_held(join, side, row) for side, row in enumerate(rows)]
    members, timed = pair_of(spec, rows), spec.windows.timed
    asked = [
        Asked(member, spec.unit, mark, timed, is_matchable(spec, side, rows[side]), counts[side], queued)
        for side, member in enumerate(members)
    ]
    left = LeftRow(members[0], spec.unit, mark, held[0] is not None)
    taken = _find_so_far(join, chooser, held[0])
    rank = _rank_of(taken, rows[1])
    right = asked[1].explain(held[1] is not None)
    if rank is not None and held[1] is None:
        right = replace(right, outcome="holds", detail="it has come, and is a match of the left row")
    conditions = [*conditions_of(spec, rows, held_places(spec, held)), left.explain(asked[0]), right]
    if not left.held:
        return Why(tuple(conditions))
    if Why(tuple(conditions)).joined is not False:
        conditions.append(_explain_so_far(chooser.ranking, rows, taken, left, queued=queued))
    return Why(tuple(conditions), (note_taken(taken, _kind(chooser.ranking), so_far=True),))


def explain_held_nearest(
    join: Nearest, rows: Sequence[pa.RecordBatch], right: pa.Table, left: LeftRow, found: Sequence[Condition]
) -> Why:
    """Explain two rows, one per batch, by the right rows that a nearest join of streams holds.

    Args:
        join: The request; its windows are times.
        rows: A left row and a right row.
        right: The right rows that are held.
        left: The left row in the join.
        found: Whether both rows are held, or why not.
    """
    conditions = [*conditions_of(join.plan_pairs(join.left, join.right).spec, rows), *found]
    alone, other = (pa.Table.from_batches([row]) for row in rows)
    if Why(tuple(conditions)).joined is not False:
        known = right if explain_presence(right, rows[1]) is None else pa.concat_tables([right, other])
        taken = _take_best(join, alone, 0, known)
        conditions.append(_explain_so_far(join.bound.ranking, rows, taken, left, queued=False))
    taken = _take_best(join, alone, 0, right)
    return Why(tuple(conditions), (note_taken(taken, join.kind, so_far=True),))


def _find_so_far(join: Arrangement, chooser: Chooser, held: Held | None) -> list[pa.RecordBatch]:
    """Return the best right rows of a left row so far, the best one first."""
    if held is None:
        return []
    number = held.rows[0].column(join.spec.sides[0].schema.names[-1])
    chosen = chooser.best.look(np.asarray(number)[:1])
    if chosen is None:
        return []
    names = join.spec.sides[1].schema.names[:-1]  # without the mark that every right row has
    return _rows(pa.table(chosen.payload.columns, names=names))


def _explain_so_far(
    ranking: Ranking, rows: Sequence[pa.RecordBatch], taken: Sequence[pa.RecordBatch], left: LeftRow, *,
    queued: bool,
) -> Condition:  # fmt: skip
    """Return whether a right row is among the best ones so far of a left row."""
    what, rank = _among(ranking), _rank_of(taken, rows[1])
    value = _value(ranking, *rows)
    if rank is not None and not left.held:
        few = (
            "no right row that is held is"
            if ranking.k == 1
            else f"fewer than {ranking.k} right rows that are held are"
        )
        return Condition(what, "unknown", f"{value}; {few} better")
    if rank is not None:
        place = f"rank {rank} of {len(taken)} so far"
        return Condition(what, "unknown", f"{value}, {place}; the left row waits {left.until}")
    if len(taken) == ranking.k:
        return Condition(what, "fails", _explain_better(ranking, rows, taken))
    detail = f"it is not among the {len(taken)} matches of the left row so far"
    return Condition(what, "unknown" if queued else "fails", detail)


def _kind(ranking: Ranking) -> JoinKind:
    return KINDS["left" if ranking.keeps_all else "inner"]
