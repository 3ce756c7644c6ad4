"""The join core: a segment of both windows, and `probe`, `insert`, `expire` on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.basic_window import BasicWindow, worth_an_index
from handshake.cores.driver import arrays_of
from handshake.cores.outer import Outer
from handshake.cores.segment import Segment
from handshake.cores.spec import JoinSpec
from handshake.kernels.cluster import Probe, probe_cost, probe_hash, sweep_cost
from handshake.kernels.compile import TILE, Program, cells_kernel, scan_kernel
from handshake.kernels.evaluate import holds
from handshake.kernels.gather import gather
from handshake.kernels.sweep import sweep_kernel
from handshake.plan.expr import Literal, conjunction

__all__ = ["JoinCore"]

Array = np.ndarray[Any, Any]
_SMALLEST, _LARGEST = 16 * TILE, 256 * TILE
_SCANNED, _LOOKED_UP, _MADE = 1e-10, 3e-9, 3e-8
"""Seconds for a scanned pair, a candidate from an index, a result (bench scan, bench sustained)."""
_RESULT_BYTES = 1 << 26
"""About how large a batch of results gets, so that wide tuples take no more memory than narrow ones."""


@dataclass
class JoinCore:
    """One core. Everything is exact whatever the order in which batches come."""

    spec: JoinSpec
    aside: bool = False
    """Whether large merges are done in threads of their own (see `Segment`)."""
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
        self._residual = conjunction(self.spec.prepared.doubtful) if self.spec.prepared.doubtful else None
        self._buffers = _Buffers()
        self._programs: dict[tuple[bool, bool, bool], Program] = {}
        self._kernels: dict[tuple[Any, int, int], Any] = {}

    def probe(
        self,
        piece: BasicWindow,
        windows: Iterable[BasicWindow] | None = None,
        outer: Outer | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """All results of new tuples with the other side's window, or with some basic windows of it.

        `outer` is what another core may have found out about the piece already.
        """
        self.batches += 1
        if piece.rows == 0 or self.spec.analysis.never:
            return
        outer = outer or self.outer(piece)
        if windows is None:
            windows = self.segments[1 - piece.spec.side]
        for window in windows.ready(piece.rows) if isinstance(windows, Segment) else list(windows):
            relation = self._relation(piece, window)
            if relation == "apart":
                self.skipped += 1
                continue
            yield from self._meet(outer, window, relation == "inside")

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
        reach = self.spec.reach(1)
        if reach is not None:
            if right.first[1] < left.first[0] - reach:
                return "apart"
            inside &= right.first[0] >= left.first[1] - reach
        reach = self.spec.reach(0)
        if reach is not None:
            if right.second[0] > left.second[1] + reach:
                return "apart"
            inside &= right.second[1] <= left.second[0] + reach
        return "inside" if inside else "boundary"

    def _program(self, piece: BasicWindow, window: BasicWindow, inside: bool) -> Program:
        tame = piece.columns.tame and window.columns.tame
        nullable = piece.columns.nullable or window.columns.nullable
        if (inside, tame, nullable) not in self._programs:
            expr = self.spec.interior if inside else self.spec.boundary
            columns = (self.spec.sides[0].columns, self.spec.sides[1].columns)
            # The window rule costs as much as a predicate, and mostly holds: it is looked at last.
            guard = None if inside or isinstance(self.spec.interior, Literal) else self.spec.interior
            self._programs[inside, tame, nullable] = Program(expr, columns, tame, nullable, guard)
        return self._programs[inside, tame, nullable]

    def _meet(self, outer: Outer, window: BasicWindow, inside: bool) -> Iterator[pa.RecordBatch]:
        """Results of new tuples with one basic window."""
        piece = outer.piece
        program = self._program(piece, window, inside)
        if window.cells is not None and worth_an_index(piece.rows, window):
            if outer.misses(window):
                self.skipped += 1
                return
            found = self._by_index(program, outer, window)
            if found is not None:
                for moved, here, there in found:
                    yield from self._results(moved, window, here, there)
                return
        for here, there in self._by_scan(program, piece, window):
            yield from self._results(piece, window, here, there)

    def _by_index(
        self, program: Program, outer: Outer, window: BasicWindow
    ) -> Iterator[tuple[BasicWindow, Array, Array]] | None:
        """Pairs by way of the index; None where most tuples are candidates, so that a scan is faster."""
        assert window.cells is not None
        few = outer.piece.rows < 64
        if window.spec.hashed:
            probe = probe_hash(window.cells, outer.piece.hashes, outer.limits[0] if outer.limits else None)
            if few or probe_cost(window.cells, probe, window.some_keys) < window.rows:
                return self._by_cells(program, outer.piece, window, probe)
        elif few or sweep_cost(window.cells, *outer.swept[1:]) < window.rows:
            return self._by_sweep(program, outer, window)
        return None

    def _kernel(self, make: Callable[[Program, int], Any], program: Program, inner: int) -> Any:
        """A compiled kernel; kept here, since finding it by its predicate costs more than a small probe."""
        key = (make, id(program), inner)
        if key not in self._kernels:
            self._kernels[key] = make(program, inner)
        return self._kernels[key]

    def _by_scan(
        self, program: Program, piece: BasicWindow, window: BasicWindow
    ) -> Iterator[tuple[Array, Array]]:
        if piece.rows <= window.rows:
            return self._scanned(program, piece, window)
        # the longer run goes through the vectors
        return ((there, here) for here, there in self._scanned(program, window, piece))

    def _scanned(
        self, program: Program, outer: BasicWindow, inner: BasicWindow
    ) -> Iterator[tuple[Array, Array]]:
        kernel = self._kernel(scan_kernel, program, inner.spec.side)
        views = (outer.columns, inner.columns)  # held: addresses alone do not keep memory alive
        addresses = [v.addresses(program.nullable) for v in views]
        state = np.zeros(3, np.int64)
        self.comparisons += outer.rows * inner.rows
        self.work += outer.rows * inner.rows * _SCANNED
        while state[0] < inner.rows:
            out = self._buffers.take()
            count = kernel(addresses[0], outer.rows, addresses[1], inner.rows, state, *out)
            if count:
                yield out[0][:count], out[1][:count]
            self._buffers.grow(state[0] < inner.rows)

    def _by_cells(
        self, program: Program, piece: BasicWindow, window: BasicWindow, probe: Probe
    ) -> Iterator[tuple[BasicWindow, Array, Array]]:
        kernel = self._kernel(cells_kernel, program, window.spec.side)
        assert window.cells is not None
        views = (piece.columns, window.columns)  # held, as above
        addresses = [v.addresses(program.nullable) for v in views]
        state = np.zeros(3, np.int64)
        while state[0] < len(probe.order):
            out = self._buffers.take()
            count, seen = kernel(
                addresses[0], probe.order, probe.first, probe.last, probe.low, probe.high,
                addresses[1], window.rows, window.cells.offsets, window.keys, state, *out,
            )  # fmt: skip
            self._looked_up(seen)
            if count:
                yield piece, out[0][:count], out[1][:count]
            self._buffers.grow(state[0] < len(probe.order))

    def _by_sweep(
        self, program: Program, outer: Outer, window: BasicWindow
    ) -> Iterator[tuple[BasicWindow, Array, Array]]:
        kernel = self._kernel(sweep_kernel, program, window.spec.side)
        piece, first, second = outer.swept
        cells = window.cells
        assert cells is not None
        views = (piece.columns, window.columns)  # held, as above
        addresses = [v.addresses(program.nullable) for v in views]
        state = np.array([0, 0, -1])
        while state[0] < piece.rows:
            out = self._buffers.take()
            count, seen = kernel(
                addresses[0], *first, *second,
                addresses[1], window.rows, cells.offsets, cells.low, cells.high, cells.fences, state, *out,
            )  # fmt: skip
            self._looked_up(seen)
            if count:
                yield piece, out[0][:count], out[1][:count]
            self._buffers.grow(state[0] < piece.rows)

    def _looked_up(self, seen: int) -> None:
        self.comparisons += seen
        self.work += seen * _LOOKED_UP

    def _results(
        self, piece: BasicWindow, window: BasicWindow, here: Array, there: Array
    ) -> Iterator[pa.RecordBatch]:
        step = max(int(_RESULT_BYTES / max(piece.row_bytes + window.row_bytes, 1.0)), 1)
        for start in range(0, len(here), step):
            pairs = [(piece, here[start : start + step]), (window, there[start : start + step])]
            if piece.spec.side == 1:
                pairs.reverse()
            if self._residual is not None:
                keep = self._confirmed(pairs)
                pairs = [(window, rows[keep]) for window, rows in pairs]
            count = len(pairs[0][1])
            if count:
                self.results += count
                self.work += count * _MADE
                yield _joined(pairs, self.spec.output)

    def _confirmed(self, pairs: list[tuple[BasicWindow, Array]]) -> Array:
        """Which candidates the doubtful conjuncts let through."""
        assert self._residual is not None
        arrays = {}
        for window, rows in pairs:
            for column, values in arrays_of(window.batch, window.spec.side, (self._residual,)).items():
                arrays[column] = gather(values, rows)
        return holds(self._residual, arrays, len(pairs[0][1]))


def _joined(pairs: list[tuple[BasicWindow, Array]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for window, rows in pairs:
        columns += [gather(c, rows) for c in window.batch.columns[: len(window.spec.schema)]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


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
