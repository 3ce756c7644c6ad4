"""Look-ups of small batches in the indexes of all cores' windows by one call, compiled in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow, indexable
from handshake.joins.core import JoinCore, Outer
from handshake.joins.spec import JoinSpec
from handshake.kernels.compile import TILE
from handshake.kernels.keys import sort_key
from handshake.kernels.look_up import look_up_hashes_kernel, look_up_kernel
from handshake.kernels.shared_scan import HEADROOM, INDEXED, INSIDE, NULLABLE, STATE

__all__ = ["FEW", "LookUps"]

Array = np.ndarray[Any, Any]
FEW = 256
"""Up to this many tuples are looked up in all windows by one call; more are sorted, and looked up window by
window."""
_JOBS = 64
"""Jobs that scan, after an index has found too many tuples."""
_LOOKED_AT = ((1 << INDEXED) - 1) << INDEXED
"""The kinds of basic windows that have an index."""


class LookUps:
    """The kernels for look-ups, and the choice whether to use them."""

    def __init__(self, spec: JoinSpec, cores: Sequence[JoinCore]) -> None:
        self._spec, self._cores = spec, cores
        self._kernels: dict[tuple[int, int], Any] = {}
        self._without = 0
        """Jobs that are to come without looking anything up."""
        self._known: tuple[set[int], set[int]] = (set(), set())
        self._there: tuple[set[int], set[int]] = (set(), set())
        """Kinds of basic windows by side, for which kernels are asked for; and are there."""
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
        missing = self._kinds(present) - self._known[inner]
        if missing and any(indexable(window) for window in windows):
            self._make(missing, windows, outer)
        return not self._kinds(present & _LOOKED_AT) - self._there[inner]

    @staticmethod
    def _kinds(present: int) -> set[int]:
        return {kind | INDEXED for kind in range(2 * INDEXED) if present >> kind & 1}

    def _make(self, kinds: set[int], windows: list[BasicWindow], outer: Outer) -> None:
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
        self, kind: int, outer: Outer, base: int, table: Array, homes: Array, kinds: Array
    ) -> tuple[Any, tuple[Any, ...], Callable[[], None]]:
        """Return a kernel, its arguments, and a function to call when it has finished."""
        piece, seen = outer.piece, np.zeros(len(self._cores), np.int64)

        def count() -> None:
            total, tuning = 0, self._spec.tuning
            for core, compared in zip(self._cores, seen.tolist(), strict=True):
                core.comparisons += compared
                core.work += compared * tuning.looked_up
                total += compared
            if (
                total > tuning.selective * piece.rows * tuning.indexed_from
            ):  # else it is selective in any case
                most = piece.rows * int(table[kinds == kind, 0].sum())
                if total > tuning.selective * most:
                    self._without = _JOBS

        kernel = self._kernels[kind, 1 - piece.spec.side]
        fixed = (piece.addresses(True), piece.rows, base, table, homes, kinds, kind, *sought(outer), seen)
        return kernel, fixed, count

    def settle(self) -> None:
        """Wait for the compiling threads."""
        while self._compiling:
            self._compiling.pop().join()


def sought(outer: Outer) -> tuple[Array, ...]:
    """Return the keys that new tuples are looked up by: hashes, or ranges of the attributes."""
    if outer.piece.spec.hashed:
        return (outer.piece.hashes,)
    return (*outer.limits[0], *outer.limits[-1])


def _kernel_maker(window: BasicWindow) -> Callable[[Any, int], Any]:
    """Return the function that makes kernels for the index of basic windows like this one."""
    if window.spec.hashed:
        return look_up_hashes_kernel
    keys = [sort_key(window.values(attribute.inner)).dtype.str for attribute in window.spec.attributes]
    return lambda program, inner: look_up_kernel(program, inner, keys[0], keys[-1])


def _try_out(
    kernel: Any, kind: int, words: int, addresses: tuple[int, ...], sought: tuple[Array, ...]
) -> None:
    """Call a kernel with no windows at all: that compiles it."""
    none, state = np.empty(0, np.int64), np.full(STATE, -1)
    state[3:5] = 0
    out = np.empty(TILE, np.int32), np.empty(TILE, np.int32)
    fixed = (addresses, 0, 0, np.empty((0, words), np.int64), none, none, kind, *sought, none)
    kernel(0, 0, *fixed, state, *out, none, none)
