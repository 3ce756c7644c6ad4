"""One micro-batch of a segment: references to new tuples in, results and the next manifest out."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.routing import home_rows, visit_ranges
from handshake.engines.spark.state.chunks import ChunkCache, ChunkRef, write_chunk
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PLACE, PackedChunk
from handshake.engines.spark.state.store import StateError, Store
from handshake.joins.basic_window import BasicWindow, seal
from handshake.joins.core import JoinCore
from handshake.joins.driver import Tracked, add_columns, lies_ready, matchable, stored_column
from handshake.joins.segment import Segment
from handshake.joins.spec import OTHER, OWN, ROW, TIME
from handshake.kernels.columns import integers
from handshake.schema import concat_batches
from handshake.windows import is_late

__all__ = ["SegmentStep", "SegmentTally", "arrival_stamps"]

Array = np.ndarray[Any, Any]
_PIECE = 1 << 20
"""Tuples per probe, at most."""
_SWEEP = 32
"""Updates between two searches for files without references."""
_CLAIM = "claim"
"""The end of the name of the file by which an owner claims its files."""

chunks = ChunkCache()


@dataclass
class SegmentTally:
    """The figures of one micro-batch of a segment."""

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
    """The newest event time of the micro-batch."""


@dataclass
class _NewChunk:
    """A chunk of new tuples in memory, with their stamps."""

    arrival: PackedChunk
    window: BasicWindow
    admitted: Array | None
    """A mask of tuples that are not late; None if no tuple is late."""
    counts: tuple[Array, Array] | None = None
    spare: tuple[str, ...] = ()
    """Hidden columns that only the order of arrival needs."""
    numbers: Array | None = None
    """The numbers of the tuples, if the join must know which of them have matched."""

    def number(self, tracked: Tracked) -> None:
        """Number the tuples."""
        self.numbers = tracked.states.number(self.window.rows)
        batch = add_columns(self.window.batch, {ROW: pa.array(self.numbers)})
        self.window = BasicWindow(self.window.spec, batch)

    def rows(self, start: int, stop: int) -> tuple[pa.RecordBatch, int]:
        """Return the stamped tuples of a range that are not late, and the number of late tuples."""
        batch, length = self.window.batch.slice(start, stop - start), stop - start
        if self.counts is not None:
            own, other = (pa.array(c[start:stop]) for c in self.counts)
            kept = [name for name in batch.schema.names if name not in (PLACE, *self.spare)]
            batch = add_columns(batch.select(kept), {OWN: own, OTHER: other})
        if self.admitted is None:
            return batch, 0
        mask = self.admitted[start:stop]
        return batch.filter(pa.array(mask)), length - int(mask.sum())


class SegmentStep:
    """One micro-batch of a segment. `manifest` is the next one after `results` is exhausted.

    A step that is not `lasting` is a whole batch join, which keeps no state.
    """

    def __init__(
        self, definition: Definition, segment: int, manifest: Manifest | None,
        arrivals: Sequence[PackedChunk], watermark: int | None, store: Store, batch: int, folder: str,
        *, lasting: bool = True,
    ) -> None:  # fmt: skip
        self.definition, self.segment, self.store = definition, segment, store
        self.spec = definition.spec
        self.tracked = tuple(Tracked(preserved=True) if is_so else None for is_so in definition.kind.tracked)
        self.core = JoinCore(self.spec, self.tracked) if any(self.tracked) else definition.core
        self.arrivals = sorted((a for a in arrivals if not a.is_lone), key=lambda a: a.rank)
        self.matched: list[tuple[PackedChunk, Array]] = []
        """Chunks of tracked sides, and which of their tuples have matched here; after `results`."""
        self.batch, self.folder, self.lasting = batch, folder, lasting
        if manifest is None:
            manifest = Manifest.fresh(definition, self._place, uuid.uuid4().hex[:12])
            if lasting:
                self._check_is_first()
        self.manifest = manifest
        self.manifest.updates += 1
        self._advance(watermark)
        self.tally = SegmentTally()

    def _check_is_first(self) -> None:
        """Refuse a segment without state whose files are older: it lost its state, or has another key."""
        for name in self.store.list(self._place):
            number = name.split("-")[1]
            if number.isdigit() and int(number) < self.batch:
                raise StateError(
                    f"'{self.store.path(self._place)}' holds tuples of batch {number}, but the checkpoint "
                    "has no state that refers to them; spark.sql.shuffle.partitions is "
                    f"{self.definition.partitions} now: set the number that the checkpoint began with before "
                    "handshake.join is called"
                )

    def _advance(self, watermark: int | None) -> None:
        """Advance the watermark; it never goes back, not even at a restart."""
        known = self.manifest.watermark
        if watermark is not None:
            self.manifest.watermark = watermark if known is None else max(watermark, known)

    def results(self) -> Iterator[pa.RecordBatch]:
        """Join the new tuples with the held ones and with each other, then update the manifest."""
        before = self.core.comparisons, self.core.results
        self._expire()
        loaded = self._load()
        self._route(loaded)
        held = [
            [chunks.get(self.store, ref, self.spec.sides[side]) for ref in self.manifest.windows[side]]
            for side in (0, 1)
        ]
        homes = [self._home(loaded, side) for side in (0, 1)]
        fresh = [seal(window) for window in homes[1]]
        for side, partners in ((0, held[1] + fresh), (1, held[0])):
            for piece in self._visiting(loaded, side):
                self.tally.visits += piece.rows
                yield from self.core.probe(piece, partners)
        numbered = [chunk for chunk in loaded if chunk.numbers is not None]
        self.matched = [(chunk.arrival, self._mark_matches(chunk)) for chunk in numbered]
        if self.lasting:
            for side, new in ((0, homes[0]), (1, fresh)):
                self._merge(side, held[side], new)
            self._expire()
            self.manifest.router.forget((self._oldest(0), self._oldest(1)))
            self._clean_up()
        self._count(before, loaded)

    # Load new tuples

    def _load(self) -> list[_NewChunk]:
        loaded = []
        for arrival in self.arrivals:
            window = chunks.get(self.store, arrival.ref, self.spec.sides[arrival.side])
            chunks.drop(self.store, arrival.ref)
            chunk = _NewChunk(arrival, window, self._not_late(arrival, window))
            loaded.append(chunk)
            tracked = self.tracked[arrival.side]
            if tracked is not None:
                chunk.number(tracked)
        if self.spec.windows.counted:
            self._stamp(loaded)
        return loaded

    def _mark_matches(self, chunk: _NewChunk) -> Array:
        """Return which tuples of a chunk have matched."""
        tracked = self.tracked[chunk.arrival.side]
        assert tracked is not None
        assert chunk.numbers is not None
        matched: Array = ~tracked.states.leave(chunk.numbers)
        return matched

    def _not_late(self, arrival: PackedChunk, window: BasicWindow) -> Array | None:
        mark = self.manifest.watermark
        if mark is None or not self.spec.windows.timed or not is_late(arrival.oldest, mark):
            return None
        times = integers(stored_column(window.batch, self.spec.sides[arrival.side], TIME))
        mask: Array = ~is_late(times, mark)
        return mask

    def _stamp(self, loaded: list[_NewChunk]) -> None:
        everyone = [
            np.ones(chunk.window.rows, np.bool_) if chunk.admitted is None else chunk.admitted
            for chunk in loaded
        ]
        counts = arrival_stamps(
            [chunk.arrival.side for chunk in loaded],
            [self._times(chunk) for chunk in loaded],
            [integers(chunk.window.batch.column(PLACE)) for chunk in loaded],
            everyone,
            self.manifest.arrived,
        )
        for chunk, mask, mine in zip(loaded, everyone, counts, strict=True):
            chunk.counts, chunk.spare = mine, self._spare(chunk)
            self.manifest.arrived[chunk.arrival.side] += int(mask.sum())

    def _times(self, chunk: _NewChunk) -> Array | None:
        spec = self.spec.sides[chunk.arrival.side]
        return None if spec.time is None else integers(stored_column(chunk.window.batch, spec, TIME))

    def _spare(self, chunk: _NewChunk) -> tuple[str, ...]:
        """Return the names of time columns that only replace missing times; results do not need them."""
        name, schema = self.spec.sides[chunk.arrival.side].time, chunk.window.batch.schema
        if name is None or self.spec.windows.timed or TIME not in schema.names:
            return ()
        return (TIME,) if lies_ready(schema.field(name).type, self.spec.unit) else ()

    # Route them

    def _route(self, loaded: list[_NewChunk]) -> None:
        router = self.manifest.router
        router.learn(
            sum((np.diff(a.offsets) for a in self.arrivals), np.zeros(self.definition.routing.cells))
        )
        for chunk in loaded:
            side = chunk.arrival.side
            window = self.spec.windows[side]
            timed = window is not None and window.timed
            router.note(side, chunk.arrival.newest if timed else self.manifest.arrived[side])

    def _home(self, loaded: list[_NewChunk], side: int) -> list[BasicWindow]:
        """Return the new tuples whose home is this segment."""
        batches = []
        for chunk in loaded:
            if chunk.arrival.side == side:
                span = self.manifest.router.epochs[-1].span(self.segment)
                batch, late = chunk.rows(*home_rows(chunk.arrival.offsets, span, chunk.arrival.ref.check))
                self.tally.rows[side] += batch.num_rows + late
                self.tally.late[side] += late
                batches.append(batch)
        return self._windows(batches, side)

    def _visiting(self, loaded: list[_NewChunk], side: int) -> Iterator[BasicWindow]:
        """Yield the new tuples that may have matches in this segment."""
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
                pieces.append(concat_batches(held))
                held = []
        if any(b.num_rows for b in held):
            pieces.append(concat_batches(held))
        return [BasicWindow(spec, piece) for piece in pieces]

    # Keep and expire

    def _oldest(self, side: int) -> int | None:
        """Return the oldest stamp of a side that later tuples can still join; None if all can."""
        rule = self.spec.rules[side]
        return None if rule is None else rule.oldest(self.manifest.watermark, self.manifest.arrived[side])

    def _expire(self) -> None:
        for side in (0, 1):
            oldest = self._oldest(side)
            if oldest is not None:
                self._replace(side, [ref for ref in self.manifest.windows[side] if ref.newest >= oldest])

    def _merge(self, side: int, held: list[BasicWindow], new: list[BasicWindow]) -> None:
        """Merge new tuples into the windows, and write windows that changed."""
        known = dict(zip(map(id, held), self.manifest.windows[side], strict=True))
        segment = Segment(self.spec, side, list(held))
        for window in new:
            segment.insert(window)
        self._replace(side, [known.get(id(w)) or self._write(side, w) for w in segment.windows])

    def _write(self, side: int, window: BasicWindow) -> ChunkRef:
        name = f"{self.manifest.place}/{self.manifest.owner}-{self.batch}-{uuid.uuid4().hex}.chunk"
        newest = (window.second if side == 0 else window.first)[1]
        return write_chunk(self.store, name, window, newest)

    def _replace(self, side: int, refs: list[ChunkRef]) -> None:
        kept = {ref.name for ref in refs}
        for ref in self.manifest.windows[side]:
            if ref.name not in kept:
                chunks.drop(self.store, ref)
                self.manifest.dropped.append((ref.name, self.manifest.updates))
        self.manifest.windows[side][:] = refs

    # Remove files

    @property
    def _place(self) -> str:
        """The folder for the files of a new segment."""
        return f"{self.folder}/segment-{self.definition.fingerprint}-{self.segment}"

    def _clean_up(self) -> None:
        """Remove files that no recoverable version of the state needs."""
        manifest, past = self.manifest, self.manifest.updates - self.definition.retain - 1
        for name in [name for name, update in manifest.dropped if update <= past]:
            self.store.remove(name)
        manifest.dropped = [(name, update) for name, update in manifest.dropped if update > past]
        if manifest.updates == 2:  # the first update is in the checkpoint now
            self.store.write(f"{manifest.place}/{manifest.owner}-{_CLAIM}", [])
        if manifest.updates % _SWEEP == 0:
            self._sweep()

    def _sweep(self) -> None:
        """Remove files of tasks that failed or ran twice.

        Each attempt at a segment's first batch has its own owner, and one of them is committed. That owner
        claims its files in the second batch. If a query uses a join twice, several owners live on; they have
        the same input, so each has made its claim long before the first sweep.
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

    def _count(self, before: tuple[int, int], loaded: list[_NewChunk]) -> None:
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


