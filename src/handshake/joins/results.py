"""Pairs that were found, and the batches of results that they become."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.joins.basic_window import BasicWindow
from handshake.joins.driver import Tracked, arrays_of, stored_column
from handshake.joins.spec import TIME, FirstPairs, JoinSpec
from handshake.kernels.collect import Rows, RowsMessage
from handshake.kernels.columns import integers
from handshake.kernels.evaluate import holds
from handshake.kernels.gather import gather
from handshake.plan.expr import conjunction

Array = np.ndarray[Any, Any]
_RESULT_BYTES = 1 << 26
"""About how large a batch of results gets, so that wide tuples take no more memory than narrow ones."""
_FEW_PAIRS = 1024
_NONE = np.empty(0, np.int64)
_FEW = 16
"""Up to this many pairs are made without a look at their size."""


class Pairs(NamedTuple):
    """Matching row numbers: `here[n]` in the piece, `there[n]` in the windows.

    `ends[k]` is the number of matches in windows 0..k.
    """

    piece: BasicWindow
    here: Array
    windows: Sequence[BasicWindow]
    there: Array
    ends: Array


def together(found: Iterable[Pairs]) -> Iterator[Pairs]:
    """Few pairs of several calls with one piece as one: a batch costs the same whatever is in it."""
    waiting: list[Pairs] = []
    for pairs in found:
        if len(pairs.here) > _FEW_PAIRS:
            yield pairs
            continue
        if waiting and pairs.piece is not waiting[0].piece:
            yield _one(waiting)
            waiting = []
        # The next call writes into the same buffers.
        waiting.append(
            pairs._replace(here=pairs.here.copy(), there=pairs.there.copy(), ends=pairs.ends.copy())
        )
        if sum(len(some.here) for some in waiting) > _FEW_PAIRS:
            yield _one(waiting)
            waiting = []
    if waiting:
        yield _one(waiting)


def _one(found: list[Pairs]) -> Pairs:
    if len(found) == 1:
        return found[0]
    here, there = (np.concatenate([getattr(pairs, name) for pairs in found]) for name in ("here", "there"))
    starts = accumulate((len(pairs.here) for pairs in found), initial=0)
    ends = np.concatenate([start + pairs.ends for start, pairs in zip(starts, found, strict=False)])
    return Pairs(found[0].piece, here, [window for pairs in found for window in pairs.windows], there, ends)


class Made(NamedTuple):
    """A batch of results, and how many of them are with tuples of which basic window."""

    batch: pa.RecordBatch
    counts: list[tuple[BasicWindow, int]]


@dataclass
class Results:
    """Makes batches of pairs, in the order of the output's columns, and marks rows that have matched."""

    spec: JoinSpec
    tracked: tuple[Tracked | None, ...] = (None, None)
    """The sides of which the join must know which rows have matched."""

    def __post_init__(self) -> None:
        doubtful = self.spec.prepared.doubtful
        self._residual = conjunction(doubtful) if doubtful else None
        self._reduces = any(self.tracked) or self.spec.firsts is not None
        self._shown = self.spec.kind.shown
        shapes = [side.shape for side, shown in zip(self.spec.sides, self._shown, strict=True) if shown]
        self._message = None
        """Makes the columns of both sides; None if a column has a memory layout of another kind."""
        if len(self.spec.output) and None not in shapes:
            self._message = RowsMessage(self.spec.output, [shape for shape in shapes if shape is not None])

    def of(self, pairs: Pairs) -> Iterator[Made]:
        """Yield the results of pairs in batches that are not too large."""
        for some in self._cut(self._drop_unused(pairs)):
            kept = some if self._residual is None else self._confirm(some)
            if self._reduces:
                kept = self._reduce(kept)
            if len(kept.here):
                for batch, made in self._make(kept):
                    yield Made(batch, _counts(made))

    def of_several(self, found: Iterable[Pairs]) -> Iterator[pa.RecordBatch]:
        """Yield the results of pairs of several pieces of both sides; few pairs share a batch.

        No conjuncts may be doubtful.
        """
        few: list[Pairs] = []
        rows = 0
        for pairs in map(self._reduce, found) if self._reduces else found:
            many = len(pairs.here)
            if many > _FEW_PAIRS:
                yield from self._each([pairs])
            elif many:
                # The next call writes into the same buffers.
                few.append(
                    Pairs(pairs.piece, pairs.here.copy(), pairs.windows, pairs.there.copy(), pairs.ends)
                )
                rows += many
                if rows > _FEW_PAIRS:
                    yield from self._as_one(few)
                    few, rows = [], 0
        yield from self._as_one(few)

    def _as_one(self, few: list[Pairs]) -> Iterator[pa.RecordBatch]:
        """Yield one batch, or several if the results are large."""
        if self._message is not None and not self.spec.dated and few:
            sides = [_rows(few, side) for side in (0, 1) if self._shown[side]]
            try:
                batch = self._message.make(sides, _RESULT_BYTES)
            except pa.ArrowInvalid:
                pass
            else:
                yield batch
                return
        yield from self._each(few)

    def _each(self, found: list[Pairs]) -> Iterator[pa.RecordBatch]:
        cut = (some for pairs in found for some in self._cut(pairs) if len(some.here))
        return (batch for some in cut for batch, _ in self._make(some))

    def _reduce(self, pairs: Pairs) -> Pairs:
        """Mark the rows of pairs as matched; return the pairs that give results."""
        if not len(pairs.here):
            return pairs
        if self.spec.firsts is not None:
            return self._only(pairs, _first_pairs(self.spec.firsts, pairs))
        kind = self.spec.kind
        for side, tracked in enumerate(self.tracked):
            if tracked is not None:
                numbers = _values(pairs, side, _numbers)
                if kind.pairs == "first" and not self.spec.dated:
                    return self._only(pairs, tracked.states.mark_first(numbers))
                tracked.states.mark(numbers)
                if self.spec.dated:
                    return self._only(pairs, _least_of_each(numbers, _moments(pairs)))
        return self._only(pairs, _NONE) if kind.pairs == "none" else pairs

    def _only(self, pairs: Pairs, places: Array) -> Pairs:
        """Return some of the pairs, in their order."""
        if len(places) == len(pairs.here):
            return pairs
        ends = np.searchsorted(places, pairs.ends)
        return self._drop_unused(
            pairs._replace(here=pairs.here[places], there=pairs.there[places], ends=ends)
        )

    def _dates(self, pairs: Pairs) -> tuple[pa.Array, pa.Array]:
        """Return the row number and the time of each pair."""
        numbers = _values(pairs, self._shown.index(True), _numbers)
        return pa.array(numbers), pa.array(_moments(pairs))

    def _make(self, pairs: Pairs) -> Iterator[tuple[pa.RecordBatch, Pairs]]:
        """Yield one batch, or two if its texts are too long for one."""
        try:
            made = self._batch(pairs)
        except pa.ArrowInvalid:
            if len(pairs.here) < 2:
                raise
            for part in self._parts(pairs, -(-len(pairs.here) // 2)):
                yield from self._make(part)
        else:
            yield made, pairs

    def _drop_unused(self, pairs: Pairs) -> Pairs:
        """Leave out basic windows that no pair is of."""
        if len(pairs.windows) == 1:
            return pairs
        starts = [0, *pairs.ends[:-1].tolist()]
        used = [
            k for k, (start, end) in enumerate(zip(starts, pairs.ends.tolist(), strict=True)) if start < end
        ]
        return pairs._replace(windows=[pairs.windows[k] for k in used], ends=pairs.ends[used])

    def _cut(self, pairs: Pairs) -> Iterator[Pairs]:
        """Cut pairs by size, and by basic windows if their columns cannot be concatenated."""
        if len(pairs.windows) > 1 and self._message is None:
            bounds = pairwise([0, *pairs.ends.tolist()])
            for window, (start, end) in zip(pairs.windows, bounds, strict=True):
                there = pairs.there[start:end]
                yield from self._cut(
                    Pairs(pairs.piece, pairs.here[start:end], [window], there, np.array([len(there)]))
                )
            return
        step = self._step(pairs)
        yield from self._parts(pairs, step)

    def _parts(self, pairs: Pairs, step: int) -> Iterator[Pairs]:
        """Cut pairs into runs of this length."""
        if len(pairs.here) <= step:
            yield pairs
            return
        for start in range(0, len(pairs.here), step):
            part = slice(start, start + step)
            ends = np.clip(pairs.ends - start, 0, step)
            yield self._drop_unused(pairs._replace(here=pairs.here[part], there=pairs.there[part], ends=ends))

    def _step(self, pairs: Pairs) -> int:
        """Return how many pairs make a batch that is large enough."""
        if len(pairs.here) <= _FEW:
            return _FEW
        pair_bytes = pairs.piece.row_bytes + max([window.row_bytes for window in pairs.windows])
        return max(int(_RESULT_BYTES / max(pair_bytes, 1.0)), 1)

    def _confirm(self, pairs: Pairs) -> Pairs:
        """Keep the candidates for which the doubtful conjuncts hold."""
        assert self._residual is not None
        arrays = {}
        for column, values in arrays_of(pairs.piece.batch, pairs.piece.spec.side, (self._residual,)).items():
            arrays[column] = gather(values, pairs.here)
        for column, parts in self._of_windows(pairs).items():
            arrays[column] = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        keep = holds(self._residual, arrays, len(pairs.here))
        ends = np.concatenate([[0], np.cumsum(keep)])[pairs.ends]
        return self._drop_unused(pairs._replace(here=pairs.here[keep], there=pairs.there[keep], ends=ends))

    def _of_windows(self, pairs: Pairs) -> dict[Any, list[pa.Array]]:
        assert self._residual is not None
        found: dict[Any, list[pa.Array]] = {}
        for window, (start, end) in zip(pairs.windows, pairwise([0, *pairs.ends.tolist()]), strict=True):
            for column, values in arrays_of(window.batch, window.spec.side, (self._residual,)).items():
                found.setdefault(column, []).append(gather(values, pairs.there[start:end]))
        return found

    def _batch(self, pairs: Pairs) -> pa.RecordBatch:
        shown = [side for side in (0, 1) if self._shown[side]]
        if self._message is not None:
            batch = self._message.make([_rows((pairs,), side) for side in shown])
            if not self.spec.dated:
                return batch
            columns = batch.columns
        else:
            columns = [column for side in shown for column in _columns(pairs, side)]
        if self.spec.dated:
            columns += self._dates(pairs)
        return pa.RecordBatch.from_arrays(columns, schema=self.spec.made)


def _columns(pairs: Pairs, side: int) -> list[pa.Array]:
    """Return the columns of one side for all pairs, which are of one basic window."""
    (window,) = pairs.windows
    window, rows = (pairs.piece, pairs.here) if pairs.piece.spec.side == side else (window, pairs.there)
    picked = pa.array(rows)
    return [gather(column, picked) for column in window.batch.columns[: len(window.spec.schema)]]


def _rows(found: Sequence[Pairs], side: int) -> Rows:
    """Return the rows of one side in some pairs, in their order."""
    if len(found) == 1:
        (pairs,) = found
        if pairs.piece.spec.side == side:
            return Rows([pairs.piece.places], pairs.here, np.array([len(pairs.here)]))
        return Rows([window.places for window in pairs.windows], pairs.there, pairs.ends)
    parts = [_rows((pairs,), side) for pairs in found]
    starts = accumulate((len(pairs.here) for pairs in found), initial=0)
    return Rows(
        [places for part in parts for places in part.places],
        np.concatenate([part.rows for part in parts]),
        np.concatenate([start + part.ends for start, part in zip(starts, parts, strict=False)]),
    )


def _values(pairs: Pairs, side: int, of: Callable[[BasicWindow], Array]) -> Array:
    """Return a value per row of one side, for all pairs."""
    if pairs.piece.spec.side == side:
        return of(pairs.piece)[pairs.here]
    bounds = zip(pairs.windows, pairwise([0, *pairs.ends.tolist()]), strict=True)
    return np.concatenate([of(window)[pairs.there[start:end]] for window, (start, end) in bounds])


def _numbers(window: BasicWindow) -> Array:
    return window.numbers


def _moments(pairs: Pairs) -> Array:
    """Return the time of each pair: the later time of both rows."""
    times: Array = np.maximum(*(_values(pairs, side, _read(TIME)) for side in (0, 1)))
    return times


def _least_of_each(rows: Array, keys: Array) -> Array:
    """Return the place of each row's least key, in the order of places."""
    order = np.lexsort((keys, rows))
    ordered = rows[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    places: Array = np.sort(order[starts])
    return places


def _first_pairs(firsts: FirstPairs, pairs: Pairs) -> Array:
    """Return the places of the first pairs of rows that have no match yet."""
    rows = _values(pairs, firsts.side, _read(firsts.positions[firsts.side]))
    waiting = np.flatnonzero(firsts.states.are_pending(rows.astype(np.uint32)))
    if not len(waiting):
        return waiting
    others = _values(pairs, 1 - firsts.side, _read(firsts.positions[1 - firsts.side]))
    places: Array = waiting[_least_of_each(rows[waiting], others[waiting])]
    return places


def _read(name: str) -> Callable[[BasicWindow], Array]:
    """Return a function that reads a column of integers."""
    return lambda window: integers(stored_column(window.batch, window.spec, name))


def _counts(pairs: Pairs) -> list[tuple[BasicWindow, int]]:
    bounds = pairwise([0, *pairs.ends.tolist()])
    return [(window, end - start) for window, (start, end) in zip(pairs.windows, bounds, strict=True)]
