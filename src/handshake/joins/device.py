"""Windows in the memory of a GPU, and the join core that searches them there.

The host keeps the batches, the order of arrival and expiry, as for every core. The device holds the columns
that the predicate reads, in the order of arrival. A search returns pairs of a probe and a slot; the host
turns slots into rows of basic windows, tests what the device could not decide, and makes the results.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

import numba
import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore, Outer
from handshake.joins.driver import stored_column
from handshake.joins.results import Made, Pairs
from handshake.joins.segment import Segment
from handshake.joins.spec import SideSpec
from handshake.kernels.columns import extremes, integers
from handshake.kernels.compile import BLOCK, Program, memory_bytes
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.gpu.driver import Device, DeviceError, Launchable, size
from handshake.kernels.gpu.filters import small
from handshake.kernels.gpu.look_up import RUN_WORDS, look_up_module
from handshake.kernels.gpu.scan import PROBES, Scan, scan_module
from handshake.kernels.gpu.target import THREADS
from handshake.kernels.intrinsics import JIT
from handshake.kernels.keys import sort_key
from handshake.plan.expr import Column, Literal
from handshake.plan.ranges import storage_bits
from handshake.schema import Bool, Int

__all__ = ["DeviceCore", "DeviceSegment", "DeviceWindow"]

Array = np.ndarray[Any, Any]
_PAD = THREADS * 64
"""Slots behind the last one that kernels may load, but not count."""
_FEWEST = 1 << 14
"""Slots of the smallest window."""
_MOST_SLOTS = 1 << 32
_COPIED = 1 << 12
"""Pairs that are copied together with their number."""
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


class _Store:
    """An array on the device with an element per slot."""

    def __init__(self, device: Device, width: int, fill: int = 0) -> None:
        self.device, self.width, self.fill = device, width, fill
        self.address = self.slots = 0
        self._held: weakref.finalize[Any, Any] | None = None

    def grow(self, slots: int, start: int, used: int) -> None:
        """Make room for `slots` slots; keep `used` ones from `start` on, which become the first."""
        size = (slots + _PAD) * self.width
        made = self.device.allocate(size)
        if self.fill:
            self.device.fill(made, self.fill, size)
        if used:
            self.device.move(made, self.address + start * self.width, used * self.width)
        self.release()
        self.address, self.slots = made, slots
        self._held = weakref.finalize(self, self.device.free, made)
        self._held.atexit = False

    def shift(self, start: int, used: int) -> None:
        """Move slots to the front."""
        if used:
            self.device.move(self.address, self.address + start * self.width, used * self.width)

    def put_all(self, values: Array) -> None:
        """Write an array from the first slot on, and make room for it."""
        if len(values) > self.slots:
            self.grow(2 * len(values), 0, 0)
        self.put(0, values)

    def put(self, slot: int, values: Array) -> None:
        """Write an array of the host, which is alive until it has been read."""
        self.device.upload(self.address + slot * self.width, values.ctypes.data, values.nbytes)

    def write(self, slot: int, source: int, count: int) -> None:
        """Write elements from an address of the host."""
        self.device.upload(self.address + slot * self.width, source, count * self.width)

    def release(self) -> None:
        """Give the memory back."""
        if self._held is not None:
            self._held()
            self._held = None


class DeviceWindow:
    """The tuples of one side on the device, in the order of arrival, in one run of slots."""

    def __init__(self, device: Device, spec: SideSpec) -> None:
        self.device, self.spec = device, spec
        self.data = [_Store(device, _width(column)) for column in spec.columns]
        self.validity: list[_Store] = []
        self.codes = [_Store(device, 2) for _ in spec.coded]
        self.base = self.first = self.next = 0
        """Rows: of the first slot, the oldest that counts, and the one that comes next."""
        self.slots = 0
        self.headroom = self.tame = True
        self._checked = [c for c in spec.columns if isinstance(c.type, Int) and storage_bits(c.type) >= 32]

    @property
    def stores(self) -> list[_Store]:
        """The arrays of values, validity and codes."""
        return [*self.data, *self.validity, *self.codes]

    @property
    def nbytes(self) -> int:
        """The memory of all arrays."""
        return (self.slots + _PAD) * sum(store.width for store in self.stores) if self.slots else 0

    def append(self, piece: BasicWindow) -> int:
        """Copy tuples to the device; return the number of their first row."""
        columns = piece.columns
        if columns.nullable and not self.validity:
            self.validity = [_Store(self.device, 1, fill=1) for _ in self.data]
            if self.slots:
                self._check_memory(self.slots, len(self.validity))
                for store in self.validity:
                    store.grow(self.slots, 0, 0)
        self._reserve(piece.rows)
        slot, row = self.next - self.base, self.next
        for store, column, view in zip(self.data, self.spec.columns, columns.views, strict=True):
            if isinstance(column.type, Bool):
                store.put(slot, _unpack(view.data, piece.rows))
            elif view.data:
                store.write(slot, view.data, piece.rows)
        for store, view in zip(self.validity, columns.views, strict=False):
            if view.validity:
                store.put(slot, _unpack(view.validity, piece.rows))
            else:
                self.device.fill(store.address + slot, 1, piece.rows)
        self.headroom &= columns.headroom
        self.tame = self.tame and self._is_tame(piece)
        self.next += piece.rows
        return row

    def _is_tame(self, piece: BasicWindow) -> bool:
        for column in self._checked:
            values = integers(stored_column(piece.batch, self.spec, column.name))
            if len(values) and not small(column.type, *map(int, extremes(values))):
                return False
        return True

    def write_codes(self, row: int, codes: list[Array]) -> None:
        """Write the codes of some rows."""
        for store, values in zip(self.codes, codes, strict=True):
            store.put(row - self.base, values)

    def addresses(self, nullable: bool) -> list[int]:
        """Return the addresses of data and validity of each column."""
        if nullable and not self.validity:
            self.validity = [_Store(self.device, 1, fill=1) for _ in self.data]
            self._check_memory(self.slots, len(self.validity))
            for store in self.validity:
                store.grow(self.slots, 0, 0)
        places = self.validity if nullable else self.data
        return [address for a, b in zip(self.data, places, strict=True) for address in (a.address, b.address)]

    def _reserve(self, rows: int) -> None:
        used, start = self.next - self.first, self.first - self.base
        if self.slots and self.next - self.base + rows <= self.slots:
            return
        if self.slots and used <= start and used + rows <= self.slots:
            for store in self.stores:
                store.shift(start, used)
        else:
            slots = max(2 * (used + rows), _FEWEST)
            if slots > _MOST_SLOTS:
                raise DeviceError(
                    f"the {self.spec.name} window has {used + rows:,} rows, and a GPU holds up to "
                    f'{_MOST_SLOTS // 2:,}; use a shorter window, or device="cpu"'
                )
            self._check_memory(slots, sum(store.width for store in self.stores))
            for store in self.stores:
                store.grow(slots, start, used)
            self.slots = slots
        self.base = self.first

    def _check_memory(self, slots: int, width: int) -> None:
        need, (free, total) = (slots + _PAD) * width, self.device.memory()
        if need > free:
            raise DeviceError(
                f"the {self.spec.name} window has outgrown the GPU's memory: {slots:,} rows of {width} bytes "
                f"need {size(need)}, and {size(free)} of {size(total)} are free; use a "
                'shorter window, or device="cpu"'
            )

    def release(self) -> None:
        """Give all memory back."""
        for store in self.stores:
            store.release()
        self.slots = 0


def _width(column: Column) -> int:
    return 1 if isinstance(column.type, Bool) else memory_bytes(column)


def _unpack(address: int, rows: int) -> Array:
    """Return a bitmap as bytes."""
    packed = np.ctypeslib.as_array((ctypes.c_uint8 * ((rows + 7) // 8)).from_address(address))
    return np.unpackbits(packed, count=rows, bitorder="little")


class Coder:
    """16-bit codes of the two bands of a side: parts of equal width, counted from some value on.

    Codes wrap, so values may drift. A tuple in a band has a code at most `most` above that of its
    lower limit.
    """

    def __init__(self, spec: SideSpec) -> None:
        self.attributes = spec.coded
        self.rows = 0
        """Tuples that the parts were chosen by; none if they have not been."""
        self._parts: list[tuple[float, float]] = []

    def calibrate(self, values: list[Array], limits: list[tuple[Array, Array]]) -> None:
        """Choose parts by the values of a window, and by the bands of some probes."""
        self.rows = len(values[0])
        spans = [(least, max(span, 1e-30)) for least, span in map(_span, values)]
        widths = [float(np.median(_floats(high) - _floats(low))) for low, high in limits]
        shares = [w / s for w, (_, s) in zip(widths, spans, strict=True) if np.isfinite(w) and w > 0]
        parts = min(max(65536.0 * min(shares, default=0.0), 16.0), 8192.0)
        self._parts = []
        for (least, span), width in zip(spans, widths, strict=True):
            scale = parts / width if np.isfinite(width) and width > 0 else 65536.0 / span
            self._parts.append((least, scale if np.isfinite(scale) else 1.0))

    def codes(self, values: list[Array]) -> list[Array]:
        """Return the codes of tuples."""
        made = [np.empty(len(v), np.uint16) for v in values]
        for (least, scale), v, codes in zip(self._parts, values, made, strict=True):
            _encode(v, least, scale, codes)
        return made

    def words(self, limits: list[tuple[Array, Array]]) -> tuple[Array, int]:
        """Return two words for each probe, and the largest distance of codes in a band."""
        words, most = np.empty((len(limits[0][0]), len(limits)), np.uint32), 0
        for column, (parts, (low, high)) in enumerate(zip(self._parts, limits, strict=True)):
            most = max(most, _encode_limits(low, high, *parts, words, column))
        return words, min(most + 1, 0xFFFF)


def _floats(values: Array) -> Array:
    return values.astype(np.float64)


def _span(values: Array) -> tuple[float, float]:
    """Return the least finite value, and how far the largest is from it; as if 0 if there is none."""
    least, most = _finite_extremes(values)
    return (least, most - least) if least <= most else (0.0, 0.0)


@compile_loop(**JIT)
def _finite_extremes(values):  # type: ignore[no-untyped-def]
    least, most = np.inf, -np.inf
    for row in range(values.shape[0]):
        value = np.float64(values[row])
        if np.isfinite(value):
            least, most = min(least, value), max(most, value)
    return least, most


@numba.njit(**JIT, inline="always")
def _part(value, least, scale):  # type: ignore[no-untyped-def]
    """Return the number of a value's part; never less than that of a smaller value."""
    part = np.floor((np.float64(value) - least) * scale)
    return np.int64(min(max(part, -(2.0**61)), 2.0**61))


