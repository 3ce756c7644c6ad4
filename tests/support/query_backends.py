"""Back ends of continuous queries, behind one face: cases in, each case's results and counts out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

import query_oracle
from handshake.operators.query import Query
from handshake.plan.algebra import Plan, Windowing, WindowJoin, walk
from handshake.plan.optimise import optimise
from handshake.testing.oracle_values import rows as physical_rows
from query_streams import Item, as_physical, batch_of, cuts, results, results_together, slices

__all__ = [
    "Backend",
    "Local",
    "Outcome",
    "Spark",
    "by_time",
    "check",
    "frames",
    "many",
    "plain",
    "restore_rows",
    "tables",
]

Rows = dict[str, list[dict[str, Any]]]
CASE = "case of the test"


@dataclass(frozen=True)
class Outcome:
    """The rows of each result, and the tuples that windows have counted as late and as without a time."""

    rows: Rows
    lost: tuple[int, int] | None = None
    """None: it does not say."""


class Backend(Protocol):
    """Runs a plan on some cases."""

    ordered: bool
    """Whether it keeps the order that docs/queries.md promises of the in-process engine."""

    counted_plan: Callable[[Plan], Plan]
    """The plan whose windows do the counting: a selection below a window drops what would be late in it."""

    def arrivals(self, plan: Plan, items: list[Item]) -> list[Item]:
        """Return tuples in the order in which they arrive at the back end."""

    def run(self, plan: Plan, cases: Sequence[list[Item]], draw: Any) -> list[list[Outcome]]:
        """Run each case, perhaps in several ways."""


def check(backend: Backend, plan: Plan, cases: Sequence[list[Item]], draw: Any) -> None:
    """Check that a back end has the results and the counts of the oracle."""
    query = Query(plan)
    for case, ways in zip(cases, backend.run(plan, cases, draw), strict=True):
        counts, arrivals = query_oracle.Counts(), as_physical(query, backend.arrivals(plan, case))
        wanted = query_oracle.run(plan, arrivals)
        query_oracle.run(backend.counted_plan(plan), arrivals, counts)
        for outcome in ways:
            assert plain(outcome.rows, backend.ordered) == plain(wanted, backend.ordered)
            if outcome.lost is not None:
                assert outcome.lost == (counts.late, counts.no_time)


def plain(rows: Rows, ordered: bool = False) -> dict[str, list[Any]]:
    """Return rows that compare: NaN equals NaN, and 0.0 is -0.0; sorted, unless their order matters."""
    found = {name: [_plain(row) for row in some] for name, some in rows.items()}
    return found if ordered else {name: sorted(some, key=str) for name, some in found.items()}


def _plain(row: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, str(_one_zero(value))) for name, value in sorted(row.items())]


def _one_zero(value: Any) -> Any:
    return value + 0.0 if isinstance(value, float) else value


class Local:
    """The in-process engine: plans as parsed and optimised, streams cut in any way."""

    ordered = True

    def counted_plan(self, plan: Plan) -> Plan:
        return plan

    def arrivals(self, plan: Plan, items: list[Item]) -> list[Item]:
        return items

    def run(self, plan: Plan, cases: Sequence[list[Item]], draw: Any) -> list[list[Outcome]]:
        """Run both plans, with streams pushed one at a time or all together."""
        return [[self._outcome(plan, items, draw, way) for way in (True, False)] for items in cases]

    def _outcome(self, plan: Plan, items: list[Item], draw: Any, optimised: bool) -> Outcome:
        query, each = Query(plan, optimised=optimised), draw(st.booleans())
        rows = results(query, cuts(draw, items)) if each else results_together(query, slices(draw, items))
        told = query.metrics()
        return Outcome(rows, None if optimised else (told.late, told.no_time))


class Spark:
    """Finite DataFrames, which arrive by time, so that nothing is late; a result of all cases is one job."""

    ordered = False

    def __init__(self, session: Any) -> None:
        self._session = session

    def counted_plan(self, plan: Plan) -> Plan:
        return optimise(plan)  # as `query_frames` does before it translates

    def arrivals(self, plan: Plan, items: list[Item]) -> list[Item]:
        return by_time(plan, items)

    def run(self, plan: Plan, cases: Sequence[list[Item]], draw: Any) -> list[list[Outcome]]:
        """Run all cases in one job per result."""
        from handshake.engines.spark.queries import query_frames

        query = Query(plan)
        made = [query_frames(plan, frames(self._session, tables(query, items))) for items in cases]
        found = [dict[str, list[dict[str, Any]]]() for _ in cases]
        for output in plan.outputs:
            table = _together([frame[output.name] for frame in made])
            for n, rows in enumerate(found):
                own = table.filter(pc.equal(table.column(CASE), n))
                rows[output.name] = restore_rows(own, query.schema(output.name))
        return [[Outcome(rows, _lost(plan, each))] for rows, each in zip(found, made, strict=True)]


def by_time(plan: Plan, items: list[Item]) -> list[Item]:
    """Sort tuples by time, ties by declaration and then as they are; those without a time last."""
    names = [source.name for source in plan.inputs]
    times = {source.name: source.time for source in plan.inputs}

    def place(item: Item) -> tuple[float, int]:
        time = item[1][str(times[item[0]])]
        return (math.inf if time is None else time), names.index(item[0])

    return sorted(items, key=place)


def _together(frames: list[Any]) -> pa.Table:
    from pyspark.sql import functions as F

    numbered = [frame.withColumn(CASE, F.lit(n)) for n, frame in enumerate(frames)]
    whole = numbered[0]
    for other in numbered[1:]:
        whole = whole.union(other)
    return whole.toArrow()


def _lost(plan: Plan, made: Any) -> tuple[int, int] | None:
    """Count late tuples, and those without a time, if only windows can lose them."""
    kinds = {type(node) for output in plan.outputs for node in walk(output)}
    if Windowing not in kinds or WindowJoin in kinds or len(plan.outputs) > 1:
        return None  # a window that two results read is run for each of them
    told = [each.get for each in made.observations.values()]
    return sum(one.get("late") or 0 for one in told), sum(one.get("no_time") or 0 for one in told)


def tables(query: Query, items: list[Item]) -> dict[str, pa.Table]:
    """Return the tuples of each input that is given by itself."""
    names = [source.name for source in query.plan.inputs if source.demux is None]
    rows = {name: [row for given, row in items if given == name] for name in names}
    return {name: pa.Table.from_batches([batch_of(query, name, rows[name])]) for name in names}


def frames(session: Any, given: dict[str, pa.Table]) -> dict[str, Any]:
    """Return tables as DataFrames."""
    from handshake.engines.spark.types import to_spark_types

    return {name: session.createDataFrame(to_spark_types(table, name)) for name, table in given.items()}


def restore_rows(table: pa.Table, schema: pa.Schema) -> list[dict[str, Any]]:
    """Return rows with physical values of the declared types."""
    columns = [_back(table.column(f.name), f.type) for f in schema]
    return physical_rows(pa.Table.from_arrays(columns, schema=schema))


def _back(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us")).cast(kind) if pa.types.is_timestamp(kind) else column.cast(kind)


def many(strategy: st.SearchStrategy[Any], count: int) -> st.SearchStrategy[list[Any]]:
    """Draw `count` cases at once, which Spark runs in few jobs."""
    return st.lists(strategy, min_size=count, max_size=count)
