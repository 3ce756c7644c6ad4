"""The searches of indexed basic windows on a GPU: the indexes of both sides, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import is_, is_not
from typing import Any, NamedTuple

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.device.index import Grid, Making, Run, Table, bytes_of
from handshake.joins.device.memory import DeviceWindow, Found, ListOutput, Store
from handshake.joins.spec import JoinSpec
from handshake.kernels.gpu.driver import Device, Launchable
from handshake.kernels.gpu.look_up import RUN_WORDS
from handshake.kernels.gpu.target import THREADS

Array = np.ndarray[Any, Any]
_WARPS, _LEAST_RUNS = 4096, 4
"""Warps that a search should have, unless each of them would look at fewer runs."""
_SELECTIVE, _WITHOUT = 16, 64
"""If more than one row in `_SELECTIVE` is a candidate, the next `_WITHOUT` searches do without indexes."""


@dataclass(frozen=True)
class Part:
    """Some probes of a piece, and the numbers of the runs that they look at."""

    start: int
    probes: int
    runs: range

    def halves(self) -> list[Part]:
        """Return two parts that are this one together."""
        half = self.probes // 2
        if half:
            rest = Part(self.start + half, self.probes - half, self.runs)
            return [Part(self.start, half, self.runs), rest]
        half = len(self.runs) // 2
        return [Part(self.start, 1, self.runs[:half]), Part(self.start, 1, self.runs[half:])]


class Chosen(NamedTuple):
    """The choice of the last search of a side: what it was made for, and what it was."""

    near: list[BasicWindow]
    """The basic windows to search."""
    least: int
    """The rows from which a basic window was wanted by index."""
    windows: list[BasicWindow]
    """Those that were wanted by index."""
    runs: list[Run]
    nullable: bool
    rows: int
    """Rows of all indexes."""

    def select_wanted(self, near: list[BasicWindow], least: int, known: dict[int, Run]) -> list[BasicWindow]:
        """Return which of the basic windows to search are wanted now.

        Between two searches most often a small one has come, and hundreds are as before.
        """
        before = len(self.near)
        as_before = least == self.least and len(near) >= before and all(map(is_, self.near, near))
        start, wanted = (before, self.windows) if as_before else (0, [])
        return wanted + [w for w in near[start:] if w.rows >= least or id(w) in known]


class LookUps:
    """The indexes of both sides, and searches by them."""

    def __init__(
        self, device: Device, spec: JoinSpec, windows: tuple[DeviceWindow, ...],
        kernel: Callable[[bool, bool, int], Launchable],
    ) -> None:  # fmt: skip
        """Make no index yet.

        Args:
            device: The device.
            spec: The join.
            windows: The rows of both sides on the device.
            kernel: Gives the compiled look-up, by whether numbers have headroom and columns may be NULL, and
                by the side that is searched.
        """
        self._device, self._spec, self._windows = device, spec, windows
        self._tuning, self._kernel = spec.tuning, kernel
        self._runs: tuple[dict[int, Run], dict[int, Run]] = ({}, {})
        self._grids: list[Grid | None] = [None, None]
        self._making: list[Making | None] = [None, None]
        self._chosen = [Chosen([], 0, [], [], False, 0)] * 2
        self._tables = (Table(Store(device, 8)), Table(Store(device, 8)))
        self._reach = Store(device, 4)
        self._outputs = [ListOutput(device, spec.tuning.device_first_pairs) for _ in range(2)]
        self._per_probe = [0.0, 0.0]
        """Pairs per probe of each side in its last look-up."""
        self._unindexed = 0
        """Searches to come that do without indexes."""
        self.candidates = 0
        """Rows that were tested."""

    def runs(
        self, piece: BasicWindow, near: list[BasicWindow], held: list[BasicWindow],
        place: Callable[[BasicWindow], range],
    ) -> list[Run]:  # fmt: skip
        """Return the indexes of the basic windows that are worth one; make those that are missing.

        Args:
            piece: The probes.
            near: The basic windows to search.
            held: All basic windows of their side. Indexes of others are dropped.
            place: Gives the rows of a basic window.
        """
        self._unindexed -= self._unindexed > 0
        if self._spec.method != "band" or self._unindexed:
            return []
        inner, tuning = 1 - piece.spec.side, self._tuning
        known, last = self._runs[inner], self._chosen[inner]
        least = min(tuning.device_indexed_from, -(-tuning.device_indexed_pairs // piece.rows))
        wanted = last.select_wanted(near, least, known)
        nullable = bool(self._windows[0].validity or self._windows[1].validity)
        same = nullable == last.nullable and len(wanted) == len(last.windows)
        if same and all(map(is_, wanted, last.windows)):
            self._chosen[inner] = last._replace(near=near, least=least)
            return last.runs
        here = {id(window) for window in held}
        for key in [key for key, run in known.items() if key not in here or run.nullable != nullable]:
            known.pop(key).release()
        found = []
        for window in wanted:
            run = known.get(id(window))
            if run is None or run.window is not window:
                run = self._make(piece, window, place(window).start, nullable)
            if run is not None:
                found.append(run)
        rows = sum(run.window.rows for run in found)
        self._chosen[inner] = Chosen(near, least, wanted, found, nullable, rows)
        return found

    def _make(self, piece: BasicWindow, window: BasicWindow, first: int, nullable: bool) -> Run | None:
        """Index a basic window whose first row is `first`, if there is memory."""
        side = window.spec.side
        held = self._windows[side]
        held.addresses(nullable)  # makes validity
        if bytes_of(window, held, nullable) > self._device.memory()[0]:
            return None
        making = self._making[side]
        if making is None:
            making = self._making[side] = Making(self._device, self._spec.sides[side].coded)
        grid = Grid.for_window(window, lambda: limits_of(self._spec, piece), self._grids[side])
        run = Run(window, first, grid, held, nullable, making)
        self._runs[side][id(window)], self._grids[side] = run, grid
        return run

    def find(
        self, piece: BasicWindow, row: int, runs: list[Run], *more: tuple[Array, int]
    ) -> Iterator[Found]:
        """Yield the pairs of a piece, whose first row on the device is `row`, with some runs.

        A part is searched while the pairs of the part before it are copied to the host.

        Args:
            piece: The probes.
            row: The number of their first row.
            runs: The indexes.
            more: Other copies to make when the first part has been searched.
        """
        side = piece.spec.side
        self._put_facts(piece, runs)
        waiting = self._parts(side, piece.rows, range(len(runs)))[::-1]
        output, other = self._outputs
        part: Part | None = None
        while waiting or part is not None:
            if part is None:
                part = self._begin(output, piece, row, waiting.pop())
            count, candidates = output.read(*more)
            more = ()
            if count > output.room:
                self._enlarge(output, count, part, waiting)
                part = None
                continue
            self._per_probe[side] = count / part.probes
            if len(part.runs) == len(runs):
                self.note(piece, part, candidates)
            else:
                self.candidates += candidates
            output, other = other, output
            part = self._begin(output, piece, row, waiting.pop()) if waiting else None
            if count:
                yield other.take(count)

    def _parts(self, side: int, rows: int, runs: range) -> list[Part]:
        """Return parts whose pairs are likely to fit."""
        most = min(self._tuning.device_copied_pairs, self._tuning.device_most_pairs)
        share = -(-rows // (1 + int(self._per_probe[side] * rows * 1.1 / most)))
        # Nothing is copied while the first part is searched, so it is small.
        first = share if share == rows else -(-share // 4)
        starts = [0, *range(first, rows, share)]
        return [Part(start, stop - start, runs) for start, stop in pairwise([*starts, rows])]

    def _enlarge(self, output: ListOutput, count: int, part: Part, waiting: list[Part]) -> None:
        """Prepare to search again with more room, or by halves."""
        if count <= self._tuning.device_most_pairs or (part.probes == 1 and len(part.runs) == 1):
            output.grow(count)
            waiting.append(part)
        else:
            waiting += part.halves()[::-1]

    def _put_facts(self, piece: BasicWindow, runs: list[Run]) -> None:
        """Copy to the device what it needs to know of the runs, and the cells that the probes reach."""
        inner = 1 - piece.spec.side
        base, known = self._windows[inner].base, self._tables[inner]
        if known.base != base or len(known.runs) != len(runs) or any(map(is_not, known.runs, runs)):
            grids = list(dict.fromkeys(run.grid for run in runs))
            columns = len(self._spec.sides[inner].columns)
            words = np.empty((len(runs), RUN_WORDS + 2 * columns), np.int64)
            for k, run in enumerate(runs):
                offsets, order, *places = run.words
                facts = (run.first - base, run.grid.bands[1][2], grids.index(run.grid))
                words[k] = (offsets, order, *facts, *places)
            known.store.put_all(words.reshape(-1))
            known.base, known.runs, known.grids = base, list(runs), grids
        limits = limits_of(self._spec, piece)
        cells = [grid.reach(limits) for grid in known.grids]
        self._reach.put_all((cells[0] if len(cells) == 1 else np.concatenate(cells)).reshape(-1))

    def _begin(self, output: ListOutput, piece: BasicWindow, row: int, part: Part) -> Part:
        """Start the search of a part."""
        output.begin(part.start, part.probes, self._warps(part))
        segments, slots = output.places
        self._launch(piece, row, part, output.counters, slots, output.room, segments, output.segments)
        return part

    def reduce(self, piece: BasicWindow, row: int, part: Part, runs: list[Run], *output: int) -> None:
        """Start the reduction of a part's pairs; `output` has the address of counters, and more."""
        self._put_facts(piece, runs)
        self._launch(piece, row, part, output[0], 0, 0, 0, 0, *output[1:])

    def note(self, piece: BasicWindow, part: Part, candidates: int) -> None:
        """Record how many rows a search by all indexes has tested; do without them if they are many."""
        self.candidates += candidates
        if candidates * _SELECTIVE > part.probes * self._chosen[1 - piece.spec.side].rows:
            self._unindexed = _WITHOUT

    def _warps(self, part: Part) -> int:
        """Return how many warps share the runs of a probe.

        Few probes leave most of the device idle, unless there are several.
        """
        return min(max(_WARPS // part.probes, 1), -(-len(part.runs) // _LEAST_RUNS))

    def _launch(self, piece: BasicWindow, row: int, part: Part, *output: int) -> None:
        outer = piece.spec.side
        own, other = self._windows[outer], self._windows[1 - outer]
        nullable = bool(own.validity or other.validity)
        words = RUN_WORDS + 2 * len(self._spec.sides[1 - outer].columns)
        warps = self._warps(part)
        share = -(-len(part.runs) // warps)
        self._kernel(own.headroom and other.headroom, nullable, 1 - outer)(
            (-(-part.probes // (THREADS // self._device.target.lanes)), warps),
            (
                *own.addresses(nullable), row + part.start - own.base, part.probes,
                self._tables[1 - outer].store.address + 8 * words * part.runs.start, len(part.runs), share,
                self._reach.address + 4 * part.start, piece.rows, *output,
            ),
        )  # fmt: skip

    def release(self) -> None:
        """Give the memory back."""
        for run in (*self._runs[0].values(), *self._runs[1].values()):
            run.release()
        for making in self._making:
            if making is not None:
                making.release()
        for output in self._outputs:
            output.release()
        for store in (self._reach, *(table.store for table in self._tables)):
            store.release()


def limits_of(spec: JoinSpec, piece: BasicWindow) -> list[tuple[Array, Array]]:
    """Return the ranges that each probe allows the two bands of the other side to have."""
    return [piece.limits(attribute) for attribute in spec.sides[1 - piece.spec.side].coded]
