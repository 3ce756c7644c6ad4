"""Indexes of basic windows on a GPU: their rows by the cells of a grid of two bands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.device.codes import coded_values, floats, span_of
from handshake.joins.device.memory import DeviceWindow, Store
from handshake.joins.spec import Attribute
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.gpu.driver import Device, Launchable
from handshake.kernels.gpu.lay_out import (
    CHUNK,
    count_module,
    lay_out_module,
    offsets_module,
    sums_module,
)
from handshake.kernels.gpu.target import THREADS
from handshake.kernels.intrinsics import JIT
from handshake.plan.expr import Column

Array = np.ndarray[Any, Any]
_PER_BAND = 2
"""Cells as wide as a band: of narrower cells a probe reaches more, with fewer rows beside its bands."""
_SAMPLE = 1 << 14
"""Rows of a basic window that its grid is chosen by."""
_ALIGNED = 256
"""Arrays begin at multiples of this many bytes."""


@dataclass(frozen=True)
class Grid:
    """The cells of two bands: for each band, where they begin, how many there are per unit, and in all."""

    bands: tuple[tuple[float, float, int], tuple[float, float, int]]
    rows: int
    """Rows that it was made for."""

    @classmethod
    def of(cls, spans: list[tuple[float, float]], limits: list[tuple[Array, Array]], rows: int) -> Grid:
        """Choose cells by the widths of the bands of some probes, for rows with these extremes."""
        most = int(min(max(rows, 1) ** 0.5, 1024.0))
        bands = []
        for (least, span), (low, high) in zip(spans, limits, strict=True):
            with np.errstate(all="ignore"):
                width = float(np.median(floats(high) - floats(low)))
                wanted = _PER_BAND * span / width if width > 0 else most
            parts = max(min(int(wanted) if np.isfinite(wanted) else 1, most), 1)
            scale = parts / span if span > 0 else 1.0
            bands.append((least, scale if np.isfinite(scale) else 1.0, parts))
        return cls((bands[0], bands[1]), rows)

    @classmethod
    def for_window(
        cls, window: BasicWindow, limits: Callable[[], list[tuple[Array, Array]]], known: Grid | None
    ) -> Grid:
        """Return a known grid if it suits a basic window, or a new one."""
        every = max(window.rows // _SAMPLE, 1)
        spans = [span_of(column[::every]) for column in coded_values(window)]
        if known is not None and known.suits(spans, window.rows):
            return known
        return cls.of(spans, limits(), window.rows)

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
        """Return four rows: the first and the last cell of each probe by each band."""
        cells = np.empty((4, len(limits[0][0])), np.int32)
        for row, (values, (least, scale, parts)) in enumerate(
            (values, band) for pair, band in zip(limits, self.bands, strict=True) for values in pair
        ):
            _write_parts(values, least, scale, float(parts - 1), cells[row])
        return cells


class Run:
    """An indexed basic window on the device: its rows, and the columns to test, by the cells of a grid."""

    def __init__(
        self, window: BasicWindow, first: int, grid: Grid, inner: DeviceWindow, nullable: bool, making: Making
    ) -> None:
        """Lay a basic window out by the cells of a grid.

        Args:
            window: The basic window.
            first: The number of its first row.
            grid: Gives the cells.
            inner: The window on the device that holds its rows.
            nullable: Whether searches look at validity.
            making: The kernels.
        """
        self.window, self.first, self.grid, self.nullable = window, first, grid, nullable
        self.stop = first + window.rows
        rows, cells = window.rows, grid.bands[0][2] * grid.bands[1][2]
        arrays, slot = inner.arrays(nullable), first - inner.base
        sizes = [4 * (cells + 1), 4 * rows, *(rows * store.width for store in arrays)]
        starts = list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0))
        self._store = Store(inner.device, 1)
        self._store.grow(starts[-1], 0, 0)
        offsets, order, *columns = (self._store.address + start for start in starts[:-1])
        making.count(inner, slot, rows, grid, cells, offsets)
        copies = [(store.address + slot * store.width, to) for store, to in zip(arrays, columns, strict=True)]
        making.lay_out(rows, offsets, order, [store.width for store in arrays], copies)
        validity = columns[len(inner.data) :] if nullable else columns
        pairs = zip(columns, validity, strict=False)
        self.words = (offsets, order, *(word for pair in pairs for word in pair))
        """The addresses of the cells' first places, of row numbers, and of columns and their validity."""

    def release(self) -> None:
        """Give the memory back."""
        self._store.release()