@compile_loop(**JIT)
def _encode(values, least, scale, codes):  # type: ignore[no-untyped-def]
    for row in range(values.shape[0]):
        codes[row] = np.uint16(_part(values[row], least, scale) & 0xFFFF)


@compile_loop(**JIT)
def _encode_limits(low, high, least, scale, words, column):  # type: ignore[no-untyped-def]
    most = 0
    for row in range(low.shape[0]):
        first = _part(low[row], least, scale)
        most = max(most, _part(high[row], least, scale) - first)
        back = np.uint32(-first & 0xFFFF)
        words[row, column] = back | (back << np.uint32(16))
    return most


@dataclass(frozen=True)
class Grid:
    """The cells of two bands: for each band, where they begin, how many there are per unit, and in all."""

    bands: tuple[tuple[float, float, int], tuple[float, float, int]]
    rows: int
    """Rows that it was made for."""

    @classmethod
    def of(cls, spans: list[tuple[float, float]], limits: list[tuple[Array, Array]], rows: int) -> Grid:
        """Choose cells that are as wide as the bands of some probes, for rows with these extremes."""
        most = int(min(max(rows, 1) ** 0.5, 1024.0))
        bands = []
        for (least, span), (low, high) in zip(spans, limits, strict=True):
            with np.errstate(all="ignore"):
                width = float(np.median(_floats(high) - _floats(low)))
                wanted = span / width if width > 0 else most
            parts = max(min(int(wanted) if np.isfinite(wanted) else 1, most), 1)
            scale = parts / span if span > 0 else 1.0
            bands.append((least, scale if np.isfinite(scale) else 1.0, parts))
        return cls((bands[0], bands[1]), rows)

    def suits(self, spans: list[tuple[float, float]], rows: int) -> bool:
        """Return whether rows with these extremes fill the cells about as those that it was made for."""
        if rows > 4 * self.rows:
            return False
        for (least, span), (start, scale, parts) in zip(spans, self.bands, strict=True):
            whole = parts / scale
            if abs(least - start) > whole / 4 or abs(least + span - start - whole) > whole / 4:
                return False
        return True

    def reach(self, limits: list[tuple[Array, Array]]) -> Array:
        """Return the first and last cell of each probe by each band."""
        cells = np.empty((len(limits[0][0]), 4), np.int32)
        for band, (low, high) in enumerate(limits):
            _reach(low, high, *self.bands[band], cells, 2 * band)
        return cells


