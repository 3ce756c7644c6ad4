"""The join core that reduces its pairs on a GPU: what comes to the host is a table of states per search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import Outer
from handshake.joins.device.core import DeviceCore
from handshake.joins.device.index import Run
from handshake.joins.device.look_ups import Part
from handshake.joins.device.memory import Store
from handshake.joins.reduction import States
from handshake.joins.results import Made
from handshake.kernels.compile import BLOCK
from handshake.kernels.gpu.driver import Device, DeviceError

Array = np.ndarray[Any, Any]
_HEAD = 4
"""Words before the table: two counters of scans, and two of look-ups."""
_COPIES, _COPIED = 32, 1 << 15
"""Copies of a state, one per lane of a warp, as long as the table has no more words than this."""
_MOST_WORDS = 1 << 26
_MOST_PAIRS = 1 << 31
"""Pairs of a state whose sums of limbs are sure to fit."""


class _Shape(NamedTuple):
    """The states of a search: panes from a first one on, distances of a clock, groups, and copies."""

    pane: int
    panes: int
    aheads: int
    lefts: int
    rights: int
    copies: int

    @property
    def states(self) -> int:
        return self.panes * self.aheads * self.lefts * self.rights


class _Table:
    """States in device memory, behind counters."""

    def __init__(self, device: Device) -> None:
        self._device, self._store = device, Store(device, 8)

    def clear(self, words: int) -> int:
        """Make room, and set all words to 0; return the address of the counters."""
        size = _HEAD + words
        if size > self._store.slots:
            self._store.grow(2 * size, 0, 0)
            self._host = self._device.host_array(16 * size).view(np.uint64)
        self._device.fill(self._store.address, 0, 8 * size)
        return self._store.address

    def read(self, words: int) -> Array:
        """Wait for the search; return counters and words."""
        found = self._host[: _HEAD + words]
        self._device.download((found, self._store.address))
        return found

    def release(self) -> None:
        """Give the device's memory back."""
        self._store.release()


