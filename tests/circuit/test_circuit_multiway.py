# ruff: noqa: E501 - a query is easier to read in one line
"""Joins of three and more streams as circuits: against the oracle and the in-process engine, held back at will."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import query_oracle
from circuit_queries import (
    FEW_QUERIES,
    aggregates,
    bounds_of,
    check_run,
    checked_runs,
    conditions,
    feeds_of,
    numbers,
    plan_of,
)
from circuits import patterns, physical, with_places
from handshake.engines.circuit.compiler import Compiled, compile_plan
from handshake.engines.circuit.components.join_windows import HeldTuples
from handshake.engines.circuit.components.nested_scan import NestedScan, most_cycles
from handshake.engines.circuit.components.types import Row, wire
from handshake.engines.circuit.host import run_plan
from handshake.engines.circuit.join.condition import Combination
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.rules import PLAN_RULES, RULES
from handshake.engines.circuit.report import report
from handshake.engines.circuit.simulation.simulate import Beat, Feed, Simulation, feed, simulate
from handshake.errors import UnsupportedError
from handshake.operators.query import Query
from handshake.plan.algebra import Plan
from handshake.plan.expr import Column, Compare, Literal, conjunction
from handshake.plan.query import parse_query
from handshake.schema import BOOL, Field, Int
from query_streams import arrivals, compare, cuts, results

FOUR = """CREATE INPUT STREAM R (k int8, v int8, g string(4), t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (k int8, w int8, b bool, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM U (k int8, z int8, t timestamp(3)) TIMESTAMP BY t LATENESS .002;
CREATE INPUT STREAM X (k int8, y int8, t timestamp(3)) TIMESTAMP BY t;"""
MUX = """CREATE INPUT STREAM Mux (kind int8, a int8, b int8, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM A (kind int8, a int8, t timestamp(3)) FROM Mux WHERE kind IN (1, 2) TIMESTAMP BY t;
CREATE INPUT STREAM B (kind int8, b int8, t timestamp(3)) FROM Mux WHERE kind IN (2, -3) TIMESTAMP BY t;
CREATE INPUT STREAM C (kind int8, b int8, t timestamp(3)) FROM Mux WHERE kind IN (0, 1, 2) TIMESTAMP BY t;"""
CASES = {
    "a chain": FOUR + "SELECT v, w, z FROM R [SIZE 3 TUPLES], S [SIZE 4 TUPLES], U [SIZE 2 TUPLES] WHERE R.k = S.k AND S.w <= U.z INTO o",
    "ends first": FOUR + "SELECT v, w, z FROM R [SIZE 3 TUPLES], S [SIZE 4 TUPLES], U [SIZE 2 TUPLES] WHERE R.k = U.k AND (v + w > z OR g IS NULL) INTO o",
    "partly connected": FOUR + "SELECT v, w, z FROM R [SIZE 2 TUPLES], S [SIZE 1 TUPLES], U [SIZE 3 TUPLES] WHERE R.k <= U.k AND b INTO o",
    "filters alone": FOUR + "SELECT v, w, z FROM R [SIZE 2 TUPLES], S [SIZE 3 TUPLES], U [SIZE 2 TUPLES] WHERE v > 0 AND w > 0 AND z >= 0 INTO o",
    "a last tuple each": FOUR + "SELECT R.k, w, z FROM R [SIZE 1 TUPLES], S [SIZE 1 TUPLES], U [SIZE 1 TUPLES] WHERE v <> w INTO o",
    "itself": FOUR + "SELECT a.v, b.v AS u, c.v AS w FROM R [SIZE 4 TUPLES] a, R [SIZE 2 TUPLES] b, R [SIZE 3 TUPLES] c WHERE a.k <= b.k OR c.k IS NULL INTO o",
    "itself, selected": FOUR + """SELECT a.v, b.v AS u, c.v AS w FROM R [SIZE 1 TUPLES] a, (SELECT * FROM R WHERE v > 0) b [SIZE 2 TUPLES],
        (SELECT * FROM R WHERE k > -1) c [SIZE 2 TUPLES] WHERE a.v <= c.v INTO o""",
    "itself and another": FOUR + "SELECT a.v, w, c.v AS x FROM R [SIZE 3 TUPLES] a, S [SIZE 2 TUPLES], R [SIZE 2 TUPLES] c WHERE a.k = S.k AND c.v >= w INTO o",
    "carried": MUX + "SELECT a, B.b, C.b AS c FROM A [SIZE 3 TUPLES], B [SIZE 2 TUPLES], C [SIZE 2 TUPLES] WHERE a <= B.b OR a = C.b INTO o",
    "a union below": FOUR + "SELECT x.n, R.v, z FROM (SELECT w AS n, k FROM S UNION SELECT y, k FROM X) x [SIZE 3 TUPLES], R [SIZE 2 TUPLES], U [SIZE 2 TUPLES] WHERE x.k <= R.k AND n <> z INTO o",
    "four": FOUR + "SELECT v, w, z, y FROM R [SIZE 2 TUPLES], S [SIZE 3 TUPLES], U [SIZE 1 TUPLES], X [SIZE 2 TUPLES] WHERE R.k = X.k AND v <= w AND S.k < U.k + 2 INTO o",
    "windows": FOUR + """SELECT sum(d) AS s, count() AS n, wsum(d, [2, -1]) AS q FROM (SELECT v - z AS d FROM R [SIZE 3 TUPLES], S [SIZE 2 TUPLES],
        U [SIZE 2 TUPLES] WHERE R.k <= S.k) [SIZE 3 ADVANCE 2 TUPLES] INTO o""",
    "groups": FOUR + "SELECT b, max(v) AS m FROM (SELECT v, b FROM R [SIZE 2 TUPLES], S [SIZE 2 TUPLES], U [SIZE 2 TUPLES] WHERE R.k >= U.k) [SIZE 4 ADVANCE 3 TUPLES] GROUP BY b INTO o",
    "a union above": FOUR + """SELECT v + w AS s, z FROM R [SIZE 3 TUPLES], S [SIZE 2 TUPLES], U [SIZE 2 TUPLES] WHERE R.k = S.k INTO p;
        SELECT s FROM p WHERE s > 0 UNION SELECT v FROM R WHERE v < 0 INTO q""",
}  # fmt: skip
BY_TIME = {
    "times": FOUR + "SELECT v, w, z FROM R [SIZE .008 TIME], S [SIZE .003 TIME], U [SIZE .005 TIME] WHERE R.k <= S.k AND z > v INTO o",
    "mixed": FOUR + "SELECT v, w, z FROM R [SIZE 2 TUPLES], S [SIZE .008 TIME], U [SIZE 2 TUPLES] WHERE v <> z INTO o",
    "itself": FOUR + "SELECT a.v, b.v AS u, c.v AS w FROM U [SIZE 3 TUPLES] x, R [SIZE .004 TIME] a, R [SIZE 2 TUPLES] b, R [SIZE .002 TIME] c WHERE a.k <= c.k AND x.k = b.k INTO o",
}  # fmt: skip
SLID = {
    "by time": FOUR + """SELECT count() AS n, max(d) AS m FROM (SELECT v - w AS d FROM R [SIZE .01 TIME], S [SIZE .01 TIME], U [SIZE 2 TUPLES]
        WHERE R.k <= S.k) [SIZE .01 ADVANCE .005 TIME] INTO o""",
}  # fmt: skip
FEW = settings(FEW_QUERIES, max_examples=2)


@lru_cache(maxsize=8)
def simulation(text: str, optimised: bool = True, **changes: Any) -> tuple[Plan, Compiled, Simulation]:
    plan = parse_query(text)
    bounds = Bounds(**{**vars(bounds_of(plan)), **changes})
    compiled = compile_plan(plan, bounds, without=() if optimised else (*PLAN_RULES, *RULES))
    return plan, compiled, Simulation(compiled.circuit())


def check(text: str, data: st.DataObject, *, optimised: bool = True, most: int = 14, sorted_times: bool = False, engine: bool = False, **changes: Any) -> None:  # fmt: skip
    """Check results and counters against the oracle and, if asked, the local engine."""
    plan, compiled, made = simulation(text, optimised, **changes)
    items, counts = data.draw(arrivals(plan, most=most, sorted_times=sorted_times)), query_oracle.Counts()
    wanted = query_oracle.run(plan, physical(plan, items), counts)
    if engine:
        compare(results(Query(plan), cuts(data.draw, items)), wanted)
    ready = {name: data.draw(patterns) for name in compiled.outputs}
    run = made.run(feeds_of(compiled, physical(plan, items), data.draw), ready=ready)
    check_run(plan, compiled, run, wanted)
    assert (run.probes.get("late", 0), run.probes.get("no_time", 0)) == (counts.late, counts.no_time)
    assert run.probes.get("evicted", 0) == 0


@pytest.mark.parametrize("name", CASES)
@FEW
@given(data=st.data())
def test_windows_of_tuples(name: str, data: st.DataObject) -> None:
    check(CASES[name], data, cores=2)


@pytest.mark.parametrize("name", ["ends first", "itself", "carried"])
@FEW
@given(data=st.data())
def test_as_translated_one_tuple_at_a_time(name: str, data: st.DataObject) -> None:
    check(CASES[name], data, optimised=False, cores=1)


@pytest.mark.parametrize("name", BY_TIME)
@settings(FEW, max_examples=3)
@given(data=st.data())
def test_windows_of_time(name: str, data: st.DataObject) -> None:
    """Times in any order: what is late is what the oracle finds late."""
    check(BY_TIME[name], data, cores=3, window_tuples=14)


@pytest.mark.parametrize("name", SLID)
@FEW
@given(data=st.data())
def test_windows_of_time_over_them(name: str, data: st.DataObject) -> None:
    check(SLID[name], data, cores=2, window_tuples=14, sorted_times=True)


@pytest.mark.soak
@pytest.mark.parametrize("name", [*CASES, *BY_TIME])
@settings(FEW, max_examples=60)
@given(data=st.data())
def test_all_of_them_at_length(name: str, data: st.DataObject) -> None:
    cores = data.draw(st.integers(1, 4))
    optimised = data.draw(st.booleans())
    bounds = {"cores": cores, "window_tuples": 24}
    check({**CASES, **BY_TIME}[name], data, optimised=optimised, most=24, engine=True, **bounds)


# Random queries.

STREAMS = {
    "R": {"n0": "int8", "g": "string(4)"},
    "S": {"n1": "long", "b": "bool"},
    "U": {"n2": "decimal(12, 2)"},
    "X": {"n3": "int8"},
}


@st.composite
def sides(draw: Any, stream: str, windows: str) -> tuple[str, list[str]]:
    """Draw what stands in FROM for one stream, with its window, and its columns."""
    fields = list(STREAMS[stream])
    window = f"[SIZE {draw(st.integers(1, 4))} TUPLES]"
    if windows == "time" or (windows == "mixed" and draw(st.booleans())):
        window = f"[SIZE .00{draw(st.integers(1, 8))} TIME]"
    if draw(st.integers(0, 2)):
        return f"{stream} {window}", fields
    where = f" WHERE {draw(conditions(fields, 1))}"
    return f"(SELECT * FROM {stream}{where}) {stream.lower()} {window}", fields


@st.composite
def queries(draw: Any) -> str:
    """Draw a whole text: declarations, a join of three or four, and perhaps a window over its results."""
    streams = draw(st.permutations(list(STREAMS)))[: draw(st.sampled_from([3, 3, 4]))]
    text = ""
    for stream in streams:
        declared = ", ".join(f"{name} {kind}" for name, kind in STREAMS[stream].items())
        late = draw(st.sampled_from(["", " LATENESS .004"]))
        text += f"CREATE INPUT STREAM {stream} ({declared}, t timestamp(3)) TIMESTAMP BY t{late}; "
    windows = draw(st.sampled_from(["tuples", "tuples", "mixed", "time"]))
    parts = [draw(sides(stream, windows)) for stream in streams]
    fields = [name for _, own in parts for name in own]
    some = st.lists(st.sampled_from(parts), min_size=1, max_size=3, unique_by=id)
    on = [
        draw(conditions([name for _, own in draw(some) for name in own], 1))
        for _ in range(draw(st.integers(1, 3)))
    ]
    shown = ", ".join(name for name in fields if name.startswith("n"))
    join = f"SELECT {shown}, {draw(numbers(fields, 1))} AS n9 FROM {', '.join(part for part, _ in parts)} WHERE {' AND '.join(on)}"
    if windows == "tuples" and draw(st.booleans()):
        made, _ = draw(aggregates(f"({join})", ["n0" if "R" in streams else "n1", "n9"]))
        return f"{text}{made} INTO o"
    return f"{text}{join} INTO o"


def check_random(data: st.DataObject, most: int, *, engine: bool) -> None:
    text = data.draw(queries())
    plan, left_out = plan_of(text), data.draw(st.sampled_from([(), (*PLAN_RULES, *RULES)]))
    bounds = replace(bounds_of(plan, 4), cores=data.draw(st.integers(1, 4)), window_tuples=most)
    compiled = compile_plan(plan, bounds, without=left_out)
    drawn = {"most": most, "sorted_times": "ADVANCE" in text}
    for run, counts in checked_runs(data, plan, compiled, engine=engine, **drawn):
        assert run.probes.get("evicted", 0) == 0
        if "ADVANCE" not in text:
            assert (run.probes.get("late", 0), run.probes.get("no_time", 0)) == (counts.late, counts.no_time)


@settings(FEW_QUERIES, max_examples=2)
@given(st.data())
def test_random_queries(data: st.DataObject) -> None:
    check_random(data, 12, engine=True)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(FEW_QUERIES, max_examples=150)
@given(st.data())
def test_random_queries_at_length(data: st.DataObject) -> None:
    check_random(data, 20, engine=True)


# The scan alone.

ROW = Row((wire(Field("k", Int(4))), wire(Field("v", Int(4)), nullable=True)))


def comparison(a: tuple[int, str], op: str, b: tuple[int, str]) -> Compare:
    left, right = (Column(side, name, type=Int(4)) for side, name in (a, b))
    return Compare(op, left, right, type=BOOL)


COMPARED = {"<=": int.__le__, "<>": int.__ne__, ">": int.__gt__}
Test = tuple[tuple[int, str], str, tuple[int, str]]


def holds(tests: list[Test], members: tuple[tuple[int, int | None], ...]) -> bool:
    values = [dict(zip("kv", member, strict=True)) for member in members]
    for (i, a), op, (j, b) in tests:
        left, right = values[i][a], values[j][b]
        if left is None or right is None or not COMPARED[op](left, right):
            return False
    return True


def combine(beats: list[tuple[Any, ...]], sizes: list[int], tests: list[Test]) -> list[tuple[Any, ...]]:
    """Return the combinations by their definition.

    The tuples of a beat come one after the other, in the order of the streams. The last tuple of a
    combination finds the others among the last ones of their streams.
    """
    streams = [
        [(place, i, beat[i]) for place, beat in enumerate(beats) if beat[i] is not None]
        for i in range(len(sizes))
    ]
    found = []
    for members in itertools.product(*map(enumerate, streams)):
        last = max((place, i) for _, (place, i, _) in members)
        gone = (
            own < sum(other[:2] < last for other in streams[i]) - sizes[i]
            for own, (place, i, _) in members
            if (place, i) != last
        )
        if not any(gone) and holds(tests, tuple(values for _, (_, _, values) in members)):
            places = tuple(place for _, (place, _, _) in members)
            found.append(((last[0], *places), tuple(v for _, (_, _, values) in members for v in values)))
    return [values for _, values in sorted(found, key=lambda each: each[0])]


def check_scan(data: st.DataObject, most: int) -> None:
    n = data.draw(st.sampled_from([3, 3, 4]))
    sizes, lanes = (
        data.draw(st.lists(st.integers(1, 4), min_size=n, max_size=n)),
        data.draw(st.integers(1, 4)),
    )
    column = st.tuples(st.integers(0, n - 1), st.sampled_from("kv"))
    tests = data.draw(st.lists(st.tuples(column, st.sampled_from(list(COMPARED)), column), max_size=3))
    windows = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    condition = Combination((ROW,) * n, conjunction(tuple(comparison(*test) for test in tests)))
    held = tuple(HeldTuples(size, is_window) for size, is_window in zip(sizes, windows, strict=True))
    made = Simulation(NestedScan(condition, held, lanes))
    value = st.tuples(st.integers(-2, 2), st.none() | st.integers(-2, 2))
    few = st.integers(0, 2 if data.draw(st.booleans()) else n)  # tuples of one stream in a beat, or of all
    for _ in range(2):
        beats = []
        for _ in range(data.draw(st.integers(0, most))):
            there = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=data.draw(few) or 1))
            beats.append(tuple(data.draw(value) if i in there else None for i in range(n)))
        ready = {"results": data.draw(patterns)}
        run = made.run({"arrivals": pack(beats, data.draw(patterns))}, ready=ready)
        assert run.tuples("results", condition.result) == combine(beats, sizes, tests)
        assert run.outputs["results"][-1].eos
        freely = made.run({"arrivals": pack(beats)})
        taken = freely.accepted["arrivals"]
        cycles = most_cycles(held, lanes, [frozenset(range(n))])
        assert taken[-1] - taken[0] <= cycles * len(beats) + len(freely.outputs["results"])
        pushed_out = (
            max(0, sum(beat[i] is not None for beat in beats) - sizes[i]) for i in range(n) if not windows[i]
        )
        assert run.probes.get("evicted", 0) == sum(pushed_out)


@pytest.mark.parametrize(("i", "j"), list(itertools.product(range(3), repeat=2)))
def test_each_part_of_a_condition_is_asked(i: int, j: int) -> None:
    """Whichever stream the last tuple is of: tuples that come alone, in all turns, and some together."""
    tests: list[Test] = [((i, "k"), ">", (j, "v"))]
    condition = Combination((ROW,) * 3, comparison(*tests[0]))
    beats = []
    for turn, streams in enumerate([*itertools.permutations(range(3)), (0, 0, 1, 1, 2, 2)]):
        beats += [_alone(stream, (turn % 3 - at % 2, 1 - turn % 2)) for at, stream in enumerate(streams)]
        beats.append(tuple((turn % 2, at % 2) if at != turn % 4 else None for at in range(3)))
    run = simulate(
        NestedScan(condition, (HeldTuples(2), HeldTuples(3), HeldTuples(2)), 2), {"arrivals": pack(beats)}
    )
    wanted = combine(beats, [2, 3, 2], tests)
    assert 0 < len(wanted) < len(combine(beats, [2, 3, 2], []))
    assert run.tuples("results", condition.result) == wanted


@pytest.mark.parametrize("value", [True, False, None])
def test_a_part_that_reads_no_stream_is_asked_too(value: bool | None) -> None:
    condition = Combination((ROW,) * 3, Literal(value, type=BOOL))
    beats = [_alone(stream, (0, 0)) for stream in (2, 1, 0, 1, 2)] + [((1, 1), None, (1, 1))]
    run = simulate(NestedScan(condition, (HeldTuples(1),) * 3, 1), {"arrivals": pack(beats)})
    wanted = combine(beats, [1, 1, 1], []) if value else []
    assert run.tuples("results", condition.result) == wanted


def _alone(stream: int, values: tuple[int, int]) -> tuple[Any, ...]:
    return tuple(values if i == stream else None for i in range(3))


def pack(beats: list[tuple[Any, ...]], pattern: Any = (True,), end: bool = True) -> Feed:
    fed = []
    for beat in beats:
        flags = sum((values is not None) << i for i, values in enumerate(beat))
        rows = (ROW.pack(values) << i * ROW.bits for i, values in enumerate(beat) if values is not None)
        fed.append(Beat(flags | sum(rows) << len(beat)))
    return Feed([*fed, *[Beat(None, True)] * end], pattern)


@settings(FEW, max_examples=12)
@given(data=st.data())
def test_scans_of_any_tuples_in_a_beat(data: st.DataObject) -> None:
    check_scan(data, 10)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(FEW, max_examples=1500)
@given(data=st.data())
def test_scans_of_any_tuples_in_a_beat_at_length(data: st.DataObject) -> None:
    check_scan(data, 16)


# What is counted, refused and said.


def item(stream: str, t: int | None, k: int = 1) -> tuple[str, dict[str, Any]]:
    own = {"R": {"v": 1, "g": ""}, "S": {"w": 1, "b": True}, "U": {"z": 2}}[stream]
    return stream, {"k": k, **own, "t": t}


def feed_and_run(text: str, items: list[Any], **changes: Any) -> tuple[Compiled, Any]:
    _, compiled, made = simulation(text, **changes)
    feeds = {
        name: feed(
            row, [tuple(v.get(f) for f in row.names) for s, v in with_places(compiled, items) if s == name]
        )
        for name, row in compiled.inputs.items()
    }
    return compiled, made.run(feeds)


def test_tuples_that_leave_a_time_window_too_early_are_counted() -> None:
    """A tuple is missed only if a partner may still come, by the slowest of the streams' clocks."""
    early = [item("R", 0), item("R", 1), item("R", 2), item("S", 2), item("U", 2)]
    compiled, run = feed_and_run(BY_TIME["times"], early, window_tuples=2)
    assert (run.probes["evicted"], len(run.tuples("o", compiled.outputs["o"]))) == (1, 2)
    for newest, counted in ((7, 1), (8, 0)):  # U's clock is 2 behind; what is 8 later is out of the window
        rest = [item("S", newest), item("U", newest + 2), item("R", newest), item("R", newest + 1)]
        _, run = feed_and_run(BY_TIME["times"], [item("R", 0), *rest], window_tuples=2)
        assert run.probes["evicted"] == counted


def test_the_time_of_a_result_is_the_latest_of_those_that_its_members_have() -> None:
    join = "SELECT v FROM R [SIZE 2 TUPLES], S [SIZE 2 TUPLES], U [SIZE 2 TUPLES] WHERE v >= 0"
    text = f"{FOUR} SELECT count() AS n FROM ({join}) [SIZE .004 ADVANCE .002 TIME] INTO o"
    items = [item("R", None), item("S", None), item("U", None), item("U", 2), item("R", 3), item("S", 5), item("U", 9)]  # fmt: skip
    counts = query_oracle.Counts()
    wanted = query_oracle.run(parse_query(text), items, counts)["o"]
    compiled, run = feed_and_run(text, items, cores=2)
    assert run.tuples("o", compiled.outputs["o"]) == [(row["n"],) for row in wanted]
    assert (len(wanted), run.probes["no_time"], run.probes["late"]) == (5, counts.no_time, counts.late)
    assert counts.no_time == 1  # of the first three, and of no others


def test_a_stream_may_follow_another() -> None:
    """After its end a circuit is as after reset."""
    _, compiled, made = simulation(CASES["itself"], cores=2)
    row = compiled.inputs["R"]
    rows = [tuple({"k": n % 3, "v": n, "g": "", "t": n}[f] for f in row.names) for n in range(6)]
    once = made.run({"R": feed(row, rows)}).tuples("o", compiled.outputs["o"])
    beats = [*feed(row, rows).beats] * 2
    twice = made.run({"R": Feed(beats)}, stop_at_eos=False).tuples("o", compiled.outputs["o"])
    assert len(once) > 10
    assert twice == [*once, *once]


def test_ties_come_in_the_order_of_the_declarations() -> None:
    """Results do not depend on the first reader of a stream, or on the order of names in the join."""
    other, join = (
        "SELECT z FROM U INTO p;",
        "SELECT v, w, z FROM U [SIZE 1 TUPLES], S [SIZE 1 TUPLES], R [SIZE 1 TUPLES] WHERE TRUE INTO o",
    )
    plan = parse_query(f"{FOUR} {other} {join}")
    given_ = {
        "R": {"k": [0, 0], "v": [1, 2], "g": ["", ""], "t": [5, 5]},
        "S": {"k": [0, 0], "w": [3, 4], "b": [True, True], "t": [5, 5]},
        "U": {"k": [0, 0], "z": [5, 6], "t": [5, 5]},
    }  # fmt: skip
    items = [
        (name, {f: column[n] for f, column in columns.items()})
        for name, columns in given_.items()
        for n in range(2)
    ]
    done = run_plan(plan, given_, engine="amaranth")
    assert done.results["o"].to_pylist() == query_oracle.run(plan, items)["o"] == [
        {"v": 2, "w": 4, "z": 5}, {"v": 2, "w": 4, "z": 6}
    ]  # fmt: skip


def test_what_it_refuses() -> None:
    join = "SELECT v, w, z FROM R [SIZE 2 TUPLES], S [SIZE 2 TUPLES], Y [SIZE {}] WHERE R.k = S.k INTO o"
    odd = FOUR + "CREATE INPUT STREAM Y (k int8, z int8, t timestamp(0)) TIMESTAMP BY t;"
    with pytest.raises(
        UnsupportedError,
        match=r"^the join of R, S and Y is of 3 streams, and a handshake join of two; leave the arrangement to "
        r"the compiler \(auto\)$",
    ):
        compile_plan(parse_query(odd + join.format("2 TUPLES")), Bounds(join="handshake"))
    with pytest.raises(
        UnsupportedError,
        match=r"^the join of R, S and Y: the circuit compares times of one unit only, and these are R in ms, S in "
        r"ms and Y in s; declare all streams with the same one$",
    ):
        compile_plan(parse_query(odd + join.format("2 TIME")), Bounds(window_tuples=4))
    with pytest.raises(UnsupportedError, match=r"^the join of R, S and Y: Y has a window of 2 seconds, and"):
        compile_plan(parse_query(odd.replace("timestamp(0)", "timestamp(3)") + join.format("2 TIME")))


def test_the_report_says_that_windows_are_scanned_inside_of_each_other() -> None:
    facts = dict(report(simulation(CASES["a chain"], cores=2)[1], synthesis=False))
    assert facts["issue rate"] == "at least 0.1 tuples per cycle"
    assert facts["join of R, S, U"].startswith(
        "up to 10 cycles for an arrival, and one for each further result"
    )


# What it costs.


@pytest.mark.parametrize("lanes", [1, 2])
def test_latency_and_rate_are_as_declared(lanes: int) -> None:
    """Nothing is ruled out before the last window, of which nothing fits: the worst of all arrivals."""
    held = (HeldTuples(4), HeldTuples(3), HeldTuples(2))
    block = NestedScan(Combination((ROW,) * 3, comparison((0, "k"), ">", (1, "k"))), held, lanes)
    beats = [*[((0, 0),) * 3] * 4, *[(None, None, (0, 0))] * 5]
    taken = simulate(block, {"arrivals": pack(beats, end=False)}, stop_at_eos=False).accepted["arrivals"]
    worst = {1: 1 + 4 * (1 + 3), 2: 1 + 4 * (1 + 2)}[lanes]  # of each of four tuples a scan of three
    assert ((taken[-1] - taken[-3]) / 2, most_cycles(held, lanes)) == (worst, worst)
    assert block.issue_rate == 1 / worst
    beats = [((1, 0), None, None), (None, (0, 0), None), (None, None, (0, 0))]
    first = simulate(block, {"arrivals": pack(beats, end=False)}, stop_at_eos=False)
    assert first.outputs["results"][0].cycle - first.accepted["arrivals"][-1] == block.latency == 3


def test_an_arrival_in_several_streams_takes_no_more_than_declared() -> None:
    """Nothing is ruled out before the last window; the oldest tuple of a window has left for some of them."""
    held, on = (HeldTuples(4), HeldTuples(3), HeldTuples(5)), comparison((1, "k"), ">", (2, "k"))
    every = [frozenset({0, 1, 2})]
    block = NestedScan(Combination((ROW,) * 3, on), held, 2, together=every)
    feeds = {"arrivals": pack([((0, 0),) * 3] * 9, end=False)}
    taken = simulate(block, feeds, stop_at_eos=False).accepted["arrivals"]
    # Stream 0's new tuple: three of stream 1 and its own, each with three rows and the own one of stream 2.
    most = 1 + (1 + (3 + 1) * (1 + 3 + 1)) + (4 - 1) * (1 + (3 - 1) * (1 + 1) + (1 + 4))
    assert most_cycles(held, 2, every) == most == 1 / block.issue_rate
    # One less: the oldest of stream 1 is not with the new tuple of stream 2.
    assert most_cycles(held, 2) < taken[-1] - taken[-2] == most - 1


def test_the_condition_prunes_as_soon_as_it_can_be_decided() -> None:
    """A window whose tuples the condition rules out is passed by row by row, and nothing inside is scanned."""
    held, tests = (HeldTuples(4), HeldTuples(4), HeldTuples(4)), ((0, "k"), ">", (2, "k"))
    block = NestedScan(Combination((ROW,) * 3, comparison(*tests)), held, 2)
    beats = [*[((0, 0), (0, 0), (0, 0))] * 4, *[(None, None, (1, 0))] * 3]
    taken = simulate(block, {"arrivals": pack(beats, end=False)}, stop_at_eos=False).accepted["arrivals"]
    assert (taken[-1] - taken[-3]) / 2 == 1 + 2  # two rows of the first window
    assert most_cycles(held, 2) == 1 + 4 * (1 + 2)


def test_both_simulators_see_the_same_cycles() -> None:
    text = BY_TIME["itself"]
    plan, compiled, here = simulation(text, cores=2, window_tuples=6)
    there = Simulation(compiled.circuit(), "cxxrtl-quick")

    @settings(FEW, max_examples=4)
    @given(data=st.data())
    def agree(data: st.DataObject) -> None:
        items = physical(plan, data.draw(arrivals(plan, most=14)))
        feeds, ready = feeds_of(compiled, items, data.draw), {"o": data.draw(patterns)}
        assert here.run(feeds, ready=ready) == there.run(feeds, ready=ready)

    agree()
