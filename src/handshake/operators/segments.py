"""Sub-plans on many windows at once: the tuples of all of them in one chunk, each with its segment's number.

This runs any sub-plan, and recomputes every window from its tuples; panes.py runs those that need not be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import UnsupportedError
from handshake.operators.aggregates import aggregate_slots
from handshake.operators.chunk import Array, fit
from handshake.operators.groups import codes_of
from handshake.operators.pipeline import Pipeline
from handshake.plan.aggregates import BOUNDS
from handshake.plan.algebra import Aggregate, Concat, Group, Node, Parameter, chain
from handshake.plan.explain import label

_NOWHERE = (np.empty(0, np.int64), np.empty(0, np.int64))


@dataclass(frozen=True)
class Segments:
    """Tuples of several windows (or groups of windows), one after the other."""

    columns: dict[str, pa.Array]
    rows: int
    of: Array
    """The segment of each row; rows of one lie together."""
    origin: Array
    """The window of each segment, by its place among those that are computed together."""


class Body:
    """A sub-plan, ready to be run on segments."""

    def __init__(self, node: Node, parameter: str) -> None:
        self._node, self._parameter = node, parameter
        self._pipelines: dict[Node, Pipeline] = {}
        self._bounds: tuple[Array, Array] = _NOWHERE

    def run(self, segments: Segments, starts: Array, ends: Array) -> Segments:
        """Return the results of each window; `starts` and `ends` are the bounds of windows."""
        self._bounds = (starts, ends)
        result = self._run(self._node, {self._parameter: segments})
        self._bounds = _NOWHERE  # what is saved of a query is what it needs
        return result

    @singledispatchmethod
    def _run(self, node: Any, given: dict[str, Segments]) -> Segments:
        below, nodes = chain(node)
        if not nodes:
            raise UnsupportedError(f"the local engine cannot run {label(node)} inside a window")
        segments = self._run(below, given)
        if node not in self._pipelines:
            self._pipelines[node] = Pipeline(below.schema.fields, nodes)
        columns, rows, places = self._pipelines[node].run(segments.columns, segments.rows)
        of = segments.of if places is None else segments.of[places]
        return replace(segments, columns=columns, rows=rows, of=of)

    @_run.register
    def _(self, node: Parameter, given: dict[str, Segments]) -> Segments:
        return given[node.name]

    @_run.register
    def _(self, node: Concat, given: dict[str, Segments]) -> Segments:
        parts = [self._run(child, given) for child in node.inputs]
        columns = {name: column for part in parts for name, column in part.columns.items()}
        return replace(parts[0], columns=columns)

    @_run.register
    def _(self, node: Group, given: dict[str, Segments]) -> Segments:
        segments = self._run(node.input, given)
        codes, _ = codes_of([segments.columns[key] for key in node.keys])
        count = int(codes.max(initial=0)) + 1
        _, first, groups = np.unique(segments.of * count + codes, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))  # by first tuple: segment by segment
        of, first = rank[groups], np.sort(first)
        order = pa.array(np.argsort(of, kind="stable"))
        inside = Segments(
            {name: column.take(order) for name, column in segments.columns.items()},
            segments.rows,
            np.sort(of),
            segments.origin[segments.of[first]],
        )
        result = self._run(node.body, {**given, node.parameter: inside})
        rows = pa.array(first[result.of])
        keys = {key: segments.columns[key].take(rows) for key in node.keys}
        return Segments(
            {**keys, **result.columns}, result.rows, segments.of[first][result.of], segments.origin
        )

    @_run.register
    def _(self, node: Aggregate, given: dict[str, Segments]) -> Segments:
        segments = self._run(node.input, given)
        count = len(segments.origin)
        if node.function in BOUNDS:
            bounds = self._bounds[BOUNDS.index(node.function)][segments.origin]
            value = fit(pa.array(bounds), node.schema.get(node.name).type, node.function)
        else:
            value = aggregate_slots(node, segments.of, count, segments.columns)
        return Segments({node.name: value}, count, np.arange(count), segments.origin)
