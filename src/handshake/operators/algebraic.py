"""Sub-plans of algebraic aggregates in parts: steps on rows, states of aggregates, steps on results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.operators.aggregates import State, reduce_rows, state_of
from handshake.operators.chunk import Array, Chunk, fit
from handshake.operators.pipeline import Pipeline
from handshake.operators.slots import Rows
from handshake.operators.windows import Results
from handshake.plan.aggregates import BOUNDS
from handshake.plan.algebra import Node, chain
from handshake.plan.panes import PaneShape


def take_state(state: Any, slots: Array) -> Any:
    """Return the states of these slots."""
    return tuple(part[slots] for part in state) if isinstance(state, tuple) else state[slots]


def stack_states(states: Sequence[Any]) -> Any:
    """Put states of one aggregate in sequence."""
    if isinstance(states[0], tuple):
        return tuple(np.concatenate(parts) for parts in zip(*states, strict=True))
    return np.concatenate(states)


class AlgebraicBody:
    """A sub-plan of algebraic aggregates, ready to run."""

    def __init__(self, body: Node, shape: PaneShape) -> None:
        self.shape = shape
        below, nodes = chain(shape.before)
        self._before = Pipeline(below.schema.fields, nodes) if nodes else None
        _, after = chain(body)
        self._after = Pipeline(shape.result.schema.fields, after) if after else None
        self._made = [a for a in shape.aggregates if a.function not in BOUNDS]
        self.states: list[State] = [state_of(a) for a in self._made]

    def select(self, chunk: Chunk) -> tuple[dict[str, pa.Array], int, Array | None]:
        """Return the columns that aggregates read, their row count, and the row of each (None: all rows)."""
        if self._before is None:
            return chunk.columns, chunk.rows, None
        return self._before.run(chunk.columns, chunk.rows)

    def reduce(self, rows: Rows) -> list[Any]:
        """Return the states of all aggregates."""
        return [reduce_rows(state, rows) for state in self.states]

    def columns(self, values: Sequence[pa.Array], starts: Array, ends: Array) -> dict[str, pa.Array]:
        """Return the columns of results: the values of aggregates, and the bounds of the window of each."""
        columns = {a.name: value for a, value in zip(self._made, values, strict=False)}
        bounds = dict(zip(BOUNDS, (starts, ends), strict=True))
        for aggregate in self.shape.aggregates:
            if aggregate.function in BOUNDS:
                kind = aggregate.schema.get(aggregate.name).type
                columns[aggregate.name] = fit(pa.array(bounds[aggregate.function]), kind, aggregate.function)
        return columns

    def finish(self, columns: dict[str, pa.Array], windows: Array) -> Results:
        """Run the steps on results, given the window of each."""
        named = {f.name: columns[f.name] for f in self.shape.result.schema}
        if self._after is None:
            return Results(named, windows)
        result, _, places = self._after.run(named, len(windows))
        return Results(result, windows if places is None else windows[places])
