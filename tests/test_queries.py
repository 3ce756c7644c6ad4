"""The in-process engine against the oracle: the paper's queries, windows, aggregates, unions, joins."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.errors import HandshakeError, InputError
from handshake.plan.query import parse_query
from handshake.queries import Query, panes
from handshake.queries.windows import WindowOperator
from query_cases import JOINS, ODD, ODD_JOINS, PAPER, QUERIES, TRADES, TWO
from query_streams import arrivals, compare, cuts, results, seen

FEW = settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))


def check(text: str, data: st.DataObject, **options: Any) -> None:
    """Both plans, cut in any way, give what the oracle gives, and count what it counts."""
    plan = parse_query(text)
    items = data.draw(arrivals(plan, **options))
    batches = cuts(data.draw, items)
    counts = query_oracle.Counts()
    wanted = query_oracle.run(plan, seen(Query(plan), items), counts)
    for optimised in (True, False):
        query = Query(plan, optimised=optimised)
        compare(results(query, batches), wanted)
        if not any(word in text for word in ("JOIN", "R [")) and optimised is False:
            assert (query.metrics().late, query.metrics().no_time) == (counts.late, counts.no_time)


@pytest.mark.parametrize("name", PAPER)
@FEW
@given(data=st.data())
def test_paper(name: str, data: st.DataObject) -> None:
    check(TRADES + PAPER[name], data, step=90)


@pytest.mark.parametrize("name", QUERIES)
@FEW
@given(data=st.data())
def test_queries(name: str, data: st.DataObject) -> None:
    check("".join(QUERIES[name]), data)


@pytest.mark.parametrize("name", JOINS)
@FEW
@given(data=st.data())
def test_joins(name: str, data: st.DataObject) -> None:
    check(TWO + JOINS[name], data, most=16, sorted_times=True)


@pytest.mark.parametrize("name", ["uneven", "keys", "extremes"])
@FEW
@given(data=st.data())
def test_groups_are_forgotten(name: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panes, "_MANY_GROUPS", 2)
        check("".join(QUERIES[name]), data, most=40)


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
@pytest.mark.parametrize("name", [*PAPER, *QUERIES, *JOINS])
@MANY
@given(data=st.data())
def test_all_at_length(name: str, data: st.DataObject) -> None:
    if name in QUERIES:
        check("".join(QUERIES[name]), data, most=80)
    elif name in PAPER:
        check(TRADES + PAPER[name], data, most=80, step=90)
    else:
        check(TWO + JOINS[name], data, most=40, sorted_times=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*ODD, *ODD_JOINS])
@settings(MANY, max_examples=300)
@given(data=st.data())
def test_odd_ones_at_length(name: str, data: st.DataObject) -> None:
    if name in ODD:
        check(ODD[name], data, most=40)
    else:
        check(ODD_JOINS[name], data, most=16, sorted_times=True)
