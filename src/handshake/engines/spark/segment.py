"""A segment as a join core: one micro-batch of references in, results out, and the manifest that follows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.definition import Definition
from handshake.engines.spark.routing import home_rows, visit_ranges
from handshake.engines.spark.stamp import stamps
from handshake.engines.spark.state.chunks import Ref, Shelf, write_chunk
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PLACE, Arrival
from handshake.engines.spark.state.store import StateError, Store
from handshake.joins.basic_window import BasicWindow, sealed
from handshake.joins.driver import extended, lies_ready, matchable, stored
from handshake.joins.segment import Segment
from handshake.joins.spec import OTHER, OWN, TIME
from handshake.kernels.columns import integers
from handshake.windows import is_late

__all__ = ["Step", "Tally"]

Array = np.ndarray[Any, Any]
_PIECE = 1 << 20
"""Tuples that are probed with at once."""
_SWEEP = 32
"""Updates between two looks for files that nothing refers to."""
_CLAIM = "claim"
"""Ends the name of a file that says whose files are here to stay."""

shelf = Shelf()


@dataclass
class Tally:
    """What a segment did in one micro-batch."""

    rows: list[int] = field(default_factory=lambda: [0, 0])
    late: list[int] = field(default_factory=lambda: [0, 0])
    no_time: int = 0
    unmatchable: int = 0
    visits: int = 0
    comparisons: int = 0
    results: int = 0
    held: list[int] = field(default_factory=lambda: [0, 0])
    chunks: int = 0
    state_bytes: int = 0
    newest: int | None = None
    """The newest event time that came."""


@dataclass
class _Loaded:
    """A chunk of new tuples in memory, with what the driver writes on each."""

    arrival: Arrival
    window: BasicWindow
    admitted: Array | None
    """Which tuples are not late; None when none is."""
    counts: tuple[Array, Array] | None = None
    spare: tuple[str, ...] = ()
    """Hidden columns that only the order of arrival has been found by."""

    def rows(self, start: int, stop: int) -> tuple[pa.RecordBatch, int]:
        """Tuples of a run that are not late, stamped, and how many were late."""
        batch, length = self.window.batch.slice(start, stop - start), stop - start
        if self.counts is not None:
            own, other = (pa.array(c[start:stop]) for c in self.counts)
            batch = extended(batch.drop_columns([PLACE, *self.spare]), {OWN: own, OTHER: other})
        if self.admitted is None:
            return batch, 0
        mask = self.admitted[start:stop]
        return batch.filter(pa.array(mask)), length - int(mask.sum())


class Step:
    """One micro-batch in one segment. `results` must be exhausted before `manifest` is the next one.

    One that is not `lasting` is all there is: a batch join, which keeps nothing.
    """

    def __init__(
        self, definition: Definition, segment: int, manifest: Manifest | None, arrivals: Sequence[Arrival],
        watermark: int | None, store: Store, batch: int, folder: str, *, lasting: bool = True,
    ) -> None:  # fmt: skip
        self.definition, self.segment, self.store = definition, segment, store
        self.spec, self.core = definition.spec, definition.core
        self.arrivals = sorted(arrivals, key=lambda a: a.rank)
        self.batch, self.folder, self.lasting = batch, folder, lasting
        if manifest is None:
            manifest = Manifest.fresh(definition, self._place, uuid.uuid4().hex[:12])
            if lasting:
                self._check_is_first()
        self.manifest = manifest
        self.manifest.updates += 1
        self._move_on(watermark)
        self.tally = Tally()

    def _check_is_first(self) -> None:
        """A segment without state at a later batch than its files has lost it, or looks under another key."""
        for name in self.store.list(self._place):
            number = name.split("-")[1]
            if number.isdigit() and int(number) < self.batch:
                raise StateError(
                    f"'{self.store.path(self._place)}' holds tuples of batch {number}, but the checkpoint "
                    "has no state that refers to them; spark.sql.shuffle.partitions is "
                    f"{self.definition.partitions} now: set the number that the checkpoint began with before "
                    "handshake.join is called"
                )

    def _move_on(self, watermark: int | None) -> None:
        """Watermarks never go back, whatever a restart says."""
        known = self.manifest.watermark
        if watermark is not None:
            self.manifest.watermark = watermark if known is None else max(watermark, known)

    def results(self) -> Iterator[pa.RecordBatch]:
        """Join, then settle: everything that is new meets everything that is held, once."""
        before = self.core.comparisons, self.core.results
        self._expire()
        loaded = self._load()
        self._route(loaded)
        held = [
            [shelf.get(self.store, ref, self.spec.sides[side]) for ref in self.manifest.windows[side]]
            for side in (0, 1)
        ]
        homes = [self._home(loaded, side) for side in (0, 1)]
        fresh = [sealed(window) for window in homes[1]]
        for side, partners in ((0, held[1] + fresh), (1, held[0])):
            for piece in self._visiting(loaded, side):
                self.tally.visits += piece.rows
                yield from self.core.probe(piece, partners)
        if self.lasting:
            for side, new in ((0, homes[0]), (1, fresh)):
                self._settle(side, held[side], new)
            self._expire()
            self.manifest.router.forget((self._oldest(0), self._oldest(1)))
            self._clean_up()
        self._count(before, loaded)

    # What is new

    def _load(self) -> list[_Loaded]:
        loaded = []
        for arrival in self.arrivals:
            window = shelf.get(self.store, arrival.ref, self.spec.sides[arrival.side])
            shelf.drop(self.store, arrival.ref)
            loaded.append(_Loaded(arrival, window, self._admitted(arrival, window)))
        if self.spec.windows.counted:
            self._stamp(loaded)
        return loaded

    def _admitted(self, arrival: Arrival, window: BasicWindow) -> Array | None:
        mark = self.manifest.watermark
        if mark is None or not self.spec.windows.timed or arrival.oldest >= mark:
            return None
        times = integers(stored(window.batch, self.spec.sides[arrival.side], TIME))
        mask: Array = ~is_late(times, mark)
        return mask

    def _stamp(self, loaded: list[_Loaded]) -> None:
        everyone = [
            np.ones(chunk.window.rows, np.bool_) if chunk.admitted is None else chunk.admitted
            for chunk in loaded
        ]
        counts = stamps(
            [chunk.arrival.side for chunk in loaded],
            [self._times(chunk) for chunk in loaded],
            [integers(chunk.window.batch.column(PLACE)) for chunk in loaded],
            everyone,
            self.manifest.arrived,
        )
        for chunk, mask, mine in zip(loaded, everyone, counts, strict=True):
            chunk.counts, chunk.spare = mine, self._spare(chunk)
            self.manifest.arrived[chunk.arrival.side] += int(mask.sum())

    def _times(self, chunk: _Loaded) -> Array | None:
        spec = self.spec.sides[chunk.arrival.side]
        return None if spec.time is None else integers(stored(chunk.window.batch, spec, TIME))

    def _spare(self, chunk: _Loaded) -> tuple[str, ...]:
        """Times with something in the place of missing ones; chunks where none is missing lack the column."""
        name, schema = self.spec.sides[chunk.arrival.side].time, chunk.window.batch.schema
        if name is None or self.spec.windows.timed or TIME not in schema.names:
            return ()
        return (TIME,) if lies_ready(schema.field(name).type, self.spec.unit) else ()

    # Where it goes

    def _route(self, loaded: list[_Loaded]) -> None:
        router = self.manifest.router
        router.learn(
            sum((np.diff(a.offsets) for a in self.arrivals), np.zeros(self.definition.routing.cells))
        )
        for chunk in loaded:
            side = chunk.arrival.side
            window = self.spec.windows[side]
            timed = window is not None and window.timed
            router.note(side, chunk.arrival.newest if timed else self.manifest.arrived[side])

    def _home(self, loaded: list[_Loaded], side: int) -> list[BasicWindow]:
        """New tuples that will stay here."""
        batches = []
        for chunk in loaded:
            if chunk.arrival.side == side:
                span = self.manifest.router.epochs[-1].span(self.segment)
                batch, late = chunk.rows(*home_rows(chunk.arrival.offsets, span, chunk.arrival.ref.check))
                self.tally.rows[side] += batch.num_rows + late
                self.tally.late[side] += late
                batches.append(batch)
        return self._windows(batches, side)

    def _visiting(self, loaded: list[_Loaded], side: int) -> Iterator[BasicWindow]:
        """New tuples that may have partners here."""
        routing, router = self.definition.routing, self.manifest.router
        batches = [
            chunk.rows(start, stop)[0]
            for chunk in loaded
            if chunk.arrival.side == side
            for start, stop in visit_ranges(chunk.arrival.offsets, router, routing, self.segment)
        ]
        yield from self._windows(batches, side)

    def _windows(self, batches: list[pa.RecordBatch], side: int) -> list[BasicWindow]:
        spec, pieces, held = self.spec.sides[side], [], []
        for batch in batches:
            held.append(matchable(batch, spec) if self.spec.windows.counted else batch)
            if sum(b.num_rows for b in held) >= _PIECE:
                pieces.append(pa.concat_batches(held))
                held = []
        if any(b.num_rows for b in held):
            pieces.append(pa.concat_batches(held))
        return [BasicWindow(spec, piece) for piece in pieces]

    # What stays

    def _oldest(self, side: int) -> int | None:
        """The least expiring stamp of a side that a tuple to come can still ask for."""
        rule = self.spec.rules[side]
        return None if rule is None else rule.oldest(self.manifest.watermark, self.manifest.arrived[side])

    def _expire(self) -> None:
        for side in (0, 1):
            oldest = self._oldest(side)
            if oldest is not None:
                self._replace(side, [ref for ref in self.manifest.windows[side] if ref.newest >= oldest])

    def _settle(self, side: int, held: list[BasicWindow], new: list[BasicWindow]) -> None:
        """Merge new tuples into the held ones, and write what has changed."""
        known = dict(zip(map(id, held), self.manifest.windows[side], strict=True))
        segment = Segment(self.spec, side, list(held))
        for window in new:
            segment.insert(window)
        self._replace(side, [known.get(id(w)) or self._written(side, w) for w in segment.windows])

    def _written(self, side: int, window: BasicWindow) -> Ref:
        name = f"{self.manifest.place}/{self.manifest.owner}-{self.batch}-{uuid.uuid4().hex}.chunk"
        newest = (window.second if side == 0 else window.first)[1]
        return write_chunk(self.store, name, window, newest)

    def _replace(self, side: int, refs: list[Ref]) -> None:
        kept = {ref.name for ref in refs}
        for ref in self.manifest.windows[side]:
            if ref.name not in kept:
                shelf.drop(self.store, ref)
                self.manifest.dropped.append((ref.name, self.manifest.updates))
        self.manifest.windows[side][:] = refs

    # What goes

    @property
    def _place(self) -> str:
        """Where a segment that begins now puts its files."""
        return f"{self.folder}/segment-{self.definition.fingerprint}-{self.segment}"

    def _clean_up(self) -> None:
        """Remove files that no recoverable version of the state refers to."""
        manifest, past = self.manifest, self.manifest.updates - self.definition.retain - 1
        for name in [name for name, update in manifest.dropped if update <= past]:
            self.store.remove(name)
        manifest.dropped = [(name, update) for name, update in manifest.dropped if update > past]
        if manifest.updates == 2:  # the first one is in the checkpoint now
            self.store.write(f"{manifest.place}/{manifest.owner}-{_CLAIM}", [])
        if manifest.updates % _SWEEP == 0:
            self._sweep()

    def _sweep(self) -> None:
        """Remove what tasks that failed or ran twice have left.

        Each attempt at a segment's first batch has an owner of its own, and only one of them is committed:
        that one claims its files in the second batch. A join that a query uses twice has several owners that
        live, all with the same input, so each has made its claim long before the first sweep.
        """
        manifest = self.manifest
        needed = {ref.name for side in manifest.windows for ref in side} | {
            name for name, _ in manifest.dropped
        }
        names = [name.split("-") for name in self.store.list(manifest.place)]
        others = {owner for owner, what, *_ in names if what == _CLAIM} - {manifest.owner}
        for owner, number, *rest in names:
            path = f"{manifest.place}/{'-'.join([owner, number, *rest])}"
            stale = number.isdigit() and int(number) < self.batch - self.definition.retain
            if stale and owner not in others and path not in needed:
                self.store.remove(path)

    def _count(self, before: tuple[int, int], loaded: list[_Loaded]) -> None:
        tally = self.tally
        tally.comparisons, tally.results = self.core.comparisons - before[0], self.core.results - before[1]
        tally.held = [sum(ref.rows for ref in side) for side in self.manifest.windows]
        tally.chunks = sum(len(side) for side in self.manifest.windows)
        tally.state_bytes = sum(ref.bytes for side in self.manifest.windows for ref in side)
        if self.segment == 0:
            tally.no_time = sum(a.no_time for a in self.arrivals)
            tally.unmatchable = sum(a.unmatchable for a in self.arrivals)
        if self.spec.windows.timed and loaded:
            tally.newest = max(chunk.arrival.newest for chunk in loaded)
