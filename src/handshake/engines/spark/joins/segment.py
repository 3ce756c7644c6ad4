"""One micro-batch of a segment: references to new tuples in, results and the next manifest out.

In an inner join, every tuple is kept in its home alone and probes all segments that it visits. If the join
must know which tuples of a side have matched (that side is *anchored*), all pairs of an anchored tuple are
found in its home: it probes there only, and tuples of the other side are kept wherever they visit. If both
sides are anchored, tuples that visit are kept as *guests* beside those whose home it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.engines.spark.batches import large_pieces
from handshake.engines.spark.joins.arrivals import Loader, NewChunk
from handshake.engines.spark.joins.definition import Definition
from handshake.engines.spark.joins.files import LateFiles, SegmentFiles, WrittenFile
from handshake.engines.spark.joins.held import HeldWindows
from handshake.engines.spark.joins.result_time import Dating
from handshake.engines.spark.state.blocks import Ranges
from handshake.engines.spark.state.manifest import Manifest
from handshake.engines.spark.state.pack import PackedChunk
from handshake.engines.spark.state.segment_files import publish
from handshake.engines.spark.state.store import Chunks, Store
from handshake.joins.basic_window import BasicWindow, merge_windows, seal
from handshake.joins.core import JoinCore
from handshake.joins.driver import (
    Tracked,
    matchable,
    number_matchable,
    number_rows,
    stored_column,
    times_of,
)
from handshake.joins.matches import Finals, lone_rows
from handshake.joins.spec import TIME
from handshake.joins.waiting import BestMatch, join_finals, show_columns
from handshake.kernels.columns import integers
from handshake.kinds import KINDS
from handshake.schema import concat_batches
from handshake.windows import is_late

Array = np.ndarray[Any, Any]
_PIECE = 1 << 20
"""Tuples per probe, at most."""


@dataclass
class SegmentTally:
    """The figures of one micro-batch of a segment, with the names that they have in the registry."""

    rows: list[int] = field(default_factory=lambda: [0, 0])
    late: list[int] = field(default_factory=lambda: [0, 0])
    no_time: int = 0
    unmatchable: int = 0
    visits: int = 0
    comparisons: int = 0
    results: int = 0
    held: list[int] = field(default_factory=lambda: [0, 0])
    matched: int = 0
    unmatched: int = 0
    pending: int = 0
    finalised: int = 0
    chunks: int = 0
    state_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    newest: int | None = None
    """The newest event time of the micro-batch."""

    def figures(self) -> dict[str, Any]:
        """Return the figures by their names in `REPORTS["micro_batch"]`; rows and late rows of both sides."""
        left, right = self.held
        both = {"rows": sum(self.rows), "late": sum(self.late), "held_left": left, "held_right": right}
        return {**vars(self), **both}


class _NewTuples(NamedTuple):
    """New tuples of one side: those to keep, those that probe, and guests."""

    kept: list[BasicWindow]
    probing: list[BasicWindow]
    guests: list[BasicWindow]


class SegmentStep:
    """One micro-batch of a segment. `manifest` is the next one after `results` is exhausted.

    A step that is not `lasting` is a whole batch join, which keeps no state. `held` are basic windows of each
    side to join with, if they are not those of the manifest. `now` is the time at which the micro-batch
    began, in milliseconds; the rule for silent streams needs it. `take_over` lets the segment begin with the
    rows of segments of an earlier definition, and yields results of them. `run` is the run of the query.
    """

    def __init__(
        self, definition: Definition, segment: int, manifest: Manifest | None,
        arrivals: Sequence[PackedChunk], watermark: int | None, store: Chunks, batch: int, folder: str,
        *, now: int | None = None, lasting: bool = True, run: str = "",
        held: tuple[list[BasicWindow], list[BasicWindow]] | None = None,
        take_over: Callable[[SegmentStep], Iterator[pa.RecordBatch]] | None = None,
    ) -> None:  # fmt: skip
        self.definition, self.segment, self.store = definition, segment, store
        self.spec = definition.spec
        self.arrivals = sorted((a for a in arrivals if not a.is_lone), key=lambda a: a.rank)
        self._lone = [a for a in arrivals if a.is_lone and a.seed % definition.segments == segment]
        self.batch, self.lasting, self._given = batch, lasting, held
        self._take_over = take_over
        if manifest is None:
            place = f"{folder}/segment-{definition.fingerprint}-{segment}"
            manifest = Manifest.fresh(definition, place, uuid.uuid4().hex[:12])
        self.manifest = manifest
        self.manifest.updates += 1
        about = manifest.about
        begins = manifest.updates == 1 or about.run != run
        self._files = SegmentFiles(segment, definition.segments, batch, folder, run, begins=begins)
        self._late = LateFiles(definition, self._files)
        about.run, about.segment, about.retain, about.unit = run, segment, definition.retain, self.spec.unit
        about.stamps = [None if side.expiring is None else side.expiring.name for side in self.spec.sides]
        self._advance(watermark)
        idle = definition.idle
        # only with new tuples do all segments run this micro-batch
        if idle is not None and now is not None and arrivals:
            self._advance(manifest.clocks.advance(arrivals, now, idle, self.spec.unit))
        kind = self.spec.kind
        self.tracked = tuple(
            None if states is None else Tracked(preserved, states)
            for preserved, states in zip(kind.preserved, manifest.states, strict=True)
        )
        self.held = HeldWindows(self.spec, manifest, store, batch)
        self._loader = Loader(definition, segment, manifest, store)
        self.core = JoinCore(self.spec, self.tracked) if any(self.tracked) else definition.core
        self.tally = SegmentTally()
        self.next_final: int | None = None
        """The watermark at which the next tuple without a match may be final, if there is one."""

    def commit(self) -> bytes:
        """Return the manifest for the state store, after a copy has been written for readers from outside.

        Late rows are written, if they are kept.
        """
        self._late.write()
        if not isinstance(self.store, Store):
            return self.manifest.dump()
        return publish(self.manifest, self.store, self.batch)

    def _advance(self, watermark: int | None) -> None:
        """Advance the watermark; it never goes back, not even at a restart."""
        known = self.manifest.watermark
        if watermark is not None:
            self.manifest.watermark = watermark if known is None else max(watermark, known)

    def results(self) -> Iterator[pa.RecordBatch]:
        """Join the new tuples with the held ones and with each other, then update the manifest."""
        before = self._matches()
        found = self._results()
        if self.definition.result_time is not None:
            found = Dating(self.definition, self.manifest.states).date(found, self.manifest.watermark)
        for batch in found:
            self.tally.results += batch.num_rows
            yield batch
        changes = (after - earlier for after, earlier in zip(self._matches(), before, strict=True))
        self.tally.matched, self.tally.unmatched, self.tally.finalised = changes

    def write_results(self) -> WrittenFile | None:
        """Write the results to a file in the folder `results_to`; None if there are none."""
        file = self._files.write_results(self.definition, self.results())
        self.tally.written_bytes = 0 if file is None else file.bytes
        return file

    def _results(self) -> Iterator[pa.RecordBatch]:
        if self._take_over is not None:
            yield from self._take_over(self)
        limits = self._limits()
        if self.definition.best is None:  # else tuples that are final now still want expired ones
            self.held.expire(limits, [tracked is None for tracked in self.tracked])
        if self._given is None:
            self.held.read_ahead()
        if self.arrivals:  # their load moves the cuts
            counts = sum((np.diff(a.offsets) for a in self.arrivals), np.zeros(self.definition.routing.cells))
            self.manifest.router.learn(counts, limits, self.definition.tuning)
        loaded = self._loader.load(self.arrivals)
        self.tally.read_bytes += sum(chunk.read_bytes for chunk in loaded)
        self._note(loaded)
        new = [self._new_tuples(loaded, side) for side in (0, 1)]
        self._add_lone()
        held = list(self._given or self.held.open(self.manifest.windows))
        guests = self.held.open(self.manifest.guests)
        if self.definition.best is not None:
            yield from self._join_finals(self.definition.best, held, new)
            self._count(loaded)
            return
        fresh = [seal(window) for window in new[1].kept]
        yield from self._probe(self.core, new[0].probing, held[1] + fresh)
        yield from self._probe(self.core, new[1].probing, held[0])
        if all(self.definition.anchored):
            yield from self._probe_guests(new, held, guests, fresh)
        kept = (new[0].kept, fresh)
        yield from self._finals([mine + more for mine, more in zip(held, kept, strict=True)])
        if self.lasting:
            self._keep(held, guests, kept, new)
        self._count(loaded)

    def _probe(
        self, core: JoinCore, pieces: list[BasicWindow], partners: list[BasicWindow]
    ) -> Iterator[pa.RecordBatch]:
        before = core.comparisons
        for piece in pieces:
            self.tally.visits += piece.rows
            yield from core.probe(piece, partners)
        self.tally.comparisons += core.comparisons - before

    def _probe_guests(
        self, new: list[_NewTuples], held: list[list[BasicWindow]], guests: list[list[BasicWindow]],
        fresh: list[BasicWindow],
    ) -> Iterator[pa.RecordBatch]:  # fmt: skip
        """Join with guests: left tuples at home find all their results; right ones only mark matches."""
        left, right = self.tracked
        core = JoinCore(self.spec, (left, None))
        yield from self._probe(core, new[0].kept, guests[1] + new[1].guests)
        yield from self._probe(core, new[1].guests, held[0])
        silent = JoinCore(replace(self.spec, kind=KINDS["right_anti"]), (None, right))
        yield from self._probe(silent, new[0].guests, held[1] + fresh)
        yield from self._probe(silent, new[1].kept, guests[0])

    # New tuples

    def _add_lone(self) -> None:
        """Take tuples that can match nothing as results, unless they are late."""
        mark = self.manifest.watermark
        for arrival in self._lone:
            spec, tracked = self.spec.sides[arrival.side], self.tracked[arrival.side]
            batch = arrival.rows(self.store).batch()
            if mark is not None and spec.time is not None and self.spec.windows.timed:
                times, known = times_of(batch.column(spec.time), self.spec.unit, spec.time, spec.name)
                late = is_late(times, mark) if known is None else is_late(times, mark) & known
                self.tally.late[arrival.side] += int(late.sum())
                self._late.add(arrival.side, batch, times, late, mark)
                batch = batch.filter(pa.array(~late))
            if tracked is not None:
                tracked.add_alone(batch)

    def _note(self, loaded: list[NewChunk]) -> None:
        """Note the newest tuples, by which cuts are forgotten."""
        router = self.manifest.router
        for chunk in loaded:
            side = chunk.arrival.side
            window = self.spec.windows[side]
            timed = window is not None and window.timed
            newest = chunk.arrival.newest if timed else self.manifest.arrived[side]
            router.note(side, newest, self.definition.anchored)

    def _new_tuples(self, loaded: list[NewChunk], side: int) -> _NewTuples:
        """Return the new tuples of a side that this segment keeps, those that probe here, and guests."""
        kept, probing, guests = [], [], []
        anchored = self.definition.anchored
        for chunk in loaded:
            if chunk.arrival.side != side:
                continue
            home, visits = self._loader.home(chunk.arrival), self._loader.visits(chunk.arrival)
            self._count_home(chunk, *home)
            here = [home] if anchored[side] or not any(anchored) else visits
            kept += [chunk.rows(*rows)[0] for rows in here]
            if not any(anchored):
                probing += [chunk.rows(*rows)[0] for rows in visits]
            if all(anchored):
                guests += [chunk.rows(*rows)[0] for rows in without(visits, home)]
        mine = self._windows(kept, side, self.tracked[side])
        return _NewTuples(
            mine, mine if any(anchored) else self._windows(probing, side), self._windows(guests, side)
        )

    def _count_home(self, chunk: NewChunk, start: int, stop: int) -> None:
        side = chunk.arrival.side
        self.tally.rows[side] += stop - start
        if chunk.admitted is not None:
            here = chunk.place(start, stop)
            late = ~chunk.admitted[here]
            self.tally.late[side] += int(late.sum())
            mark = self.manifest.watermark
            if self.definition.keeps_late and mark is not None and late.any():
                batch = chunk.batch.slice(here.start, here.stop - here.start)
                times = integers(stored_column(batch, self.spec.sides[side], TIME))
                self._late.add(side, batch, times, late, mark)

    def _windows(
        self, batches: list[pa.RecordBatch], side: int, tracked: Tracked | None = None
    ) -> list[BasicWindow]:
        """Return tuples as basic windows, numbered if they are tracked."""
        spec, counted = self.spec.sides[side], self.spec.windows.counted
        if tracked is not None:  # unless tuples are counted, chunks have none that can match nothing
            batches = [
                number_matchable(batch, spec, tracked) if counted else number_rows(batch, tracked)
                for batch in batches
            ]
        elif counted:
            batches = [matchable(batch, spec) for batch in batches]
        return [BasicWindow(spec, concat_batches(piece)) for piece in large_pieces(batches, _PIECE)]

    # Left tuples that take their best matches

    def _join_finals(
        self, best: BestMatch, held: list[list[BasicWindow]], new: list[_NewTuples]
    ) -> Iterator[pa.RecordBatch]:
        """Join the left tuples that are final now with their best matches, and keep the others."""
        kept = (new[0].kept, new[1].kept)
        left, right = (mine + more for mine, more in zip(held, kept, strict=True))
        oldest, tracked = self._oldest(0), self.tracked[0]
        assert tracked is not None
        for batch in tracked.take_alone():
            yield _pad(lone_rows(self.spec, 0, batch, None), best.output)
        if oldest is not None or not self.lasting:
            final = [_pending(window, tracked, oldest if self.lasting else None) for window in left]
            rows = [batch for batch in final if batch.num_rows]
            if rows:
                batches = [window.batch for window in right]
                yield from join_finals(self.spec, best, tracked, rows, batches).batches
        if self.lasting:
            self._reduce(best, held[1])
            self._keep(held, self.held.open(self.manifest.guests), kept, new)

    def _reduce(self, best: BestMatch, held: list[BasicWindow]) -> None:
        """Drop right tuples that later ones replace for all left tuples to come."""
        refs, spec, (first, limit) = self.manifest.windows[1], self.spec.sides[1], self._limits()
        if first is None or limit is None:
            return
        old = [n for n, ref in enumerate(refs) if ref.newest < first]
        fresh = sum(refs[n].rows for n in old[1:])  # the first one has been reduced, if any has
        if not old or fresh < self.definition.tuning.reduced_from or 4 * fresh < refs[old[0]].rows:
            return
        if not best.replaces:
            return
        merged = merge_windows(*(held[n] for n in old))
        if merged is None:
            return
        last = best.edge_rows(show_columns(self.spec, 1, [merged.batch]), forward=False)
        assert last is not None
        rows = np.sort(last[integers(stored_column(merged.batch, spec, TIME))[last] >= limit])
        made = [seal(BasicWindow(spec, merged.batch.take(pa.array(rows))))] if len(rows) else []
        others = [n for n in range(len(refs)) if n not in old]
        written = [self.held.write(1, window) for window in made]
        self.held.replace(refs, [*written, *(refs[n] for n in others)])
        held[:] = [*made, *(held[n] for n in others)]

    # Tuples without a match

    def _finals(self, windows: list[list[BasicWindow]]) -> Iterator[pa.RecordBatch]:
        """Yield the tuples without a match that are final now; a batch join ends, so all are."""
        for side, tracked in enumerate(self.tracked):
            if tracked is not None:
                oldest = self._oldest(side)
                known = oldest is not None or not self.lasting
                finals = Finals(self.spec, side, tracked)
                yield from finals.take(windows[side] if known else (), oldest if self.lasting else None)

    def _matches(self) -> tuple[int, int, int]:
        """Return how many tuples of anchored sides matched, came as results without one, and wait no more."""
        sides = [tracked for tracked in self.tracked if tracked is not None]
        matched = sum(side.states.matched for side in sides)
        alone = sum(side.states.unmatched for side in sides if side.preserved)
        return matched, alone, matched + sum(side.states.unmatched for side in sides)

    def _schedule(self, side: int, windows: list[BasicWindow], oldest: int | None) -> None:
        """Note when the next tuple of a side leaves its window, if it may be a result then."""
        window, rule = self.spec.windows[side], self.spec.rules[side]
        kind = self.spec.kind
        awaited = kind.preserved[side] or (kind.pairs == "best" and kind.tracked[side])
        if window is None or rule is None or not window.timed or not awaited:
            return
        least = [at for at in (_least(each, oldest) for each in windows) if at is not None]
        if least:
            final = min(least) + rule.reach + 1
            self.next_final = final if self.next_final is None else min(self.next_final, final)

    # Keep and expire

    def _oldest(self, side: int) -> int | None:
        """Return the oldest stamp of a side that later tuples can still join; None if all can."""
        rule = self.spec.rules[side]
        return None if rule is None else rule.oldest(self.manifest.watermark, self.manifest.arrived[side])

    def _limits(self) -> tuple[int | None, int | None]:
        return self._oldest(0), self._oldest(1)

    def _keep(
        self, held: list[list[BasicWindow]], guests: list[list[BasicWindow]],
        kept: tuple[list[BasicWindow], list[BasicWindow]], new: list[_NewTuples],
    ) -> None:  # fmt: skip
        """Keep the new tuples, drop those that have left, and remove files that are no longer needed."""
        limits, about = self._limits(), self.manifest.about
        about.oldest = list(limits)
        for side in (0, 1):
            windows = self.held.merge(side, self.manifest.windows[side], held[side], kept[side])
            about.held[side] = _span(windows, limits[side])
            self.held.merge(side, self.manifest.guests[side], guests[side], new[side].guests)
            self._schedule(side, windows, limits[side])
        self.held.expire(limits, (True, True))
        if self.arrivals:  # only then do all segments run this micro-batch
            self.manifest.router.forget(limits)
        self.held.clean_up(self.definition.retain)

    def _count(self, loaded: list[NewChunk]) -> None:
        tally, manifest = self.tally, self.manifest
        tally.held = [sum(ref.rows for ref in side) for side in manifest.windows]
        tally.chunks = len(manifest.refs)
        tally.state_bytes = sum(ref.bytes for ref in manifest.refs)
        tally.pending = sum(tracked.states.pending for tracked in self.tracked if tracked is not None)
        if self.segment == 0:
            tally.no_time = sum(a.no_time for a in self.arrivals)
            tally.unmatchable = sum(a.unmatchable for a in self.arrivals)
        if self.spec.windows.timed and loaded:
            tally.newest = max(chunk.arrival.newest for chunk in loaded)


def _pending(window: BasicWindow, tracked: Tracked, oldest: int | None) -> pa.RecordBatch:
    """Return the left tuples of a basic window that have left it and are not results yet."""
    stamp = window.spec.expiring
    if oldest is not None and window.second[0] >= oldest:
        return window.batch.slice(0, 0)
    mask = tracked.states.are_pending(window.numbers)
    if oldest is not None and stamp is not None:
        mask &= integers(stored_column(window.batch, window.spec, stamp.name)) < oldest
    return window.batch if mask.all() else window.batch.filter(pa.array(mask))


def _span(windows: list[BasicWindow], oldest: int | None) -> list[int] | None:
    """Return the extremes of the stamps that basic windows expire by, of those that have not expired."""
    spans = [window.second if window.spec.side == 0 else window.first for window in windows]
    held = [span for span in spans if oldest is None or span[1] >= oldest]
    return [min(low for low, _ in held), max(high for _, high in held)] if held else None


def _least(window: BasicWindow, oldest: int | None) -> int | None:
    """Return the least stamp that tuples of a basic window expire by, of those that have not expired."""
    low, high = window.second if window.spec.side == 0 else window.first
    if oldest is None or low >= oldest:
        return low
    stamp = window.spec.expiring
    if high < oldest or stamp is None:
        return None
    stamps = integers(stored_column(window.batch, window.spec, stamp.name))
    return int(stamps[stamps >= oldest].min())


def without(ranges: Ranges, hole: tuple[int, int]) -> Ranges:
    """Return the parts of ranges outside of another range.

    >>> without([(0, 4), (6, 9)], (2, 7))
    [(0, 2), (7, 9)]
    """
    first, last = hole
    parts = [p for start, stop in ranges for p in ((start, min(stop, first)), (max(start, last), stop))]
    return [(start, stop) for start, stop in parts if start < stop]


def _pad(rows: pa.RecordBatch, output: pa.Schema | None) -> pa.RecordBatch:
    """Add the columns that only rows with a match have values for, such as their rank."""
    if output is None:
        return rows
    more = list(output)[rows.num_columns :]
    nulls = [pa.nulls(rows.num_rows, field.type) for field in more]
    return pa.RecordBatch.from_arrays([*rows.columns, *nulls], schema=output)
