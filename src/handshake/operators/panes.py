"""Windows from panes: rows in the same windows are aggregated once, and windows slide over panes.

A pane here is a set of tuples with the same first and the same last window, so that tuples that come late,
and miss some of their windows, have panes of their own. Each pane comes in with its first window and goes out
after its last: the cost of a tuple does not depend on how many windows it is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.kernels.panes import compact, slide_add, slide_greatest, slide_present
from handshake.operators.algebraic import AlgebraicBody, stack_states, take_state
from handshake.operators.chunk import BEGINNING, EARLIEST, END, Array, Chunk, empty, grown
from handshake.operators.extremes import Extreme
from handshake.operators.groups import GroupIndex
from handshake.operators.slots import Rows
from handshake.operators.sums import Additive
from handshake.operators.windows import Results
from handshake.plan.algebra import Windowing
from handshake.plan.panes import PaneShape
from handshake.schema import arrow_of

_FEW = 1 << 16
_RESULTS = 1 << 20
"""About how many results are computed together."""
_MANY_GROUPS = 1 << 13
"""Groups from which on those without tuples are forgotten."""


@dataclass(frozen=True)
class Table:
    """Panes with their windows, group, number of rows, and aggregate states."""

    first: Array
    last: Array
    groups: Array
    counts: Array
    parts: tuple[Any, ...]
    """A matrix per additive aggregate; a matrix and which of its rows count per extreme."""

    def take(self, rows: Array) -> Table:
        parts = tuple(take_state(part, rows) for part in self.parts)
        return Table(self.first[rows], self.last[rows], self.groups[rows], self.counts[rows], parts)

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def ends(self) -> tuple[int, int]:
        """The earliest and the latest of the panes' last windows."""
        return (int(self.last.min()), int(self.last.max())) if len(self.last) else (END, BEGINNING)

    def split_before(self, window: int) -> tuple[list[Table], list[Table]]:
        """Split into panes whose last window comes before this one, and the others."""
        if self.ends[1] < window:
            return [self], []
        if self.ends[0] >= window:
            return [], [self]
        gone = self.last < window
        return [self.take(np.flatnonzero(gone))], [self.take(np.flatnonzero(~gone))]


def stack_tables(tables: list[Table]) -> Table:
    if len(tables) == 1:
        return tables[0]
    first, last, groups, counts = (
        np.concatenate([getattr(t, name) for t in tables]) for name in ("first", "last", "groups", "counts")
    )
    parts = tuple(stack_states(states) for states in zip(*(t.parts for t in tables), strict=True))
    return Table(first, last, groups, counts, parts)


@dataclass(frozen=True)
class _Moves:
    """The panes that enter and leave before each window, and the groups of each window."""

    windows: Array
    ins: Array
    entering: Table
    outs: Array
    leaving: Table
    starts: Array
    groups: Array


class _Sums:
    """The state of an additive aggregate per group."""

    def __init__(self, part: Additive) -> None:
        self.part, self._sums = part, np.zeros((0, part.width), np.int64)

    def slide(self, at: int, moves: _Moves, groups: int) -> pa.Array:
        """Return the values of the groups of each window."""
        self._sums = grown(self._sums, groups)
        result = np.empty((len(moves.groups), self.part.width), np.int64)
        slide_add(
            moves.ins, moves.entering.groups, moves.entering.parts[at], moves.outs, moves.leaving.groups,
            moves.leaving.parts[at], moves.starts, moves.groups, self._sums, result,
        )  # fmt: skip
        return self.part.finish(result)

    def keep(self, groups: Array) -> None:
        """Forget all groups but these."""
        self._sums = self._sums[groups]


class _Lists:
    """Per group, a list of the panes that may still hold the extreme of a window."""

    def __init__(self, part: Extreme) -> None:
        self.part, self._used = part, 0
        self._nodes = self._pool(64)
        self._head = self._tail = np.empty(0, np.int64)

    def _pool(self, size: int) -> tuple[Array, Array, Array, Array]:
        links = [np.empty(size, np.int64) for _ in range(3)]
        return (np.empty((size, self.part.width), self.part.dtype), *links)  # type: ignore[return-value]

    def slide(self, at: int, moves: _Moves, groups: int) -> pa.Array:
        """Return the values of the groups of each window."""
        self._make_room(len(moves.entering), groups)
        keys, seen = moves.entering.parts[at]
        result = np.zeros((len(moves.groups), self.part.width), self.part.dtype)
        known = np.zeros(len(moves.groups), np.bool_)
        run = slide_greatest if self.part.compiled else slide_greatest.py_func
        self._used = run(
            moves.ins, moves.entering.groups, keys, seen, moves.entering.last, moves.windows, moves.starts,
            moves.groups, *self._nodes, self._head, self._tail, self._used, self.part.levels, result, known,
        )  # fmt: skip
        return self.part.finish((result, known))

    def _make_room(self, more: int, groups: int) -> None:
        """Make room for more panes and groups; a full pool is copied into one for as many again."""
        self._head, self._tail = (grown(links, groups, -1) for links in (self._head, self._tail))
        if self._used + more > len(self._nodes[0]):
            new = self._pool(2 * (self._used + more))
            run = compact if self.part.compiled else compact.py_func
            self._used = run(*self._nodes, self._head, self._tail, *new)
            self._nodes = new

    def keep(self, groups: Array) -> None:
        """Forget all groups but these."""
        self._head, self._tail = self._head[groups], self._tail[groups]


