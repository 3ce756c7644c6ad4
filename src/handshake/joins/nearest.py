"""Nearest joins: each left row with its k best matches by a ranking.

A window join finds the pairs, of which `Best` (`joins.ranking`) holds the best ones per left row. Only the
numbers of rows and the columns that the predicate or the ranking reads go through the join of tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.errors import WindowError
from handshake.joins.distance import Candidates, distance_of, find_candidates
from handshake.joins.numbered import APART, add_mark, add_number, number_rows
from handshake.joins.plan import JoinPlan, predicate_of, prepare
from handshake.joins.ranking import Best, Ranking, parse_ranking, ranking_of
from handshake.joins.replay import Replay
from handshake.joins.spec import SIDES, common_unit
from handshake.joins.ties import order_by_columns
from handshake.joins.waiting import BestMatch, Found, waiting_windows
from handshake.kernels.columns import as_array
from handshake.options import NearestOptions
from handshake.plan.bind import Scope, bind
from handshake.plan.build import Expression
from handshake.plan.expr import Column, Expr, show, walk
from handshake.schema import Schema, concat_batches
from handshake.windows import Duration, TimeWindow, Windows, windows_of

Array = np.ndarray[Any, Any]
NO_WINDOWS = Windows(None, None)


class _Bound(NamedTuple):
    """A checked nearest join: its names resolved."""

    ranking: Ranking
    unit: str
    sides: tuple[frozenset[str], frozenset[str]]
    """The columns of each side that the join reads."""


@dataclass(frozen=True)
class Nearest(BestMatch):
    """A nearest join; `handshake.nearest` documents the fields."""

    called: ClassVar[str] = "a nearest join"
    options: ClassVar[type] = NearestOptions

    by: str | Expression
    k: int = 1
    windows: Windows = NO_WINDOWS
    times: tuple[str | None, str | None] = (None, None)
    rank: str | None = "rank"
    value: str | None = None
    carried: pa.Schema | None = None
    """The columns of results, if values are carried in another type."""
    many: int = 1 << 14
    """Pairs that wait to be sorted, at least."""
    share: float = 0.125
    """The largest share of all pairs that an index may find; more are ranked without one."""

    @cached_property
    def bound(self) -> _Bound:
        """The join with its names resolved; raises a `HandshakeError` if anything is wrong with it."""
        return _bind(self)

    @property
    def schema(self) -> pa.Schema:
        """The columns of results."""
        return self.carried or self.bound.ranking.output

    @property
    def output(self) -> pa.Schema:
        """The columns of results, which are not those of both sides alone."""
        return self.schema

    def _find(self, left: pa.Table, right: pa.Table) -> Found:
        found = _Search(self, left, right).run()
        return Found(found.table.cast(self.schema), found.matched)

    def edge_rows(self, right: pa.Table, *, forward: bool) -> Array | None:
        """Return None: each right row in reach may be among the best."""
        return None

    def describe(self) -> str:
        """Return the join in a line of text."""
        on = "all pairs" if self.on is None else show(self.on)
        rows = "kept, with NULLs" if self.kind.preserves else "dropped"
        within = "" if self.windows.unbounded else f" within {self.windows.left} and {self.windows.right}"
        return (
            f"{self.k} nearest by {show(parse_ranking(self.by))}{within}, on {on}; left rows without a match "
            f"are {rows}"
        )

    def condition(self) -> Expr:
        """Return what must hold for a pair, apart from times."""
        return predicate_of(None) if self.on is None else self.on

    @property
    def search(self) -> str:
        """How tables are searched."""
        if self.on is None and self.windows.unbounded and distance_of(self.bound.ranking.by):
            return "numbers in their order, since the ranking is a distance; all pairs, if that finds many"
        pairs = self.plan_pairs(self.left, self.right)
        return f"all pairs of a window join by {pairs.method}: {pairs.why}"

    def describe_waiting(self) -> tuple[str, str]:
        """Return when a left row at time t is final, and how long right rows are held, as texts."""
        mine, theirs = (0 if window is None else window.size for window in self.windows)
        return f"at least t + {Duration(mine)}", str(Duration(mine + theirs))

    def held_windows(self) -> Windows:
        """Return windows that hold rows of streams as long as left rows wait."""
        mine, theirs = self.windows
        if not isinstance(mine, TimeWindow) or not isinstance(theirs, TimeWindow):
            raise WindowError(
                "a nearest join of two streams on Spark needs windows of time on both: left rows wait until "
                "theirs has passed; give a length of time, such as window='1 minute', and time columns"
            )
        unit = self.bound.unit
        return waiting_windows(unit, theirs.reach(unit), mine.reach(unit))

    def plan_pairs(self, left: pa.Schema, right: pa.Schema) -> JoinPlan:
        """Return the join that finds the pairs of inputs with these columns."""
        return prepare(
            left, right, Expression(self.condition()), left_window=self.windows.left,
            right_window=self.windows.right, left_time=self.times[0], right_time=self.times[1], suffix=APART,
            aliases=self.aliases, cores=self.cores,
        )  # fmt: skip


_DESCRIBED = r"(\d+) nearest by (.+)(?: within (.+?) and (.+?)), on (?:all pairs|{on}); left rows without .*"
"""The text of `Nearest.describe` under windows, which checkpoints have."""


def read_described(text: str, on: str) -> dict[str, Any]:
    """Return the fields of the join under windows that `Nearest.describe` describes, without its condition.

    Args:
        text: The description.
        on: The condition, as text.

    >>> text = "2 nearest by l.x within 5 seconds and now, on TRUE; left rows without a match are dropped"
    >>> read_described(text, "TRUE") == {"by": "l.x", "k": 2, "windows": windows_of("5 s", right="now")}
    True
    """
    found = re.fullmatch(_DESCRIBED.format(on=re.escape(on)), text, re.DOTALL)
    assert found is not None
    k, by, left, right = found.groups()
    return {"by": by, "k": int(k), "windows": windows_of(left=left, right=right)}


def _bind(join: Nearest) -> _Bound:
    """Check a nearest join."""
    left, right = join.left, join.right
    schemas = [Schema.from_arrow(s, n) for s, n in zip((left, right), SIDES, strict=True)]
    unit = common_unit((schemas[0], schemas[1]), join.windows, join.times)  # raises if a time is missing
    ranking = ranking_of(
        left, right, join.by, k=join.k, how=join.how, rank=join.rank, value=join.value, suffix=join.suffix,
        aliases=join.aliases,
    )  # fmt: skip
    join.plan_pairs(left, right)
    read = [set(ranking.reads(side)) for side in (0, 1)]
    if join.on is not None:
        for node in walk(bind(join.on, Scope.of(schemas[0], schemas[1], join.aliases))):
            if isinstance(node, Column):
                read[node.side].add(node.name)
    for names, schema, time in zip(read, schemas, join.times, strict=True):
        names |= set() if time is None else {schema.get(time).name}
    return _Bound(ranking, unit, (frozenset(read[0]), frozenset(read[1])))


class _Search:
    """The search for the best matches of all left rows.

    Its inputs have the columns that the join reads, and last the numbers of the rows.
    """

    def __init__(self, join: Nearest, left: pa.Table, right: pa.Table) -> None:
        self._join, self._tables, self._ranking = join, (left, right), join.bound.ranking
        read = join.bound.sides
        self._sides = number_rows(left, read[0]), number_rows(right, read[1])
        self._plan = join.plan_pairs(self._sides[0].schema, self._sides[1].schema)

    def run(self) -> Found:
        """Reduce the pairs of the join, batch by batch."""
        left, right = self._sides
        best = Best(self._ranking.k, self._tie_numbers, self._join.many)
        evaluate = self._ranking.evaluator(left.schema, right.schema)
        for pairs in self._pairs():
            rows = np.asarray(pairs.column(left.num_columns - 1))
            best.add(rows, evaluate(pairs), pairs.select([pairs.num_columns - 1]))
        chosen, others = best.take_all(), self._tables[1]
        others = others.slice(0, 0) if chosen is None else others.take(chosen.payload.column(0))
        matched = np.zeros(left.num_rows, np.bool_)
        if chosen is not None:
            matched[chosen.rows] = True
        numbers = np.arange(left.num_rows)
        return Found(self._ranking.results(self._tables[0], numbers, chosen, others), matched)

    def _pairs(self) -> Iterator[pa.RecordBatch]:
        """Yield pairs with the columns of both sides: all matches, or those that may be among the best."""
        left, right = self._sides
        found = self._candidates()
        if found is None:
            yield from Replay(self._plan, left, right)
            return
        for rows, others in found.pairs():
            columns = [*left.take(pa.array(rows)).columns, *right.take(pa.array(others)).columns]
            yield pa.RecordBatch.from_arrays([*map(as_array, columns)], schema=self._plan.output_schema)
        if len(found.rest):
            yield from Replay(self._plan, left.take(pa.array(found.rest)), right)

    def _candidates(self) -> Candidates | None:
        """Search for the best matches in an index, if all pairs are matches and the ranking is a distance."""
        if self._join.on is not None or not self._plan.spec.windows.unbounded:
            return None
        return find_candidates(self._ranking.by, *self._sides, self._ranking.k, self._join.share)

    def _tie_numbers(self, others: pa.RecordBatch) -> Array:
        numbers: Array = self._places[np.asarray(others.column(0))]
        return numbers

    @cached_property
    def _places(self) -> Array:
        """The place of each right row in the order of its columns."""
        return _places_of(order_by_columns(self._tables[1]))


class Chooser:
    """The best pairs of left rows, chosen from the results of a join of the kind `NEAREST`.

    The join has a column more per side: the number of each left row, and a mark that every right row has. A
    result is a pair, or a left row that is final, which has no mark.

    Args:
        ranking: The ranking.
        left: The columns of the left input.
        right: The columns of the right input.
    """

    def __init__(self, ranking: Ranking, left: pa.Schema, right: pa.Schema) -> None:
        self.ranking, self._width, self._right = ranking, len(left), right
        self._evaluate = ranking.evaluator(add_number(left), add_mark(right))
        self.best = Best(ranking.k, lambda others: _places_of(order_by_columns(others)))
        self.final = self.given = 0
        """Left rows that were final, and the results that they gave."""

    def choose(self, results: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Take results of the join; return those of this join, for the left rows that are final now."""
        final = []
        for batch in results:
            paired = np.asarray(batch.column(batch.num_columns - 1).is_valid())
            if not paired.all():
                final.append(batch.filter(pa.array(~paired)).select(range(self._width + 1)))
                batch = batch.filter(pa.array(paired))
            if batch.num_rows:
                payload = batch.select(range(self._width + 1, batch.num_columns - 1))
                self.best.add(np.asarray(batch.column(self._width)), self._evaluate(batch), payload)
        return self._give(concat_batches(final)) if final else []

    def _give(self, final: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Return the results of left rows that are final."""
        rows = np.asarray(final.column(self._width))
        chosen = self.best.take(rows)
        others = self._right.empty_table() if chosen is None else chosen.payload
        found = self.ranking.results(final.select(range(self._width)), rows, chosen, others)
        self.final, self.given = self.final + len(rows), self.given + found.num_rows
        batches: list[pa.RecordBatch] = found.combine_chunks().to_batches() if found.num_rows else []
        return batches


def _places_of(order: Array) -> Array:
    """Return the place of each row in an order."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places
