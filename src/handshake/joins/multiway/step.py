"""A step at work: windows that are searched, and a core that takes combinations through one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.cell.partition import Partition
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.driver import Driver, add_columns
from handshake.joins.multiway.spec import FIRST, SECOND, ManySpec, StepSpec
from handshake.joins.pieces import pieces
from handshake.joins.segment import Segment
from handshake.schema import concat_batches

Array = np.ndarray[Any, Any]
_HIGHEST = np.iinfo(np.int64).max
_RUNS = 8
"""Basic windows that a core should have at least."""


@dataclass
class DealtWindow:
    """A window of one stream, clustered in one way, and whose basic windows are whose (CellJoin 4.1.2)."""

    step: StepSpec
    cores: int
    segment: Segment = field(init=False)
    partition: Partition = field(init=False)

    def __post_init__(self) -> None:
        self.segment = Segment(self.step.spec, 1)
        self.partition = Partition(self.cores)
        self._driver = Driver(self.step.spec)
        self._smallest = self.step.spec.tuning.dealt_window

    @property
    def rows(self) -> int:
        """The number of tuples in the window."""
        return self.segment.rows

    @property
    def is_dealt(self) -> bool:
        """True if basic windows are kept so small that cores can share them."""
        return self.cores > 1 and self.step.spec.method in self.step.spec.tuning.dealt_methods

    def insert(self, batch: pa.RecordBatch) -> None:
        """Put stamped tuples into the window."""
        for piece in pieces(self.step.spec, 1, self._driver.admit(1, batch)):
            most = self.segment.largest or piece.rows
            for start in range(0, piece.rows, most):
                self._insert(BasicWindow(piece.spec, piece.batch.slice(start, most)))
        if self.is_dealt:  # equal numbers are equal work only where none is much larger than the others
            self.segment.largest = max(self._smallest, self.rows // (_RUNS * self.cores))

    def _insert(self, part: BasicWindow) -> None:
        self.segment.insert(part)
        self._follow(self.partition.merge_newest)

    def expire(self, oldest: int) -> int:
        """Drop tuples whose stamp is below `oldest`, in whole basic windows."""
        gone = self.segment.expire(oldest)
        self._follow(self.partition.remove_oldest)
        return gone

    def _follow(self, fewer: Callable[[], None]) -> None:
        """Let the partition know that basic windows have come, or that there are fewer of them."""
        while self.partition.size < len(self.segment.windows):
            self.partition.add()
        while self.partition.size > len(self.segment.windows):
            fewer()

    def whole(self) -> tuple[BasicWindow, ...]:
        """Return all basic windows, as they are now."""
        return tuple(self.segment.windows)

    def run(self, core: int) -> tuple[BasicWindow, ...]:
        """Return the basic windows of a core."""
        return tuple(self.segment.windows[self.partition.run(core)])

    def sample(self, most: int = 256) -> pa.RecordBatch:
        """Return some tuples of the window, evenly chosen."""
        step = max(self.rows // most, 1)
        chosen, start = [pa.RecordBatch.from_pylist([], self.step.spec.sides[1].schema)], 0
        for batch in self.tuples():
            chosen.append(batch.take(pa.array(np.arange(-start % step, batch.num_rows, step))))
            start += batch.num_rows
        try:
            return concat_batches(chosen)
        except pa.ArrowInvalid:  # dictionaries that do not fit together: the newest will do
            return chosen[-1]

    def tuples(self) -> Iterator[pa.RecordBatch]:
        """Yield the tuples as they were inserted, for a window that is clustered in another way.

        Tuples that this one has left out (a NULL key, say) are in no result, so others need not have them.
        """
        columns = list(range(len(self.step.spec.sides[1].schema)))
        for window in self.segment:
            yield window.batch.select(columns)


@dataclass
class StepCore:
    """The state of one core for one step. Its counts tell how selective the step is."""

    many: ManySpec
    step: StepSpec
    go_on: Callable[[], None] = lambda: None
    """Called before each basic window; raises `Stopped` if the join is closing."""
    core: JoinCore = field(init=False)
    pairs: int = 0
    """Combinations times tuples of the window that they were compared with."""
    probed: int = 0
    found: int = 0

    def __post_init__(self) -> None:
        self.core = JoinCore(self.step.spec)
        self._driver = Driver(self.step.spec)

    def enter(self, combinations: pa.RecordBatch) -> pa.RecordBatch:
        """Add the stamps that this step compares, and drop combinations that cannot match."""
        spec, streams = self.step.spec, self.many.streams
        batch = combinations.select(spec.sides[0].schema.names)
        target = streams[self.step.target]
        if target.window is not None:
            names = [
                streams[k].time_stamp if target.timed else streams[k].seen_stamp(target)
                for k in self.step.joined
            ]
            newest: Array = np.max([_whole(combinations, name) for name in names], axis=0)
            batch = add_columns(batch, {FIRST: pa.array(newest)})
        reach = self.many.member_reach(self.step.joined)
        if reach is not None:
            batch = add_columns(batch, {SECOND: pa.array(self._deadline(combinations, reach))})
        return self._driver.admit(0, batch)

    def _deadline(self, combinations: pa.RecordBatch, reach: int) -> Array:
        """Return the newest time that a further member may have, less the least `reach` of the members."""
        times = [
            _later(_whole(combinations, self.many.streams[k].time_stamp), self.many.rule(k).reach - reach)
            for k in self.step.joined
            if self.many.streams[k].timed
        ]
        first: Array = np.min(times, axis=0)
        return first

    def cut(self, batch: pa.RecordBatch) -> Iterator[BasicWindow]:
        """Cut a batch into pieces that span little of the windows."""
        return pieces(self.step.spec, 0, batch)

    def probe(
        self, piece: BasicWindow, windows: tuple[BasicWindow, ...], outer: Outer | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield combinations with one member more; `outer` may hold facts about the piece already."""
        outer = outer or self.core.outer(piece)
        self.probed += piece.rows
        self.pairs += piece.rows * sum(window.rows for window in windows)
        for window in windows:
            self.go_on()
            for found in self.core.probe(piece, (window,), outer):
                kept = self._drop_expired(found)
                self.found += kept.num_rows
                yield kept

    def follow(
        self, combinations: pa.RecordBatch, windows: tuple[BasicWindow, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Take combinations that a step before has found through this one's window."""
        batch = self.enter(combinations)
        if batch.num_rows:
            yield from self.probe(BasicWindow(self.step.spec.sides[0], batch), windows)

    def _drop_expired(self, found: pa.RecordBatch) -> pa.RecordBatch:
        """Keep combinations whose members were still in their tuple windows when the target's tuple came."""
        target = self.many.streams[self.step.target]
        mask: Array | None = None
        for k in self.step.joined:
            stream = self.many.streams[k]
            if stream.counted:
                rule = self.many.rule(k)
                held = rule.holds(_whole(found, stream.own_stamp), _whole(found, target.seen_stamp(stream)))
                mask = held if mask is None else mask & held
        return found if mask is None or mask.all() else found.filter(pa.array(mask))


def _whole(batch: pa.RecordBatch, name: str) -> Array:
    column: Array = batch.column(name).to_numpy()
    return column


def _later(times: Array, by: int) -> Array:
    """`times + by`, held at the end of 64 bits, where it allows every time."""
    if by == 0:
        return times
    beyond = times > _HIGHEST - by if by <= 2 * _HIGHEST + 1 else np.ones(len(times), np.bool_)
    moved = (times.view(np.uint64) + np.uint64(by % 2**64)).view(
        np.int64
    )  # exact where it does not pass the end
    later: Array = np.where(beyond, _HIGHEST, moved)
    return later
