"""Selectivities of a join: guessed at first, then sampled, then measured.

Conditions on the same streams are looked at together, on combinations of a few tuples that the windows hold;
where several such groups meet in a step, they are taken to be independent. A step that has been run knows
better: it has counted its candidates and matches. Python functions are never called for a sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.joins.driver import arrays_of
from handshake.joins.multiway.spec import ManySpec, StreamCondition
from handshake.joins.multiway.step import StepCore
from handshake.kernels.evaluate import holds
from handshake.plan.expr import Column, walk

GUESSES = {"equality": 0.01, "inequality": 0.3, "other": 0.5}
_UNKNOWN = 1000
"""Tuples in a window that says nothing of their number, before any have come."""
_COMBINATIONS, _MOST = 1 << 16, 256
"""Combinations that a sample makes, and tuples of one stream in it at most."""
_ENOUGH = 256
"""Combinations that a step must have taken before its own counts are believed."""
_OLD = 0.5
"""The weight of earlier counts relative to those since the last look."""
_NOTHING = np.zeros(4)
Array = np.ndarray[Any, Any]
Key = tuple[frozenset[int], int]


@dataclass(frozen=True)
class Selectivity:
    """Shares of all pairs: those that an index would look at, and those that match."""

    candidates: float
    matches: float


class Estimate(NamedTuple):
    """The expected candidates and matches of a combination in a window, and how they are known."""

    candidates: float
    matches: float
    known: str


@dataclass
class Statistics:
    """Selectivities and window sizes of a running join."""

    spec: ManySpec
    rows: list[float] = field(init=False)
    """Tuples that each stream's window holds."""

    def __post_init__(self) -> None:
        self.rows = [float((s.window and s.window.capacity) or _UNKNOWN) for s in self.spec.streams]
        self._groups: dict[frozenset[int], list[StreamCondition]] = {}
        for condition in self.spec.conditions:
            self._groups.setdefault(condition.streams, []).append(condition)
        self._selectivity = {streams: _guess(group) for streams, group in self._groups.items()}
        self._sampled: set[frozenset[int]] = set()
        self._measured: dict[Key, Array] = {}
        """Counts of steps: pairs, combinations that probed, candidates, matches; older counts weigh less."""
        self._before: dict[Key, Array] = {}
        """All such counts at the last look."""

    def estimate(self, joined: frozenset[int], target: int) -> Estimate:
        """Return what a combination of `joined` is expected to find in the window of `target`."""
        rows = self.rows[target]
        pairs, probed, candidates, matches = self._measured.get((joined, target), _NOTHING).tolist()
        if probed >= _ENOUGH and pairs:
            return Estimate(rows * candidates / pairs, rows * matches / pairs, "measured")
        groups = self.spec.new_conditions(joined, target).groups
        known = "sampled" if groups and groups <= self._sampled else "guessed"
        found = [self._selectivity[streams] for streams in groups]
        return Estimate(
            rows * prod(s.candidates for s in found), rows * prod(s.matches for s in found), known
        )

    def hold(self, k: int, rows: int) -> None:
        """Record how many tuples a window holds."""
        self.rows[k] = float(max(rows, 1))

    def measure(self, cores: Iterable[StepCore]) -> None:
        """Record what the steps have counted since the last call."""
        sums: dict[Key, Array] = {}
        for core in cores:
            key = (frozenset(core.step.joined), core.step.target)
            counts = np.array([core.pairs, core.probed, core.core.comparisons, core.found], np.float64)
            sums[key] = sums.get(key, _NOTHING) + counts
        for key, now in sums.items():
            news = now - self._before.get(key, _NOTHING)
            self._before[key] = now
            if news.any():
                self._measured[key] = _OLD * self._measured.get(key, _NOTHING) + news

    def sample(self, tuples: Mapping[int, pa.RecordBatch]) -> None:
        """Estimate selectivities from combinations of some tuples of each stream."""
        for streams, group in self._groups.items():
            if streams and all(k in tuples and tuples[k].num_rows for k in streams):
                self._selectivity[streams] = _measure_sample(group, [tuples[k] for k in sorted(streams)])
                self._sampled.add(streams)


def _guess(group: list[StreamCondition]) -> Selectivity:
    indexed = [GUESSES[c.kind] for c in group if c.kind != "other"]
    return Selectivity(prod(indexed), prod(GUESSES[c.kind] for c in group))


def _measure_sample(group: list[StreamCondition], tuples: list[pa.RecordBatch]) -> Selectivity:
    """Shares of the sample's combinations; a guess counts for one combination, so that none is zero."""
    read = {node.name for c in group for node in walk(c.bound) if isinstance(node, Column)}
    batch = _product([some.select([n for n in some.schema.names if n in read]) for some in tuples])
    rows = batch.num_rows
    masks = {
        c.text: holds(c.bound, arrays_of(batch, 0, (c.bound,)), rows) for c in group if not c.calls_python
    }
    everything = np.ones(rows, np.bool_)
    indexed = [masks[c.text] for c in group if c.kind != "other" and c.text in masks]
    hits = [int(np.logical_and.reduce([everything, *some]).sum()) for some in (indexed, masks.values())]
    guess, python = _guess(group), prod(GUESSES[c.kind] for c in group if c.calls_python)
    return Selectivity(
        (hits[0] + guess.candidates) / (rows + 1), (hits[1] + guess.matches) / (rows + 1) * python
    )


def _product(tuples: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return all combinations of some tuples of each stream, evenly chosen."""
    each = min(_MOST, int(_COMBINATIONS ** (1 / len(tuples))))
    sizes = [min(each, batch.num_rows) for batch in tuples]
    places = np.indices(sizes).reshape(len(sizes), -1)
    arrays, names = [], []
    for batch, size, place in zip(tuples, sizes, places, strict=True):
        chosen = (np.arange(size) * batch.num_rows // size)[place]
        arrays += [column.take(pa.array(chosen)) for column in batch.columns]
        names += batch.schema.names
    return pa.RecordBatch.from_arrays(arrays, names=names)
