"""Indexes of basic windows on a GPU: their rows by the cells of a grid of two bands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.device.codes import coded_values, floats, part_of, span_of
from handshake.joins.device.memory import Store
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.gpu.driver import Device
from handshake.kernels.intrinsics import JIT

__all__ = ["Grid", "Run", "Table"]

Array = np.ndarray[Any, Any]


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
                width = float(np.median(floats(high) - floats(low)))
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
        values = coded_values(window)
        spans = [span_of(column) for column in values]
        suits = known is not None and known.suits(spans, window.rows)
        self.grid = known if known is not None and suits else Grid.of(spans, limits, window.rows)
        offsets, order = _by_cells(*values, *self.grid.bands[0], *self.grid.bands[1])
        self._stores = [Store(device, 4), Store(device, 4)]
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
    return min(max(part_of(value, least, scale), 0), parts - 1)


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
class Table:
    """Facts on the runs of a side that are on the device, and what they were made of."""

    store: Store
    base: int = -1
    runs: list[Run] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