class Run:
    """An indexed basic window on the device: its rows by the cells of a grid."""

    def __init__(
        self, device: Device, window: BasicWindow, limits: list[tuple[Array, Array]], known: Grid | None
    ) -> None:
        self.window = window
        values = _coded_values(window)
        spans = [_span(column) for column in values]
        suits = known is not None and known.suits(spans, window.rows)
        self.grid = known if known is not None and suits else Grid.of(spans, limits, window.rows)
        offsets, order = _by_cells(*values, *self.grid.bands[0], *self.grid.bands[1])
        self._stores = [_Store(device, 4), _Store(device, 4)]
        for store, array in zip(self._stores, (offsets, order), strict=True):
            store.put_all(array)

    @property
    def addresses(self) -> tuple[int, int]:
        """The addresses of the cells' first places, and of the rows."""
        return self._stores[0].address, self._stores[1].address

    def release(self) -> None:
        """Give the memory back."""
        for store in self._stores:
            store.release()


@numba.njit(**JIT, inline="always")
def _cell(value, least, scale, parts):  # type: ignore[no-untyped-def]
    return min(max(_part(value, least, scale), 0), parts - 1)


@compile_loop(**JIT)
def _by_cells(first, second, least, scale, parts, other_least, other_scale, others):  # type: ignore[no-untyped-def]
    """Return the place where each cell begins, and the rows in the order of cells."""
    rows = first.shape[0]
    cells, offsets = np.empty(rows, np.int64), np.zeros(parts * others + 2, np.uint32)
    for row in range(rows):
        cell = _cell(first[row], least, scale, parts) * others + _cell(
            second[row], other_least, other_scale, others
        )
        cells[row] = cell
        offsets[cell + 2] += np.uint32(1)
    for cell in range(2, parts * others + 2):
        offsets[cell] += offsets[cell - 1]
    order = np.empty(rows, np.uint32)
    for row in range(rows):
        cell = cells[row] + 1
        order[offsets[cell]] = np.uint32(row)
        offsets[cell] += np.uint32(1)
    return offsets, order


