"""Routing: the segment that keeps a tuple, and the segments that it visits.

A tuple falls into one of a fixed number of *cells*: by the hash of its equality keys, by its place on a grid
over a band's attribute, or all tuples into one cell. *Cuts* divide the cells among the segments. A cut may go
through a heavy cell, so neither a hot key nor a dense range is tied to one segment. One segment is the home
of a tuple. The tuple visits every segment that may hold matches: those of its cell and of `overlap` cells on
either side. Cuts move with the load, but tuples stay; older cuts are kept until all their tuples expire.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.driver import arrays_of
from handshake.joins.spec import JoinSpec
from handshake.joins.tuning import Tuning
from handshake.kernels.evaluate import evaluate
from handshake.kernels.keys import row_hash, sort_key
from handshake.plan.analyse import Bound
from handshake.plan.expr import Expr, show
from handshake.schema import Float

Array = np.ndarray[Any, Any]
Stamps = tuple[int | None, int | None]
_CELLS = 1024
_FAR = 1 << 40
"""Cells beyond this distance from zero are merged with the cell at this distance."""
_LEAST_FAR = 1 << 10
_FADING = 0.8
"""The factor by which the weights of cells decrease per batch."""
_PARTS = 16
"""Weights are multiples of a part of one row: manifests hold them all, and few digits compress well."""
_DIGITS = 6
"""Decimal places of cuts, for the same reason."""
_EPOCHS = 4
"""The number of cuts to keep, at most."""


@dataclass(frozen=True)
class Routing:
    """The assignment of tuples to cells: `hash`, `range` or `all`."""

    kind: str
    why: str
    cells: int = 1
    overlap: int = 0
    keys: tuple[tuple[Expr, ...], tuple[Expr, ...]] = ((), ())
    grid: float = 1.0
    """The width of a cell; an integer if `exact`."""
    far: int = _FAR
    exact: bool = True
    """Whether cells are computed with integers, which do not round."""

    def cells_of(self, batch: pa.RecordBatch, side: int) -> Array:
        """Return the cell of each tuple."""
        rows = batch.num_rows
        if self.kind == "all" or rows == 0:
            return np.zeros(rows, np.int32)
        values = [evaluate(key, arrays_of(batch, side, (key,)), rows, as_key=True) for key in self.keys[side]]
        if self.kind == "hash":
            cells: Array = row_hash(values) % np.uint64(self.cells)
        else:
            cells = self._place(sort_key(values[0])) % self.cells
        return cells.astype(np.int32)

    def _place(self, values: Array) -> Array:
        if self.exact:
            return np.clip(values.astype(np.int64) // int(self.grid), -self.far, self.far)
        with np.errstate(invalid="ignore", over="ignore"):
            places = np.nan_to_num(np.floor(values.astype(np.float64) / self.grid), nan=0.0)
        clipped: Array = np.clip(places, -self.far, self.far)
        return clipped.astype(np.int64)


def choose_routing(spec: JoinSpec, segments: int) -> Routing:
    """Choose how to route tuples from the predicate of a join."""
    cells = max(_CELLS, 1 << math.ceil(math.log2(4 * segments)))
    if spec.analysis.equalities:
        pairs = spec.analysis.equalities
        keys = (tuple(p.left for p in pairs), tuple(p.right for p in pairs))
        return Routing("hash", f"equality on {show(keys[0][0])}", cells, keys=keys)
    for band in spec.analysis.bands:
        found = _by_range(band, cells)
        if found is not None:
            return found
    return Routing("all", "no equality, and no band of fixed width")


def describe_routing(spec: JoinSpec, segments: int) -> str:
    """Return how the tuples of a join go to segments, as text."""
    routing = choose_routing(spec, segments)
    return f"{routing.kind}: {routing.why}"


def _by_range(band: tuple[Bound, ...], cells: int) -> Routing | None:
    """Return a grid on a band's attribute; None if the band is open or rounding could leave a cell."""
    if len({bound.is_lower for bound in band}) < 2 or not all(math.isfinite(b.offset) for b in band):
        return None
    left, right = band[0].left, band[0].right
    width = max(abs(bound.offset) for bound in band)
    exact = not any(isinstance(e.type, Float) for e in (left, right))
    grid = max(1, int(width) // 2) if exact else (float(width) / 2 or 1.0)
    far = _FAR
    rounding, magnitude = max(b.rounding for b in band), max(b.magnitude for b in band)
    if not exact:
        # rounding may add only a small part of a cell to the distance of a pair
        per_cell = max(rounding, 2.0**-52) * 32
        far = int(min(_FAR, 1.0 / per_cell - magnitude / grid))
    overlap = -(-int(width) // int(grid)) if exact else math.ceil(width / grid) + 1
    if far < _LEAST_FAR or 2 * overlap + 1 >= cells or (exact and grid >= 2**63):
        return None
    why = f"band of {width:g} to either side on {show(left)}"
    return Routing("range", why, cells, overlap, ((left,), (right,)), grid, far, exact)


@dataclass
class Epoch:
    """The cuts of a period, and the newest stamps of each side in it."""

    cuts: list[float]
    newest: list[int | None] = field(default_factory=lambda: [None, None])
    """Of tuples whose homes they decided."""
    guests: list[int | None] = field(default_factory=lambda: [None, None])
    """Of tuples that stay in all segments that they visit, while these were the newest cuts."""

    def span(self, segment: int) -> tuple[float, float]:
        """Return the range of cells, with fractions, whose home is a segment."""
        return self.cuts[segment], self.cuts[segment + 1]


@dataclass
class Router:
    """The part of a join's state that is equal in all segments: each computes it from the same references.

    The newest cuts decide the homes of new tuples. If a side is anchored, tuples of the other side stay in
    all segments that they visit. New cuts then wait until tuples that came before them have expired.
    """

    segments: int
    cells: int
    weights: Array
    epochs: list[Epoch] = field(default_factory=list)
    rested: int = 0
    place: int = -1
    """The cuts that decide homes, among the epochs; set by `learn`."""

    @property
    def home(self) -> Epoch:
        """The cuts that decide the homes of new tuples."""
        return self.epochs[self.place]

    @classmethod
    def fresh(cls, segments: int, cells: int) -> Router:
        """Return a router before the first tuple."""
        return cls(segments, cells, np.zeros(cells))

    def learn(self, counts: Array, oldest: Stamps, tuning: Tuning) -> None:
        """Add the tuples per cell of a batch; move the cuts if the load is uneven.

        Args:
            counts: The number of new tuples per cell.
            oldest: The oldest stamp of each side that the new tuples can still join; None if all can.
            tuning: When cuts move.
        """
        self.weights = np.floor((self.weights * _FADING + counts) * _PARTS) / _PARTS
        self.rested += 1
        if not self.epochs:
            self.epochs = [Epoch(balance(self.weights, self.segments))]
            self.rested = 0
        elif (
            self.rested >= tuning.settled_batches
            and len(self.epochs) < _EPOCHS
            and self.unevenness() > tuning.uneven
        ):
            self.epochs.append(Epoch(balance(self.weights, self.segments)))
            self.rested = 0
        self.place = self._place(oldest)

    def _place(self, oldest: Stamps) -> int:
        """Return the newest cuts before which all guests have expired."""
        held = [place for place, epoch in enumerate(self.epochs) if _any_held(epoch.guests, oldest)]
        return min([*held, len(self.epochs) - 1])

    def unevenness(self) -> float:
        """Return the load of the busiest segment under the newest cuts, relative to its fair share."""
        total = np.concatenate([[0.0], np.cumsum(self.weights)])
        at_cuts = np.interp(self.epochs[-1].cuts, np.arange(self.cells + 1), total)
        return float(np.diff(at_cuts).max() * self.segments / max(total[-1], 1e-9))

    def note(self, side: int, newest: int, anchored: tuple[bool, bool]) -> None:
        """Record the newest stamp of a side in a batch, in which these sides are anchored."""
        noted = [self.home.newest] if anchored[side] or not any(anchored) else []
        for stamps in [*noted, self.epochs[-1].guests] if anchored[1 - side] else noted:
            before = stamps[side]
            stamps[side] = newest if before is None else max(before, newest)

    def forget(self, oldest: Stamps) -> None:
        """Drop cuts whose tuples have all expired; keep those that decide homes, and newer ones."""
        place = self._place(oldest)
        self.epochs = [
            epoch for at, epoch in enumerate(self.epochs) if at >= place or _any_held(epoch.newest, oldest)
        ]


def _any_held(newest: Sequence[int | None], oldest: Stamps) -> bool:
    """Return whether tuples up to the newest stamps of both sides have not all expired."""
    pairs = zip(newest, oldest, strict=True)
    return any(stamp is not None and (limit is None or stamp >= limit) for stamp, limit in pairs)


def balance(weights: Array, segments: int) -> list[float]:
    """Return cuts that give every segment the same weight; without weights, the same number of cells."""
    cells = len(weights)
    # a small weight for every cell divides cells without tuples, too
    total = np.concatenate([[0.0], np.cumsum(weights + max(float(weights.sum()), 1.0) * 1e-3 / cells)])
    shares = total[-1] * np.arange(segments + 1) / segments
    cuts = np.interp(shares, total, np.arange(cells + 1))
    return [0.0, *(round(float(cut), _DIGITS) for cut in cuts[1:-1]), float(cells)]


def home_rows(offsets: Array, span: tuple[float, float], seed: int = 0) -> tuple[int, int]:
    """Return the range of a chunk's tuples, sorted by cell, whose home is a range of cells.

    A cut through a cell with few tuples must round. The seed, which belongs to the chunk, decides how, so
    that small chunks of a hot cell do not all go to the same segment.
    """
    return _row_at(offsets, span[0], seed), _row_at(offsets, span[1], seed)


def _row_at(offsets: Array, cut: float, seed: int) -> int:
    cell = int(cut)
    if cell >= len(offsets) - 1:
        return int(offsets[-1])
    start, stop = int(offsets[cell]), int(offsets[cell + 1])
    drawn = ((seed + cell) * 0x9E3779B1 & 0xFFFFFFFF) / 2**32
    return start + int((stop - start) * (cut - cell) + drawn)


def visit_ranges(offsets: Array, router: Router, routing: Routing, segment: int) -> list[tuple[int, int]]:
    """Return the ranges of a chunk's tuples that may have matches in a segment."""
    wanted = visited_cells(router.epochs, routing, segment)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wanted, [False]]).astype(np.int8)))
    runs = [(int(offsets[a]), int(offsets[b])) for a, b in edges.reshape(-1, 2)]
    return [(start, stop) for start, stop in runs if stop > start]


def visited_cells(epochs: Sequence[Epoch], routing: Routing, segment: int) -> Array:
    """Return the cells whose tuples visit a segment by some cuts."""
    wanted = np.zeros(routing.cells, np.bool_)
    for epoch in epochs:
        low, high = epoch.span(segment)
        if high <= low:
            continue
        first, last = int(low) - routing.overlap, math.ceil(high) - 1 + routing.overlap
        wanted[np.arange(first, min(last, first + routing.cells - 1) + 1) % routing.cells] = True
    return wanted
