# ruff: noqa: E501 - a query is easier to read in one line
"""Circuits against the oracle: the paper's queries and many others, optimised and not, held back at will."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from circuit_queries import bounds_of, check_run, feeds_of
from circuits import patterns, physical
from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.emit import to_rtlil
from handshake.engines.circuit.host import run_plan
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.rules import RULES
from handshake.engines.circuit.simulation.simulate import Feed, Simulation
from handshake.errors import UnsupportedError
from handshake.plan.algebra import Plan
from handshake.plan.query import parse_query
from query_cases import PAPER, QUERIES, TRADES
from query_streams import arrivals

S = """CREATE INPUT STREAM S (g string(4), i int8, l long, u uint64, d decimal(12, 2), e decimal(38, 3), b bool, t timestamp(3))
TIMESTAMP BY t;"""
CASES = {
    "sums": S + "SELECT sum(i) a, sum(l) b, sum(u) c, sum(d) d, sum(e) e FROM S [SIZE .01 ADVANCE .004 TIME]",
    "averages": S + "SELECT b, avg(i) a, avg(l) c, avg(d) d FROM S [SIZE 3 ADVANCE 2 TUPLES] GROUP BY b",
    "extremes": S
    + "SELECT b, min(l) a, max(u) m, min(d) d, max(g) g, min(t) t FROM S [SIZE .006 ADVANCE .003 TIME] GROUP BY b",
    "weighted": S
    + "SELECT g, wsum(d, [-1, .25]) d, wsum(i, [1, 2, 3]) i FROM S [SIZE 6 ADVANCE 3 TUPLES] GROUP BY g",
    "keys": S
    + "SELECT b, i > 0 AS p, count() n, max(l) m FROM S [SIZE .02 ADVANCE .01 TIME] WHERE l > 0 GROUP BY b, i > 0 HAVING count() > 1",
    "values": S
    + "SELECT l * l AS a, l + u AS b, (i + 1) * (i - 1) AS c, d * 1.5 AS d, t - t AS z, abs(i) y, l % i m, CAST(l AS TINYINT) k, coalesce(i, l) o, CASE WHEN b THEN i ELSE 7 END w FROM S WHERE i + l > 0 OR b IS NULL",
    "held back": S + "SELECT wsum(d, [2, -1]) AS n, count() AS m FROM S [SIZE .003 ADVANCE .001 TIME]",
    "texts": S + "SELECT g, coalesce(g, 'none!') h FROM S WHERE g < 'U' OR g <> 'UBSN' AND i >= -1",
}
GAPS = {
    "sums": r"^the circuit has no unit for sum\(\) of 'x' \(float64\); it adds integers and decimals$",
    "averages": r"^the circuit has no unit for avg\(\) of 'x' \(float64\)",
    "extremes": r"^the circuit has no unit for min\(\) and max\(\) of 'x' \(float64\); the local engine computes them$",
    "spreads": r"^stddev_samp\(\) has no component in the circuit; it has count, count_if, sum, avg, min, max, any, every, wsum$",
    "picks": r"^first\(\) has no component in the circuit",
    "picks of tuples": r"^first\(\) has no component in the circuit",
    "distinct": r"^count\(DISTINCT\) needs all tuples of a window, whose number has no bound in the circuit",
    "collected": r"^string_agg\(\) needs all tuples of a window, whose number has no bound in the circuit",
    "holistic": r"^median\(\) needs all tuples of a window, whose number has no bound in the circuit",
    "weighted": r"^the circuit has no unit for wsum\(\) of 'x' \(float64\)",
    "keys": r"^the circuit cannot group by 'h' \(float64\), whose equality is not that of wires; use engine=\"local\"$",
    "computed keys": "float64",
    "uneven": r"^the circuit has no unit for sum\(\) of 'x' \(float64\)",
    "contents": r"^a window \(SIZE 0.006 ADVANCE 0.003 TIME\) whose tuples are not aggregated would have to be kept whole",
    "arithmetic": r"float64",
    "union": r"^a time window over a union has no bound on the windows that are open at once, since the clock of one input",
    "union of results": r"^a window of tuples \(SIZE 2 ADVANCE 1 TUPLES\) over the results of a union depends on the order",
}
"""Queries of the common suite that the circuit refuses, and with what words."""
COMMON = {
    # Three windows at a time instead of eleven: the circuit of Q5 is large, and simulated in Python.
    **{name: TRADES + text.replace("SIZE 600 ADVANCE", "SIZE 120 ADVANCE") for name, text in PAPER.items()},
    **{name: "".join(case) for name, case in QUERIES.items()},
}
GROUPS = {"lateness": 5, "keys": 9, "averages": 3, "extremes": 3}
"""Most groups of a window, where not five: each is a copy of the sub-plan, which takes its time to be made."""
FEW = settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


LARGE = ("averages", "extremes", "weighted", "keys")
ALL_TYPES = [
    *((name, True) for name in CASES),
    *(pytest.param(n, False, marks=[pytest.mark.soak] if n in LARGE else []) for n in CASES),
]
"""Circuits as translated are larger than optimised ones; of the largest, `make soak` runs both."""


@lru_cache(maxsize=8)
def simulation(text: str, optimised: bool) -> tuple[Plan, Compiled, Simulation]:
    plan = parse_query(text)
    groups = next((n for name, n in GROUPS.items() if text in (CASES.get(name), COMMON.get(name))), 5)
    compiled = compile_plan(plan, bounds_of(plan, groups), without=() if optimised else tuple(RULES))
    return plan, compiled, Simulation(compiled.circuit())


@lru_cache(maxsize=8)
def compiled_simulation(text: str) -> Simulation:
    return Simulation(simulation(text, True)[1].circuit(), "cxxrtl-quick")


@pytest.mark.parametrize("optimised", [False, True])
def test_windows_of_tuples_count_those_that_where_leaves_out(optimised: bool) -> None:
    """A selection between windows and groups stays there: before them it would change who is in which."""
    text = "SELECT g, count() AS n FROM S [SIZE 3 ADVANCE 1 TUPLES] WHERE v > 0 GROUP BY g"
    plan = parse_query(f"CREATE INPUT STREAM S (g int, v int); {text}")
    rows = {"g": [1, 2, 1, 2, 1], "v": [1, 0, 1, 0, 1]}
    without = () if optimised else tuple(RULES)
    done = run_plan(plan, {"S": rows}, Bounds(groups=2), engine="amaranth", without=without)
    assert done.results["result"].to_pylist() == [{"g": 1, "n": 2}, {"g": 1, "n": 1}, {"g": 1, "n": 2}]


OVERLAPPING = (
    "CREATE INPUT STREAM S (v int, t int) TIMESTAMP BY t; SELECT sum(v) AS s FROM S [SIZE {} ADVANCE 1 {}]"
)


@pytest.mark.parametrize("kind", ["TIME", "TUPLES"])
def test_many_windows_open_at_once(kind: str) -> None:
    """Copies go round several times, by steps and in leaps; their number is no power of two."""
    values = [(7 * n) % 31 - 9 for n in range(90)]
    leaps = {30: 5, 60: 100}
    times = list(accumulate(leaps.get(n, (n * n) % 3) for n in range(90)))
    plan = parse_query(OVERLAPPING.format(37, kind))
    done = run_plan(plan, {"S": {"v": values, "t": times}}, engine="amaranth")
    if kind == "TUPLES":
        wanted = [sum(values[n : n + 37]) for n in range(90 - 36)]
    else:
        members = [
            [v for v, t in zip(values, times, strict=True) if s <= t < s + 37]
            for s in range(-36, times[-1] + 1)
        ]
        wanted = [sum(each) for each in members if each]
    assert done.results["result"].column("s").to_pylist() == wanted


@pytest.mark.parametrize("kind", ["TIME", "TUPLES"])
def test_gates_grow_with_the_windows_that_are_open_and_not_with_their_square(kind: str) -> None:
    def lines(copies: int) -> int:
        circuit = compile_plan(parse_query(OVERLAPPING.format(copies, kind))).circuit()
        return to_rtlil(circuit, "query").count("\n")

    few, some, many = lines(8), lines(16), lines(32)
    assert many - some < 2.4 * (some - few)  # 2: in proportion; 4: with the square


BRANCHES = " ".join(f"WHEN l = {n} THEN {3 * n - 200}" for n in range(150))
MEMBERS = ", ".join(map(str, range(0, 500, 2)))


@pytest.mark.parametrize(
    ("selected", "wanted"),
    [
        (f"CASE {BRANCHES} ELSE l END", lambda n, b: 3 * n - 200 if n < 150 else n),
        (f"coalesce({'b, ' * 120}l > 3)", lambda n, b: n > 3 if b is None else b),
    ],
    ids=["branches", "members"],
)
def test_many_branches_and_members(selected: str, wanted: Any) -> None:
    """Choices and lists of hundreds, which are neither too deep for Python nor for what Amaranth writes."""
    rows, flags = [0, 1, 2, 148, 149, 150, 498, 499, 500, -2], [None, True] * 5
    text = f"SELECT {selected} AS c FROM S WHERE l IN ({MEMBERS})"
    plan = parse_query(f"CREATE INPUT STREAM S (l long, b bool); {text}")
    done = run_plan(plan, {"S": {"l": rows, "b": flags}}, engine="amaranth")
    kept = [(n, b) for n, b in zip(rows, flags, strict=True) if n in range(0, 500, 2)]
    assert done.results["result"].column("c").to_pylist() == [wanted(n, b) for n, b in kept]


def check(text: str, data: st.DataObject, optimised: bool, **options: Any) -> None:
    plan, compiled, ready_made = simulation(text, optimised)
    items = physical(plan, data.draw(arrivals(plan, **options)))
    counts = query_oracle.Counts()
    wanted = query_oracle.run(plan, items, counts)
    ready = {name: data.draw(patterns) for name in compiled.outputs}
    run = ready_made.run(feeds_of(compiled, items, data.draw), ready=ready)
    check_run(plan, compiled, run, wanted)
    if not optimised:  # un-nesting counts late tuples behind selections, as push-down does
        assert (run.probes.get("late", 0), run.probes.get("no_time", 0)) == (counts.late, counts.no_time)


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("name", PAPER)
@FEW
@given(data=st.data())
def test_the_papers_queries(name: str, optimised: bool, data: st.DataObject) -> None:
    check(COMMON[name], data, optimised, most=12, step=90)


@pytest.mark.parametrize(("name", "optimised"), ALL_TYPES)
@FEW
@given(data=st.data())
def test_circuits_of_all_types(name: str, optimised: bool, data: st.DataObject) -> None:
    check(CASES[name], data, optimised, most=12)


@pytest.mark.parametrize("name", sorted(set(QUERIES) - set(GAPS)))
@FEW
@given(data=st.data())
def test_the_common_queries(name: str, data: st.DataObject) -> None:
    check(COMMON[name], data, True, most=min(12, GROUPS.get(name, 12)))


DIVIDED = {
    "grouped": S
    + "SELECT b, avg(i) a, avg(d) e FROM S [SIZE .004 ADVANCE .002 TIME] GROUP BY b HAVING avg(i) > 0 OR count() > 1",
    "computed": S
    + "SELECT avg(d) * 2 AS a, avg(l) AS b, avg(u) AS c FROM S [SIZE 3 ADVANCE 2 TUPLES]",
    "again": S
    + "SELECT sum(e) s, max(e) m FROM (SELECT avg(d) e, avg(i) a FROM S [SIZE 3 ADVANCE 1 TUPLES]) [SIZE 2 ADVANCE 1 TUPLES] WHERE a < 50",
}  # fmt: skip


@pytest.mark.parametrize("divider", ["pipelined", "serial"])
@pytest.mark.parametrize("name", DIVIDED)
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_averages_are_divided_in_the_circuit(name: str, divider: str, data: st.DataObject) -> None:
    plan, compiled, ready_made = compile_divided(name, divider)
    items = physical(plan, data.draw(arrivals(plan, most=10)))
    ready = {output: data.draw(patterns) for output in compiled.outputs}
    run = ready_made.run(feeds_of(compiled, items, data.draw), ready=ready)
    check_run(plan, compiled, run, query_oracle.run(plan, items))
    assert not any(w.count_bits for row in compiled.outputs.values() for w in row)


@lru_cache(maxsize=8)
def compile_divided(name: str, divider: str) -> tuple[Plan, Compiled, Simulation]:
    plan = parse_query(DIVIDED[name])
    compiled = compile_plan(plan, replace(bounds_of(plan, 3), divider=divider))
    return plan, compiled, Simulation(compiled.circuit())


FOLLOWING = "CREATE INPUT STREAM S (k int8, v int8, t int) TIMESTAMP BY t; "
TIMED = "SELECT k, count() n, max(v) m FROM S [SIZE 4 ADVANCE 2 TIME] GROUP BY k INTO o"
JOINED = "SELECT a.v, b.v AS u FROM S [SIZE 3 TUPLES] a, S [SIZE 2 TUPLES] b WHERE a.k = b.k INTO o"
SUMMED = f"SELECT sum(u) s FROM ({JOINED[:-7]}) [SIZE 3 ADVANCE 2 TUPLES] INTO o"
COUNTED = "SELECT sum(v) s FROM S [SIZE 3 ADVANCE 2 TUPLES] WHERE k = 1 INTO o"
FOLLOWED = [
    *((text, True) for text in (TIMED, COUNTED, JOINED, SUMMED)),
    *((text, False) for text in (COUNTED, SUMMED)),
    *(pytest.param(text, False, marks=pytest.mark.soak) for text in (TIMED, JOINED)),
]


@pytest.mark.parametrize(("text", "optimised"), FOLLOWED)
@FEW
@given(data=st.data())
def test_streams_may_follow_each_other(text: str, optimised: bool, data: st.DataObject) -> None:
    """After the end of a stream a circuit is as after reset: windows, groups, joins, clocks and all."""
    plan, compiled, ready_made = simulation(FOLLOWING + text, optimised)
    streams = [physical(plan, data.draw(arrivals(plan, most=8))) for _ in range(3)]
    alone = [
        ready_made.run(feeds_of(compiled, items, data.draw)).tuples("o", compiled.outputs["o"])
        for items in streams
    ]
    beats = [beat for items in streams for beat in feeds_of(compiled, items, data.draw)["S"].beats]
    fed = {"S": Feed(beats, data.draw(patterns))}
    run = ready_made.run(fed, ready={"o": data.draw(patterns)}, stop_at_eos=False)
    parts: list[list[Any]] = [[]]
    for arrival in run.outputs["o"]:
        parts[-1] += [] if arrival.payload is None else [compiled.outputs["o"].unpack(arrival.payload)]
        parts += [[]] if arrival.eos else []
    assert [Counter(part) for part in parts] == [*map(Counter, alone), Counter()]


@pytest.mark.soak
@pytest.mark.parametrize("name", PAPER)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_both_simulators_agree_on_the_papers_queries(name: str, data: st.DataObject) -> None:
    plan, compiled, here = simulation(COMMON[name], True)
    there = compiled_simulation(COMMON[name])
    items = physical(plan, data.draw(arrivals(plan, most=40, step=90)))
    fed = feeds_of(compiled, items, data.draw)
    ready = {output: data.draw(patterns) for output in compiled.outputs}
    assert here.run(fed, ready=ready) == there.run(fed, ready=ready)


@pytest.mark.parametrize("name", GAPS)
def test_what_a_circuit_cannot_hold_is_refused_by_name(name: str) -> None:
    plan = parse_query(COMMON[name])
    with pytest.raises(UnsupportedError, match=GAPS[name]):
        compile_plan(plan, bounds_of(plan)).circuit()


def test_lateness_that_is_longer_than_times_go() -> None:
    """A clock has as many wires as the smallest time, less the lateness, needs."""
    text = "CREATE INPUT STREAM S (v int8, t int8) TIMESTAMP BY t LATENESS 150; "
    plan = parse_query(text + "SELECT sum(v) AS s FROM S [SIZE 100 ADVANCE 100 TIME] INTO o")
    rows = {"v": pa.array([1, 2, 3], pa.int8()), "t": pa.array([-120, -5, -100], pa.int8())}
    found = run_plan(plan, {"S": pa.table(rows)})
    assert found.results["o"].column("s").to_pylist() == [1, 5]
    assert found.counters == {"late": 0, "no_time": 0}