@dataclass
class ReducingCore(DeviceCore):
    """A join core that yields no results, but keeps the states that pairs are reduced to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.spec.reduction is not None
        self._output.release()
        self._reduction, self._table = self.spec.reduction, _Table(self.device())
        self._sums = any(word.limbs for word in self._reduction.words)
        self.ahead, self.groups = 0, [1, 1]
        """How many panes a clock is ahead at most, and the groups of each side; the caller raises them."""
        self._newest: list[int | None] = [None, None]
        """The newest pane of each window."""
        self.found: list[States] = []
        """The states of all searches, for the caller to take."""

    def search(
        self, piece: BasicWindow, windows: Iterable[BasicWindow] | None = None, outer: Outer | None = None
    ) -> Iterator[Made]:
        """Reduce the pairs of new tuples with the other side's window; yield nothing."""
        self.batches += 1
        if piece.rows and not self.spec.analysis.never:
            self.device()
            row = self._place(piece)
            near = self.near(piece, self.segments[1 - piece.spec.side].ready(piece.rows))
            if near:
                self._reduce(piece, row, near)
        yield from ()

    def insert(self, piece: BasicWindow) -> None:
        """Put tuples into their side's window."""
        super().insert(piece)
        if piece.rows:
            side, last = piece.spec.side, self._panes_of(piece)[1]
            newest = self._newest[side]
            self._newest[side] = last if newest is None else max(last, newest)

    def _panes_of(self, piece: BasicWindow) -> tuple[int, int]:
        """Return the first and the last pane of tuples."""
        first, last = self._reduction.panes.number(np.array(piece.first))
        return int(first), int(last)

    def _reduce(self, piece: BasicWindow, row: int, near: list[BasicWindow]) -> None:
        segment = self.segments[1 - piece.spec.side]
        indexed = self._look_ups.runs(piece, near, segment.windows, segment.place)
        self._prepare_codes(piece, [] if indexed else near)
        spans = self._spans(segment, near, indexed)
        waiting = [(0, piece.rows)]
        while waiting:
            self.check()
            start, probes = waiting.pop()
            if not self._reduce_part(piece, row, Part(start, probes, range(len(indexed))), indexed, spans):
                half = max(probes // 2 & ~3, 1)
                waiting += [(start + half, probes - half), (start, half)]

    def _reduce_part(
        self, piece: BasicWindow, row: int, part: Part, indexed: list[Run], spans: list[tuple[int, int]]
    ) -> bool:
        """Reduce the pairs of some probes; return False if they have to be cut into parts."""
        shape, words = self._shape(piece, part), len(self._reduction.words)
        if shape is None:
            return False
        size = shape.states * words * shape.copies
        address = self._table.clear(size)
        pane = self._reduction.panes.word(shape.pane)
        more = (address + 8 * _HEAD, pane, *shape[2:])
        for first, stop in spans:
            self._scan_rows(
                piece.spec.side, row + part.start, part.start, part.probes, first, stop, 0, address, 0, *more
            )
        if indexed:
            self._look_ups.reduce(piece, row, part, indexed, address + 16, *more)
        counters, table = np.split(self._table.read(size), [_HEAD])
        found = table.reshape(shape.states, words, shape.copies)
        counts = found[:, 0].sum(axis=1, dtype=np.uint64)
        if self._sums and part.probes > 1 and np.any(counts >= _MOST_PAIRS):
            return False
        self._note(piece, part, indexed, spans, counters)
        if len(kept := np.flatnonzero(counts)):
            self.found.append(self._states(shape, kept, found[kept]))
        return True

    def _shape(self, piece: BasicWindow, part: Part) -> _Shape | None:
        """Return the states that pairs of some probes can have; None if they are too many."""
        panes, whole = self._reduction.panes, part.probes == piece.rows
        some = piece if whole else BasicWindow(piece.spec, piece.batch.slice(part.start, part.probes))
        first, last = self._panes_of(some)
        newest = self._newest[1 - piece.spec.side]
        latest = max(last, min(last + panes.reach, last if newest is None else newest))
        shape = _Shape(first, latest - first + 1, self.ahead + 1, self.groups[0], self.groups[1], 1)
        words = shape.states * len(self._reduction.words)
        if last - first <= panes.most_spread and words <= _MOST_WORDS:
            return shape._replace(copies=_COPIES if words * _COPIES <= _COPIED else 1)
        if part.probes > 1:
            return None
        raise DeviceError(
            f"a row may match in {shape.panes:,} panes and {shape.lefts * shape.rights:,} groups, and a GPU "
            'holds fewer states; make the windows advance by more, group by less, or use device="cpu"'
        )

    def _note(
        self,
        piece: BasicWindow,
        part: Part,
        indexed: list[Run],
        spans: list[tuple[int, int]],
        counters: Array,
    ) -> None:
        """Count what was compared, and whether codes and indexes rule out most of it."""
        pairs = part.probes * sum(stop - first for first, stop in spans)
        if spans:
            self.coding.note(int(counters[1]) * self._together // BLOCK, pairs)
        if indexed:
            self._look_ups.note(piece, part, int(counters[3]))
        self.comparisons += pairs + int(counters[3])

    def _states(self, shape: _Shape, kept: Array, found: Array) -> States:
        """Return the states with these numbers, from their copies."""
        rest, right = np.divmod(kept, shape.rights)
        rest, left = np.divmod(rest, shape.lefts)
        pane, ahead = np.divmod(rest, shape.aheads)
        pane += shape.pane
        keys = np.array([word.is_key for word in self._reduction.words])
        words = np.where(keys, found.max(axis=2), found.sum(axis=2, dtype=np.uint64))
        self.results += int(words[:, 0].sum())
        return States(pane, pane + ahead, (left, right), words)

    def close(self) -> None:
        """Give the device's memory back."""
        super().close()
        self._table.release()
