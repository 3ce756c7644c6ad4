"""A step at work: windows that are searched, and a core that takes combinations through one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.cell.partition import DealtWindow
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.driver import add_columns, derive_columns, matchable
from handshake.joins.multiway.spec import FIRST, SECOND, ManySpec, StepSpec
from handshake.joins.pieces import pieces
from handshake.joins.segment import Segment
from handshake.joins.spec import SideSpec
from handshake.schema import concat_batches

Array = np.ndarray[Any, Any]
_HIGHEST = np.iinfo(np.int64).max


class StepWindow(DealtWindow):
    """A window of one stream, clustered for a step."""

    def __init__(self, step: StepSpec, cores: int, active: int) -> None:
        """Make an empty window that the first `active` of the cores search."""
        tuning = step.spec.tuning
        is_dealt = cores > 1 and step.spec.method in tuning.dealt_methods
        super().__init__(Segment(step.spec, 1), active, is_dealt)
        self.step = step

    @property
    def rows(self) -> int:
        """The number of tuples in the window."""
        return self.segment.rows

    def add(self, batch: pa.RecordBatch) -> None:
        """Put stamped tuples into the window."""
        for piece in pieces(self.step.spec, 1, _matchable(batch, self.step.spec.sides[1])):
            self.insert(piece)

    def whole(self) -> tuple[BasicWindow, ...]:
        """Return all basic windows, as they are now."""
        return tuple(self.segment.windows)

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
    """Called between parts of a search; raises `Stopped` if the join is closing."""
    core: JoinCore = field(init=False)
    pairs: int = 0
    """Combinations times tuples of the window that they were compared with."""
    probed: int = 0
    found: int = 0

    def __post_init__(self) -> None:
        self.core = JoinCore(self.step.spec, check=self.go_on)

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
        return _matchable(batch, spec.sides[0])

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
        self.probed += piece.rows
        self.pairs += piece.rows * sum(window.rows for window in windows)
        for found in self.core.probe(piece, windows, outer):
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


def _matchable(batch: pa.RecordBatch, side: SideSpec) -> pa.RecordBatch:
    """Return the rows that can match, with the columns that are computed once per row."""
    return matchable(derive_columns(batch, side), side)


def _whole(batch: pa.RecordBatch, name: str) -> Array:
    column: Array = batch.column(name).to_numpy()
    return column


def _later(times: Array, by: int) -> Array:
    """`times + by`, held at the end of 64 bits, where it allows every time."""
    if by == 0:
        return times
    beyond = times > _HIGHEST - by if by <= 2 * _HIGHEST + 1 else np.ones(len(times), np.bool_)
    # Exact where it does not pass the end.
    moved = (times.view(np.uint64) + np.uint64(by % 2**64)).view(np.int64)
    later: Array = np.where(beyond, _HIGHEST, moved)
    return later
