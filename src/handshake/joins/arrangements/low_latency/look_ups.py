"""Look-ups of small batches in the indexes of all cores' windows by one call, compiled in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from handshake.joins.basic_window import BasicWindow, indexable
from handshake.joins.core import JoinCore, Outer
from handshake.joins.spec import JoinSpec
from handshake.kernels.compile import TILE
from handshake.kernels.look_up import look_up_hashes_kernel, look_up_kernel
from handshake.kernels.shared_scan import HEADROOM, INDEXED, INSIDE, NULLABLE, STATE

Array = np.ndarray[Any, Any]
FEW = 256
"""Up to this many tuples are looked up in all windows by one call; more are sorted, and looked up window by
window."""
_JOBS = 64
"""Jobs that scan, after an index has found too many tuples."""
_LOOKED_AT = ((1 << INDEXED) - 1) << INDEXED
"""The kinds of basic windows that have an index."""


class LookUp(NamedTuple):
    """The look-ups of one visit."""

    look_ups: LookUps
    calls: Sequence[tuple[Any, tuple[Any, ...]]]
    """A kernel for each kind of basic windows, and its first arguments."""
    rows: int
    table: Array
    kinds: Array
    seen: Array
    """The tuples that were compared, by core."""

    def note(self) -> None:
        """Count the comparisons, when all calls have been made."""
        self.look_ups.note(self)


class LookUps:
    """The kernels for look-ups, and the choice whether to use them."""

    def __init__(self, spec: JoinSpec, cores: Sequence[JoinCore]) -> None:
        self._spec, self._cores = spec, cores
        self._kernels: dict[tuple[int, int], Any] = {}
        self._without = 0
        """Jobs that are to come without looking anything up."""
        self._known: tuple[set[int], set[int]] = (set(), set())
        self._there: tuple[set[int], set[int]] = (set(), set())
        """Requested kernel kinds by side, and those compiled."""
        self._compiling: list[threading.Thread] = []
        self._error: BaseException | None = None

    def next_job(self) -> None:
        """Count down the jobs that scan instead."""
        self._without -= self._without > 0

    def covers(self, piece: BasicWindow) -> bool:
        """Return whether there are few enough tuples to look them up by one call."""
        return self._spec.method != "scan" and piece.rows <= FEW

    def wants(self, piece: BasicWindow) -> bool:
        """Return whether to look these tuples up in this job."""
        return not self._without and self.covers(piece)

    def ready(self, present: int, windows: list[BasicWindow], outer: Outer) -> bool:
        """Return whether the kernels for these kinds of basic windows are compiled; else start compiling.

        Basic windows that will be clustered later also count, so that their kernel is ready in time.
        """
        if self._error is not None:
            raise self._error
        inner = windows[0].spec.side
        missing = _indexed_kinds(present) - self._known[inner]
        if missing and any(indexable(window) for window in windows):
            self._make(missing, windows, outer)
        return _indexed_kinds(present & _LOOKED_AT) <= self._there[inner]

    def _make(self, kinds: frozenset[int], windows: list[BasicWindow], outer: Outer) -> None:
        inner = windows[0].spec.side
        self._known[inner].update(kinds)
        program_of, make = self._cores[0].program, _kernel_maker(windows[0])
        given = (len(windows[0].scan_row), outer.piece.addresses(True), sought(outer))

        def compile_all() -> None:
            try:
                for kind in sorted(kinds):
                    inside, headroom, nullable = (bool(kind & bit) for bit in (INSIDE, HEADROOM, NULLABLE))
                    kernel = make(program_of(inside, headroom, nullable), inner)
                    _try_out(kernel, kind, *given)
                    self._kernels[kind, inner] = kernel
                    self._there[inner].add(kind)
            except BaseException as error:  # raised by the next call of `ready`
                self._error = error

        if not self._spec.tuning.compiles_aside:
            compile_all()
            return
        self._compiling.append(threading.Thread(target=compile_all, name="compiling look-ups", daemon=True))
        self._compiling[-1].start()

    def of(
        self, kinds: Sequence[int], outer: Outer, base: int, table: Array, homes: Array, kind_of: Array
    ) -> LookUp:
        """Return the look-ups of new tuples in basic windows of these kinds, `kind_of[w]` for window `w`."""
        piece, inner = outer.piece, 1 - outer.piece.spec.side
        keys, seen, outers = sought(outer), np.zeros(len(self._cores), np.int64), piece.addresses(True)
        calls = []
        for scanned in kinds:
            kind = scanned | INDEXED
            fixed = (outers, piece.rows, base, table, homes, kind_of, kind, *keys, seen)
            calls.append((self._kernels[kind, inner], fixed))
        return LookUp(self, calls, piece.rows, table, kind_of, seen)

    def note(self, look_up: LookUp) -> None:
        """Count the comparisons of look-ups; decide whether the next jobs scan instead."""
        total, tuning = 0, self._spec.tuning
        for core, compared in zip(self._cores, look_up.seen.tolist(), strict=True):
            core.comparisons += compared
            core.work += compared * tuning.looked_up
            total += compared
        if total > tuning.selective * look_up.rows * tuning.indexed_from:  # else it is selective in any case
            most = look_up.rows * int(look_up.table[look_up.kinds >= INDEXED, 0].sum())
            if total > tuning.selective * most:
                self._without = _JOBS

    def settle(self) -> None:
        """Wait for the compiling threads."""
        while self._compiling:
            self._compiling.pop().join()


@cache
def _indexed_kinds(present: int) -> frozenset[int]:
    return frozenset(kind | INDEXED for kind in range(2 * INDEXED) if present >> kind & 1)


def sought(outer: Outer) -> tuple[Array, ...]:
    """Return the keys that new tuples are looked up by: hashes, or ranges of the attributes."""
    if outer.piece.spec.hashed:
        return (outer.piece.hashes,)
    return (*outer.limits[0], *outer.limits[-1])


def _kernel_maker(window: BasicWindow) -> Callable[[Any, int], Any]:
    """Return the function that makes kernels for the index of basic windows like this one."""
    if window.spec.hashed:
        return look_up_hashes_kernel
    return lambda program, inner: look_up_kernel(program, inner, *window.spec.key_types, True)


def _try_out(
    kernel: Any, kind: int, words: int, addresses: tuple[int, ...], sought: tuple[Array, ...]
) -> None:
    """Call a kernel with no windows at all: that compiles it."""
    none, state = np.empty(0, np.int64), np.full(STATE, -1)
    state[3:5] = 0
    out = np.empty(TILE, np.int32), np.empty(TILE, np.int32)
    fixed = (addresses, 0, 0, np.empty((0, words), np.int64), none, none, kind, *sought, none)
    kernel(0, 0, *fixed, state, *out, none, none)
