"""The join core whose windows are in the memory of a GPU.

The host keeps the batches, the order of arrival and expiry, as for every core. The device holds the columns
that the predicate reads, in the order of arrival. A search returns pairs of a probe and a slot; the host
turns slots into rows of basic windows, tests what the device could not decide, and makes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.device.codes import Coder, coded_values
from handshake.joins.device.index import Grid, Run, Table
from handshake.joins.device.memory import MOST_SLOTS, DeviceWindow, Output, Store
from handshake.joins.driver import stored_column
from handshake.joins.results import Made, Pairs
from handshake.joins.segment import Segment
from handshake.kernels.columns import integers
from handshake.kernels.compile import BLOCK, Program
from handshake.kernels.gpu.driver import Device, Launchable
from handshake.kernels.gpu.look_up import RUN_WORDS, look_up_module
from handshake.kernels.gpu.scan import PROBES, Scan, scan_module
from handshake.kernels.gpu.target import THREADS
from handshake.plan.expr import Literal

__all__ = ["DeviceCore", "DeviceSegment"]

Array = np.ndarray[Any, Any]
_SELECTIVE, _WITHOUT = 16, 64
"""If more than one row in `_SELECTIVE` is a candidate, the next `_WITHOUT` searches do without indexes."""
_LARGEST = 1 << 22
"""Tuples of the largest basic window on the host."""


@dataclass(frozen=True)
class Buffers:
    """How much a search may return at once; tests make it small."""

    first: int = 1 << 17
    """Pairs that the output holds to begin with."""
    most: int = 1 << 26
    """Pairs beyond which a search is cut into parts, instead of making the output larger."""


BUFFERS = Buffers()


class DeviceSegment(Segment):
    """The basic windows of a side on the host, each with the number of its first row on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.first_rows: dict[int, int] = {}
        """By the identity of each basic window."""

    def place(self, window: BasicWindow) -> range:
        """Return the rows of a basic window."""
        first = self.first_rows[id(window)]
        return range(first, first + window.rows)

    def _group(self, newest: BasicWindow, most: int) -> list[BasicWindow]:
        """Merge neighbours only, so that a basic window is a run of rows."""
        group = super()._group(newest, most)
        for at in range(len(group) - 1, 0, -1):
            if self.place(group[at - 1]).stop != self.place(group[at]).start:
                return group[at:]
        return group

    def _replace(self, group: list[BasicWindow], together: BasicWindow) -> None:
        super()._replace(group, together)
        if any(window is together for window in self.windows):
            self.first_rows[id(together)] = self.first_rows[id(group[0])]
            self._forget()

    def expire(self, oldest: int) -> int:
        """Drop basic windows whose stamps are all below `oldest`; return the number of dropped tuples."""
        gone = super().expire(oldest)
        if gone:
            self._forget()
        return gone

    def _forget(self) -> None:
        kept = {id(window) for window in self.windows}
        self.first_rows = {key: row for key, row in self.first_rows.items() if key in kept}


