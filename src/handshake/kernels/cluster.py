"""Clustering: the order in which a basic window stores its tuples, and the cells that probes search.

Both indexes have the same structure. A cell is a run of tuples, sorted by a second key if there is one. For a
hash, cells are ranges of the hash. For a band on two attributes, cells are equally filled ranges of the
first, sorted by the second, so skewed values make neither empty nor overfull cells. For a band on one
attribute, there is a single sorted cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from handshake.kernels.lower import LANES
from handshake.kernels.sorting import order_of

Array = np.ndarray[Any, Any]
Ranges = tuple[Array, Array]
"""(low, high) per outer tuple, inclusive."""
GRANULE = LANES
"""Tuples per fence, which the band index compares at once."""
NO_CELLS = (0, 0, 0, 0, 0)
"""`Cells.places` of a window without an index."""


@dataclass(frozen=True)
class Cells:
    """Runs of clustered tuples."""

    offsets: Array
    low: Array | None = None
    high: Array | None = None
    """Bands: the least and largest value of the first attribute per cell."""
    fences: Array | None = None
    """Bands: the first key of each granule."""
    shift: int = 0
    """Number of bits by which a hash is shifted right to give its cell."""

    def __post_init__(self) -> None:
        # Kernels read the keys of all basic windows in one type, whatever type the values of each came in.
        for name in ("low", "high", "fences"):
            keys = getattr(self, name)
            if keys is not None:
                kind = np.float64 if keys.dtype.kind == "f" else np.int64
                object.__setattr__(self, name, np.ascontiguousarray(keys, kind))

    @property
    def places(self) -> tuple[int, ...]:
        """Addresses of the index, for the table of a shared scan (`kernels.shared_scan`)."""
        offsets = int(self.offsets.ctypes.data)
        if self.low is None:
            return (len(self.offsets) - 1, offsets, self.shift, 0, 0)
        arrays = (self.low, self.high, self.fences)
        return (len(self.low), offsets, *(int(array.ctypes.data) for array in arrays if array is not None))

    @property
    def nbytes(self) -> int:
        """Memory of the index, without the tuples."""
        return sum(a.nbytes for a in (self.offsets, self.low, self.high, self.fences) if a is not None)


@dataclass(frozen=True)
class Probe:
    """Outer tuples in the order of their cells, with the cells and the second-key range of each."""

    order: Array
    first: Array
    last: Array
    low: Array
    high: Array


_NONE = np.empty(0, np.int64)
_VISIT = 256
"""Cost of finding a place in a cell, in tuples scanned."""
_LOOSE, _SWEPT = 1.1, 2.0
"""Cost of a candidate, in tuples scanned: in a cell, whose ranges begin and end inside blocks, and in a
granule (an estimate)."""


def probe_cost(cells: Cells, probe: Probe, keys: Array) -> float:
    """Estimate the mean cost of a probe, in tuples scanned; `keys` is a sorted sample of second keys."""
    some = slice(None, None, max(len(probe.order) // 64, 1))
    first, last = probe.first[some], np.maximum(probe.last[some], probe.first[some])
    candidates = (cells.offsets[last] - cells.offsets[first]).astype(np.float64)
    if len(keys):
        within = np.searchsorted(keys, probe.high[some], "right") - np.searchsorted(keys, probe.low[some])
        candidates *= np.maximum(within, 0) / len(keys)
    return float((_VISIT * (last - first) + _LOOSE * candidates).mean())


def cluster_band(first: Array, second: Array | None) -> tuple[Array, Cells]:
    """Cluster by one or two attributes. Return the order to store tuples in, and the cells."""
    rows = len(first)
    size = rows if second is None else _cell_rows(rows)
    by_first, order = (order_of(first),) * 2 if second is None else _cell_order(first, second, size)
    offsets = np.append(np.arange(0, rows, size), rows)
    low, high = first[by_first[offsets[:-1]]], first[by_first[offsets[1:] - 1]]
    fences = (first if second is None else second)[order[::GRANULE]]
    return order, Cells(offsets, low, high, fences)


def _cell_order(first: Array, second: Array, size: int) -> tuple[Array, Array]:
    """Return the order by the first key, and the same with each run of `size` sorted by the second."""
    by_first = order_of(first)
    whole = len(first) - len(first) % size
    cells = by_first[:whole].reshape(-1, size)
    inside = np.argsort(second[cells], axis=1)
    tail = by_first[whole:]
    parts = [np.take_along_axis(cells, inside, axis=1).reshape(-1), tail[np.argsort(second[tail])]]
    return by_first, np.concatenate(parts)


def _cell_rows(rows: int) -> int:
    """Return about eight times the square root, so that cells grow in number and size together."""
    return int(max(64, 2 ** round(np.log2(8 * np.sqrt(max(rows, 1))))))


def cluster_hash(hashes: Array, second: Array | None) -> tuple[Array, Cells]:
    """Cluster by hash, with four tuples per cell on average, sorted by the second key."""
    bits = max(0, int(np.ceil(np.log2(max(len(hashes), 1) / 4)))) if len(hashes) > 4 else 0
    shift = 64 - bits
    cell = (hashes >> np.uint64(shift)).astype(np.int64) if bits else np.zeros(len(hashes), np.int64)
    order = order_of(cell) if second is None else np.lexsort((second, cell))
    offsets = np.zeros((1 << bits) + 1, np.int32)
    np.cumsum(np.bincount(cell, minlength=1 << bits), out=offsets[1:])
    return order, Cells(offsets, shift=shift)


def sweep_order(first: Array, second: Array | None) -> Array:
    """Return an order of outer tuples in which runs visit the same few cells, each in order."""
    return order_of(first) if second is None else _cell_order(first, second, 512)[1]


def sweep_cost(cells: Cells, first: Ranges, second: Ranges) -> float:
    """Estimate the mean cost of an outer tuple with such ranges, in tuples scanned."""
    assert cells.low is not None and cells.high is not None and cells.fences is not None  # noqa: PT018
    some = slice(None, None, max(len(first[0]) // 64, 1))
    start = np.searchsorted(cells.high, first[0][some])
    stop = np.maximum(np.searchsorted(cells.low, first[1][some], "right"), start)
    keys = np.sort(cells.fences[:: max(len(cells.fences) // 512, 1)])
    within = np.searchsorted(keys, second[1][some], "right") - np.searchsorted(keys, second[0][some])
    candidates = (cells.offsets[stop] - cells.offsets[start]) * np.maximum(within, 0) / len(keys)
    return float((_VISIT * (stop - start) + _SWEPT * candidates).mean())


def probe_hash(cells: Cells, hashes: Array, second: Ranges | None) -> Probe:
    """Return the one cell of each outer tuple's hash."""
    whole = len(cells.offsets) == 2
    cell = np.zeros(len(hashes), np.int64) if whole else (hashes >> np.uint64(cells.shift)).astype(np.int64)
    # Sorted probes walk through memory once; a few need not be sorted.
    order = order_of(cell) if len(cell) > 32 else np.arange(len(cell))
    low, high = (bound[order] for bound in second) if second is not None else (_NONE, _NONE)
    return Probe(order, cell[order], cell[order] + 1, low, high)
