"""Session windows: rows of a group whose times follow each other closely are one window.

Rows are assigned to sessions one by one, in the order of arrival, by a compiled loop. A session is known by
its number; numbers change only when sessions have closed or merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.kernels.sessions import assign_sessions
from handshake.operators.algebraic import AlgebraicBody, stack_states, take_state
from handshake.operators.chunk import (
    BEGINNING,
    END,
    Array,
    Chunk,
    Flow,
    check_results,
    concat_chunks,
    empty,
    grown,
)
from handshake.operators.groups import GroupIndex
from handshake.operators.segments import Body, Segments
from handshake.operators.slots import Rows
from handshake.operators.windows import Results, stamp_by_end
from handshake.plan.algebra import Session, Windowing
from handshake.plan.panes import PaneShape
from handshake.schema import UNITS, arrow_of

_MANY_GROUPS = 1 << 13
"""Groups from which on those without a session are forgotten."""
_ALL = np.empty(0, np.bool_)


@dataclass(frozen=True)
class Sessions:
    """Sessions that close, in the order of their results."""

    numbers: Array
    starts: Array
    ends: Array
    keys: dict[str, pa.Array]
    """The keys of their groups, by column."""

    def ranks(self, count: int) -> Array:
        """Return the place of each session among these, given how many sessions there are; -1 for others."""
        ranks = np.full(count, -1, np.int64)
        ranks[self.numbers] = np.arange(len(self.numbers))
        return ranks


class SessionRows:
    """A store of rows; the sub-plan runs on the rows of each session."""

    def __init__(self, node: Windowing) -> None:
        self._node, self._body = node, Body(node.body, node.parameter)
        self._pieces: list[tuple[Chunk, Array]] = []

    def add(self, chunk: Chunk, sessions: Array) -> None:
        """Store rows, each with the number of its session; pieces of similar size are merged."""
        if not chunk.rows:
            return
        self._pieces.append((Chunk(chunk.columns, chunk.rows), sessions))
        while len(self._pieces) > 1 and self._pieces[-2][0].rows < 2 * self._pieces[-1][0].rows:
            (a, left), (b, right) = self._pieces[-2:]
            self._pieces[-2:] = [(concat_chunks([a, b]), np.concatenate([left, right]))]

    def close(self, sessions: Sessions, count: int) -> Results:
        """Run the sub-plan on these sessions out of `count`; results name them by their places."""
        ranks = sessions.ranks(count)
        found, places = [Chunk(empty(self._node.input.schema), 0)], [np.empty(0, np.int64)]
        for chunk, own in self._pieces:
            of = ranks[own]
            rows = np.flatnonzero(of >= 0)
            if len(rows):
                found.append(chunk.take(rows))
                places.append(of[rows])
        picked, of = concat_chunks(found), np.concatenate(places)
        order = np.argsort(of, kind="stable")
        closing = np.arange(len(sessions.numbers))
        given = Segments(picked.take(order).columns, picked.rows, of[order], closing)
        result = self._body.run(given, sessions.starts, sessions.ends)
        return Results(result.columns, result.origin[result.of])

    def renumber(self, numbers: Array) -> None:
        """Renumber the sessions of rows; -1 drops the rows of a session, merged ones get the same number."""
        left: list[tuple[Chunk, Array]] = []
        for chunk, own in self._pieces:
            new = numbers[own]
            rows = np.flatnonzero(new >= 0)
            if len(rows):
                left.append((chunk, new) if len(rows) == chunk.rows else (chunk.take(rows), new[rows]))
        self._pieces = left


class _States(NamedTuple):
    """States of sessions, each session once."""

    sessions: Array
    counts: Array
    """The number of selected rows."""
    parts: list[Any]
    """The states of each aggregate."""

    def take(self, rows: Array) -> _States:
        return _States(self.sessions[rows], self.counts[rows], [take_state(p, rows) for p in self.parts])


class SessionStates:
    """A store of the states of algebraic aggregates; no row is kept."""

    def __init__(self, node: Windowing, shape: PaneShape) -> None:
        self._body = AlgebraicBody(node.body, shape)
        nothing, none = np.empty(0, np.int64), empty(shape.before.schema)
        self._pieces = [_States(nothing, nothing, self._body.reduce(Rows(nothing, 0, none)))]
        self._seen = 0

    def add(self, chunk: Chunk, sessions: Array) -> None:
        """Aggregate rows by session; pieces of similar size are merged."""
        columns, rows, places = self._body.select(chunk)
        if not rows:
            return
        numbers, slots = _dense(sessions if places is None else sessions[places])
        parts = self._body.reduce(Rows(slots, len(numbers), columns, self._seen))
        self._pieces.append(_States(numbers, np.bincount(slots), parts))
        self._seen += rows
        while len(self._pieces) > 2 and len(self._pieces[-2].sessions) < 2 * len(self._pieces[-1].sessions):
            numbers, slots = _dense(np.concatenate([piece.sessions for piece in self._pieces[-2:]]))
            self._pieces[-2:] = [self._combine(self._pieces[-2:], slots, numbers)]

    def _combine(self, pieces: list[_States], slots: Array, sessions: Array) -> _States:
        """Combine the states of pieces, given the slot of each; the slots are these sessions."""
        counts = np.zeros(len(sessions), np.int64)
        np.add.at(counts, slots, np.concatenate([piece.counts for piece in pieces]))
        parts = [
            state.combine(stack_states(each), slots, len(sessions))
            for state, each in zip(
                self._body.states, zip(*(piece.parts for piece in pieces), strict=True), strict=True
            )
        ]
        return _States(sessions, counts, parts)

    def close(self, sessions: Sessions, count: int) -> Results:
        """Return the results of the aggregates; a group is there if a row was selected."""
        ranks, found = sessions.ranks(count), list[_States]()
        for piece in self._pieces:
            found.append(piece.take(np.flatnonzero(ranks[piece.sessions] >= 0)))
        slots = ranks[np.concatenate([piece.sessions for piece in found])]
        whole = self._combine(found, slots, sessions.numbers)
        grouped = self._body.shape.keys is not None
        rows = np.flatnonzero(whole.counts) if grouped else np.arange(len(whole.counts))
        values = [
            state.finish(take_state(part, rows))
            for state, part in zip(self._body.states, whole.parts, strict=True)
        ]
        keys = {key: column.take(pa.array(rows)) for key, column in sessions.keys.items()}
        columns = self._body.columns(values, sessions.starts[rows], sessions.ends[rows])
        return self._body.finish({**keys, **columns}, rows)

    def renumber(self, numbers: Array) -> None:
        """Renumber sessions; -1 drops one, merged ones get the same number."""
        first, *others = self._pieces
        self._pieces = [first]
        for piece in others:
            new = numbers[piece.sessions]
            rows = np.flatnonzero(new >= 0)
            if len(rows):
                kept = piece if len(rows) == len(new) else piece.take(rows)
                self._pieces.append(kept._replace(sessions=new[rows]))


def _dense(sessions: Array) -> tuple[Array, Array]:
    """Return the sessions that occur, and the place of each row's session among them."""
    there = np.zeros(int(sessions.max(initial=-1)) + 1, np.bool_)
    there[sessions] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[sessions]


