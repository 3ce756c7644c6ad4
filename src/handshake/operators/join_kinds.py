"""Kinds of ⋈: which pairs are results, and the rows without a match, with their places, times and clocks.

docs/queries.md defines them. Everything follows from the pairs of an inner join and from the stamps of rows.
So results depend neither on batches nor on the join engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.states import RowStates
from handshake.kernels.evaluate import Evaluator
from handshake.kernels.keys import has_value
from handshake.operators.chunk import BEGINNING, END, Array, Chunk, Trace, concat_chunks
from handshake.operators.pending import Left, Pending
from handshake.plan.algebra import MEMBER_TIME, WindowJoin
from handshake.plan.expr import Column, Compare, Expr, conjuncts, sides, walk
from handshake.schema import arrow_of

_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class JoinStep:
    """The input of a join in one step."""

    chunks: list[Chunk]
    """The rows of both sides that take part in the join."""
    timeless: list[Chunk]
    """Rows without a time, if the join needs times."""
    arrived: list[int]
    """The number of rows of each side that took part before this step."""
    trace: Trace
    before: int
    """The clock of the join before this step."""
    ended: bool

    def clock_at(self, places: Array) -> Array:
        """Return what the clock of the join shows at places; at the end of the input, what it showed last."""
        shown = np.concatenate([[self.before], self.trace.clocks])
        shown = np.where(shown >= END, shown[shown < END][-1], shown)
        found: Array = shown[np.searchsorted(self.trace.places, places, "right")]
        return found

    def places_at(self, left: Left) -> Array:
        """Return where the clock of the join reaches the ends of rows that wait."""
        own, at = left.chunk.places, np.searchsorted(self.trace.clocks, left.ends)
        assert own is not None
        places: Array = np.maximum(own, self.trace.places[np.minimum(at, len(self.trace.places) - 1)])
        return places

    @property
    def clock(self) -> int:
        """The clock of the join after this step."""
        last = self.trace.last
        return self.before if last is None else last


class KindOfJoin:
    """The rows of a join of two streams that wait for a match, and the results of its kind."""

    def __init__(self, node: WindowJoin) -> None:
        self._node, self._kind = node, node.kind
        self._pending = tuple(Pending() if tracked else None for tracked in node.kind.tracked)
        self.matched = self.unmatched = self.finalised = 0
        self.states = RowStates() if node.kind.pairs in ("first", "none") else None
        """Which rows wait for a match, by position, if one match of each is enough."""
        self._build()

    _saved: tuple[str, ...] = ("_node", "_kind", "_pending", "matched", "unmatched", "finalised", "states")

    @property
    def pending(self) -> int:
        """The number of rows that wait for a match."""
        return sum(len(pending) for pending in self._pending if pending is not None)

    def _build(self) -> None:
        self._schema = {f.name: arrow_of(f.type) for f in self._node.schema}
        self._hopeless = tuple(_Hopeless(self._node.on, side) for side in (0, 1))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._saved}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._build()

    def expect(self, chunks: list[Chunk]) -> None:
        """Record the rows of a step, before pairs are searched."""
        if self.states is not None:
            self.states.number(chunks[self._kind.shown.index(True)].rows)

    def has_matched(self, side: int, positions: Array) -> bool | None:
        """Return whether rows of a side that are held have matched; None if the join does not track that."""
        pending = self._pending[side]
        return None if pending is None else not pending.holds(positions)

    def _settle(self, positions: Array) -> None:
        """Record that rows wait no more; no pair of theirs is searched for in later steps."""
        if self.states is not None:
            self.states.leave(positions.astype(np.uint32))

    def step(self, step: JoinStep, pairs: Chunk, positions: Array) -> Chunk:
        """Return the results of a step.

        Args:
            step: The input.
            pairs: The pairs that it completes, in the order of queries; of semi and anti joins, at least the
                first pair of each row without a match.
            positions: The positions of their rows in both streams, one array per side.
        """
        alone: list[Results] = []
        for side, pending in enumerate(self._pending):
            if pending is not None:
                alone += self._enter(pending, side, step)
        for side, pending in enumerate(self._pending):
            if pending is not None:
                first = pending.match(positions[side])
                self.matched += len(first)
                self.finalised += len(first)
                self._settle(positions[side][first])
                if self._kind.pairs == "first":
                    pairs = pairs.take(first)
                alone += self._leave(pending, side, step)
        if self._kind.pairs == "none":
            pairs = pairs.take(np.empty(0, np.int64))
        if self.states is not None:
            self.states.forget()
        return in_order(pairs, alone) if alone else pairs

    def _enter(self, pending: Pending, side: int, step: JoinStep) -> list[Results]:
        """Let rows wait; return those that can match nothing, and those without a time."""
        chunk, preserved = step.chunks[side], self._kind.preserved[side]
        positions = np.arange(step.arrived[side], step.arrived[side] + chunk.rows)
        hopeless = self._hopeless[side].find(chunk)
        self.finalised += int(np.count_nonzero(hopeless)) + step.timeless[side].rows
        self._settle(positions[hopeless])
        waiting = np.flatnonzero(~hopeless)
        wanted = preserved or self._kind.pairs == "best"
        kept = chunk.take(waiting) if wanted else Chunk({}, len(waiting))
        ends = self._ends(side, chunk, positions)
        pending.add(kept, positions[waiting], ends[waiting])
        if not preserved:
            return []
        alone = []
        if step.timeless[side].rows:
            rows = step.timeless[side]
            alone.append(self._one_sided(side, rows, np.arange(rows.rows)))
        if hopeless.any():
            which = np.flatnonzero(hopeless)
            rows = chunk.take(which)
            assert rows.places is not None
            alone.append(self._final(side, step, rows, positions[which], ends[which], rows.places))
        return alone

    def _ends(self, side: int, chunk: Chunk, positions: Array) -> Array:
        """Return when rows leave their window: the clock, or the number of rows in their stream."""
        window = self._node.windows[side]
        if window is None:
            return np.full(chunk.rows, _NEVER)
        reach = window.reach(self._node.clock.unit) + 1
        if window.counted:
            return positions + reach
        assert chunk.times is not None
        return chunk.times + reach

    def _leave(self, pending: Pending, side: int, step: JoinStep) -> list[Results]:
        """Return the rows that have become final."""
        window, chunk = self._node.windows[side], step.chunks[side]
        counted = window is not None and window.counted
        arrived = step.arrived[side] + chunk.rows
        left = pending.leave(None if step.ended else arrived if counted else step.clock)
        if left is None:
            return []
        self.finalised += left.chunk.rows
        self._settle(left.positions)
        if not self._kind.preserved[side]:
            return []
        if counted:
            assert chunk.places is not None
            pushing = np.append(chunk.places, step.trace.places[-1:])  # at the end of the input, no row does
            places = pushing[np.minimum(left.ends - 1 - step.arrived[side], len(pushing) - 1)]
        else:
            places = step.places_at(left)
        return [self._final(side, step, left.chunk, left.positions, left.ends, places)]

    def _final(
        self, side: int, step: JoinStep, rows: Chunk, positions: Array, ends: Array, places: Array
    ) -> Results:
        """Return rows without a match as results."""
        return self._one_sided(side, self._stamp(side, step, rows, ends, places), positions, rows)

    def _stamp(self, side: int, step: JoinStep, rows: Chunk, ends: Array, places: Array) -> Chunk:
        """Stamp rows without a match with the end of their window, or the later of time and clock."""
        assert rows.times is not None
        assert rows.clocks is not None
        window = self._node.windows[side]
        if window is not None and window.timed:
            return Chunk(rows.columns, rows.rows, ends, None, ends, places)
        passed = step.clock_at(places)
        times = np.maximum(rows.times, passed)
        clocks = times if rows.timed is None else np.where(rows.timed, times, np.maximum(rows.clocks, passed))
        return Chunk(rows.columns, rows.rows, times, rows.timed, clocks, places)

    def _one_sided(self, side: int, stamped: Chunk, positions: Array, rows: Chunk | None = None) -> Results:
        """Return rows of one side as results, with NULLs for the other; `rows` have the times of rows."""
        self.unmatched += stamped.rows
        name = self._node.names[side]
        own = {f"{name}.{column}": values for column, values in stamped.columns.items()}
        if self._node.times:
            rows = stamped if rows is None else rows
            missing = None if rows.timed is None else ~rows.timed
            times = pa.array(rows.times, mask=missing).view(pa.timestamp(self._node.clock.unit))
            own[f"{name}.{MEMBER_TIME}"] = times
        columns = {
            column: own[column] if column in own else pa.nulls(stamped.rows, kind)
            for column, kind in self._schema.items()
        }
        return Results(stamped.with_columns(columns), side, positions)


@dataclass(frozen=True)
class Results:
    """Results that are rows of one side, with or without a match."""

    chunk: Chunk
    side: int
    positions: Array


def in_order(pairs: Chunk, alone: list[Results]) -> Chunk:
    """Merge results by place: pairs first, then rows of one side by time, left ones first, by arrival."""
    chunks = [pairs, *(rows.chunk for rows in alone)]
    whole = concat_chunks(chunks)
    assert whole.times is not None
    assert whole.places is not None
    known = whole.times if whole.timed is None else np.where(whole.timed, whole.times, BEGINNING)
    is_pair = np.arange(whole.rows) < pairs.rows
    side = np.repeat([0, *(rows.side for rows in alone)], [chunk.rows for chunk in chunks])
    rank = np.concatenate([np.arange(pairs.rows), *(rows.positions for rows in alone)])
    return whole.take(np.lexsort((rank, side, np.where(is_pair, 0, known), ~is_pair, whole.places)))


class _Hopeless:
    """The test for rows of a side that can match nothing: a part of the condition fails for any other row."""

    def __init__(self, on: Expr, side: int) -> None:
        parts = conjuncts(on)
        self._conditions = [(part, Evaluator(part)) for part in parts if sides(part) <= {side}]
        compared = [
            operand
            for part in parts
            if isinstance(part, Compare) and part.op != "<>" and len(sides(part)) == 2
            for operand in part.children
            if sides(operand) == {side} and not _reads_time(operand)
        ]
        self._operands = [(operand, Evaluator(operand)) for operand in dict.fromkeys(compared)]

    def find(self, chunk: Chunk) -> Array:
        """Return which rows can match nothing."""
        hopeless = np.zeros(chunk.rows, np.bool_)
        if not chunk.rows:
            return hopeless
        for part, compute in self._conditions:
            held = compute(_arrays(part, chunk), chunk.rows).fill_null(False)
            hopeless |= ~np.asarray(held.to_numpy(zero_copy_only=False), dtype=np.bool_)
        for operand, compute in self._operands:
            value = has_value(compute(_arrays(operand, chunk), chunk.rows))
            if value is not None:
                hopeless |= ~value
        return hopeless


def _arrays(expr: Expr, chunk: Chunk) -> dict[Column, pa.Array]:
    return {e: chunk.columns[e.name] for e in walk(expr) if isinstance(e, Column)}


def _reads_time(expr: Expr) -> bool:
    """Return whether an operand reads the row's own time, which all rows that take part in a chain have."""
    return any(isinstance(e, Column) and e.name == MEMBER_TIME for e in walk(expr))
