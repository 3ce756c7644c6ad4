"""Small batches, joined where they come: one compiled scan of all cores' windows, shared by all cores.

Tuples of both streams that have come together are one job: what the interpreter has to do for it takes about
as long for two batches as for one. Looking tuples up in all windows that have an index takes little time, and
the caller does that alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.low_latency.helpers import Helpers
from handshake.joins.arrangements.low_latency.look_ups import LookUp, LookUps
from handshake.joins.basic_window import BasicWindow, worth_an_index
from handshake.joins.coding import Coding
from handshake.joins.core import JoinCore, Outer
from handshake.joins.driver import Tracked
from handshake.joins.latency import Note
from handshake.joins.results import Pairs, Results
from handshake.joins.spec import JoinSpec
from handshake.kernels.codes import PASSED
from handshake.kernels.compile import TILE
from handshake.kernels.shared_scan import (
    CHUNK,
    COUNT,
    GROUPS,
    HEADROOM,
    INDEXED,
    INSIDE,
    NULLABLE,
    PART,
    STATE,
    all_have_left,
    cut_chunks,
    new_counters,
    shared_scan_kernel,
    sort_out,
)

Array = np.ndarray[Any, Any]
_PATIENCE = 1 << 14
_LOW, _HIGH = -(2**63), 2**63 - 1
_SCANNED_KINDS = (1 << INDEXED) - 1


class Visit(NamedTuple):
    """New tuples of one side, and the basic windows of the other that they are to meet, by core."""

    piece: BasicWindow
    held: Sequence[list[BasicWindow]]
    outer: Outer
    arrived: float


class SharedScan:
    """Searches the windows of all cores from one thread, which helpers join."""

    def __init__(
        self, spec: JoinSpec, cores: Sequence[JoinCore],
        tracked: tuple[Tracked | None, ...] = (None, None), cpus: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        self._spec, self._cores = spec, cores
        self._reaches = (spec.reach(0), spec.reach(1))
        self._results = Results(spec, tracked)
        self._buffers = _Buffers(spec.tuning.scan_buffer)
        self.coding = Coding(spec)
        self._kernels: dict[tuple[int, int], Any] = {}
        self.look_ups = LookUps(spec, cores)
        self.helpers = Helpers(len(cores), cpus)

    def search(self, visits: Sequence[Visit]) -> Iterator[tuple[pa.RecordBatch, list[Note]]]:
        """Yield all results of some visits by one job, with the numbers of results per core."""
        if self._spec.analysis.never:
            return
        taken = self._take_indexed(visits) if self._spec.method != "scan" else []
        job = _Job(visits, len(self._cores), self._buffers)
        self.look_ups.next_job()
        for number, visit in enumerate(visits):
            self._add(job, number, visit)
        pairs = self._pairs(job)
        if taken:
            pairs = chain(self._looked_up(job, taken), pairs)
        for batch in self._results.of_several(pairs):
            yield batch, self._whose(job)

    def _take_indexed(self, visits: Sequence[Visit]) -> list[tuple[int, int, list[BasicWindow]]]:
        """Take out the basic windows that are looked up one by one, by visit and core."""
        taken = []
        for number, (piece, held, *_) in enumerate(visits):
            for home, some in enumerate(held if not self.look_ups.covers(piece) else ()):
                found = [w for w in some if _is_looked_up(piece, w)]
                if found:
                    some[:] = [w for w in some if not _is_looked_up(piece, w)]
                    taken.append((number, home, found))
        return taken

    def _looked_up(self, job: _Job, taken: list[tuple[int, int, list[BasicWindow]]]) -> Iterator[Pairs]:
        for number, home, windows in taken:
            visit = job.visits[number]
            for pairs in self._cores[home].pairs(visit.piece, windows, visit.outer):
                job.found[number][home] += len(pairs.here)
                yield pairs

    def _whose(self, job: _Job) -> list[Note]:
        """Results of each core since the last time."""
        notes: list[Note] = []
        made = self._spec.tuning.made
        for visit, found in zip(job.visits, job.taken_found(), strict=True):
            for home, count in enumerate(found):
                if count:
                    notes.append((home, count, visit.arrived))
                    core = self._cores[home]
                    core.results += count
                    core.work += count * made
        return notes

    def _add(self, job: _Job, number: int, visit: Visit) -> None:
        """Add a visit to a job, by kind of predicate: far from the edge, the window rule is left out."""
        piece, held = visit.piece, visit.held
        windows = list(chain.from_iterable(held))
        if not windows:
            return
        inner, look_ups = 1 - piece.spec.side, self.look_ups
        homes, places = _homes(*map(len, held))
        table = self._table(inner, held)
        given = (table, places, *_limits(piece, self._reaches), piece.headroom, piece.nullable)
        kinds, counts = np.empty(len(windows), np.int64), np.zeros((2, len(held)), np.int64)
        wanted = look_ups.wants(piece)
        present = sort_out(*given, wanted, kinds, counts)
        if wanted and not look_ups.ready(present, windows, visit.outer):
            counts[:] = 0
            present = sort_out(*given, False, kinds, counts)
        searched = self._count(piece.rows, counts)
        base = job.hold(number, windows, homes)
        if present >> INDEXED:
            job.look_up(look_ups.of(_kinds(present >> INDEXED), visit.outer, base, table, places, kinds))
        if present & _SCANNED_KINDS:
            kernels = {kind: self._kernel(kind, inner) for kind in _kinds(present & _SCANNED_KINDS)}
            job.add(kernels, piece, base, table, places, kinds, present, searched)
        job.pairs += searched * max(piece.rows, 3)

    def _table(self, side: int, held: Sequence[list[BasicWindow]]) -> Array:
        """Return one table of all cores' basic windows, in the order of the cores."""
        pairs = zip(self._cores, held, strict=True)
        rows = [core.segments[side].scan_rows.of(some) for core, some in pairs if some]
        return self.coding.prepare(np.concatenate(rows))

    def _kernel(self, kind: int, inner: int) -> Any:
        if (kind, inner) not in self._kernels:
            inside, headroom, nullable = (bool(kind & bit) for bit in (INSIDE, HEADROOM, NULLABLE))
            self._kernels[kind, inner] = shared_scan_kernel(
                self._cores[0].program(inside, headroom, nullable), inner, self.coding.bands[inner]
            )
        return self._kernels[kind, inner]

    def _count(self, rows: int, counts: Array) -> int:
        """Tuples to be searched, and basic windows that need not be, by core; gives the sum of tuples."""
        searched, skipped = counts.tolist()
        for core, tuples, apart in zip(self._cores, searched, skipped, strict=True):
            core.batches += 1
            core.skipped += apart
            core.comparisons += rows * tuples
            core.work += rows * tuples * self._spec.tuning.scanned
        return sum(searched)

    def _pairs(self, job: _Job) -> Iterator[Pairs]:
        if self.helpers.error is not None:
            raise self.helpers.error
        shared = job.pairs >= self._spec.tuning.shared_pairs and len(self._cores) > 1
        job.make_ready(len(self._cores) if shared else 1)
        if shared:
            self.helpers.offer(job)
        try:
            yield from job.run()
            # fewer than three tuples count as three in `pairs`, since they wait for the same memory
            self.coding.note(job.passed_blocks(), job.pairs)
        finally:
            self.helpers.withdraw()
            job.wait()

    def close(self) -> None:
        """End all threads."""
        self.helpers.close()
        self.look_ups.settle()