def bytes_of(window: BasicWindow, inner: DeviceWindow, nullable: bool) -> int:
    """Return about how many bytes an index of a basic window takes while it is made."""
    return window.rows * (16 + sum(store.width for store in inner.arrays(nullable))) + (8 << 20)


class Making:
    """The kernels that make indexes of a side, and their memory."""

    def __init__(self, device: Device, bands: Sequence[Attribute]) -> None:
        self._device = device
        self._bands = [band.inner for band in bands if isinstance(band.inner, Column)]
        self._stores = [Store(device, 4) for _ in range(4)]
        """Scratch memory: cells, numbers within cells, counts of cells, and sums of counts."""
        target = device.target
        self._count = device.load(count_module(target, self._bands), "count")
        self._sums = device.load(sums_module(target), "sums")
        self._offsets = device.load(offsets_module(target), "offsets")
        self._lay_out: dict[tuple[int, ...], Launchable] = {}

    def count(self, inner: DeviceWindow, slot: int, rows: int, grid: Grid, cells: int, offsets: int) -> None:
        """Give each row its cell and its number within it; write the place where each cell begins."""
        chunks = -(-cells // CHUNK)
        for store, slots in zip(self._stores, (rows, rows, cells, chunks), strict=True):
            if slots > store.slots:
                store.grow(slots, 0, 0)
        numbered, counts, sums = self._addresses[:2], *self._addresses[2:]
        self._device.fill(counts, 0, 4 * cells)
        words = []
        for column, (least, scale, parts) in zip(self._bands, grid.bands, strict=True):
            store = inner.data[inner.spec.columns.index(column)]
            words += [store.address + slot * store.width, *np.array([least, scale]).view(np.int64), parts]
        self._count((_blocks(rows), 1), (rows, *numbered, counts, *map(int, words)))
        self._sums((_blocks(chunks), 1), (chunks, counts, sums, cells))
        self._offsets((_blocks(chunks), 1), (chunks, counts, sums, cells, offsets))

    @property
    def _addresses(self) -> list[int]:
        return [store.address for store in self._stores]

    def lay_out(
        self, rows: int, offsets: int, order: int, widths: Sequence[int], copies: Sequence[tuple[int, int]]
    ) -> None:
        """Copy row numbers and arrays to their places in the order of cells."""
        key = tuple(widths)
        if key not in self._lay_out:
            self._lay_out[key] = self._device.load(lay_out_module(self._device.target, key), "lay_out")
        places = (word for copy in copies for word in copy)
        self._lay_out[key]((_blocks(rows), 1), (rows, *self._addresses[:2], offsets, order, *places))

    def release(self) -> None:
        """Give the memory back."""
        for store in self._stores:
            store.release()


def _blocks(threads: int) -> int:
    return -(-threads // THREADS)


@compile_loop(**JIT)
def _write_parts(values, least, scale, most, cells):  # type: ignore[no-untyped-def]
    """Write the number of each value's part, from 0 to `most`; never less than that of a smaller value."""
    for row in range(values.shape[0]):
        part = (np.float64(values[row]) - least) * scale
        part = part if part < most else most
        cells[row] = np.int32(part if part > 0.0 else 0.0)


@dataclass
class Table:
    """Facts on the runs of a side that are on the device, and what they were made of."""

    store: Store
    base: int = -1
    runs: list[Run] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