@dataclass
class DeviceCore(JoinCore):
    """A join core whose searches run on a GPU."""

    device: Callable[[], Device] = field(kw_only=True)
    """Opens the device for the calling thread."""
    buffers: Buffers = field(default_factory=lambda: BUFFERS, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        device = self.device()
        left, right = (
            DeviceSegment(self.spec, side, lazy=True, largest=_LARGEST, aside=True) for side in (0, 1)
        )
        self.segments: tuple[DeviceSegment, DeviceSegment] = (left, right)
        self.windows = tuple(DeviceWindow(device, side) for side in self.spec.sides)
        self.coders = tuple(Coder(side) for side in self.spec.sides)
        self._loaded: dict[Any, tuple[Scan, Launchable]] = {}
        self._output, self._words = Output(device, self.buffers.first), Store(device, 8)
        self._placed: tuple[BasicWindow, int] | None = None
        self._indexed: tuple[dict[int, Run], dict[int, Run]] = ({}, {})
        self._grids: list[Grid | None] = [None, None]
        self._tables, self._reach = (Table(Store(device, 8)), Table(Store(device, 8))), Store(device, 4)
        self._live = [0, 0]
        """The oldest row of each side that may still match, as far as that is known."""
        self._front: list[tuple[BasicWindow, Array | None] | None] = [None, None]
        """The oldest basic window of each side, and its stamps if they ascend."""
        self._per_probe = [0.0, 0.0]
        """Pairs per probe of each side in its last look-up."""
        self._unindexed = 0
        """Searches to come that do without indexes."""

    def search(
        self, piece: BasicWindow, windows: Iterable[BasicWindow] | None = None, outer: Outer | None = None
    ) -> Iterator[Made]:
        """Yield results as a core on the host does; the new tuples are on the device then."""
        self.device()
        if piece.rows and not self.spec.analysis.never:
            self._place(piece)
        yield from super().search(piece, windows, outer)

    def insert(self, piece: BasicWindow) -> None:
        """Put tuples into their side's window."""
        if piece.rows == 0:
            return
        self.device()
        segment = self.segments[piece.spec.side]
        segment.first_rows[id(piece)] = self._place(piece)
        self._placed = None
        segment.insert(piece)

    def expire(self, side: int, oldest: int) -> int:
        """Forget tuples of a side whose expiring stamp is below `oldest`, in whole basic windows."""
        gone = super().expire(side, oldest)
        if gone:
            segment, window = self.segments[side], self.windows[side]
            window.first = min((segment.place(w).start for w in segment.windows), default=window.next)
        self._live[side] = self._oldest_row(side, oldest)
        return gone

    def _oldest_row(self, side: int, oldest: int) -> int:
        """Return the first row of the oldest basic window whose stamp is `oldest` or newer."""
        segment, stamp = self.segments[side], self.spec.sides[side].expiring
        if not segment.windows or stamp is None:
            return 0
        window = segment.windows[0]
        front = self._front[side]
        if front is None or front[0] is not window:
            stamps = integers(stored_column(window.batch, window.spec, stamp.name))
            ascend = not np.any(stamps[1:] < stamps[:-1])
            front = self._front[side] = (window, stamps if ascend else None)
        first = segment.place(window).start
        return first if front[1] is None else first + int(np.searchsorted(front[1], oldest))

    def _place(self, piece: BasicWindow) -> int:
        """Copy tuples to the device unless they are there; return the number of their first row."""
        if self._placed is None or self._placed[0] is not piece:
            side = piece.spec.side
            row = self.windows[side].append(piece)
            if self.coders[side].rows:
                self.windows[side].write_codes(row, self.coders[side].codes(coded_values(piece)))
            self._placed = (piece, row)
        return self._placed[1]

    def pairs(self, piece: BasicWindow, windows: list[BasicWindow], outer: Outer) -> Iterator[Pairs]:
        """Yield all pairs of new tuples with some basic windows."""
        near = self.near(piece, windows)
        inner = self.windows[1 - piece.spec.side]
        segment = self.segments[1 - piece.spec.side]
        for found in self.find(piece, near):
            keys = np.sort(found)
            slots = (keys >> np.uint64(32)).astype(np.int64)
            starts = np.array([segment.place(w).start - inner.base for w in near])
            ends = np.searchsorted(slots, starts + [w.rows for w in near])
            counts = np.diff(ends, prepend=0)
            here = (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)
            there = (slots - np.repeat(starts, counts)).astype(np.int32)
            yield Pairs(piece, here, near, there, ends)

    def near(self, piece: BasicWindow, windows: list[BasicWindow]) -> list[BasicWindow]:
        """Return the basic windows that are not apart from a piece, in the order of their rows."""
        near = [window for window in windows if self._relation(piece, window) != "apart"]
        self.skipped += len(windows) - len(near)
        place = self.segments[1 - piece.spec.side].place
        return sorted(near, key=lambda window: place(window).start)

    def find(self, piece: BasicWindow, near: list[BasicWindow]) -> Iterator[Array]:
        """Yield pairs as words, a slot and the number of a probe, in any order; each until the next one."""
        if not near:
            return
        side = piece.spec.side
        row = self._place(piece)
        place = self.segments[1 - side].place
        indexed = self._runs(piece, near)
        for start, probes in self._shares(piece) if indexed else ():
            yield from self._look_up(piece, row, start, probes, indexed)
        known = {id(run.window) for run in indexed}
        scanned = [window for window in near if id(window) not in known]
        # What has no index yet is soon searched. Codes would be made for all rows of the window.
        self._prepare_codes(piece, [] if indexed else scanned)
        runs: list[list[int]] = []
        for window in scanned:
            rows = place(window)
            rows = range(max(rows.start, min(self._live[1 - side], rows.stop)), rows.stop)
            if not rows:
                continue
            if runs and runs[-1][1] == rows.start:
                runs[-1][1] = rows.stop
            else:
                runs.append([rows.start, rows.stop])
        for first, stop in runs:
            self.check()
            self.comparisons += piece.rows * (stop - first)
            yield from self._search_rows(piece, row, 0, piece.rows, first, stop)

    # Codes.

    def _prepare_codes(self, piece: BasicWindow, near: list[BasicWindow]) -> None:
        """Give codes to the other side if it has bands and enough tuples; give the probes their words."""
        inner = 1 - piece.spec.side
        coder, rows = self.coders[inner], sum(window.rows for window in near)
        self._most = 0
        if not coder.attributes or rows < self.spec.tuning.coded_from or self.coding.without:
            return
        limits = self._limits(piece)
        if rows >= 4 * coder.rows and coder.rows < 1 << 16:
            self._calibrate(inner, limits)
        words, self._most = coder.words(limits)
        self._words.put_all(words)

    def _calibrate(self, side: int, limits: list[tuple[Array, Array]]) -> None:
        coder, segment = self.coders[side], self.segments[side]
        values = [coded_values(window) for window in segment.windows]
        coder.calibrate([np.concatenate(column) for column in zip(*values, strict=True)], limits)
        for window, columns in zip(segment.windows, values, strict=True):
            self.windows[side].write_codes(segment.place(window).start, coder.codes(columns))

    # Indexes.

    def _runs(self, piece: BasicWindow, near: list[BasicWindow]) -> list[Run]:
        """Return the indexes of the basic windows that have one; make those that are missing."""
        self._unindexed -= self._unindexed > 0
        if self.spec.method != "band" or self._unindexed:
            return []
        inner = 1 - piece.spec.side
        known = self._indexed[inner]
        held = {id(window) for window in self.segments[inner].windows}
        for key in [key for key in known if key not in held]:
            known.pop(key).release()
        limits: list[tuple[Array, Array]] = []
        found = []
        for window in near:
            if window.rows < self.spec.tuning.device_indexed_from:
                continue
            run = known.get(id(window))
            if run is None or run.window is not window:
                limits = limits or self._limits(piece)
                run = Run(self.windows[inner].device, window, limits, self._grids[inner])
                known[id(window)], self._grids[inner] = run, run.grid
            found.append(run)
        return found

    def _table(self, side: int, runs: list[Run]) -> tuple[int, list[Grid]]:
        """Return the address of the facts on some runs of a side, and their grids."""
        base, known = self.windows[side].base, self._tables[side]
        if known.base != base or len(known.runs) != len(runs) or any(map(is_not, known.runs, runs)):
            grids = list(dict.fromkeys(run.grid for run in runs))
            words = np.empty((len(runs), RUN_WORDS), np.int64)
            for k, run in enumerate(runs):
                first = self.segments[side].place(run.window).start - base
                words[k] = (*run.addresses, first, run.grid.bands[1][2], grids.index(run.grid))
            known.store.put_all(words.reshape(-1))
            known.base, known.runs, known.grids = base, list(runs), grids
        return known.store.address, known.grids

    def _limits(self, piece: BasicWindow) -> list[tuple[Array, Array]]:
        """Return the ranges that each probe allows the two bands of the other side to have."""
        return [piece.limits(attribute) for attribute in self.spec.sides[1 - piece.spec.side].coded]

    def _shares(self, piece: BasicWindow) -> Iterator[tuple[int, int]]:
        """Yield the first probe and the number of probes of look-ups whose pairs are likely to fit."""
        expected = self._per_probe[piece.spec.side] * piece.rows
        share = -(-piece.rows // (1 + int(expected * 1.1 / self.buffers.most)))
        for start in range(0, piece.rows, share):
            yield start, min(share, piece.rows - start)

    def _look_up(
        self, piece: BasicWindow, row: int, start: int, probes: int, runs: list[Run]
    ) -> Iterator[Array]:
        """Yield the pairs of some probes with indexed basic windows; in parts if there are too many."""
        count = self._launch_look_up(piece, row + start, start, probes, runs)
        single = probes == 1 and len(runs) == 1
        if count > self._output.room and (count <= self.buffers.most or single):
            self._output.grow(count)
            count = self._launch_look_up(piece, row + start, start, probes, runs)
        if count <= self._output.room:
            if count:
                yield self._output.take(count, start)
            return
        self.check()
        if probes > 1:
            half = probes // 2
            yield from self._look_up(piece, row, start, half, runs)
            yield from self._look_up(piece, row, start + half, probes - half, runs)
        else:
            half = len(runs) // 2
            yield from self._look_up(piece, row, start, 1, runs[:half])
            yield from self._look_up(piece, row, start, 1, runs[half:])

    def _launch_look_up(self, piece: BasicWindow, row: int, start: int, probes: int, runs: list[Run]) -> int:
        outer = piece.spec.side
        own, other = self.windows[outer], self.windows[1 - outer]
        part = slice(start, start + probes)
        limits = [(low[part], high[part]) for low, high in self._limits(piece)]
        table, grids = self._table(1 - outer, runs)
        self._reach.put_all(np.concatenate([grid.reach(limits) for grid in grids]).reshape(-1))
        nullable = bool(own.validity or other.validity)
        kernel = self._kernel_for(own.headroom and other.headroom, nullable, 1 - outer, False, None)[1]
        self._output.clear()
        warps = THREADS // own.device.target.lanes
        kernel(
            (-(-probes // warps), len(runs)),
            (
                *own.addresses(nullable), *other.addresses(nullable),
                row - own.base, probes, table, 0, MOST_SLOTS,
                self._output.address + 16, self._output.address, self._output.room,
                self._reach.address, 0, 0, 0, 1,
            ),
        )  # fmt: skip
        count, candidates = self._output.read()
        self._per_probe[outer] = count / probes
        self.comparisons += candidates
        if candidates * _SELECTIVE > probes * sum(run.window.rows for run in runs):
            self._unindexed = _WITHOUT
        return count

    # Scans.

    def _search_rows(
        self, piece: BasicWindow, row: int, start: int, probes: int, first: int, stop: int
    ) -> Iterator[Array]:
        """Yield the pairs of some probes with some rows; in parts if there are too many."""
        count = self._launch(piece.spec.side, row + start, start, probes, first, stop)
        if count > self._output.room and count <= self.buffers.most:
            self._output.grow(count)
            count = self._launch(piece.spec.side, row + start, start, probes, first, stop)
        if count <= self._output.room:
            if count:
                yield self._output.take(count, start)
            return
        self.check()
        if probes > 1:
            half = max(probes // 2 & ~3, 1)
            yield from self._search_rows(piece, row, start, half, first, stop)
            yield from self._search_rows(piece, row, start + half, probes - half, first, stop)
        else:
            middle = (first + stop) // 2
            yield from self._search_rows(piece, row, start, 1, first, middle)
            yield from self._search_rows(piece, row, start, 1, middle, stop)

    def _launch(self, outer: int, row: int, start: int, probes: int, first: int, stop: int) -> int:
        """Run a scan; return how many pairs it has found."""
        own, other = self.windows[outer], self.windows[1 - outer]
        # Words of probes are read two at a time.
        coded = self._most > 0 and start % 2 == 0
        nullable = bool(own.validity or other.validity)
        scan, kernel = self._kernel_for(
            own.headroom and other.headroom, nullable, 1 - outer, own.all_small and other.all_small, coded
        )
        tile = THREADS * scan.tuples
        base = (first - other.base) & ~1
        codes = [store.address for store in other.codes] if coded else [0, 0]
        self._output.clear()
        kernel(
            (-(-(stop - other.base - base) // tile), -(-probes // PROBES)),
            (
                *own.addresses(nullable), *other.addresses(nullable),
                row - own.base, probes, base, first - other.base, stop - other.base,
                self._output.address + 16, self._output.address, self._output.room,
                self._words.address + 8 * start, *codes, self._most, 1,
            ),
        )  # fmt: skip
        count, looked = self._output.read()
        together = self.windows[0].device.target.lanes * scan.tuples * scan.at_once
        self.coding.note(looked * together // BLOCK if coded else 0, probes * (stop - first))
        return count

    def _kernel_for(
        self, headroom: bool, nullable: bool, inner: int, all_small: bool, coded: bool | None
    ) -> tuple[Scan, Launchable]:
        """Return a compiled scan; a look-up if `coded` is None."""
        key = (headroom, nullable, inner, all_small, coded)
        if key not in self._loaded:
            spec = self.spec
            columns = (spec.sides[0].columns, spec.sides[1].columns)
            guard = None if isinstance(spec.interior, Literal) else spec.interior
            program = Program(spec.boundary, columns, headroom, nullable, guard)
            scan, device = Scan(program, inner, all_small, bool(coded)), self.device()
            if coded is None:
                kernel = device.load(look_up_module(scan, device.target), "look_up")
            else:
                kernel = device.load(scan_module(scan, device.target), "scan", scan.blocks)
            self._loaded[key] = scan, kernel
        return self._loaded[key]

    def close(self) -> None:
        """Give the device's memory back."""
        self.device()
        for window in self.windows:
            window.release()
        for run in (*self._indexed[0].values(), *self._indexed[1].values()):
            run.release()
        for store in (self._words, self._reach, *(table.store for table in self._tables)):
            store.release()
        self._output.release()
