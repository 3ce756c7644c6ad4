"""Nearest joins: each left row with its k best matches by a ranking.

A window join finds the pairs, of which `Best` (`joins.ranking`) holds the best ones per left row. Only the
numbers of rows and the columns that the predicate or the ranking reads go through the join of tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.io.frames import plain_table
from handshake.joins.plan import JoinPlan, predicate_of, prepare
from handshake.joins.ranking import Best, ranking_of
from handshake.joins.replay import Replay
from handshake.joins.spec import SIDES
from handshake.joins.ties import order_by_columns
from handshake.plan.bind import Scope, bind
from handshake.plan.build import Expression
from handshake.plan.expr import Column, walk
from handshake.schema import Schema
from handshake.windows import Spec

__all__ = ["Nearest"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Nearest:
    """A nearest join of tables; `handshake.nearest` documents the fields."""

    left: pa.Table
    right: pa.Table
    on: str | Expression | None
    by: str | Expression
    k: int = 1
    window: Spec = None
    left_window: Spec = None
    right_window: Spec = None
    times: tuple[str | None, str | None] = (None, None)
    how: str = "left"
    rank: str | None = "rank"
    value: str | None = None
    suffix: str = "_right"
    aliases: tuple[str, str] | None = None
    cores: int | None = None
    many: int = 1 << 14
    """Pairs that wait to be sorted, at least."""

    def run(self) -> pa.Table:
        """Return the joined table: left rows in their order, the matches of each by rank."""
        return _Search(self).run()


class _Search:
    """The search for the best matches of all left rows."""

    def __init__(self, join: Nearest) -> None:
        self._join = join
        self._tables = tuple(plain_table(table).combine_chunks() for table in (join.left, join.right))
        left, right = (table.schema for table in self._tables)
        self._ranking = ranking_of(
            left, right, join.by, k=join.k, how=join.how, rank=join.rank, value=join.value,
            suffix=join.suffix, aliases=join.aliases,
        )  # fmt: skip
        self._sides = [self._side(side) for side in (0, 1)]
        self._plan = self._prepare(self._sides[0].schema, self._sides[1].schema)

    def _side(self, side: int) -> pa.Table:
        """Return the columns of a side that the join reads, and the numbers of the rows."""
        table, time = self._tables[side], self._join.times[side]
        schemas = [Schema.from_arrow(t.schema, n) for t, n in zip(self._tables, SIDES, strict=True)]
        predicate = bind(predicate_of(self._join.on), Scope.of(schemas[0], schemas[1], self._join.aliases))
        read = {node.name for node in walk(predicate) if isinstance(node, Column) and node.side == side}
        read |= self._ranking.reads(side)
        if time is not None:
            read.add(schemas[side].get(time).name)
        table = table.select([name for name in table.schema.names if name in read])
        return table.append_column(_free_name(table.schema), pa.array(np.arange(table.num_rows)))

    def _prepare(self, left: pa.Schema, right: pa.Schema) -> JoinPlan:
        join = self._join
        return prepare(
            left, right, join.on, join.window, left_window=join.left_window, right_window=join.right_window,
            left_time=join.times[0], right_time=join.times[1], suffix="\1right", aliases=join.aliases,
            cores=join.cores,
        )  # fmt: skip

    def run(self) -> pa.Table:
        """Reduce the pairs of the join, batch by batch."""
        left, right = self._sides
        best = Best(self._join.k, self._tie_numbers, self._join.many)
        evaluate = self._ranking.evaluator(left.schema, right.schema)
        for pairs in Replay(self._plan, left, right):
            rows = np.asarray(pairs.column(left.num_columns - 1))
            best.add(rows, evaluate(pairs), pairs.select([pairs.num_columns - 1]))
        chosen = best.take_all()
        others = (
            self._tables[1].slice(0, 0) if chosen is None else self._tables[1].take(chosen.payload.column(0))
        )
        return self._ranking.results(self._tables[0], np.arange(left.num_rows), chosen, others)

    def _tie_numbers(self, others: pa.RecordBatch) -> Array:
        numbers: Array = self._places[np.asarray(others.column(0))]
        return numbers

    @cached_property
    def _places(self) -> Array:
        """The place of each right row in the order of its columns."""
        return _places_of(order_by_columns(self._tables[1]))


def _places_of(order: Array) -> Array:
    """Return the place of each row in an order."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _free_name(schema: pa.Schema) -> str:
    """Return a name that no column has."""
    return "_" * (1 + max((len(name) for name in schema.names), default=0)) + "row"
