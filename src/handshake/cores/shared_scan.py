"""Small batches, joined where they come: one compiled scan of all cores' windows, shared by all cores.

Basic windows that are looked up by an index take little time, and the caller does it alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.basic_window import BasicWindow, worth_an_index
from handshake.cores.core import JoinCore
from handshake.cores.helpers import Helpers
from handshake.cores.outer import Outer
from handshake.cores.results import Pairs, Results, together
from handshake.cores.spec import JoinSpec
from handshake.kernels.compile import TILE
from handshake.kernels.shared_scan import (
    CHUNK,
    COUNT,
    GROUPS,
    INSIDE,
    NULLABLE,
    PART,
    STATE,
    TAME,
    all_have_left,
    cut_chunks,
    new_counters,
    shared_scan_kernel,
    sort_out,
)

__all__ = ["SharedScan"]

Array = np.ndarray[Any, Any]
_ROOM = 16 * TILE
"""Pairs that a thread can note before it has to give them away."""
_SHARED = 1 << 20
"""So many pairs are worth waking others (0.1 ms); three tuples are read as fast as one."""
_PATIENCE = 1 << 14
_LOW, _HIGH = -(2**63), 2**63 - 1
_KINDS = 8
_SCANNED, _MADE = 1e-10, 3e-8


class SharedScan:
    """Searches the windows of all cores from one thread, which helpers join."""

    def __init__(self, spec: JoinSpec, cores: Sequence[JoinCore]) -> None:
        self._spec, self._cores = spec, cores
        self._reaches = (spec.reach(0), spec.reach(1))
        self._results = Results(spec)
        self._buffers = _Buffers()
        self._kernels: dict[tuple[int, int], Any] = {}
        self.helpers = Helpers(len(cores))

    def search(
        self, piece: BasicWindow, held: Sequence[Sequence[BasicWindow]], outer: Outer
    ) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
        """All results of new tuples with basic windows, given by core; and how many are whose."""
        if self._spec.analysis.never:
            return
        indexed: list[list[BasicWindow]] = []
        if self._spec.method != "scan":
            indexed = [[w for w in some if _is_looked_up(piece, w)] for some in held]
            held = [[w for w in some if not _is_looked_up(piece, w)] for some in held]
        job = self._job(piece, held)
        for pairs in together(chain(self._looked_up(job, indexed, outer), self._pairs(job))):
            for batch in self._results.batches(pairs):
                yield batch, self._whose(job)

    def _looked_up(self, job: _Job, indexed: list[list[BasicWindow]], outer: Outer) -> Iterator[Pairs]:
        for home, windows in enumerate(indexed):
            for pairs in self._cores[home].pairs(job.piece, windows, outer):
                job.found[home] += len(pairs.here)
                yield pairs

    def _whose(self, job: _Job) -> list[int]:
        """Results of each core since the last time."""
        found, job.found = job.found, [0] * len(self._cores)
        for core, count in zip(self._cores, found, strict=True):
            core.results += count
            core.work += count * _MADE
        return found

    def _job(self, piece: BasicWindow, held: Sequence[Sequence[BasicWindow]]) -> _Job:
        """What is to be scanned, by predicate: far from the window's edge nothing has to look at it."""
        windows = [window for some in held for window in some]
        job = _Job(piece, windows, len(held), self._buffers)
        if not windows:
            return job
        job.homes = [home for home, some in enumerate(held) for _ in some]
        homes = np.array(job.homes)
        table = np.concatenate([window.scan_row for window in windows]).reshape(len(windows), -1)
        kinds, counts = np.empty(len(windows), np.int64), np.zeros((2, len(held)), np.int64)
        old, limits = _limits(piece, self._reaches)
        columns = piece.columns
        present = sort_out(
            table, homes, old, limits, columns.tame, columns.nullable, kinds, counts[0], counts[1]
        )
        searched = self._count(piece.rows, counts)
        for kind in range(_KINDS):
            if present >> kind & 1:
                job.add(self._kernel(kind, 1 - piece.spec.side), table, homes, kinds, kind, searched)
        return job

    def _kernel(self, kind: int, inner: int) -> Any:
        if (kind, inner) not in self._kernels:
            inside, tame, nullable = (bool(kind & bit) for bit in (INSIDE, TAME, NULLABLE))
            self._kernels[kind, inner] = shared_scan_kernel(
                self._cores[0].program(inside, tame, nullable), inner
            )
        return self._kernels[kind, inner]

    def _count(self, rows: int, counts: Array) -> int:
        """Tuples to be searched, and basic windows that need not be, by core; gives the sum of tuples."""
        searched, skipped = counts.tolist()
        for core, tuples, apart in zip(self._cores, searched, skipped, strict=True):
            core.batches += 1
            core.skipped += apart
            core.comparisons += rows * tuples
            core.work += rows * tuples * _SCANNED
        return sum(searched)

    def _pairs(self, job: _Job) -> Iterator[Pairs]:
        if self.helpers.error is not None:
            raise self.helpers.error
        shared = job.pairs >= _SHARED and len(self._cores) > 1
        job.make_ready(len(self._cores) if shared else 1)
        if shared:
            self.helpers.offer(job)
        try:
            yield from job.done()
        finally:
            self.helpers.withdraw()
            job.wait()

    def close(self) -> None:
        """All threads end."""
        self.helpers.close()


