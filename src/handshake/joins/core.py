"""The join core: a segment of both windows, and `probe`, `insert`, `expire` on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.basic_window import BasicWindow, worth_an_index
from handshake.joins.coding import Coding
from handshake.joins.driver import Tracked
from handshake.joins.results import Made, Pairs, Results, together
from handshake.joins.segment import Segment
from handshake.joins.spec import Attribute, JoinSpec
from handshake.kernels.cluster import Probe, probe_cost, probe_hash, sweep_cost, sweep_order
from handshake.kernels.codes import PASSED
from handshake.kernels.compile import BLOCK, TILE, Program, cells_kernel
from handshake.kernels.gather import gather_batch
from handshake.kernels.look_up import look_up_kernel
from handshake.kernels.scan import scan_kernel
from handshake.kernels.shared_scan import CHUNK, COUNT, GROUPS, STATE
from handshake.plan.expr import Literal

Array = np.ndarray[Any, Any]
Ranges = tuple[Array, Array]
_FEW = 32
"""Up to this many tuples need not be put in order."""
_SMALLEST, _LARGEST = 16 * TILE, 256 * TILE
_UNINTERRUPTED = 1 << 30
"""Pairs that are scanned in one call, about a tenth of a second."""


@dataclass(eq=False)
class Outer:
    """New tuples that probe a window, with the facts that each basic window needs, computed once."""

    piece: BasicWindow
    attributes: tuple[Attribute, ...]
    """The attributes by which basic windows of the other side are indexed."""

    @cached_property
    def limits(self) -> tuple[Ranges, ...]:
        """For each attribute, the range that each tuple allows it to have."""
        return tuple(self.piece.limits(attribute) for attribute in self.attributes)

    @cached_property
    def spans(self) -> tuple[tuple[Any, Any], ...]:
        """For each attribute, the range that all tuples together allow it to have."""
        return tuple((low.min(), high.max()) for low, high in self.limits)

    @cached_property
    def swept(self) -> tuple[BasicWindow, Ranges, Ranges]:
        """The tuples in the order in which they sweep over cells, and their ranges of the two attributes.

        With one attribute, its range finds the only cell, and the granules in it.
        """
        first, second = self.limits[0], self.limits[-1]
        if self.piece.rows <= _FEW:
            return self.piece, first, second
        order = sweep_order(first[0], second[0] if len(self.limits) > 1 else None)
        moved = BasicWindow(self.piece.spec, gather_batch(self.piece.batch, order))
        return moved, _take(first, order), _take(second, order)

    def prepare(self) -> Outer:
        """Find everything now, so that several cores can share it."""
        if self.attributes and not self.piece.spec.hashed and self.piece.rows > _FEW:
            self.swept[0].columns  # noqa: B018  (a cached property)
        return self

    def misses(self, window: BasicWindow) -> bool:
        """Return whether no tuple's ranges reach into the window's values."""
        pairs = zip(self.spans, window.attribute_spans, strict=True)
        return any(high < least or low > most for (low, high), (least, most) in pairs)


def _take(ranges: Ranges, order: Array) -> Ranges:
    return ranges[0][order], ranges[1][order]


@dataclass
class JoinCore:
    """One core. Everything is exact whatever the order in which batches come."""

    spec: JoinSpec
    tracked: tuple[Tracked | None, ...] = (None, None)
    """The sides of which the join must know which rows have matched."""
    aside: bool = False
    """Whether large merges are done in threads of their own (see `Segment`)."""
    check: Callable[[], None] = lambda: None
    """Called between parts of a long search; it may raise to stop the search."""
    segments: tuple[Segment, Segment] = field(init=False)
    comparisons: int = 0
    results: int = 0
    skipped: int = 0
    batches: int = 0
    work: float = 0.0
    """About how many seconds of compiled work were done: what other cores could have shared."""

    def __post_init__(self) -> None:
        left, right = (Segment(self.spec, side, lazy=True, aside=self.aside) for side in (0, 1))
        self.segments = (left, right)
        self._results = Results(self.spec, self.tracked)
        self._buffers = _Buffers()
        self.coding = Coding(self.spec)
        self._programs: dict[tuple[bool, bool, bool], Program] = {}
        self._kernels: dict[tuple[Any, int, int], Any] = {}

    def probe(
        self,
        piece: BasicWindow,
        windows: Iterable[BasicWindow] | None = None,
        outer: Outer | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield all results of new tuples with the other side's window, or with some basic windows of it.

        `outer` is what another core may have found out about the piece already.
        """
        return (made.batch for made in self.search(piece, windows, outer))

    def search(
        self,
        piece: BasicWindow,
        windows: Iterable[BasicWindow] | None = None,
        outer: Outer | None = None,
    ) -> Iterator[Made]:
        """Yield results as `probe` does, with the basic windows that they are of."""
        self.batches += 1
        if piece.rows == 0 or self.spec.analysis.never:
            return
        if windows is None:
            windows = self.segments[1 - piece.spec.side]
        ready = windows.ready(piece.rows) if isinstance(windows, Segment) else list(windows)
        for pairs in together(self.pairs(piece, ready, outer or self.outer(piece))):
            yield from self._make_results(pairs)

    def pairs(self, piece: BasicWindow, windows: list[BasicWindow], outer: Outer) -> Iterator[Pairs]:
        """Yield all pairs of new tuples with some basic windows; each is valid until the next one."""
        scanned: dict[int, tuple[Program, list[BasicWindow]]] = {}  # by identity: a hash takes long to find
        for window in windows:
            relation = self._relation(piece, window)
            if relation == "apart":
                self.skipped += 1
                continue
            headroom = piece.headroom and window.headroom
            nullable = piece.nullable or window.nullable
            program = self.program(relation == "inside", headroom, nullable)
            self.check()
            found = self._looked_up(program, outer, window)
            if found is None:
                scanned.setdefault(id(program), (program, []))[1].append(window)
            else:
                yield from found
        for program, group in scanned.values():
            yield from self._scan(program, piece, group)

    def outer(self, piece: BasicWindow) -> Outer:
        """New tuples, as the other side's indexes want to see them."""
        return Outer(piece, self.spec.sides[1 - piece.spec.side].attributes)

    def insert(self, piece: BasicWindow) -> None:
        """Put tuples into their side's window."""
        self.segments[piece.spec.side].insert(piece)

    def expire(self, side: int, oldest: int) -> int:
        """Forget tuples of a side whose expiring stamp is below `oldest`, in whole basic windows."""
        return self.segments[side].expire(oldest)

    def settle(self) -> None:
        """Wait for what is going on aside."""
        for segment in self.segments:
            segment.settle()

    def _relation(self, piece: BasicWindow, window: BasicWindow) -> str:
        """`apart`: no pair is in the windows; `inside`: every pair is; else `boundary`."""
        left, right = (piece, window) if piece.spec.side == 0 else (window, piece)
        inside = True
        of_left, of_right = self.spec.rules
        if of_right is not None:
            if not of_right.holds(held=right.first[1], asked=left.first[0]):
                return "apart"
            inside &= of_right.holds(held=right.first[0], asked=left.first[1])
        if of_left is not None:
            if not of_left.holds(held=left.second[1], asked=right.second[0]):
                return "apart"
            inside &= of_left.holds(held=left.second[0], asked=right.second[1])
        return "inside" if inside else "boundary"

    def program(self, inside: bool, headroom: bool, nullable: bool) -> Program:
        """Return the program for pairs that are all inside the windows, or that must be tested."""
        if (inside, headroom, nullable) not in self._programs:
            expr = self.spec.interior if inside else self.spec.boundary
            columns = (self.spec.sides[0].columns, self.spec.sides[1].columns)
            # The window rule costs as much as a predicate, and mostly holds: it is looked at last.
            guard = None if inside or isinstance(self.spec.interior, Literal) else self.spec.interior
            self._programs[inside, headroom, nullable] = Program(expr, columns, headroom, nullable, guard)
        return self._programs[inside, headroom, nullable]

    def _looked_up(self, program: Program, outer: Outer, window: BasicWindow) -> Iterator[Pairs] | None:
        """Pairs by way of the index; None where there is none, or a scan is faster."""
        if window.cells is None or not worth_an_index(outer.piece.rows, window):
            return None
        if outer.misses(window):
            self.skipped += 1
            return iter(())
        return self._by_index(program, outer, window)

    def _by_index(self, program: Program, outer: Outer, window: BasicWindow) -> Iterator[Pairs] | None:
        """Search by the index; return None if most tuples are candidates."""
        assert window.cells is not None
        few = outer.piece.rows < 64
        if window.spec.hashed:
            probe = probe_hash(window.cells, outer.piece.hashes, outer.limits[0] if outer.limits else None)
            if few or probe_cost(window.cells, probe, window.some_keys) < window.rows:
                return self._by_cells(program, outer.piece, window, probe)
        elif few or sweep_cost(window.cells, *outer.swept[1:]) < window.rows:
            return self._by_bands(program, outer, window)
        return None

    def _kernel(self, make: Callable[..., Any], program: Program, inner: int, *options: Any) -> Any:
        """Return a compiled kernel. Kept here: finding it by its predicate costs more than a small probe."""
        key = (make, id(program), inner)
        if key not in self._kernels:
            self._kernels[key] = make(program, inner, *options)
        return self._kernels[key]

    def _scan(self, program: Program, piece: BasicWindow, windows: list[BasicWindow]) -> Iterator[Pairs]:
        """Pairs with basic windows of one kind. The longer run goes through the vectors, if it fills any."""
        least = piece.rows if piece.rows >= BLOCK else 0
        longer = [window for window in windows if window.rows >= least]
        for some in _parts(piece.rows, longer):
            self.check()
            for here, there, ends in self._by_scan(program, piece, some):
                yield Pairs(piece, here, some, there, ends)
        for window in windows if len(longer) < len(windows) else ():
            if window.rows < least:
                self.check()
                for there, here, ends in self._by_scan(program, window, [piece]):
                    yield Pairs(piece, here, [window], there, ends)

    def _by_scan(
        self, program: Program, outer: BasicWindow, inner: list[BasicWindow]
    ) -> Iterator[tuple[Array, Array, Array]]:
        side = inner[0].spec.side
        kernel = self._kernel(scan_kernel, program, side, self.coding.bands[side])
        table = self.coding.prepare(np.array([window.scan_row for window in inner]))
        state, ends = np.zeros(STATE, np.int64), np.empty(len(inner), np.int64)
        pairs = outer.rows * sum(window.rows for window in inner)
        self.comparisons += pairs
        self.work += pairs * self.spec.tuning.scanned
        while state[0] < len(inner):
            out = self._buffers.take()
            ends[: state[0]] = 0
            count = kernel(outer.addresses(True), outer.rows, table, state, ends, *out)
            ends[state[0] :] = count
            if count:
                yield out[0][:count], out[1][:count], ends
            self._buffers.grow(state[0] < len(inner))
        self.coding.note(int(state[PASSED]), pairs)

    def _by_cells(
        self, program: Program, piece: BasicWindow, window: BasicWindow, probe: Probe
    ) -> Iterator[Pairs]:
        kernel = self._kernel(cells_kernel, program, window.spec.side)
        assert window.cells is not None
        addresses = [w.addresses(program.nullable) for w in (piece, window)]
        state = np.zeros(3, np.int64)
        while state[0] < len(probe.order):
            out = self._buffers.take()
            count, seen = kernel(
                addresses[0], probe.order, probe.first, probe.last, probe.low, probe.high,
                addresses[1], window.rows, window.cells.offsets, window.keys, state, *out,
            )  # fmt: skip
            yield from self._looked_up_pairs(piece, window, out, count, seen)
            self._buffers.grow(state[0] < len(probe.order))

    def _by_bands(self, program: Program, outer: Outer, window: BasicWindow) -> Iterator[Pairs]:
        kernel = self._kernel(look_up_kernel, program, window.spec.side, *window.spec.key_types, False)
        piece, first, second = outer.swept
        none, seen = np.zeros(1, np.int64), np.zeros(1, np.int64)
        given = (
            0, 0, piece.addresses(True), piece.rows, 0, window.scan_row[np.newaxis], none, none, 0,
            *first, *second, seen,
        )  # fmt: skip
        state = np.zeros(STATE, np.int64)
        state[CHUNK] = -1
        while True:
            out = self._buffers.take()
            kernel(*given, state, *out, np.empty(1, np.int64), np.empty(1, np.int64))
            yield from self._looked_up_pairs(piece, window, out, int(state[COUNT]), int(seen[0]))
            if state[CHUNK] < 0:
                return
            state[COUNT] = state[GROUPS] = seen[0] = 0
            self._buffers.grow(True)

    def _looked_up_pairs(
        self, piece: BasicWindow, window: BasicWindow, out: tuple[Array, Array], count: int, seen: int
    ) -> Iterator[Pairs]:
        self.comparisons += seen
        self.work += seen * self.spec.tuning.looked_up
        if count:
            yield Pairs(piece, out[0][:count], [window], out[1][:count], np.array([count]))

    def _make_results(self, pairs: Pairs) -> Iterator[Made]:
        for made in self._results.of(pairs):
            self.results += made.batch.num_rows
            self.work += made.batch.num_rows * self.spec.tuning.made
            yield made


def _parts(rows: int, windows: list[BasicWindow]) -> Iterator[list[BasicWindow]]:
    """Basic windows to scan in one call, which nothing can interrupt."""
    start, pairs = 0, 0
    for place, window in enumerate(windows):
        if pairs and pairs + rows * window.rows > _UNINTERRUPTED:
            yield windows[start:place]
            start, pairs = place, 0
        pairs += rows * window.rows
    if start < len(windows):
        yield windows[start:]


class _Buffers:
    """Output buffers that grow when a kernel fills them."""

    def __init__(self) -> None:
        self.size = _SMALLEST
        self.pair: tuple[Array, Array] | None = None

    def take(self) -> tuple[Array, Array]:
        if self.pair is None or len(self.pair[0]) < self.size:
            self.pair = (np.empty(self.size, np.int32), np.empty(self.size, np.int32))
        return self.pair

    def grow(self, full: bool) -> None:
        if full and self.size < _LARGEST:
            self.size *= 2