@compile_loop(**JIT)
def _reach(low, high, least, scale, parts, cells, column):  # type: ignore[no-untyped-def]
    for row in range(low.shape[0]):
        cells[row, column] = _cell(low[row], least, scale, parts)
        cells[row, column + 1] = _cell(high[row], least, scale, parts)


@dataclass
class _Table:
    """Facts on the runs of a side that are on the device, and what they were made of."""

    store: _Store
    base: int = -1
    runs: list[Run] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)


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
        self._output, self._words = _Output(device, self.buffers.first), _Store(device, 8)
        self._placed: tuple[BasicWindow, int] | None = None
        self._indexed: tuple[dict[int, Run], dict[int, Run]] = ({}, {})
        self._grids: list[Grid | None] = [None, None]
        self._tables, self._reach = (_Table(_Store(device, 8)), _Table(_Store(device, 8))), _Store(device, 4)
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
                self.windows[side].write_codes(row, self.coders[side].codes(_coded_values(piece)))
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
        values = [_coded_values(window) for window in segment.windows]
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
                row - own.base, probes, table, 0, _MOST_SLOTS,
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
            own.headroom and other.headroom, nullable, 1 - outer, own.tame and other.tame, coded
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
        self, headroom: bool, nullable: bool, inner: int, tame: bool, coded: bool | None
    ) -> tuple[Scan, Launchable]:
        """Return a compiled scan; a look-up if `coded` is None."""
        key = (headroom, nullable, inner, tame, coded)
        if key not in self._loaded:
            spec = self.spec
            columns = (spec.sides[0].columns, spec.sides[1].columns)
            guard = None if isinstance(spec.interior, Literal) else spec.interior
            program = Program(spec.boundary, columns, headroom, nullable, guard)
            scan, device = Scan(program, inner, tame, bool(coded)), self.device()
            if coded is None:
                kernel = device.load(look_up_module(scan, device.target), "look_up")
            else:
                kernel = device.load(scan_module(scan, device.target), "scan")
            self._loaded[key] = scan, kernel
        return self._loaded[key]

    def close(self) -> None:
        """Give the device's memory back."""
        self.device()
        for window in self.windows:
            window.release()
        for run in (*self._indexed[0].values(), *self._indexed[1].values()):
            run.release()
        for store in (self._words, *(table.store for table in self._tables), self._reach, self._output):
            store.release()

    @property
    def device_bytes(self) -> int:
        """The device's memory that both windows take."""
        return sum(window.nbytes for window in self.windows)


