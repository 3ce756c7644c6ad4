# ruff: noqa: E501 - a query is easier to read in one line
"""Joins inside queries as circuits: against the oracle and the in-process engine, held back at will."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from circuit_queries import bounds_of, check_run, feeds_of
from circuits import patterns, physical, with_places
from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.host import run_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.rules import RULES
from handshake.engines.circuit.simulation.simulate import Simulation, feed
from handshake.errors import UnsupportedError
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query
from query_streams import arrivals, results

TWO = """CREATE INPUT STREAM R (k int8, v int8, g string(4), t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int8, w int8, b bool, t timestamp(3)) TIMESTAMP BY t;"""
MUX = """CREATE INPUT STREAM Mux (kind int8, a int8, b int8, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM A (kind int8, a int8, t timestamp(3)) FROM Mux WHERE kind IN (1, 2) TIMESTAMP BY t;
CREATE INPUT STREAM B (kind int8, b int8, t timestamp(3)) FROM Mux WHERE kind IN (2, -3) TIMESTAMP BY t;"""
TUPLES = {
    "equality": TWO
    + "SELECT R.k, v - w AS d FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES] WHERE R.k = S.k INTO o",
    "band": TWO
    + "SELECT R.*, w FROM R [SIZE 6 TUPLES], S [SIZE 5 TUPLES] WHERE v BETWEEN w - 2 AND w + 2 AND b INTO o",
    "everything": TWO + "SELECT v, w FROM R [SIZE 2 TUPLES], S [SIZE 3 TUPLES] WHERE v > 0 OR w < 100 INTO o",
    "below": TWO
    + """SELECT x.n, y.w * 2 AS m FROM (SELECT k + 1 AS n, v FROM R WHERE v > -2) x [SIZE 5 TUPLES],
        (SELECT w, k FROM S WHERE w <> 0) y [SIZE 3 TUPLES] WHERE x.n > y.k INTO o""",
    "above": TWO
    + """SELECT v + w AS s, g FROM R [SIZE 3 TUPLES], S [SIZE 4 TUPLES] WHERE R.k = S.k INTO p;
        SELECT s FROM p WHERE s > 0 UNION SELECT v FROM R WHERE v < 0 INTO q""",
    "self": TWO + "SELECT a.v, b.v AS u FROM R [SIZE 4 TUPLES] a, R [SIZE 3 TUPLES] b WHERE a.k = b.k INTO o",
    "carried": MUX + "SELECT a, b FROM A [SIZE 3 TUPLES], B [SIZE 3 TUPLES] WHERE a <= b INTO o",
    "union below": TWO
    + """SELECT x.z, R.k FROM (SELECT w AS z, k FROM S UNION SELECT kind, a FROM Mux) x [SIZE 4 TUPLES], R [SIZE 3 TUPLES]
        WHERE x.k <= R.k INTO o; CREATE INPUT STREAM Mux (kind int8, a int8, t timestamp(3)) TIMESTAMP BY t""",
}
WINDOWED = {
    "counted": TWO
    + """SELECT sum(d) AS s, count() AS n, wsum(d, [2, -1]) AS z FROM (SELECT v - w AS d FROM R [SIZE 4 TUPLES], S [SIZE 3 TUPLES]
        WHERE R.k <= S.k) [SIZE 3 ADVANCE 2 TUPLES] INTO o""",
    "counted self": TWO
    + "SELECT sum(d) AS s, window_start() AS z FROM (SELECT a.v - b.v AS d FROM R [SIZE 4 TUPLES] a, R [SIZE 3 TUPLES] b WHERE a.k <= b.k) [SIZE 2 ADVANCE 1 TUPLES] INTO o",
    "grouped": TWO
    + "SELECT b, max(v) AS m FROM (SELECT v, b FROM R [SIZE 3 TUPLES], S [SIZE 5 TUPLES] WHERE R.k >= S.k) [SIZE 4 ADVANCE 3 TUPLES] GROUP BY b INTO o",
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


def check(
    text: str, data: st.DataObject, optimised: bool, *, sorted_times: bool = False, **changes: Any
) -> None:
    plan, compiled, ready_made = simulation(text, optimised, **changes)
    items = physical(plan, data.draw(arrivals(plan, most=16, sorted_times=sorted_times)))
    wanted = query_oracle.run(plan, items)
    ready = {name: data.draw(patterns) for name in compiled.outputs}
    run = ready_made.run(feeds_of(compiled, items, data.draw), ready=ready)
    check_run(plan, compiled, run, wanted)


@pytest.mark.parametrize("changes", [{"cores": 2}, {"cores": 3, "join": "ordered"}], ids=["auto", "ordered"])
@pytest.mark.parametrize("name", TUPLES)
@FEW
@given(data=st.data())
def test_joins_of_tuple_windows(name: str, changes: dict[str, Any], data: st.DataObject) -> None:
    check(TUPLES[name], data, True, **changes)


@pytest.mark.parametrize("name", ["below", "above", "carried"])
@FEW
@given(data=st.data())
def test_joins_as_translated(name: str, data: st.DataObject) -> None:
    check(TUPLES[name], data, False, cores=1)


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


# What cannot be held.

THREE = TWO + "CREATE INPUT STREAM U (k int8, z int8, t timestamp(0)) TIMESTAMP BY t;"
REFUSED = {
    "SELECT v, w FROM R [SIZE 9 TIME], S [SIZE 4 TUPLES] WHERE R.k = S.k": r"^the join of R and S: R has a window of 9 seconds, and how many tuples are to be held has no bound; give the most with window_tuples=…, or a window of tuples$",
    "SELECT x.n, w FROM (SELECT count() AS n FROM R [SIZE 2 ADVANCE 2 TUPLES]) x [SIZE 4 TUPLES], S [SIZE 4 TUPLES] WHERE x.n > S.k": r"^the join of x and S reads the results of a window \(SIZE 2 ADVANCE 2 TUPLES\), of which an arrival may give any number; below a join the circuit has selections, projections, arithmetic and unions",
    "SELECT x.v, z FROM (SELECT v, w FROM R [SIZE 4 TUPLES], S [SIZE 4 TUPLES] WHERE R.k = S.k) x [SIZE 4 TUPLES], U [SIZE 4 TUPLES] WHERE x.v > U.k": r"^the join of x and U reads the results of another join, of which an arrival may give any number",
    "SELECT x.k FROM (SELECT k FROM R UNION SELECT v FROM R) x [SIZE 4 TUPLES], S [SIZE 4 TUPLES] WHERE x.k = S.k": r"^the join of x and S reads a union of streams that share an input, of which one arrival may give two tuples; the circuit takes one at a time$",
    "SELECT count() AS n FROM (SELECT v FROM R [SIZE 4 TUPLES], U [SIZE 4 TUPLES] WHERE R.k = U.k) [SIZE 4 ADVANCE 2 TIME]": r"^the join of R and U: the circuit compares times of one unit only, and these are R in ms and U in s; declare both streams with the same one$",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_joins_that_a_circuit_cannot_hold_are_refused_by_name(text: str) -> None:
    with pytest.raises(UnsupportedError, match=REFUSED[text]):
        compile_plan(parse_query(f"{THREE} {text} INTO o"), Bounds(cores=2))


def test_an_arrangement_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"^the join of R and S: a window reads its results, whose order a handshake join does not promise; "
        r"leave the arrangement to the compiler \(auto\)$",
    ):
        compile_plan(parse_query(WINDOWED["counted"]), Bounds(join="handshake"))


# What is counted.


def feed_and_run(text: str, items: list[Any], **changes: Any) -> tuple[Compiled, Any]:
    _, compiled, made = simulation(text, True, **changes)
    feeds = {
        name: feed(
            row, [tuple(v.get(f) for f in row.names) for s, v in with_places(compiled, items) if s == name]
        )
        for name, row in compiled.inputs.items()
    }
    return compiled, made.run(feeds)


def r(k: int, t: int | None) -> tuple[str, dict[str, Any]]:
    return "R", {"k": k, "v": 0, "g": "", "t": t}


def s(k: int, t: int | None) -> tuple[str, dict[str, Any]]:
    return "S", {"k": k, "w": k, "b": True, "t": t}


def test_tuples_that_leave_a_time_window_too_early_are_counted() -> None:
    """A tuple is missed only if a partner may still come, by the older of the two newest times."""
    early = [r(1, 0), r(2, 1), r(3, 2), s(1, 3)]
    compiled, run = feed_and_run(BY_TIME["band"], early, window_tuples=2)
    assert (run.probes["evicted"], len(run.tuples("o", compiled.outputs["o"]))) == (1, 2)
    in_time = [r(1, 0), s(1, 0), s(1, 20), r(2, 20), r(3, 21)]
    assert feed_and_run(BY_TIME["band"], in_time, window_tuples=2)[1].probes["evicted"] == 0


def test_late_tuples_and_those_without_a_time_are_counted() -> None:
    items = [r(1, 10), s(1, 10), r(1, 9), s(1, None), s(1, 10)]
    compiled, run = feed_and_run(BY_TIME["band"], items, window_tuples=4)
    assert (run.probes["late"], run.probes["no_time"]) == (1, 1)
    assert len(run.tuples("o", compiled.outputs["o"])) == 2


LATE = """CREATE INPUT STREAM R (k int8, v int8, t timestamp(3)) TIMESTAMP BY t LATENESS .006;
CREATE INPUT STREAM S (k int8, w int8, b bool, t timestamp(3)) TIMESTAMP BY t LATENESS .001;
CREATE INPUT STREAM U (k int8, z int8, t timestamp(3)) TIMESTAMP BY t;"""
UNEVEN = {
    "two": LATE + "SELECT v, w FROM R [SIZE .008 TIME], S [SIZE .005 TIME] WHERE R.k <= S.k INTO o",
    "other way": LATE + "SELECT v, w FROM S [SIZE .008 TIME], R [SIZE .005 TIME] WHERE R.k <= S.k INTO o",
    "selected": LATE + "SELECT x.v, w FROM (SELECT v FROM R WHERE k > 0) x [SIZE .008 TIME], (SELECT w FROM S WHERE b) y [SIZE .005 TIME] WHERE x.v <= y.w INTO o",
    "union": LATE + "SELECT x.v, w FROM (SELECT v FROM R UNION SELECT z FROM U WHERE z > 0) x [SIZE .008 TIME], S [SIZE 3 TUPLES] WHERE x.v <= S.w INTO o",
    "self": LATE + "SELECT a.v, b.v AS u FROM R [SIZE .01 TIME] a, R [SIZE .004 TIME] b WHERE a.k = b.k INTO o",
    "short times": "CREATE INPUT STREAM R (k int8, t int8) TIMESTAMP BY t LATENESS 400; CREATE INPUT STREAM S (k int8, t int8) TIMESTAMP BY t LATENESS 3; SELECT R.t AS t, S.t AS u FROM R [SIZE 9 TIME], S [SIZE 5 TIME] WHERE R.k <= S.k INTO o",
}  # fmt: skip


@pytest.mark.parametrize("name", UNEVEN)
@settings(FEW, max_examples=8)
@given(data=st.data())
def test_each_stream_has_a_lateness_and_a_clock_of_its_own(name: str, data: st.DataObject) -> None:
    """Times in any order: what is late is what the oracle finds late, by both streams' clocks."""
    plan, compiled, made = simulation(UNEVEN[name], True, cores=1, window_tuples=20)
    items = physical(plan, data.draw(arrivals(plan, most=20)))
    counts = query_oracle.Counts()
    wanted = query_oracle.run(plan, items, counts)
    run = made.run(feeds_of(compiled, items, data.draw))
    check_run(plan, compiled, run, wanted)
    assert (run.probes["late"], run.probes["no_time"]) == (counts.late, counts.no_time)
    assert run.probes["evicted"] == 0


TOLD = {
    "two": [r(1, 10), s(1, 7), r(1, 4), s(1, 3)],  # R shows 10 - 6, S 7 - 1: 4 is in time, 3 is late
    "other way": [r(1, 10), s(1, 9), r(1, 3), s(1, 8)],
    "selected": [r(0, 100), s(1, 100), r(1, 50), s(1, 51)],  # the first one, not selected, moves R's clock
    "union": [r(0, 100), s(1, 100), r(1, 50), s(1, 52)],  # of U nothing has come, so the union shows nothing
}


@pytest.mark.parametrize("name", TOLD)
def test_what_is_late_by_the_clocks_of_both_streams(name: str) -> None:
    plan, items, counts = parse_query(UNEVEN[name]), TOLD[name], query_oracle.Counts()
    wanted = query_oracle.run(plan, items, counts)["o"]
    compiled, run = feed_and_run(UNEVEN[name], items, window_tuples=20, cores=1)
    assert (run.probes["late"], len(run.tuples("o", compiled.outputs["o"]))) == (counts.late, len(wanted))


def test_tuples_of_no_stream_are_counted_once() -> None:
    items = [("Mux", {"kind": kind, "a": 1, "b": 1, "t": 0}) for kind in (1, 7, -3, 2, 9)]
    compiled, run = feed_and_run(TUPLES["carried"], items, cores=1)
    assert run.probes["unknown"] == 2
    assert len(run.tuples("o", compiled.outputs["o"])) == 4


def test_rows_of_equal_times_arrive_in_the_order_of_the_declarations() -> None:
    """A selection reads S before the join does; results do not depend on it."""
    join = "SELECT v, w FROM R [SIZE 1 TUPLES], S [SIZE 1 TUPLES] WHERE TRUE INTO o"
    rows = {
        "R": {"k": [0, 0], "v": [1, 2], "g": ["", ""], "t": [5, 5]},
        "S": {"k": [0, 0], "w": [3, 4], "b": [True, True], "t": [5, 5]},
    }
    done = run_plan(parse_query(f"{TWO} SELECT w FROM S INTO p; {join}"), rows, engine="amaranth")
    assert done.results["o"].to_pylist() == [{"v": 2, "w": 3}, {"v": 2, "w": 4}]


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_windows_of_a_single_row_of_memories_are_the_same_to_both_simulators(size: int) -> None:
    text = TUPLES["equality"].replace("SIZE 4", f"SIZE {size}").replace("SIZE 3", f"SIZE {size}")
    _, compiled, here = simulation(text, True, cores=size, join="ordered")
    items = with_places(compiled, [each for n in range(5) for each in (r(n % 2, n), s(n % 3, n))])
    feeds = {
        name: feed(row, [tuple(v.get(f) for f in row.names) for side, v in items if side == name])
        for name, row in compiled.inputs.items()
    }
    run = here.run(feeds)
    assert len(run.outputs["o"]) > 1
    assert run == Simulation(compiled.circuit(), "cxxrtl-quick").run(feeds)


@pytest.mark.soak
@settings(FEW, max_examples=40)
@given(data=st.data())
def test_times_in_any_order_are_joined_as_in_process(data: st.DataObject) -> None:
    """The in-process engine drops and counts the same tuples as late."""
    plan, compiled, made = simulation(BY_TIME["band"], True, cores=2, window_tuples=20)
    items = data.draw(arrivals(plan, most=20))
    query = Query(plan)
    wanted = results(query, [[item] for item in items])
    run = made.run(feeds_of(compiled, physical(plan, items), data.draw))
    check_run(plan, compiled, run, wanted)
    counts = query.metrics()
    assert (run.probes["late"], run.probes["no_time"]) == (counts.late, counts.no_time)
    assert run.probes["evicted"] == 0


# What it costs.


EIGHT = TUPLES["equality"].replace("SIZE 4", "SIZE 8").replace("SIZE 3", "SIZE 8")


def measure(cores: int, join: str) -> tuple[Compiled, int, float]:
    """Return the circuit, its cycles to the result with the oldest tuple of a full window, and its rate.

    The rate is the number of arrivals taken per cycle.
    """
    _, compiled, made = simulation(EIGHT, True, cores=cores, join=join)
    items = with_places(compiled, [*(r(n, 0) for n in range(8)), s(0, 0)])
    apart = {
        name: feed(row, [tuple(v.get(f) for f in row.names) for side, v in items if side == name], pattern=APART, end="none")
        for name, row in compiled.inputs.items()
    }  # fmt: skip
    first = made.run(apart, stop_at_eos=False)
    _, many = feed_and_run(
        EIGHT, [each for n in range(30) for each in (r(0, n), s(1, n))], cores=cores, join=join
    )
    taken = many.accepted["R"][16:30]
    latency = first.outputs["o"][0].cycle - first.accepted["S"][0]
    return compiled, latency, 2 * (len(taken) - 1) / (taken[-1] - taken[0])


APART = (True, *[False] * 60)


@pytest.mark.parametrize("cores", [1, 2])
def test_latency_and_issue_rate_of_an_ordered_join_are_as_declared(cores: int) -> None:
    compiled, latency, rate = measure(cores, "ordered")
    assert (latency, rate) == (compiled.latency["o"], pytest.approx(compiled.issue_rate))
    assert latency == 3  # the join's two and the projection's register


@pytest.mark.parametrize("cores", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_latency_and_issue_rate_of_a_handshake_join_are_no_worse_than_declared(cores: int) -> None:
    compiled, latency, rate = measure(cores, "handshake")
    assert compiled.latency["o"] <= latency <= compiled.latency["o"] + 8
    assert compiled.issue_rate <= rate <= 1.3 * compiled.issue_rate