def _is_looked_up(piece: BasicWindow, window: BasicWindow) -> bool:
    return window.cells is not None and worth_an_index(piece.rows, window)


def _limits(
    piece: BasicWindow, reaches: tuple[int | None, int | None]
) -> tuple[int, tuple[int, int, int, int]]:
    """Where basic windows have the stamp that can be too old for a piece, and the limits for `sort_out`.

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
    """A piece, and parts of the windows to scan with it: one for each kind of predicate."""

    def __init__(self, piece: BasicWindow, windows: list[BasicWindow], cores: int, buffers: _Buffers) -> None:
        self.piece, self.windows = piece, windows
        self.pairs = 0
        self.homes: list[int] = []
        """The cores that hold the basic windows."""
        self.found = [0] * cores
        """Pairs that were given away, by the core that holds the basic window."""
        self._cores, self._buffers = cores, buffers
        self._parts: list[tuple[Any, tuple[Any, ...]]] = []
        self._groups = 1
        self._notes: list[tuple[Array, ...]] = []
        self._helped: set[int] = set()

    def add(self, kernel: Any, table: Array, homes: Array, kinds: Array, kind: int, most: int) -> None:
        """Basic windows of a kind, with up to so many tuples, are to be scanned by a kernel."""
        rows = self.piece.rows
        bounds = np.empty(self._cores + 1, np.int64)
        chunks = np.empty((most // TILE + len(table), 3), np.int64)
        count = cut_chunks(table, homes, kinds, kind, rows, chunks, bounds)
        outer = self.piece.addresses(True)
        self._parts.append((kernel, (outer, rows, table, chunks, bounds, new_counters(self._cores))))
        self._groups += count + 1
        self.pairs = most * max(rows, 3)

    def make_ready(self, threads: int) -> None:
        """Give each thread somewhere to note pairs."""
        states, groups = np.zeros((threads, STATE), np.int64), np.empty((threads, 2, self._groups), np.int64)
        states[:, CHUNK] = -1
        for k in range(threads):
            self._notes.append((states[k], *self._buffers.of(k), groups[k, 0], groups[k, 1]))

    def help(self, k: int) -> None:
        """Scan chunks until none is left, or the buffers are full."""
        if k in self._helped:  # woken twice; what is left in full buffers is no longer its own
            return
        self._helped.add(k)
        for part in range(len(self._parts)):
            if self._run(k, part):
                return

    def _run(self, k: int, part: int) -> bool:
        """Says whether the buffers are full."""
        kernel, (outer, rows, table, chunks, bounds, counters) = self._parts[part]
        notes = self._notes[k]
        kernel(k, part, outer, rows, table, chunks, bounds, counters, *notes)
        return bool(notes[0][CHUNK] >= 0)

    def done(self) -> Iterator[Pairs]:
        """Scan; gives all pairs, those that helpers have found as well."""
        for part in range(len(self._parts)):
            while self._run(0, part):
                yield self._noted(0)
                self._forget(0)
        self.wait()
        for k, (state, *_) in enumerate(self._notes):
            while state[CHUNK] >= 0:  # a helper had no room for more, and has gone
                yield self._noted(k)
                self._forget(k)
                self._run(k, int(state[PART]))
            # The state stays as it is: a helper that comes late writes back what it has read.
            if state[COUNT]:
                yield self._noted(k)

    def _noted(self, k: int) -> Pairs:
        state, here, there, windows, ends = self._notes[k]
        count, groups = int(state[COUNT]), int(state[GROUPS])
        numbers, before = windows[:groups].tolist(), 0
        for number, end in zip(numbers, ends[:groups].tolist(), strict=True):
            self.found[self.homes[number]] += end - before
            before = end
        found = [self.windows[number] for number in numbers]
        return Pairs(self.piece, here[:count], found, there[:count], ends[:groups])

    def _forget(self, k: int) -> None:
        state = self._notes[k][0]
        state[COUNT] = state[GROUPS] = 0

    def wait(self) -> None:
        """Until no helper is at work."""
        for _, (*_, counters) in self._parts:
            while not all_have_left(counters, _PATIENCE):
                time.sleep(0)


class _Buffers:
    """Where each core notes its pairs: one after the other, for all jobs."""

    def __init__(self) -> None:
        self._pairs: dict[int, tuple[Array, Array]] = {}

    def of(self, k: int) -> tuple[Array, Array]:
        if k not in self._pairs:
            self._pairs[k] = (np.empty(_ROOM, np.int32), np.empty(_ROOM, np.int32))
        return self._pairs[k]
