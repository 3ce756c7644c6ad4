"""Rows of one side of ⋈ that wait for a match, until no match can come any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from handshake.operators.chunk import Array, Chunk, concat_chunks

_LARGEST = 4096
"""Blocks are merged up to this number of rows."""


@dataclass(frozen=True)
class Left:
    """Rows that have left their window without a match."""

    chunk: Chunk
    positions: Array
    """Their positions in their stream."""
    ends: Array
    """When they left; see `Pending.add`."""


@dataclass
class _Block:
    """Rows by position, some of which have matched since they were added."""

    rows: Left
    waiting: Array
    least: int
    """No row that waits has a smaller end."""

    @classmethod
    def of(cls, rows: Left) -> _Block:
        return cls(rows, np.ones(rows.chunk.rows, np.bool_), int(rows.ends.min()))

    def rest(self) -> Left:
        return _take(self.rows, np.flatnonzero(self.waiting))


def _take(rows: Left, which: Array) -> Left:
    return Left(rows.chunk.take(which), rows.positions[which], rows.ends[which])


def _concat(parts: list[Left]) -> Left:
    positions, ends = (np.concatenate(a) for a in zip(*((p.positions, p.ends) for p in parts), strict=True))
    return Left(concat_chunks([part.chunk for part in parts]), positions, ends)


class Pending:
    """Rows without a match so far, in blocks, so that a step costs no more than the rows that it changes."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []

    def __len__(self) -> int:
        return sum(int(np.count_nonzero(block.waiting)) for block in self._blocks)

    def add(self, chunk: Chunk, positions: Array, ends: Array) -> None:
        """Add rows that come after all others.

        Args:
            chunk: The rows.
            positions: Their positions in their stream, which rise.
            ends: Per row, the clock, or the number of rows in its stream, at which it leaves its window.
        """
        if not chunk.rows:
            return
        self._blocks.append(_Block.of(Left(chunk, positions, ends)))
        while len(self._blocks) > 1:
            before, last = self._blocks[-2:]
            sizes = before.rows.chunk.rows, last.rows.chunk.rows
            if sizes[0] > sizes[1] or sum(sizes) > _LARGEST:
                break
            self._blocks[-2:] = [_Block.of(_concat([before.rest(), last.rest()]))]

    def match(self, positions: Array) -> Array:
        """Remove rows that have matched; return the first places in `positions` of rows that were waiting."""
        rows, first = np.unique(positions, return_index=True)
        if not self._blocks or not len(rows):
            return np.empty(0, np.int64)
        starts = np.array([block.rows.positions[0] for block in self._blocks])
        of = np.searchsorted(starts, rows, "right") - 1
        found = np.zeros(len(rows), np.bool_)
        for at in np.unique(of[of >= 0]):
            block, asked = self._blocks[at], np.flatnonzero(of == at)
            where = np.searchsorted(block.rows.positions, rows[asked])
            where = np.minimum(where, len(block.waiting) - 1)
            hit = (block.rows.positions[where] == rows[asked]) & block.waiting[where]
            block.waiting[where[hit]] = False
            found[asked[hit]] = True
        self._drop_matched()
        chosen: Array = np.sort(first[found])
        return chosen

    @property
    def chunks(self) -> list[Chunk]:
        """The rows that wait."""
        return [block.rest().chunk for block in self._blocks]

    def holds(self, positions: Array) -> bool:
        """Return whether one of the rows at some positions waits."""
        waiting = [block.rows.positions[block.waiting] for block in self._blocks]
        return any(bool(np.isin(positions, each).any()) for each in waiting)

    def leave(self, until: int | None) -> Left | None:
        """Remove and return the rows whose end is not after `until`; all rows if it is None."""
        gone = []
        for block in self._blocks:
            if until is not None and block.least > until:
                continue
            leaves = block.waiting if until is None else block.waiting & (block.rows.ends <= until)
            if leaves.any():
                gone.append(_take(block.rows, np.flatnonzero(leaves)))
                block.waiting = block.waiting & ~leaves
            block.least = int(block.rows.ends[block.waiting].min(initial=np.iinfo(np.int64).max))
        self._drop_matched()
        return _concat(gone) if gone else None

    def _drop_matched(self) -> None:
        """Free rows that do not wait any more, in blocks of which most rows do not."""
        kept = []
        for block in self._blocks:
            count = int(np.count_nonzero(block.waiting))
            if count:
                kept.append(block if 2 * count > len(block.waiting) else _Block.of(block.rest()))
        self._blocks = kept