def _coded_values(window: BasicWindow) -> list[Array]:
    return [sort_key(window.values(attribute.inner)) for attribute in window.spec.coded]


class _Output:
    """The pairs that a search found, behind two counters; on the device, and copied to the host."""

    def __init__(self, device: Device, room: int) -> None:
        self._device, self._store = device, _Store(device, 8)
        self.room = 0
        self.grow(room)

    @property
    def address(self) -> int:
        """The address of the counters."""
        return self._store.address

    def grow(self, pairs: int) -> None:
        """Make room for `pairs` pairs."""
        self.room = 1 << (pairs - 1).bit_length()
        self._store.grow(self.room + 2, 0, 0)
        self._host = self._device.host_array(8 * (self.room + 2)).view(np.uint64)

    def clear(self) -> None:
        """Set the counters to 0."""
        self._device.fill(self.address, 0, 16)

    def read(self) -> tuple[int, int]:
        """Return both counters, and copy the first pairs."""
        self._copied = min(_COPIED, self.room)
        self._device.download(self._host[: self._copied + 2], self.address)
        return int(self._host[0]), int(self._host[1])

    def take(self, count: int, start: int) -> Array:
        """Return the pairs of probes from `start` on, valid until the next search."""
        if count > self._copied:
            rest = slice(self._copied + 2, count + 2)
            self._device.download(self._host[rest], self.address + 8 * rest.start)
        found = self._host[2 : count + 2]
        if start:
            found += np.uint64(start)
        return found

    def release(self) -> None:
        """Give the device's memory back."""
        self._store.release()
