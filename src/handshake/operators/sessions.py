"""Session windows: rows of a group whose times follow each other closely are one window.

Rows are assigned to sessions one by one, in the order of arrival, by a compiled loop. A session is known by
its number; numbers change only when sessions have closed or merged.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from handshake.kernels.sessions import assign_sessions
from handshake.operators.chunk import (
    BEGINNING,
    END,
    Array,
    Chunk,
    Flow,
    check_results,
    concat_chunks,
    empty,
)
from handshake.operators.groups import GroupIndex
from handshake.operators.segments import Body, Segments
from handshake.operators.windows import Results, stamp_by_end
from handshake.plan.algebra import Session, Windowing
from handshake.schema import UNITS, arrow_of

__all__ = ["SessionOperator", "SessionRows", "SessionStore"]

_MANY_GROUPS = 1 << 13
"""Groups from which on those without a session are forgotten."""
_ALL = np.empty(0, np.bool_)


class SessionStore(Protocol):
    """A store of the rows of open sessions."""

    def add(self, chunk: Chunk, sessions: Array) -> None:
        """Add rows, each with the number of its session."""

    def close(self, sessions: Array, starts: Array, ends: Array, count: int) -> Results:
        """Compute these sessions out of `count`; results say which of them they belong to, by place."""

    def renumber(self, numbers: Array, count: int) -> None:
        """Give sessions new numbers below `count`, or -1 to forget them; merged ones get the same."""


class SessionRows:
    """A store of rows; the sub-plan runs on the rows of each session."""

    def __init__(self, node: Windowing) -> None:
        self._node, self._body = node, Body(node.body, node.parameter)
        self._pieces: list[tuple[Chunk, Array]] = []

    def add(self, chunk: Chunk, sessions: Array) -> None:
        """Store rows with their sessions; pieces of similar size are merged."""
        if not chunk.rows:
            return
        self._pieces.append((Chunk(chunk.columns, chunk.rows), sessions))
        while len(self._pieces) > 1 and self._pieces[-2][0].rows < 2 * self._pieces[-1][0].rows:
            (a, left), (b, right) = self._pieces[-2:]
            self._pieces[-2:] = [(concat_chunks([a, b]), np.concatenate([left, right]))]

    def close(self, sessions: Array, starts: Array, ends: Array, count: int) -> Results:
        """Run the sub-plan on these sessions."""
        ranks = np.full(count, -1, np.int64)
        ranks[sessions] = np.arange(len(sessions))
        found, places = [Chunk(empty(self._node.input.schema), 0)], [np.empty(0, np.int64)]
        for chunk, own in self._pieces:
            of = ranks[own]
            rows = np.flatnonzero(of >= 0)
            if len(rows):
                found.append(chunk.take(rows))
                places.append(of[rows])
        picked, of = concat_chunks(found), np.concatenate(places)
        order = np.argsort(of, kind="stable")
        given = Segments(picked.take(order).columns, picked.rows, of[order], np.arange(len(sessions)))
        result = self._body.run(given, starts, ends)
        return Results(result.columns, result.origin[result.of])

    def renumber(self, numbers: Array, count: int) -> None:
        """Renumber the sessions of rows, and drop rows of closed ones."""
        left: list[tuple[Chunk, Array]] = []
        for chunk, own in self._pieces:
            new = numbers[own]
            rows = np.flatnonzero(new >= 0)
            if len(rows):
                left.append((chunk, new) if len(rows) == chunk.rows else (chunk.take(rows), new[rows]))
        self._pieces = left


class SessionOperator:
    """The operator of a session window; results depend on stamps, not on how the stream is cut."""

    def __init__(self, node: Windowing, store: SessionStore) -> None:
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
            starts, lasts = self._starts[closing], ends[closing] - 1
            results = self._store.close(closing, starts, lasts, len(ends))
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
        if len(self._head) < len(self._index):
            more = max(len(self._index), 2 * len(self._head)) - len(self._head)
            self._head = np.concatenate([self._head, np.full(more, -1, np.int64)])
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
        """Number the sessions that are left, and link them anew."""
        numbers = np.full(len(self._starts), -1, np.int64)
        numbers[left] = np.arange(len(left))
        self._store.renumber(numbers if owner is None else numbers[owner], len(left))
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
