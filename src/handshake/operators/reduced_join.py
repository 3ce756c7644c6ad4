"""⋈ and ⊞ on a GPU: the join gives states of panes instead of pairs, and windows slide over these."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.joins.driver import add_columns
from handshake.joins.reduction import GROUP, PANE, States, reduce_spec
from handshake.joins.spec import JoinSpec
from handshake.kernels.evaluate import Evaluator
from handshake.kernels.reduction import LIMB
from handshake.kernels.reduction import Panes as PairPanes
from handshake.operators.aggregates import State
from handshake.operators.chunk import Array, Chunk, fit
from handshake.operators.groups import GroupIndex
from handshake.operators.join_engines import JoinEngine
from handshake.operators.joins import FoundPairs, JoinOperator
from handshake.operators.panes import Panes, Table
from handshake.operators.reduced_plan import ReducedJoin
from handshake.operators.sums import Additive
from handshake.operators.windows import Spans, WindowOperator
from handshake.plan.algebra import Windowing
from handshake.plan.expr import columns_of
from handshake.schema import UNITS, arrow_of

if TYPE_CHECKING:  # other queries do not load what only a GPU needs
    from handshake.joins.device import ReducingCore

_TOP, _MASK = np.uint64(2**63), np.int64(2**LIMB - 1)


class ReducingJoin(JoinOperator):
    """An inner join whose results are states: a time, a clock, the keys of a group and words for each."""

    def __init__(self, node: ReducedJoin) -> None:
        self._reduced, self._words = node, node.all_words()
        types = [arrow_of(node.shape.before.schema.get(key.name).type) for key in node.keys]
        self._values = [Evaluator(key.value) for key in node.keys]
        self._own = [[k for k, key in enumerate(node.keys) if key.side == side] for side in (0, 1)]
        self._groups = [GroupIndex([types[k] for k in own]) for own in self._own]
        super().__init__(node.join, 1)

    def __getstate__(self) -> dict[str, Any]:
        raise UnsupportedError('a join on a GPU cannot be saved; use device="cpu"')

    def _start_engine(self) -> JoinEngine:
        engine = JoinEngine(self._node, self._schemas, self._timed, 1, reduce=self._reduce)
        self.core = cast("ReducingCore", engine.core)
        return engine

    def _reduce(self, spec: JoinSpec) -> JoinSpec:
        """Return the join with the words to reduce pairs to."""
        spans = Spans.of(self._reduced.window, UNITS[self._unit])
        reach = max(spec.reach(side) or 0 for side in (0, 1))
        self._panes = PairPanes.of(spans.offset, gcd(spans.size, spans.advance), spans.size, reach)
        left, right = (bool(own) for own in self._own)
        return reduce_spec(spec, self._words, self._panes, (left, right))

    def _batch(self, k: int, chunk: Chunk) -> pa.RecordBatch:
        """Return rows with their stamps, and the stamps and groups of pairs."""
        assert chunk.times is not None
        assert chunk.clocks is not None
        stamps, ahead = self._panes.stamps(chunk.times, chunk.clocks)
        self.core.ahead = max(self.core.ahead, ahead)
        hidden = {PANE: pa.array(stamps)}
        if self._own[k]:
            hidden[GROUP] = pa.array(self._groups[k].numbers([self._key(n, chunk) for n in self._own[k]]))
            self.core.groups[k] = max(len(self._groups[k]), 1)
        return add_columns(super()._batch(k, chunk), hidden)

    def _key(self, n: int, chunk: Chunk) -> pa.Array:
        """Return a key of rows."""
        key = self._reduced.keys[n]
        names = {c: c.name.removeprefix(f"{self._node.names[key.side]}.") for c in columns_of(key.value)}
        values = self._values[n]({c: chunk.columns[name] for c, name in names.items()}, chunk.rows)
        return fit(values, self._reduced.shape.before.schema.get(key.name).type, key.name)

    def _results(self, batches: list[pa.RecordBatch], timed: bool) -> FoundPairs:
        """Return the states that the searches of this step have found."""
        found, self.core.found = self.core.found, []
        none = np.empty(0, np.int64)
        found.append(States(none, none, (none, none), np.empty((0, len(self._words)), np.uint64)))
        panes, clocks, words = (
            np.concatenate([getattr(states, name) for states in found])
            for name in ("panes", "clocks", "words")
        )
        groups = [np.concatenate([states.groups[side] for states in found]) for side in (0, 1)]
        columns = {_word(k): pa.array(np.ascontiguousarray(words[:, k])) for k in range(words.shape[1])}
        for own, index, numbers in zip(self._own, self._groups, groups, strict=True):
            for n, keys in zip(own, index.keys, strict=True):
                columns[self._reduced.keys[n].name] = keys.take(pa.array(numbers))
        times = self._panes.instants(panes)
        shown = times if np.array_equal(panes, clocks) else self._panes.instants(clocks)
        return FoundPairs(Chunk(columns, len(panes), times, None, shown, np.zeros_like(panes)), none)


class ReducedWindows(WindowOperator):
    """The operator of windows of time over a join whose results are states."""

    def __init__(self, node: Windowing, join: ReducedJoin) -> None:
        super().__init__(node, _StatePanes(node, join))

    def _count_late(self, chunk: Chunk, late: Array) -> int:
        return int(_words(chunk, 0)[late].sum())


class _StatePanes(Panes):
    """A store of panes whose rows are states."""

    def __init__(self, node: Windowing, join: ReducedJoin) -> None:
        super().__init__(node, join.shape)
        known = join.all_words()
        self._places = [[known.index(word) for word in words] for words in join.words()]

    def add(self, chunk: Chunk, first: Array, last: Array) -> None:
        """Add states, each with its windows."""
        if not chunk.rows:
            return
        parts = [
            _state(state, [_words(chunk, k) for k in places])
            for state, places in zip(self._body.states, self._places, strict=True)
        ]
        groups = np.zeros(chunk.rows, np.int32)
        if self._shape.keys is not None:
            groups = self._index.numbers([chunk.columns[key] for key in self._shape.keys])
            arrivals = np.arange(self._seen, self._seen + chunk.rows)
            parts.append((~arrivals[:, None], np.ones(chunk.rows, np.bool_)))
        counts = _words(chunk, 0).view(np.int64)
        self._waiting.append(Table(first, last, groups, counts, tuple(parts)))
        self._seen += chunk.rows


def _word(k: int) -> str:
    return f"\0word {k}"


def _words(chunk: Chunk, k: int) -> Array:
    """Return a word of each state."""
    return np.asarray(chunk.columns[_word(k)])


def _state(state: State, words: Sequence[Array]) -> Any:
    """Return the states of an aggregate from its words."""
    if not isinstance(state, Additive):
        return (words[1] ^ _TOP).view(np.int64)[:, None], words[0] > 0
    matrix = np.stack(words, axis=1).view(np.int64)
    for k in range(1, matrix.shape[1] - 1):  # carry over, so that limbs are small again
        matrix[:, k + 1] += matrix[:, k] >> LIMB
        matrix[:, k] &= _MASK
    return matrix
