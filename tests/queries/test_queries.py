"""Back ends against the oracle: the paper's queries, windows, aggregates, unions, joins."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.errors import HandshakeError, InputError
from handshake.operators import panes
from handshake.operators.query import Query
from handshake.operators.windows import WindowOperator
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query
from query_backends import Backend, Local, Spark, check, many
from query_cases import JOINS, LAYERED, ODD, ODD_JOINS, PAPER, QUERIES, TRADES, TWO
from query_streams import Item, arrivals

FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
CASES = 3
"""Streams of an example: on Spark, all of them are one job."""
ON_SPARK = (*PAPER, "uneven", "lateness", "cascade", "union", "carried", "computed keys", "weighted",
            "holistic", "spreads", "picks", *JOINS, "of a join", "ahead", "three by tuples")  # fmt: skip


def prove(backend: Backend, text: str, data: st.DataObject, count: int = CASES, **options: Any) -> None:
    """Check that a back end gives what the oracle gives for any streams."""
    plan = parse_query(text)
    check(backend, plan, data.draw(many(arrivals(plan, **options), count)), data.draw)


@pytest.mark.parametrize("name", [*PAPER, *QUERIES, *JOINS, *LAYERED])
@FEW
@given(data=st.data())
def test_queries(name: str, data: st.DataObject) -> None:
    text, options = query_named(name)
    prove(Local(), text, data, **options)


@pytest.mark.parametrize("name", ON_SPARK)
def test_queries_on_spark(spark: Any, name: str) -> None:
    text, options = query_named(name)
    plan = parse_query(text)
    check(Spark(spark), plan, examples(plan, CASES, **options), None)


def query_named(name: str) -> tuple[str, dict[str, Any]]:
    """Return a query, and options for the strategy of its streams."""
    if name in QUERIES:
        return "".join(QUERIES[name]), {}
    if name in PAPER:
        return TRADES + PAPER[name], {"step": 90}
    return TWO + {**JOINS, **LAYERED}[name], {"most": 16}


def examples(plan: Plan, count: int, **options: Any) -> list[list[Item]]:
    """Return streams with tuples, the same in every run; one job on Spark takes them all."""
    found: list[list[Item]] = []

    @settings(FEW, max_examples=count, database=None, derandomize=True)
    @given(items=arrivals(plan, **options).filter(bool))
    def gather(items: list[Item]) -> None:
        found.append(items)

    gather()
    return found


@pytest.mark.parametrize("name", ["uneven", "keys", "extremes"])
@FEW
@given(data=st.data())
def test_groups_are_forgotten(name: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "_MANY_GROUPS", 2)
        prove(Local(), "".join(QUERIES[name]), data, most=40)


def test_what_is_kept_does_not_grow() -> None:
    text = "SELECT l, max(i) AS m, count() AS n FROM S [SIZE .01 ADVANCE .005 TIME] GROUP BY l INTO Z"
    query = Query(QUERIES["sums"][0] + text)
    plain = {f.name: pa.nulls(1000, f.type) for f in query.input_schema("S")}
    for turn in range(20):
        numbers = pa.array(range(1000 * turn, 1000 * turn + 1000))
        query.push("S", {**plain, "l": numbers, "t": numbers.cast(pa.timestamp("ms"))})
    operator = next(op for op, _ in query._steps if isinstance(op, WindowOperator))
    assert isinstance(operator._store, panes.Panes)
    assert len(operator._store._index) < 10_000
    assert sum(map(len, operator._store._inside)) < 3_000
    rows = query.finish()["Z"]
    assert query.metrics().results["Z"] >= 40_000 > sum(batch.num_rows for batch in rows)


def test_a_finished_query_takes_no_more() -> None:
    query = Query(TRADES + PAPER["Q1"])
    assert query.finish() == {"UBSTrades": []}
    with pytest.raises(HandshakeError, match="this query has ended; make a new one to push more tuples"):
        query.push("Trades", [])


def test_unknown_inputs() -> None:
    query = Query("".join(QUERIES["carried"]))
    with pytest.raises(InputError, match=r"no input 'Mx' \(Mux\); did you mean 'Mux'\?"):
        query.push("Mx", [])
    with pytest.raises(InputError, match="stream 'A' comes with Mux; push its tuples there"):
        query.push("A", [])


def test_tuples_of_no_stream_are_counted() -> None:
    query = Query("".join(QUERIES["carried"]))
    query.push("Mux", {"kind": [1, 2, 5, None], "a": [1, 2, 3, 4], "b": [1, 2, 3, 4], "t": [0, 0, 0, 0]})
    query.finish()
    assert query.metrics().unknown == 2
    assert query.metrics().results == {"X": 2, "Y": 1, "Z": 1}


def test_streams_without_a_time_go_by_arrival() -> None:
    clock = iter([60_000_000_000, 61_000_000_000, 700_000_000_000])
    declared = "CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int);"
    query = Query(declared + PAPER["Q3"], now=lambda: next(clock))
    trade = {"Seqnr": [1], "Symbol": ["UBSN"], "Price": [1], "Volume": [1]}
    found = [query.push("Trades", trade)["NumUBSTrades"] for _ in range(3)]
    assert [sum(batch.num_rows for batch in batches) for batches in found] == [0, 0, 10]
    assert found[2][0].column(0).to_pylist() == [2] * 10


@pytest.mark.soak
@pytest.mark.parametrize("name", [*PAPER, *QUERIES, *JOINS, *LAYERED])
@MANY
@given(data=st.data())
def test_all_at_length(name: str, data: st.DataObject) -> None:
    text, options = at_length(name)
    prove(Local(), text, data, count=1, **options)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*PAPER, *QUERIES, *JOINS, *LAYERED])
@settings(MANY, max_examples=4)
@given(data=st.data())
def test_all_on_spark(spark: Any, name: str, data: st.DataObject) -> None:
    text, options = at_length(name)
    prove(Spark(spark), text, data, count=8, **options)


def at_length(name: str) -> tuple[str, dict[str, Any]]:
    """Return a query, and longer streams for it."""
    text, options = query_named(name)
    return text, {**options, "most": 80 if name in {*QUERIES, *PAPER} else 40}


@pytest.mark.soak
@pytest.mark.parametrize("name", [*ODD, *ODD_JOINS])
@settings(MANY, max_examples=300)
@given(data=st.data())
def test_odd_ones_at_length(name: str, data: st.DataObject) -> None:
    if name in ODD:
        prove(Local(), ODD[name], data, count=1, most=40)
    else:
        prove(Local(), ODD_JOINS[name], data, count=1, most=16)