@lru_cache(maxsize=1024)
def _homes(*windows: int) -> tuple[list[int], Array]:
    """Return the core that holds each basic window, if core `k` holds `windows[k]` of them."""
    homes = [home for home, many in enumerate(windows) for _ in range(many)]
    return homes, np.array(homes)


@cache
def _kinds(present: int) -> tuple[int, ...]:
    return tuple(kind for kind in range(INDEXED) if present >> kind & 1)


def _is_looked_up(piece: BasicWindow, window: BasicWindow) -> bool:
    return window.cells is not None and worth_an_index(piece.rows, window)


def _limits(
    piece: BasicWindow, reaches: tuple[int | None, int | None]
) -> tuple[int, tuple[int, int, int, int]]:
    """Return the place of the stamp that can be too old for a piece, and the limits for `sort_out`.

    They say the same as `JoinCore._relation`, held at the ends of 64 bits.
    """
    left = piece.spec.side == 0
    low, high = (piece.first, piece.second) if left else (piece.second, piece.first)
    low_reach, high_reach = (reaches[1], reaches[0]) if left else reaches
    limits = [_LOW, _LOW, _HIGH, _HIGH]
    if low_reach is not None:
        limits[:2] = max(low[0] - low_reach, _LOW), max(low[1] - low_reach, _LOW)
    if high_reach is not None:
        limits[2:] = min(high[1] + high_reach, _HIGH), min(high[0] + high_reach, _HIGH)
    return (1 if left else 3), (limits[0], limits[1], limits[2], limits[3])