# Stamps of windows that count tuples


def arrival_stamps(
    sides: Sequence[int], times: Sequence[Array | None], places: Sequence[Array], admitted: Sequence[Array],
    arrived: Sequence[int],
) -> list[tuple[Array, Array]]:  # fmt: skip
    """Return the (own, other) counts of tuples, for windows that count tuples.

    Tuples arrive by event time, ties left first, then in source order. Without a time column, left and right
    take turns in source order. Every segment computes the same stamps from the same chunks.

    Args:
        sides: The side of each chunk; chunks are in source order.
        times: The times of each chunk's tuples, or None.
        places: The places of each chunk's tuples in their partition.
        admitted: Masks of tuples that are not late; only they count.
        arrived: The number of tuples of each side before this micro-batch.
    """
    chunk = np.repeat(np.arange(len(sides)), [len(p) for p in places])
    side = np.asarray(sides, np.int64)[chunk] if len(chunk) else np.empty(0, np.int64)
    counts = _concatenate(admitted, np.bool_)
    source = np.lexsort((_concatenate(places, np.int64), chunk))
    if any(t is None for t in times):
        order = source[np.lexsort((side[source], _turn(side[source], counts[source])))]
    else:
        when = _concatenate([t for t in times if t is not None], np.int64)[source]
        order = source[np.lexsort((side[source], when))]
    own, other = _count_both(side, counts, order, arrived)
    edges = np.cumsum([len(p) for p in places])[:-1]
    return list(zip(np.split(own, edges), np.split(other, edges), strict=True))


def _concatenate(parts: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _turn(side: Array, counts: Array) -> Array:
    """Return the rank of each tuple among those of its own side."""
    left = np.cumsum((side == 0) & counts)
    right = np.cumsum((side == 1) & counts)
    return np.where(side == 0, left, right)


def _count_both(side: Array, counts: Array, order: Array, arrived: Sequence[int]) -> tuple[Array, Array]:
    is_left, is_right = (side[order] == 0) & counts[order], (side[order] == 1) & counts[order]
    lefts = arrived[0] + np.cumsum(is_left) - is_left
    rights = arrived[1] + np.cumsum(is_right) - is_right
    own, other = np.empty(len(side), np.int64), np.empty(len(side), np.int64)
    own[order] = np.where(side[order] == 0, lefts, rights)
    other[order] = np.where(side[order] == 0, rights, lefts)
    return own, other