class _First:
    """A hidden aggregate: the position of each group's first row, for the order of groups."""

    compiled, dtype, levels, width = True, np.int64, 1, 1

    def finish(self, state: tuple[Array, Array]) -> Array:
        """Return positions."""
        return ~state[0][:, 0]


class Panes:
    """A store of panes over which windows slide."""

    def __init__(self, node: Windowing, shape: PaneShape) -> None:
        self._node, self._shape = node, shape
        self._body = AlgebraicBody(node.body, shape)
        self._states: list[_Sums | _Lists] = [
            _Sums(part) if isinstance(part, Additive) else _Lists(part) for part in self._body.states
        ]
        self._index = GroupIndex([arrow_of(shape.before.schema.get(key).type) for key in shape.keys or ()])
        if shape.keys is not None:
            self._states.append(_Lists(_First()))  # type: ignore[arg-type]
        self._waiting: list[Table] = []
        self._inside: list[Table] = []
        self._held = np.zeros(0, np.int64)
        self._active = self._spots = np.zeros(0, np.int64)
        self._present = self._seen = 0

    # Tuples to panes.

    def add(self, chunk: Chunk, first: Array, last: Array) -> None:
        """Aggregate tuples into panes."""
        if not chunk.rows:
            return
        columns, rows, places = self._body.select(chunk)
        if self._shape.keys is None:
            self._add_all(columns, places, first, last)
        elif rows:
            if places is not None:
                first, last = first[places], last[places]
            self._add_groups(columns, rows, first, last)
        self._seen += rows

    def _add_all(self, columns: dict[str, pa.Array], places: Array | None, first: Array, last: Array) -> None:
        """Add rows without groups: every row opens its windows, only selected rows are aggregated."""
        slots, begin, end = _pane_numbers(first, last)
        counts = np.bincount(slots, minlength=len(begin))
        selected = slots if places is None else slots[places]
        parts = self._body.reduce(Rows(selected, len(begin), columns, self._seen))
        groups = np.zeros(len(begin), np.int32)
        self._waiting.append(Table(begin, end, groups, counts, tuple(parts)))

    def _add_groups(self, columns: dict[str, pa.Array], rows: int, first: Array, last: Array) -> None:
        groups = self._index.numbers([columns[key] for key in self._shape.keys or ()])
        panes, begin, end = _pane_numbers(first, last)
        slots, pane, group = _dense(panes, len(begin), groups, len(self._index))
        count = len(pane)
        parts = self._body.reduce(Rows(slots, count, columns, self._seen))
        arrivals = np.full(count, -1, np.int64)
        arrivals[slots[::-1]] = np.arange(rows)[::-1] + self._seen
        parts.append((~arrivals[:, None], np.ones(count, np.bool_)))
        table = Table(begin[pane], end[pane], group, np.bincount(slots, minlength=count), tuple(parts))
        self._waiting.append(table)

    def spans(self) -> tuple[Array, Array]:
        """Return the first and the last window of each pane."""
        held = [table.ends[1] for table in self._inside]  # all from the next window on
        first = [*(t.first for t in self._waiting), np.full(len(held), EARLIEST)]
        last = [*(t.last for t in self._waiting), np.array(held, np.int64)]
        return np.concatenate(first), np.concatenate(last)

    def block(self, windows: int) -> int:
        """Return how many windows to compute at a time."""
        return max(1, _RESULTS // max(1, self._present))

    # Panes to windows.

    def close(self, windows: Array, starts: Array, ends: Array) -> Results:
        """Slide over these windows."""
        if not self._waiting:  # no tuple was selected yet
            return Results(empty(self._node.schema), np.empty(0, np.int64))
        moves = self._moves(windows)
        groups = max(1, len(self._index))
        values = [state.slide(at, moves, groups) for at, state in enumerate(self._states)]
        ordinals = np.repeat(np.arange(len(windows)), np.diff(moves.starts))
        columns = self._body.columns(values, starts[ordinals], ends[ordinals])
        if self._shape.keys is not None:
            ordinals, columns = self._in_order(moves, ordinals, columns, values[-1])
        self._prune()
        return self._body.finish(columns, windows[ordinals])

    def _in_order(
        self, moves: _Moves, ordinals: Array, columns: dict[str, pa.Array], first: Any
    ) -> tuple[Array, dict[str, pa.Array]]:
        """Add the keys and sort groups by their first rows."""
        order = np.lexsort((first, ordinals))
        numbers, rows = pa.array(moves.groups[order]), pa.array(order)
        keys = dict(zip(self._shape.keys or (), (k.take(numbers) for k in self._index.keys), strict=True))
        return ordinals[order], {**keys, **{name: column.take(rows) for name, column in columns.items()}}

    def _moves(self, windows: Array) -> _Moves:
        """Let panes in whose first window is among these, and out whose last is."""
        waiting = stack_tables(self._waiting)
        coming = waiting.first <= windows[-1]
        entering = waiting.take(np.flatnonzero(coming))
        entering = entering.take(np.argsort(entering.first, kind="stable"))
        self._waiting = [waiting.take(np.flatnonzero(~coming))]
        parts = [table.split_before(int(windows[-1])) for table in (*self._inside, entering)]
        leaving = stack_tables(
            [entering.take(np.empty(0, np.int64)), *(t for gone, _ in parts for t in gone)]
        )
        leaving = leaving.take(np.argsort(leaving.last, kind="stable"))
        self._inside = [table for _, stay in parts for table in stay if len(table)]
        ins = np.concatenate([[0], np.searchsorted(entering.first, windows, "right")])
        outs = np.concatenate([[0], np.searchsorted(leaving.last, windows, "left")])
        groups = max(1, len(self._index))
        self._held, self._active, self._spots = (
            grown(numbers, groups) for numbers in (self._held, self._active, self._spots)
        )
        starts, present, self._present = slide_present(
            ins, entering.groups, entering.counts, outs, leaving.groups, leaving.counts,
            self._held, self._active, self._spots, self._present,
        )  # fmt: skip
        return _Moves(windows, ins, entering, outs, leaving, starts, present)

    def _prune(self) -> None:
        """Forget groups without a tuple, once they are many."""
        if len(self._index) < _MANY_GROUPS:
            return
        tables = [*self._waiting, *self._inside]
        used = np.unique(np.concatenate([table.groups for table in tables]))
        if 4 * len(used) > len(self._index):
            return
        self._index.keep(used)
        self._waiting = [_renumber(table, used) for table in self._waiting]
        self._inside = [_renumber(table, used) for table in self._inside]
        for state in self._states:
            state.keep(used)
        self._held = self._held[used]
        self._active = np.zeros(len(used), np.int64)
        there = np.flatnonzero(self._held)
        self._active[: len(there)] = there
        self._spots = np.zeros(len(used), np.int64)
        self._spots[there] = np.arange(len(there))
        self._present = len(there)


def _renumber(table: Table, used: Array) -> Table:
    groups = np.searchsorted(used, table.groups).astype(np.int32)
    return Table(table.first, table.last, groups, table.counts, table.parts)


def _pane_numbers(first: Array, last: Array) -> tuple[Array, Array, Array]:
    """Return the pane of each row, and the first and last windows of panes."""
    changes = (first[1:] != first[:-1]) | (last[1:] != last[:-1])
    rising = np.all(first[1:] >= first[:-1]) and np.all(last[1:] >= last[:-1])
    if rising:
        slots = np.concatenate([[0], np.cumsum(changes)])
        begins = np.concatenate([[0], np.flatnonzero(changes) + 1])
        return slots, first[begins], last[begins]
    pairs = np.stack([first, last], axis=1)
    unique, slots = np.unique(pairs, axis=0, return_inverse=True)
    return slots.ravel(), unique[:, 0], unique[:, 1]


def _dense(panes: Array, many: int, groups: Array, count: int) -> tuple[Array, Array, Array]:
    """Number the panes of groups that have a row; return a number per row, and panes and groups by number."""
    codes = panes * count + groups
    if many * count <= max(4 * len(codes), _FEW):
        there = np.zeros(many * count, np.bool_)
        there[codes] = True
        unique = np.flatnonzero(there)
        numbers = np.cumsum(there) - 1
        slots = numbers[codes]
    else:
        unique, slots = np.unique(codes, return_inverse=True)
    return slots, unique // count, (unique % count).astype(np.int32)
