"""The join core: a segment of both windows, and `probe`, `insert`, `expire` on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.basic_window import BasicWindow
from handshake.cores.driver import arrays_of
from handshake.cores.segment import Segment
from handshake.cores.spec import JoinSpec
from handshake.kernels.cluster import Probe, probe_band, probe_cost, probe_hash
from handshake.kernels.compile import TILE, Program, cells_kernel, scan_kernel
from handshake.kernels.evaluate import holds
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
    segments: tuple[Segment, Segment] = field(init=False)
    comparisons: int = 0
    results: int = 0
    skipped: int = 0
    batches: int = 0
    work: float = 0.0
    """About how many seconds of compiled work were done: what other cores could have shared."""

    def __post_init__(self) -> None:
        self.segments = (Segment(self.spec, 0), Segment(self.spec, 1))
        self._residual = conjunction(self.spec.prepared.doubtful) if self.spec.prepared.doubtful else None
        self._buffers = _Buffers()
        self._programs: dict[tuple[bool, bool, bool], Program] = {}
        self._kernels: dict[tuple[Any, int, int], Any] = {}

    def probe(
        self, piece: BasicWindow, windows: Iterable[BasicWindow] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """All results of new tuples with the other side's window, or with some basic windows of it."""
        self.batches += 1
        if piece.rows == 0 or self.spec.analysis.never:
            return
        for window in list(self.segments[1 - piece.spec.side] if windows is None else windows):
            relation = self._relation(piece, window)
            if relation == "apart":
                self.skipped += 1
                continue
            for pairs in self._pairs(piece, window, relation == "inside"):
                yield from self._results(piece, window, *pairs)

    def insert(self, piece: BasicWindow) -> None:
        """Put tuples into their side's window."""
        self.segments[piece.spec.side].insert(piece)

    def expire(self, side: int, oldest: int) -> int:
        """Forget tuples of a side whose expiring stamp is below `oldest`, in whole basic windows."""
        return self.segments[side].expire(oldest)

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

    def _pairs(self, piece: BasicWindow, window: BasicWindow, inside: bool) -> Iterator[tuple[Array, Array]]:
        """Index pairs (piece, window) of candidates that the compiled predicate lets through."""
        program = self._program(piece, window, inside)
        probe = None
        if window.cells is not None:
            probe = self._probe(piece, window)
            if probe is None:
                self.skipped += 1
                return
        if probe is not None and self._pays(probe, window):
            yield from self._by_index(program, piece, window, probe)
        elif piece.rows <= window.rows:
            yield from self._by_scan(program, piece, window)
        else:  # the longer run goes through the vectors
            yield from ((there, here) for here, there in self._by_scan(program, window, piece))

    def _kernel(self, make: Callable[[Program, int], Any], program: Program, inner: int) -> Any:
        """A compiled kernel; kept here, since finding it by its predicate costs more than a small probe."""
        key = (make, id(program), inner)
        if key not in self._kernels:
            self._kernels[key] = make(program, inner)
        return self._kernels[key]

    def _by_scan(
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

    def _by_index(
        self, program: Program, piece: BasicWindow, window: BasicWindow, probe: Probe
    ) -> Iterator[tuple[Array, Array]]:
        kernel = self._kernel(cells_kernel, program, window.spec.side)
        assert window.cells is not None
        views = (piece.columns, window.columns)  # held: addresses alone do not keep memory alive
        addresses = [v.addresses(program.nullable) for v in views]
        state = np.zeros(3, np.int64)
        while state[0] < len(probe.order):
            out = self._buffers.take()
            count, seen = kernel(
                addresses[0], probe.order, probe.first, probe.last, probe.low, probe.high,
                addresses[1], window.rows, window.cells.offsets, window.keys, state, *out,
            )  # fmt: skip
            self.comparisons += seen
            self.work += seen * _LOOKED_UP
            if count:
                yield out[0][:count], out[1][:count]
            self._buffers.grow(state[0] < len(probe.order))

    def _pays(self, probe: Probe, window: BasicWindow) -> bool:
        """Whether the index saves work: where most tuples are candidates, a scan is faster."""
        assert window.cells is not None
        few = len(probe.order) < 64
        return few or probe_cost(window.cells, probe, window.some_keys) < window.rows

    def _probe(self, piece: BasicWindow, window: BasicWindow) -> Probe | None:
        """Where the piece's tuples look in the window's cells; None when their ranges miss it altogether."""
        assert window.cells is not None
        attributes = window.spec.attributes
        limits = [self._limits(piece, position) for position in range(len(attributes))]
        for (low, high), (least, most) in zip(limits, window.attribute_spans, strict=True):
            if high.max() < least or low.min() > most:
                return None
        if window.spec.hashed:
            return probe_hash(window.cells, piece.hashes, limits[0] if limits else None)
        return probe_band(window.cells, limits[0], limits[1] if len(limits) > 1 else None)

    def _limits(self, piece: BasicWindow, position: int) -> tuple[Array, Array]:
        """Ranges that a piece's tuples allow; the same for every basic window that it meets."""
        if self._buffers.piece is not piece:
            self._buffers.piece, self._buffers.limits = piece, {}
        if position not in self._buffers.limits:
            attribute = self.spec.sides[1 - piece.spec.side].attributes[position]
            self._buffers.limits[position] = piece.limits(attribute)
        return self._buffers.limits[position]

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
            indices = pa.array(rows)
            for column, values in arrays_of(window.batch, window.spec.side, (self._residual,)).items():
                arrays[column] = values.take(indices)
        return holds(self._residual, arrays, len(pairs[0][1]))


def _joined(pairs: list[tuple[BasicWindow, Array]], schema: pa.Schema) -> pa.RecordBatch:
    columns: list[pa.Array] = []
    for window, rows in pairs:
        indices = pa.array(rows)
        columns += [c.take(indices) for c in window.batch.columns[: len(window.spec.schema)]]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Buffers:
    """Output buffers that grow when a kernel fills them, and what is known of the piece at hand."""

    def __init__(self) -> None:
        self.size = _SMALLEST
        self.pair: tuple[Array, Array] | None = None
        self.piece: BasicWindow | None = None
        self.limits: dict[int, tuple[Array, Array]] = {}

    def take(self) -> tuple[Array, Array]:
        if self.pair is None or len(self.pair[0]) < self.size:
            self.pair = (np.empty(self.size, np.int32), np.empty(self.size, np.int32))
        return self.pair

    def grow(self, full: bool) -> None:
        if full and self.size < _LARGEST:
            self.size *= 2
