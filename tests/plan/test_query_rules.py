"""Each rule of the optimiser, alone and together: the same results as the plan that it started from."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.operators.query import Query
from handshake.plan.algebra import (
    Aggregate,
    Apply,
    Concat,
    Node,
    Project,
    Select,
    Source,
    Union,
    Windowing,
    WindowJoin,
    walk,
)
from handshake.plan.explain import explain_plan
from handshake.plan.optimise import RULE_SETS, optimise
from handshake.plan.query import parse_query
from handshake.schema import INT64, Field, Schema
from query_streams import arrivals, as_physical, compare, cuts, results, results_together, slices

STREAMS = """CREATE INPUT STREAM R (k int8, v int, g string(4), t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int8, v int, g string(4), t timestamp(3)) TIMESTAMP BY t;"""


# Random plans: SELECTs on each other, made from parts.

_CONDITIONS = (
    "k > 0",
    "v + 1 > k * 2",
    "g = 'UBSN'",
    "k > 0 AND g <> 'CSGN'",
    "1 = 1",
    "1 + 1 = 3 OR v < 50",
    "v + 1 > 3 AND k * 2 < v + 1",
    "g IS NULL OR k = 1",
)
_WINDOWS = (
    "[SIZE .006 ADVANCE .003 TIME]",
    "[SIZE 3 ADVANCE 2 TUPLES]",
    "[SIZE .005 ADVANCE .002 TIME]",
    "[SESSION 2 ms]",
    "[HOP 2 ms SIZE 5 ms OFFSET FIRST]",
    "[CUMULATE 2 ms SIZE 6 ms OFFSET 1 ms]",
    "[SIZE 3 ROWS PARTIAL]",
)
_PLAIN = "SELECT k, v + {n} AS v, g FROM {a}{where}"
_GROUPED = "SELECT k, max(v) AS v, min(g) AS g FROM {a} {window}{where} GROUP BY k"
_COUNTED = "SELECT count() AS k, CAST(sum(v + 1) AS BIGINT) AS v, max(g) AS g FROM {a} {window}{where}"
_BY_TEXT = """SELECT count(k) AS k, CAST(sum(v + 1) + max(v + 1) AS BIGINT) AS v, g
    FROM {a} {window}{where} GROUP BY g"""
_UNION = "SELECT k, v, g FROM {a} UNION SELECT k, v - 1, g FROM {b}{where} UNION SELECT v, k, g FROM R"
_JOIN = """SELECT x.k, y.v, x.g FROM {a} [SIZE {n} TIME] x, {b} {held} y
    WHERE x.k <= y.k AND y.v > {n} AND x.g > ''"""
_OUTER = """SELECT x.k, y.v, x.g FROM {a} [SIZE .00{n} TIME] x {kind} JOIN {b} {held} y
    ON x.k <= y.k AND y.v > {n} AND x.g > ''{where}"""
_ONE_SIDED = """SELECT x.k, x.v, x.g FROM {a} {held} x LEFT {one} JOIN {b} [SIZE .00{n} TIME] y
    ON x.k <= y.k AND y.v > {n} AND x.g > ''{where}"""
_AS_OF = """SELECT x.k, y.v, x.g FROM R [SIZE .00{n} TIME] x {how}ASOF JOIN S [SIZE .003 TIME] y
    MATCH_CONDITION (x.t {match} y.t) ON x.k = y.k AND y.v > {n} AND x.g > ''{where}"""
_FORMS = (_PLAIN, _GROUPED, _COUNTED, _BY_TEXT, _UNION)
_JOINS = (_JOIN, _OUTER, _OUTER, _ONE_SIDED, _AS_OF)
_HELD = ("[SIZE .004 TIME]", "[SIZE 2 TUPLES]")


_WHERE = ("", *(f" WHERE {c}" for c in _CONDITIONS))
_WHERES = {
    _OUTER: ("", " WHERE x.k > 0", " WHERE y.v > 3 OR y.v IS NULL", " WHERE x.k IS NULL", " WHERE x.k < y.v"),
    _AS_OF: ("", " WHERE x.k > 0", " WHERE y.v > 3", " WHERE y.v IS NULL", " WHERE x.k < y.v AND x.v > 1"),
    _ONE_SIDED: ("", " WHERE x.k > 0", " WHERE x.v IS NULL OR x.k = 1"),
}
"""Conditions of joins that are not inner joins: on each side, and on both."""


@st.composite
def texts(draw: Any, joins: bool) -> str:
    """Draw several statements that feed each other."""
    streams = ["R", "S"]
    parts = [STREAMS]
    for at in range(draw(st.integers(1, 3))):
        form = draw(st.sampled_from((*_FORMS, *_JOINS) if joins else _FORMS))
        text = form.format(
            a=draw(st.sampled_from(streams)),
            b=draw(st.sampled_from(streams)),
            n=draw(st.integers(1, 2)),
            window=draw(st.sampled_from(_WINDOWS)),
            held=draw(st.sampled_from(_HELD)),
            kind=draw(st.sampled_from(("LEFT", "RIGHT", "FULL"))),
            one=draw(st.sampled_from(("SEMI", "ANTI"))),
            how=draw(st.sampled_from(("", "LEFT "))),
            match=draw(st.sampled_from((">=", ">", "<=", "<"))),
            where=draw(st.sampled_from(_WHERES.get(form, _WHERE))),
        )
        if draw(st.booleans()):
            text = f"SELECT k, v, g FROM ({text}) WHERE {draw(st.sampled_from(_CONDITIONS))}"
        parts.append(f"{text} INTO Z{at};")
        streams.append(f"Z{at}")
    return "\n".join(parts)


QUICK = settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))


def equivalent(data: st.DataObject, rules: Any, joins: bool) -> None:
    """Check that a rewritten plan gives what the oracle gives for the original plan."""
    plan = parse_query(data.draw(texts(joins)))
    items = data.draw(arrivals(plan, most=20))
    wanted = query_oracle.run(plan, as_physical(Query(plan), items))
    rewritten = optimise(plan, rules)
    assert [o.schema for o in rewritten.outputs] == [o.schema for o in plan.outputs]
    query = Query(rewritten, optimised=False)
    if data.draw(st.booleans()):
        compare(results(query, cuts(data.draw, items)), wanted)
    else:
        compare(results_together(query, slices(data.draw, items)), wanted)


@pytest.mark.parametrize("rule", RULE_SETS["local"], ids=lambda rule: rule.__name__)
@QUICK
@given(data=st.data())
def test_each_rule(rule: Any, data: st.DataObject) -> None:
    equivalent(data, (rule,), joins=False)


@QUICK
@given(data=st.data())
def test_all_rules(data: st.DataObject) -> None:
    equivalent(data, "local", joins=True)


@pytest.mark.soak
@LONG
@given(data=st.data())
def test_all_rules_at_length(data: st.DataObject) -> None:
    rules = RULE_SETS["local"]
    equivalent(data, data.draw(st.sampled_from([rules, *((rule,) for rule in rules)])), joins=True)


# What each rule is there for.


def one(text: str, *names: str) -> Any:
    """Return the first result of a plan under the rules of these names."""
    plan = parse_query(STREAMS + text)
    return optimise(plan, tuple(rule for rule in RULE_SETS["local"] if rule.__name__ in names)).outputs[0]


def kinds(node: Any) -> list[str]:
    return [type(n).__name__ for n in walk(node)]


def test_constants_are_folded() -> None:
    node = one("SELECT v FROM (SELECT v, 1 AS one FROM R) WHERE one = 1", "fold_constants")
    assert "Select" not in kinds(node)


def test_filters_go_below_unions_windows_and_joins() -> None:
    union = one("SELECT v FROM (SELECT v FROM R UNION SELECT k FROM S) WHERE v > 0", "push_down_filters")
    assert all("Select" in kinds(branch) for n in walk(union) if isinstance(n, Union) for branch in n.inputs)
    window = one(
        "SELECT g, n FROM (SELECT g, count() AS n FROM R [SIZE 1 TIME] GROUP BY g) WHERE g = 'x'",
        "push_down_filters",
    )
    inner = next(n for n in walk(window) if isinstance(n, Windowing))
    assert "Select" in kinds(inner.input)
    assert "Select" not in kinds(inner.body)
    join = one(
        "SELECT x.v FROM R [SIZE 1 TIME] x, S [SIZE 1 TIME] y WHERE x.k = y.k AND x.v > 1",
        "push_down_filters",
    )
    inner = next(n for n in walk(join) if isinstance(n, WindowJoin))
    assert "Select" in kinds(inner.inputs[0])
    assert "Select" not in kinds(inner.inputs[1])


def test_filters_stay_above_what_counts_tuples() -> None:
    window = one("SELECT g, count() AS n FROM R [SIZE 3 TUPLES] WHERE k > 0 GROUP BY g", "push_down_filters")
    assert "Select" not in kinds(next(n for n in walk(window) if isinstance(n, Windowing)).input)
    count = one("SELECT count() AS n FROM R [SIZE 1 TIME] WHERE k > 0", "push_down_filters")
    assert "Select" not in kinds(next(n for n in walk(count) if isinstance(n, Windowing)).input)
    join = one(
        "SELECT x.v FROM R [SIZE 3 TUPLES] x, S [SIZE 1 TIME] y WHERE x.k = y.k AND x.v > 1",
        "push_down_filters",
    )
    assert "Select" not in kinds(join)


_KINDS = ("LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI", "RIGHT SEMI", "RIGHT ANTI")


def filtered_sides(kind: str, on: str, where: str = "TRUE", held: str = "[SIZE 1 TIME]") -> tuple[bool, bool]:
    """Return whether there are selections below the left and below the right side of a join."""
    text = f"SELECT * FROM R {held} x {kind} JOIN S {held} y ON x.k = y.k AND {on} WHERE {where}"
    join = next(n for n in walk(one(text, "push_down_filters")) if isinstance(n, WindowJoin))
    return "Select" in kinds(join.inputs[0]), "Select" in kinds(join.inputs[1])


def test_right_rows_of_an_as_of_join_are_filtered_by_on_alone() -> None:
    text = """SELECT y.k FROM R x {how} ASOF JOIN S [SIZE 1 TIME] y MATCH_CONDITION (x.t >= y.t)
        ON x.k = y.k AND x.v > 1 AND y.v > 1 WHERE {where}"""
    found = {}
    for how in ("INNER", "LEFT"):
        for where in ("TRUE", "x.v > 2", "y.k > 2"):
            plan = one(text.format(how=how, where=where), "push_down_filters", "push_down_projections")
            join = next(n for n in walk(plan) if isinstance(n, WindowJoin))
            found[how, where] = tuple(kinds(side).count("Select") for side in join.inputs)
            assert join.inputs[1].schema.names == ("k", "v", "g", "t")  # they decide ties
    assert found == {
        ("INNER", "TRUE"): (1, 1), ("INNER", "x.v > 2"): (2, 1), ("INNER", "y.k > 2"): (1, 1),
        ("LEFT", "TRUE"): (0, 1), ("LEFT", "x.v > 2"): (1, 1), ("LEFT", "y.k > 2"): (0, 1),
    }  # fmt: skip


def test_conditions_of_on_stay_above_preserved_rows() -> None:
    both = {kind: filtered_sides(kind, "x.v > 1 AND y.v > 1") for kind in _KINDS}
    assert both == {
        "LEFT": (False, True), "RIGHT": (True, False), "FULL": (False, False), "LEFT SEMI": (True, True),
        "LEFT ANTI": (False, True), "RIGHT SEMI": (True, True), "RIGHT ANTI": (True, False),
    }  # fmt: skip
    assert filtered_sides("LEFT", "y.v > 1", held="[SIZE 2 TUPLES]") == (False, False)


def test_conditions_of_where_stay_above_rows_that_may_be_null() -> None:
    left = {kind: filtered_sides(kind, "TRUE", "x.v > 1") for kind in _KINDS if not kind.startswith("RIGHT ")}
    right = {kind: filtered_sides(kind, "TRUE", "y.v > 1") for kind in _KINDS if not kind.startswith("LEFT ")}
    none = (False, False)
    assert left == {
        "LEFT": (True, False), "RIGHT": none, "FULL": none, "LEFT SEMI": (True, False),
        "LEFT ANTI": (True, False),
    }  # fmt: skip
    assert right == {
        "LEFT": none, "RIGHT": (False, True), "FULL": none, "RIGHT SEMI": (False, True),
        "RIGHT ANTI": (False, True),
    }  # fmt: skip
    assert filtered_sides("LEFT", "TRUE", "x.v > y.v") == none
    assert filtered_sides("LEFT", "TRUE", "x.v > 1", held="[SIZE 2 TUPLES]") == none


def test_columns_that_nobody_reads_go() -> None:
    node = one("SELECT max(v) AS v FROM R [SIZE 1 TIME]", "push_down_projections")
    inner = next(n for n in walk(node) if isinstance(n, Windowing))
    assert inner.input.schema.names == ("v",)
    assert isinstance(inner.input, Project)


def test_what_was_computed_is_not_computed_again() -> None:
    node = one("SELECT v + 1 AS a, (v + 1) * 2 AS b FROM R WHERE v + 1 > 3", "share_expressions")
    operations = [n.operation for n in walk(node) if isinstance(n, Apply)]
    assert len(operations) == len(set(operations)) == 3


def test_unions_are_flat() -> None:
    node = one("SELECT k FROM R UNION SELECT k FROM S UNION SELECT k FROM R", "flatten_unions")
    assert [len(n.inputs) for n in walk(node) if isinstance(n, Union)] == [3]


def test_panes_are_as_long_as_windows_allow() -> None:
    node = one("SELECT max(v) AS v FROM R [SIZE 10 ADVANCE 4 TIME]", "use_panes")
    assert next(n for n in walk(node) if isinstance(n, Windowing)).pane == 2 * 10**9
    holistic = one("SELECT median(v) AS v FROM R [SIZE 10 ADVANCE 4 TIME]", "use_panes")
    assert next(n for n in walk(holistic) if isinstance(n, Windowing)).pane is None


def test_the_paper_s_first_query_is_left_as_it_is() -> None:
    plan = parse_query(STREAMS + "SELECT v FROM R WHERE g = 'UBSN' INTO Q")
    assert explain_plan(optimise(plan)) == explain_plan(plan)
    assert any(isinstance(n, Select) for n in walk(plan.outputs[0]))


def test_the_columns_of_a_node_below_many_others_are_asked_for_once() -> None:
    asked: list[int] = []

    class Counted(Source):
        @property
        def schema(self) -> Schema:
            asked.append(1)
            return super().schema

    node: Node = Counted("s", Schema((Field("a", INT64),), "s"))
    for _ in range(12):  # twice for each would be 4,096 times
        node = Project(node, (("a", "a"),))
    assert Concat((Aggregate(node, "m", "max", ("a",)),)).schema.names == ("m",)
    assert len(asked) == 1
