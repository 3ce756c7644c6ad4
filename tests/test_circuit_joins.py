# ruff: noqa: E501 - a query is easier to read in one line
"""Joins inside queries as circuits: against the oracle and the in-process engine, held back at will."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from circuits import patterns, physical
from handshake.circuit.bounds import Bounds
from handshake.circuit.compiler import Compiled, compile_plan
from handshake.circuit.rules import RULES
from handshake.circuit.simulate import Simulation
from handshake.errors import UnsupportedError
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query
from query_streams import arrivals
from test_circuit_queries import bounds_of, check_run, feeds_of

TWO = """CREATE INPUT STREAM R (k int8, v int8, g string(4), t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int8, w int8, b bool, t timestamp(3)) TIMESTAMP BY t;"""
MUX = """CREATE INPUT STREAM Mux (kind int8, a int8, b int8, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM A (kind int8, a int8, t timestamp(3)) FROM Mux WHERE kind IN (1, 2) TIMESTAMP BY t;
CREATE INPUT STREAM B (kind int8, b int8, t timestamp(3)) FROM Mux WHERE kind IN (2, -3) TIMESTAMP BY t;"""
TUPLES = {
    "equality": TWO + "SELECT R.k, v - w AS d FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES] WHERE R.k = S.k INTO o",
    "band": TWO + "SELECT R.*, w FROM R [SIZE 6 TUPLES], S [SIZE 5 TUPLES] WHERE v BETWEEN w - 2 AND w + 2 AND b INTO o",
    "everything": TWO + "SELECT v, w FROM R [SIZE 2 TUPLES], S [SIZE 3 TUPLES] WHERE v > 0 OR w < 100 INTO o",
    "below": TWO + """SELECT x.n, y.w * 2 AS m FROM (SELECT k + 1 AS n, v FROM R WHERE v > -2) x [SIZE 5 TUPLES],
        (SELECT w, k FROM S WHERE w <> 0) y [SIZE 3 TUPLES] WHERE x.n > y.k INTO o""",
    "above": TWO + """SELECT v + w AS s, g FROM R [SIZE 3 TUPLES], S [SIZE 4 TUPLES] WHERE R.k = S.k INTO p;
        SELECT s FROM p WHERE s > 0 UNION SELECT v FROM R WHERE v < 0 INTO q""",
    "self": TWO + "SELECT a.v, b.v AS u FROM R [SIZE 4 TUPLES] a, R [SIZE 3 TUPLES] b WHERE a.k = b.k INTO o",
    "carried": MUX + "SELECT a, b FROM A [SIZE 3 TUPLES], B [SIZE 3 TUPLES] WHERE a <= b INTO o",
    "union below": TWO + """SELECT x.z, R.k FROM (SELECT w AS z, k FROM S UNION SELECT kind, a FROM Mux) x [SIZE 4 TUPLES], R [SIZE 3 TUPLES]
        WHERE x.k <= R.k INTO o; CREATE INPUT STREAM Mux (kind int8, a int8, t timestamp(3)) TIMESTAMP BY t""",
}
WINDOWED = {
    "counted": TWO + """SELECT sum(d) AS s, count() AS n, wsum(d, [2, -1]) AS z FROM (SELECT v - w AS d FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES]
        WHERE R.k <= S.k) [SIZE 3 ADVANCE 2 TUPLES] INTO o""",
    "counted self": TWO + "SELECT sum(d) AS s, window_start() AS z FROM (SELECT a.v - b.v AS d FROM R [SIZE 4 TUPLES] a, R [SIZE 3 TUPLES] b WHERE a.k <= b.k) [SIZE 2 ADVANCE 1 TUPLES] INTO o",
    "grouped": TWO + "SELECT b, max(v) AS m FROM (SELECT v, b FROM R [SIZE 3 TUPLES], S [SIZE 5 TUPLES] WHERE R.k >= S.k) [SIZE 4 ADVANCE 3 TUPLES] GROUP BY b INTO o",
}
BY_TIME = {
    "band": TWO + "SELECT R.k, v, w FROM R [SIZE .008 TIME], S [SIZE .005 TIME] WHERE v BETWEEN w - 10 AND w + 10 INTO o",
    "mixed": TWO + "SELECT a.v, b.w FROM R [SIZE .01 TIME] AS a JOIN S [SIZE 3 TUPLES] b ON a.v > b.w INTO o",
    "self": TWO + "SELECT a.v, b.v AS u FROM R [SIZE .01 TIME] a, R [SIZE .004 TIME] b WHERE a.k = b.k AND a.v < b.v INTO o",
    "windowed": TWO + """SELECT count() AS n, max(d) AS m FROM (SELECT v - w AS d FROM R [SIZE .01 TIME], S [SIZE .01 TIME]
        WHERE R.k <= S.k) [SIZE .01 ADVANCE .005 TIME] INTO o""",
    "tuples by time": TWO + """SELECT count() AS n, sum(d) AS m FROM (SELECT v - w AS d FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES]
        WHERE R.k <= S.k) [SIZE .006 ADVANCE .003 TIME] INTO o""",
}  # fmt: skip
FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))


@lru_cache(maxsize=8)
def simulation(text: str, optimised: bool, **changes: Any) -> tuple[Plan, Compiled, Simulation]:
    plan = parse_query(text)
    bounds = Bounds(**{**vars(bounds_of(plan)), **changes})
    compiled = compile_plan(plan, bounds, without=() if optimised else tuple(RULES))
    return plan, compiled, Simulation(compiled.circuit())


def check(text: str, data: st.DataObject, optimised: bool, *, sorted_times: bool = False, **changes: Any) -> None:
    plan, compiled, ready_made = simulation(text, optimised, **changes)
    items = physical(plan, data.draw(arrivals(plan, most=16, sorted_times=sorted_times)))
    wanted = query_oracle.run(plan, items)
    ready = {name: data.draw(patterns) for name in compiled.outputs}
    run = ready_made.run(feeds_of(compiled, items, data.draw), ready=ready)
    check_run(plan, compiled, run, wanted)


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("name", TUPLES)
@FEW
@given(data=st.data())
def test_joins_of_tuple_windows(name: str, optimised: bool, data: st.DataObject) -> None:
    check(TUPLES[name], data, optimised, cores=2)


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("name", TUPLES)
@FEW
@given(data=st.data())
def test_joins_in_order(name: str, cores: int, data: st.DataObject) -> None:
    check(TUPLES[name], data, True, join="ordered", cores=cores)


@pytest.mark.parametrize("name", WINDOWED)
@FEW
@given(data=st.data())
def test_windows_over_joins(name: str, data: st.DataObject) -> None:
    check(WINDOWED[name], data, True, cores=2)


@pytest.mark.parametrize("name", BY_TIME)
@FEW
@given(data=st.data())
def test_joins_of_time_windows(name: str, data: st.DataObject) -> None:
    check(BY_TIME[name], data, True, sorted_times=True, cores=3, window_tuples=16)
