"""The in-process engine against the oracle: the paper's queries, windows, aggregates, unions, joins."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.plan.query import parse_query
from handshake.queries import Query
from query_cases import JOINS, PAPER, QUERIES, TRADES, TWO
from query_streams import arrivals, compare, cuts, results, seen

FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
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