class _Job:
    """Visits, and parts of the windows to scan for them: one for each visit and kind of predicate."""

    def __init__(self, visits: Sequence[Visit], cores: int, buffers: _Buffers) -> None:
        self.visits = visits
        self.pairs = 0
        self.found = [[0] * cores for _ in visits]
        """Pairs that were given away, by visit and by the core that holds the basic window."""
        self._windows: list[BasicWindow] = []
        self._homes: list[int] = []
        self._visits: list[int] = []
        """For each basic window, the core that holds it, and the number of the visit."""
        self._cores, self._buffers = cores, buffers
        self._parts: list[tuple[Any, tuple[Any, ...]]] = []
        self._looked_up: list[LookUp] = []
        self._groups = 1
        self._notes: list[tuple[Array, ...]] = []
        self._helped: set[int] = set()

    def taken_found(self) -> list[list[int]]:
        """Pairs that were given away since the last time."""
        found, self.found = self.found, [[0] * self._cores for _ in self.visits]
        return found

    def hold(self, visit: int, windows: list[BasicWindow], homes: list[int]) -> int:
        """Take basic windows of a visit; gives the number of the first."""
        base = len(self._windows)
        self._windows += windows
        self._homes += homes
        self._visits += [visit] * len(windows)
        return base

    def add(
        self, kernels: dict[int, Any], piece: BasicWindow, base: int, table: Array, homes: Array,
        kinds: Array, present: int, most: int,
    ) -> None:  # fmt: skip
        """Add basic windows of some kinds, with up to `most` tuples, to be scanned by their kernels."""
        chunks = np.empty((most // TILE + len(table), 3), np.int64)
        bounds = np.empty((INDEXED, self._cores + 1), np.int64)
        self._groups += cut_chunks(table, homes, kinds, present, piece.rows, chunks, bounds) + 1
        outer = piece.addresses(True)
        for kind, kernel in kernels.items():
            fixed = (outer, piece.rows, base, table, chunks, bounds[kind], new_counters(self._cores))
            self._parts.append((kernel, fixed))

    def look_up(self, look_up: LookUp) -> None:
        """Add look-ups in basic windows; the thread that has the job does them."""
        self._looked_up.append(look_up)
        self._groups += len(look_up.calls) * len(self._windows)

    def make_ready(self, threads: int) -> None:
        """Give each thread somewhere to note pairs."""
        for k in range(threads):
            state, groups = np.zeros(STATE, np.int64), np.empty((2, self._groups), np.int64)
            state[CHUNK] = -1
            self._notes.append((state, *self._buffers.of(k), groups[0], groups[1]))

    def help(self, k: int) -> None:
        """Scan chunks until none is left, or the buffers are full."""
        if k in self._helped:  # woken twice; what is left in full buffers is no longer its own
            return
        self._helped.add(k)
        for part in range(len(self._parts)):
            if self._run_part(k, part):
                return

    def _run_part(self, k: int, part: int) -> bool:
        """Run one kernel; returns whether the buffers are full."""
        kernel, fixed = self._parts[part]
        notes = self._notes[k]
        kernel(k, part, *fixed, *notes)
        return bool(notes[0][CHUNK] >= 0)

    def run(self) -> Iterator[Pairs]:
        """Scan and yield all pairs, including those that helpers have found."""
        notes = self._notes[0]
        for look_up in self._looked_up:
            for kernel, fixed in look_up.calls:
                while True:
                    kernel(0, 0, *fixed, *notes)
                    if notes[0][CHUNK] < 0:
                        break
                    yield from self._take_pairs(0)
                    self._forget(0)
            look_up.note()
        for part in range(len(self._parts)):
            while self._run_part(0, part):
                yield from self._take_pairs(0)
                self._forget(0)
        self.wait()
        for k, (state, *_) in enumerate(self._notes):
            while state[CHUNK] >= 0:  # a helper had no room for more, and has gone
                yield from self._take_pairs(k)
                self._forget(k)
                self._run_part(k, int(state[PART]))
            # The state stays as it is: a helper that comes late writes back what it has read.
            yield from self._take_pairs(k)

    def _take_pairs(self, k: int) -> Iterator[Pairs]:
        """Pairs that a thread has noted, by visit; parts of one come after each other."""
        state, here, there, windows, ends = self._notes[k]
        groups = int(state[GROUPS])
        numbers, stops = windows[:groups].tolist(), ends[:groups].tolist()
        start = first = 0
        while first < groups:
            visit, before, last = self._visits[numbers[first]], start, first
            found, homes = self.found[visit], self._homes
            while last < groups and self._visits[number := numbers[last]] == visit:
                stop = stops[last]
                found[homes[number]] += stop - before
                before, last = stop, last + 1
            held = [self._windows[number] for number in numbers[first:last]]
            piece = self.visits[visit].piece
            yield Pairs(piece, here[start:before], held, there[start:before], ends[first:last] - start)
            first, start = last, before

    def _forget(self, k: int) -> None:
        state = self._notes[k][0]
        state[COUNT] = state[GROUPS] = 0

    def passed_blocks(self) -> int:
        """Return the number of blocks whose codes have passed."""
        return sum(int(state[PASSED]) for state, *_ in self._notes)

    def wait(self) -> None:
        """Wait until no helper is at work."""
        for _, (*_, counters) in self._parts:
            while not all_have_left(counters, _PATIENCE):
                time.sleep(0)


class _Buffers:
    """Buffers for the pairs of each core, shared by all jobs."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pairs: dict[int, tuple[Array, Array]] = {}

    def of(self, k: int) -> tuple[Array, Array]:
        if k not in self._pairs:
            self._pairs[k] = (np.empty(self._size, np.int32), np.empty(self._size, np.int32))
        return self._pairs[k]
