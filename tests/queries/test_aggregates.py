# ruff: noqa: E501 - a query is easier to read in one line
"""Aggregates against the oracle: every function with FILTER, DISTINCT and ORDER BY, in windows of all kinds."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from aggregate_calls import EVERY, MEASURES, batches, query, rows
from handshake import Query
from handshake.errors import QueryError
from handshake.plan.aggregates import AGGREGATES
from handshake.plan.algebra import Aggregate, Windowing, walk
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from query_backends import Local, check, many, plain
from query_cases import TWO
from query_streams import arrivals, as_physical
from query_streams import results as results_of

FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))


def prove(text: str, data: st.DataObject, count: int = 1, most: int = 16) -> None:
    plan = parse_query(text)
    check(Local(), plan, data.draw(many(arrivals(plan, most=most), count)), data.draw)


def prove_random(seed: str, most: int) -> None:
    """Run a random query on random rows, as parsed and optimised."""
    random = Random(seed)
    text, given = query(random), rows(random, most)
    print(text)
    plan = parse_query(text)
    wanted = query_oracle.run(plan, as_physical(Query(plan), [("M", row) for row in given]))
    for optimised in (True, False):
        cut = [[("M", row) for row in batch] for batch in batches(random, given) if batch]
        assert plain(results_of(Query(plan, optimised=optimised), cut), True) == plain(wanted, True)


@pytest.mark.parametrize("seed", range(10))
def test_any_aggregates(seed: int) -> None:
    for turn in range(10):
        prove_random(f"{seed} {turn}", 16)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_any_aggregates_at_length(seed: int) -> None:
    for turn in range(100):
        prove_random(f"long {seed} {turn}", 40)


@pytest.mark.parametrize("window", ["[SIZE .007 ADVANCE .003 TIME]", "[SIZE 5 ADVANCE 2 TUPLES]"])
@pytest.mark.parametrize("listed", EVERY)
@FEW
@given(data=st.data())
def test_every_aggregate(window: str, listed: str, data: st.DataObject) -> None:
    prove(f"{MEASURES} SELECT {listed} FROM M {window} GROUP BY h", data, most=24)


def test_every_aggregate_is_covered() -> None:
    plans = [parse_query(f"{MEASURES} SELECT {listed} FROM M [SIZE 3 TUPLES]") for listed in EVERY]
    found = {n.function for p in plans for n in walk(p.outputs[0]) if isinstance(n, Aggregate)}
    assert found | {"window_start", "window_end"} == set(AGGREGATES)


OVER_A_JOIN = """SELECT {} FROM (SELECT R.k, v, w FROM R [SIZE .008 TIME], S [SIZE .005 TIME] WHERE R.k <= S.k)
[SIZE .01 ADVANCE .005 TIME]"""


@pytest.mark.parametrize("listed", [
    "stddev(v) a, count(DISTINCT k) b, any(v > w) c, percentile(w, .5) d",
    "first(v) a, last(w ORDER BY v) b, max_by(v, w) c, collect_list(w) FILTER (WHERE v > 0) d",
])  # fmt: skip
@FEW
@given(data=st.data())
def test_aggregates_over_a_join(listed: str, data: st.DataObject) -> None:
    prove(TWO + OVER_A_JOIN.format(listed), data)


# Panes.


@pytest.mark.parametrize(
    ("call", "algebraic"),
    [
        *((call, True) for call in ("stddev(i)", "any(b)", "first(i)", "last(i ORDER BY g)", "max_by(i, g)", "sum(i) FILTER (WHERE b)", "max(DISTINCT i)", "count(i, b)", "count_if(b)")),
        *((call, False) for call in ("count(DISTINCT i)", "percentile(i, .5)", "collect_list(i)", "string_agg(g)")),
    ],
)  # fmt: skip
def test_algebraic_aggregates_use_panes(call: str, algebraic: bool) -> None:
    plan = optimise(parse_query(f"{MEASURES} SELECT {call} AS a FROM M [SIZE .01 ADVANCE .005 TIME]"))
    (window,) = (node for node in walk(plan.outputs[0]) if isinstance(node, Windowing))
    assert (window.pane is not None) == algebraic


# Exactness.


def results(
    listed: str, rows: list[dict[str, Any]], batch: int, types: str = "x double"
) -> list[dict[str, Any]]:
    text = f"CREATE INPUT STREAM R ({types}, t timestamp(0)) TIMESTAMP BY t LATENESS 100; SELECT {listed} FROM R [SIZE 4 ADVANCE 2 TIME] INTO Q"
    with Query(text) as query:
        batches = [
            b for at in range(0, len(rows), batch) for b in query.push("R", rows[at : at + batch])["Q"]
        ]
        batches += query.finish()["Q"]
    return [row for each in batches for row in each.to_pylist()]


def test_variances_are_exact_in_any_order_and_any_batches() -> None:
    values = [1e16, 1.0, -1e16, 3.0, 1e-300, 1e200, -1e200, 5e-324]
    rows = [{"x": x, "t": at // 4} for at, x in enumerate(values)]
    listed = "var_pop(x) AS a, stddev(x) AS b, variance(x) AS c"
    ways = [
        results(listed, order, batch)
        for order in (rows, rows[::-1], rows[4:] + rows[:4])
        for batch in (1, 3, 8)
    ]
    assert all(way == ways[0] for way in ways)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([1e155, -1e155], (math.inf, 1.414213562373095e155)),
        ([5e-324, 0.0], (0.0, 5e-324)),
        ([2.0], (None, None)),
        ([math.inf, 1.0], (math.nan, math.nan)),
        ([math.inf], (None, None)),
        ([2.0, 2.0, 2.0], (0.0, 0.0)),
        ([0.1, 0.1, 0.1], (0.0, 0.0)),
    ],
)
def test_variances_at_the_ends(values: list[float], wanted: tuple[float | None, float | None]) -> None:
    (row, *_) = results("variance(x) AS a, stddev(x) AS b", [{"x": x, "t": 0} for x in values], 2)
    assert str((row["a"], row["b"])) == str(wanted)


def test_the_sign_of_zero_stays() -> None:
    for text in ("first(x) AS a", "first(x) AS a, count(DISTINCT x) AS b"):
        (row, *_) = results(text, [{"x": -0.0, "t": 0}], 1)
        assert math.copysign(1, row["a"]) == -1


# Errors.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("kurtosis(i)", r"no aggregate function kurtosis\(\); there are count, count_if, sum, avg"),
        ("stdev(i)", r"no aggregate function stdev\(\); did you mean 'stddev'\?"),
        ("corr(i, l)", r"no aggregate function corr\(\)"),
        ("sum(i) OVER (PARTITION BY g)", "OVER has no meaning here; the window of an aggregate is that of its stream"),
        ("abs(i) FILTER (WHERE b)", r"'ABS\(i\)' is no aggregate; FILTER, WITHIN GROUP and IGNORE NULLS follow an aggregate"),
        ("first(DISTINCT i)", r"first\(\) takes no DISTINCT"),
        ("wsum(DISTINCT i, [1])", r"wsum\(\) takes no DISTINCT"),
        ("sum(i ORDER BY t)", r"sum\(\) takes no ORDER BY"),
        ("sum(i) IGNORE NULLS", r"sum\(\) takes no IGNORE NULLS; it ignores NULL anyway"),
        ("window_start() FILTER (WHERE b)", r"window_start\(\) takes no FILTER"),
        ("max_by(i)", r"max_by\(\) takes two arguments"),
        ("max(i, l)", r"max\(\) takes one argument"),
        ("count(DISTINCT *)", r"count\(\) takes columns or \*"),
        ("count(DISTINCT)", "."),
        ("percentile(i)", r"percentile\(\) takes a column and a constant fraction, as in percentile\(Price, .25\)"),
        ("percentile(i, l)", "a fraction is a number such as .25, not 'l'"),
        ("percentile(i, 1.5)", "a fraction lies between 0 and 1, which 1.5 does not"),
        ("percentile(g, .5)", r"percentile\(\) takes numbers, not string"),
        ("percentile_cont(.5)", r"percentile_cont\(\) takes a fraction and one column, as in percentile_cont\(.25\) WITHIN"),
        ("percentile_disc(.5) WITHIN GROUP (ORDER BY i, l)", r"percentile_disc\(\) takes a fraction and one column"),
        ("percentile_cont(1.5) WITHIN GROUP (ORDER BY i)", "a fraction lies between 0 and 1, which 1.5 does not"),
        ("percentile_cont(DISTINCT .5) WITHIN GROUP (ORDER BY i)", r"percentile_cont\(\) takes no DISTINCT"),
        ("percentile_cont(.5) WITHIN GROUP (ORDER BY g)", r"percentile_cont\(\) takes numbers, not string"),
        ("approx_percentile(i, .5, 0)", "an accuracy is a whole number, not 0"),
        ("string_agg(i)", r"string_agg\(\) takes text, not int8; cast it"),
        ("string_agg(g, i)", r"string_agg\(\) takes text and a constant that separates it"),
        ("any(i)", r"any\(\) takes conditions, not int8"),
        ("stddev(g)", r"stddev_samp\(\) takes numbers, not string"),
        ("sum(sum(i))", r"sum\(\) has no meaning here; aggregates stand in SELECT and HAVING"),
        ("sum(i) FILTER (WHERE sum(i) > 1)", r"sum\(\) has no meaning here"),
        ("sum(i) FILTER (WHERE l)", "must be true or false, but l is int64"),
        ("sum(i) FILTER (WHERE nothing)", "no field 'nothing' in M"),
    ],
)  # fmt: skip
def test_errors(call: str, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        parse_query(f"{MEASURES} SELECT {call} AS a FROM M [SIZE .01 ADVANCE .005 TIME]")


def test_errors_outside_of_a_window_and_a_list() -> None:
    with pytest.raises(QueryError, match=r"stddev_samp\(\) over M, which never ends; give it a window"):
        parse_query(f"{MEASURES} SELECT stddev(i) AS a FROM M")
    with pytest.raises(QueryError, match=r"first\(\) has no meaning here; aggregates stand in SELECT"):
        parse_query(f"{MEASURES} SELECT i FROM M WHERE first(i) > 1")


LISTS = f"{MEASURES} SELECT collect_list(i) AS c, count() AS n FROM M [SIZE 2 TUPLES] INTO L; "


@pytest.mark.parametrize(
    "text",
    ["SELECT c FROM L WHERE c = 1", "SELECT c + 1 AS a FROM L", "SELECT c, count() AS k FROM L [SIZE 2 TUPLES] GROUP BY c",
     "SELECT max(c) AS m FROM L [SIZE 2 TUPLES]", "SELECT count(DISTINCT c) AS m FROM L [SIZE 2 TUPLES]",
     "SELECT first(c) AS m FROM L [SIZE 2 TUPLES]", "SELECT last(n ORDER BY c) AS m FROM L [SIZE 2 TUPLES]", "SELECT collect_list(c) AS m FROM L [SIZE 2 TUPLES]",
     "SELECT CAST(c AS STRING) AS a FROM L", "SELECT upper(c) AS a FROM L", "SELECT CASE WHEN n > 1 THEN c END AS a FROM L", "SELECT coalesce(c, c) AS a FROM L"],
)  # fmt: skip
def test_lists_are_results_only(text: str) -> None:
    with pytest.raises(QueryError, match="list of int8"):
        parse_query(LISTS + text + " INTO Z")


def test_lists_pass_through_queries_and_windows() -> None:
    text = "SELECT c FROM L WHERE n > 1 INTO A; SELECT c FROM L [SIZE 2 ADVANCE 2 TUPLES] INTO B; SELECT count(c) AS k FROM L [SIZE 1 TUPLES] INTO C"
    with Query(LISTS + text) as query:
        rows = [{**dict.fromkeys("ghjludexfbyas"), "i": i, "t": i} for i in range(4)]
        found = query.push("M", rows)
    assert [row["c"] for batch in found["A"] for row in batch.to_pylist()] == [[0, 1], [1, 2], [2, 3]]
    assert [row["c"] for batch in found["B"] for row in batch.to_pylist()] == [[0, 1], [1, 2]]
    assert [row["k"] for batch in found["C"] for row in batch.to_pylist()] == [1, 1, 1]
