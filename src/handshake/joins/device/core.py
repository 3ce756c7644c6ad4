"""The join core whose windows are in the memory of a GPU.

The host keeps the batches, the order of arrival and expiry, as for every core. The device holds the columns
that the predicate reads, in the order of arrival. A search returns pairs of a probe and a slot; the host
turns slots into rows of basic windows, tests what the device could not decide, and makes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.device.codes import Coder, coded_values
from handshake.joins.device.index import Run
from handshake.joins.device.look_ups import LookUps, limits_of
from handshake.joins.device.memory import DeviceWindow, Found, ScanOutput, Store
from handshake.joins.driver import stored_column
from handshake.joins.results import Made, Pairs
from handshake.joins.segment import Segment
from handshake.kernels.columns import integers
from handshake.kernels.compile import BLOCK, Program
from handshake.kernels.gpu.driver import Device, Launchable
from handshake.kernels.gpu.frame import Scan
from handshake.kernels.gpu.look_up import look_up_module
from handshake.kernels.gpu.scan import PROBES, scan_module
from handshake.kernels.gpu.target import THREADS
from handshake.plan.expr import Literal

Array = np.ndarray[Any, Any]
_LARGEST = 1 << 22
"""Tuples of the largest basic window on the host."""


class DeviceSegment(Segment):
    """The basic windows of a side on the host, each with the number of its first row on the device."""

    def __post_init__(self) -> None:
        super().__post_init__()
        tuning = self.spec.tuning
        self.tiny_batches, self.merged_at_once = tuning.device_tiny_batches, tuning.device_merged_at_once
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
        self._output, self._words = ScanOutput(device, self.spec.tuning.device_first_pairs), Store(device, 8)
        self._look_ups = LookUps(device, self.spec, self.windows, self._look_up_kernel)
        self._placed: tuple[BasicWindow, int] | None = None
        self._live = [0, 0]
        """The oldest row of each side that may still match, as far as that is known."""
        self._front: list[tuple[BasicWindow, Array | None] | None] = [None, None]
        """The oldest basic window of each side, and its stamps if they ascend."""

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
        first_rows, count = segment.first_rows, len(near)
        starts = np.fromiter((first_rows[id(w)] for w in near), np.int64, count) - inner.base
        rows = np.fromiter((w.rows for w in near), np.int64, count)
        for found in self.find(piece, near):
            keys = np.sort(found.words())
            slots = (keys >> np.uint64(32)).astype(np.int64)
            ends = np.searchsorted(slots, starts + rows)
            counts = np.diff(ends, prepend=0)
            here = (keys & np.uint64(0xFFFFFFFF)).astype(np.int32)
            there = (slots - np.repeat(starts, counts)).astype(np.int32)
            yield Pairs(piece, here, near, there, ends)

    def near(self, piece: BasicWindow, windows: list[BasicWindow]) -> list[BasicWindow]:
        """Return the basic windows without the oldest ones that are apart from a piece.

        They are in the order of their rows. Younger ones may be apart too: the predicate has the window rule.
        """
        apart = next((k for k, w in enumerate(windows) if self._relation(piece, w) != "apart"), len(windows))
        self.skipped += apart
        return windows[apart:]

    def find(self, piece: BasicWindow, near: list[BasicWindow]) -> Iterator[Found]:
        """Yield pairs in any order, each until the next ones."""
        if not near:
            return
        side = piece.spec.side
        row = self._place(piece)
        segment, look_ups = self.segments[1 - side], self._look_ups
        indexed = look_ups.runs(piece, near, segment.windows, segment.place)
        # What has no index yet is soon searched. Codes would be made for all rows of the window.
        self._prepare_codes(piece, [] if indexed else near)
        spans = self._spans(segment, near, indexed)
        if indexed:
            more: tuple[tuple[Array, int], ...] = ()
            if spans:  # runs while the host prepares the look-ups
                self._launch(side, row, 0, piece.rows, *spans[0])
                more = (self._output.to_copy(),)
            before = look_ups.candidates
            for found in look_ups.find(piece, row, indexed, *more):
                self.check()
                yield found
            self.comparisons += look_ups.candidates - before
        for k, (first, stop) in enumerate(spans):
            self.check()
            self.comparisons += piece.rows * (stop - first)
            yield from self._search_rows(piece, row, 0, piece.rows, first, stop, bool(indexed and k == 0))

    def _spans(
        self, segment: DeviceSegment, windows: list[BasicWindow], indexed: list[Run]
    ) -> list[tuple[int, int]]:
        """Return the rows between those of indexes that may match.

        Basic windows in between that have expired are in, since nothing in them matches any more.
        """
        spans = []
        start = max(segment.place(windows[0]).start, self._live[segment.side])
        for run in indexed:
            if start < run.first:
                spans.append((start, run.first))
            start = max(start, run.stop)
        stop = segment.place(windows[-1]).stop
        return [*spans, (start, stop)] if start < stop else spans

    # Codes.

    def _prepare_codes(self, piece: BasicWindow, near: list[BasicWindow]) -> None:
        """Give codes to the other side if it has bands and enough tuples; give the probes their words."""
        inner = 1 - piece.spec.side
        coder, rows = self.coders[inner], sum(window.rows for window in near)
        self._most = 0
        if not coder.attributes or rows < self.spec.tuning.coded_from or self.coding.without:
            return
        limits = limits_of(self.spec, piece)
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

    # Scans.

    def _search_rows(
        self,
        piece: BasicWindow,
        row: int,
        start: int,
        probes: int,
        first: int,
        stop: int,
        begun: bool = False,
    ) -> Iterator[Found]:  # fmt: skip
        """Yield the pairs of some probes with some rows; in parts if there are too many.

        `begun` says that the scan of all of them has been started.
        """
        if not begun:
            self._launch(piece.spec.side, row + start, start, probes, first, stop)
        count = self._count(probes, stop - first)
        if count > self._output.room and count <= self.spec.tuning.device_most_pairs:
            self._output.grow(count)
            self._launch(piece.spec.side, row + start, start, probes, first, stop)
            count = self._count(probes, stop - first)
        if count <= self._output.room:
            if count:
                self._output.start = start
                yield self._output.take(count)
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

    def _launch(self, outer: int, row: int, start: int, probes: int, first: int, stop: int) -> None:
        """Start a scan of the rows from `first` to `stop`."""
        output = self._output
        output.clear()
        self._scan_rows(
            outer, row, start, probes, first, stop, output.address + 16, output.address, output.room
        )

    def _scan_rows(
        self, outer: int, row: int, start: int, probes: int, first: int, stop: int, *output: int
    ) -> None:
        """Start a scan; `output` has the addresses of pairs and counters, the pairs that fit, and more."""
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
        kernel(
            (-(-(stop - other.base - base) // tile), -(-probes // PROBES)),
            (
                *own.addresses(nullable), *other.addresses(nullable),
                row - own.base, probes, base, first - other.base, stop - other.base,
                *output[:3], self._words.address + 8 * start, *codes, self._most, 1, *output[3:],
            ),
        )  # fmt: skip
        together = self.windows[0].device.target.lanes * scan.tuples * scan.at_once
        self._together = together if coded else 0

    def _count(self, probes: int, rows: int) -> int:
        """Wait for a scan; return how many pairs it has found."""
        count, looked = self._output.read()
        self.coding.note(looked * self._together // BLOCK, probes * rows)
        return count

    def _look_up_kernel(self, headroom: bool, nullable: bool, inner: int) -> Launchable:
        return self._kernel_for(headroom, nullable, inner, False, None)[1]

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
            scan = Scan(program, inner, all_small, bool(coded), spec.reduction)
            device = self.device()
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
        for held in (self._look_ups, self._words, self._output):
            held.release()