class SessionOperator:
    """The operator of a session window; results depend on stamps, not on how the stream is cut."""

    def __init__(self, node: Windowing, store: SessionRows | SessionStates) -> None:
        assert isinstance(node.window, Session)
        self._node, self._store, self._keys = node, store, node.window.keys
        self._reach = node.window.gap // UNITS[node.clock.unit] + 1
        """A session grows by a row at its end: so it closes one unit later."""
        self._index = GroupIndex([arrow_of(node.input.schema.get(key).type) for key in self._keys])
        self._clock, self._rows = BEGINNING, 0
        self._head = np.full(1, -1, np.int64)
        """The latest session of each group, -1 if it has none."""
        self._following = self._groups = self._starts = self._lasts = self._births = np.empty(0, np.int64)
        self.late = self.no_time = self.windows = 0

    def step(self, flow: Flow) -> Flow:
        """Add a chunk and return the results of the sessions that it closes."""
        check_results(flow.chunk)
        if flow.trace.last is not None:
            self._clock = flow.trace.last
        self._take(flow.chunk)
        ends = self._lasts + self._reach
        closing = np.flatnonzero(ends <= self._clock) if self._clock < END else np.arange(len(ends))
        closing = closing[np.lexsort([by[closing] for by in (self._births, self._starts, ends)])]
        results = Results(empty(self._node.schema), closing[:0])
        if len(closing):
            groups = pa.array(self._groups[closing])
            keys = {k: values.take(groups) for k, values in zip(self._keys, self._index.keys, strict=True)}
            sessions = Sessions(closing, self._starts[closing], ends[closing] - 1, keys)
            results = self._store.close(sessions, len(ends))
            self.windows += len(closing)
            self._keep(np.delete(np.arange(len(ends)), closing))
        return Flow(
            stamp_by_end(results.columns, ends[closing][results.windows], flow), flow.trace, flow.ended
        )

    def _take(self, chunk: Chunk) -> None:
        """Assign rows to sessions."""
        if not chunk.rows:
            return
        assert chunk.times is not None
        assert chunk.clocks is not None
        groups, known = self._numbers(chunk), len(self._starts)
        room = np.empty(chunk.rows, np.int64)
        following, group_of, starts, lasts, births = (
            np.concatenate([array, room])
            for array in (self._following, self._groups, self._starts, self._lasts, self._births)
        )
        owner, found = np.arange(known + chunk.rows), np.empty(chunk.rows, np.int64)
        passed = np.minimum(np.minimum.accumulate(chunk.clocks[::-1])[::-1], self._clock)
        used, late = assign_sessions(
            groups, chunk.times, _ALL if chunk.timed is None else chunk.timed, chunk.clocks, passed,
            self._reach, self._head, following, group_of, starts, lasts, births, owner, known, self._rows,
            found,
        )  # fmt: skip
        self._following, self._groups, self._starts, self._lasts, self._births = (
            array[:used] for array in (following, group_of, starts, lasts, births)
        )
        self._rows += chunk.rows
        self.late += late
        self.no_time += 0 if chunk.timed is None else int(np.count_nonzero(~chunk.timed))
        rows = np.flatnonzero(found >= 0)
        self._store.add(chunk if len(rows) == chunk.rows else chunk.take(rows), found[rows])
        self._merge(owner[:used])

    def _numbers(self, chunk: Chunk) -> Array:
        """Return the group of each row; all rows are in one group without keys."""
        if not self._keys:
            return np.zeros(chunk.rows, np.int32)
        groups = self._index.numbers([chunk.columns[key] for key in self._keys])
        self._head = grown(self._head, len(self._index), -1)
        return groups

    def _merge(self, owner: Array) -> None:
        """Leave out sessions that have become part of others."""
        alive = np.flatnonzero(owner == np.arange(len(owner)))
        if len(alive) == len(owner):
            return
        while np.any(owner != owner[owner]):
            owner = owner[owner]
        self._keep(alive, owner)

    def _keep(self, left: Array, owner: Array | None = None) -> None:
        """Number the sessions that are left, and link them again."""
        numbers = np.full(len(self._starts), -1, np.int64)
        numbers[left] = np.arange(len(left))
        self._store.renumber(numbers if owner is None else numbers[owner])
        self._groups, self._starts, self._lasts, self._births = (
            array[left] for array in (self._groups, self._starts, self._lasts, self._births)
        )
        self._forget_groups()
        order = np.lexsort((-self._starts, self._groups))
        groups = self._groups[order]
        first = np.concatenate([[True], groups[1:] != groups[:-1]])[: len(order)]
        self._head[:] = -1
        self._head[groups[first]] = order[first]
        self._following = np.full(len(order), -1, np.int64)
        self._following[order[:-1][~first[1:]]] = order[1:][~first[1:]]

    def _forget_groups(self) -> None:
        """Forget groups without a session, once they are many."""
        if len(self._index) < _MANY_GROUPS:
            return
        used = np.unique(self._groups)
        if 4 * len(used) <= len(self._index):
            self._index.keep(used)
            self._groups = np.searchsorted(used, self._groups)
            self._head = np.full(max(1, len(used)), -1, np.int64)
