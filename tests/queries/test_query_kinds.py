"""Outer, semi and anti joins in queries against the oracle: rows, their order, times and counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import query_oracle
from handshake.errors import InputError
from handshake.operators.chunk import Chunk
from handshake.operators.join_engines import JoinEngine
from handshake.operators.pending import Pending
from handshake.operators.query import Query
from handshake.plan.query import parse_query
from query_backends import Local, Spark, check, many, plain
from query_cases import ASOF, CHAINS, KINDS, TWO
from query_streams import arrivals, as_physical, compare, results_together, slices

FEW = settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))

ALL = {**KINDS, **CHAINS, **{f"as of, {name}": text for name, text in ASOF.items()}}
ON_SPARK = (
    "full", "left semi", "right anti", "by tuples", "windows over anti", "left inner", "as of, before",
    "as of, windows ahead",
)  # fmt: skip


def prove(text: str, data: st.DataObject, count: int, most: int) -> None:
    """Check that the in-process engine gives what the oracle gives for any streams."""
    plan = parse_query(TWO + text)
    check(Local(), plan, data.draw(many(arrivals(plan, most=most), count)), data.draw)


@pytest.mark.parametrize("name", list(ALL))
@FEW
@given(data=st.data())
def test_kinds(name: str, data: st.DataObject) -> None:
    prove(ALL[name], data, 3, 16)


@pytest.mark.parametrize("name", ON_SPARK)
@settings(FEW, max_examples=1)
@given(data=st.data())
def test_kinds_on_spark(spark: Any, name: str, data: st.DataObject) -> None:
    plan = parse_query(TWO + ALL[name])
    check(Spark(spark), plan, data.draw(many(arrivals(plan, most=16), 3)), data.draw)


@pytest.mark.soak
@pytest.mark.parametrize("name", list(ALL))
@settings(MANY, max_examples=4)
@given(data=st.data())
def test_all_kinds_on_spark(spark: Any, name: str, data: st.DataObject) -> None:
    plan = parse_query(TWO + ALL[name])
    check(Spark(spark), plan, data.draw(many(arrivals(plan, most=24), 8)), data.draw)


@pytest.mark.soak
@pytest.mark.parametrize("name", list(ALL))
@MANY
@given(data=st.data())
def test_kinds_at_length(name: str, data: st.DataObject) -> None:
    prove(ALL[name], data, 1, 32)


@FEW
@given(data=st.data())
def test_kinds_on_several_cores(data: st.DataObject) -> None:
    text = TWO + KINDS[data.draw(st.sampled_from(["full", "left semi", "mixed windows", "itself outer"]))]
    plan = parse_query(text)
    items = data.draw(arrivals(plan, most=16))
    query = Query(plan, cores=2)
    wanted = query_oracle.run(plan, as_physical(query, items))
    compare(results_together(query, slices(data.draw, items)), wanted)


# Chains by their definition: windows compare the times of rows, whatever the intermediate results are.

Rows = list[dict[str, Any]]
Combination = dict[str, dict[str, Any] | None]


@dataclass(frozen=True)
class Step:
    """A join of a chain: its kind, the stream with its window in milliseconds, and the streams of equal k."""

    kind: str
    stream: str
    size: int
    same: str

    def __str__(self) -> str:
        window = f"[SIZE {self.size / 1000} TIME]"
        return f"{self.kind} JOIN {self.stream} {window} ON {self.same}.k = {self.stream}.k"


def chain_results(rows: dict[str, Rows], size: int, steps: list[Step]) -> list[Combination]:
    """Return the results of a chain that begins with R, as docs/queries.md defines them."""
    combinations: list[Combination] = [{"R": row} for row in rows["R"]]
    sizes = {"R": size}
    for step in steps:
        sizes[step.stream] = step.size
        matches = [
            (left, right)
            for left in range(len(combinations))
            for right, row in enumerate(rows[step.stream])
            if _matches(combinations[left], row, sizes, step)
        ]
        combinations = list(_of_kind(step, combinations, rows[step.stream], matches))
    return combinations


def _matches(combination: Combination, row: dict[str, Any], sizes: dict[str, int], step: Step) -> bool:
    for name, member in combination.items():
        if member is not None and not (
            row["t"] - member["t"] < sizes[name] and member["t"] - row["t"] < step.size
        ):
            return False
    other = combination[step.same]
    return other is not None and other["k"] is not None and other["k"] == row["k"]


def _of_kind(
    step: Step, combinations: list[Combination], rows: Rows, matches: list[tuple[int, int]]
) -> Iterator[Combination]:
    found = {left for left, _ in matches}
    if step.kind in ("", "LEFT", "RIGHT", "FULL"):
        yield from ({**combinations[left], step.stream: rows[right]} for left, right in matches)
    for at, combination in enumerate(combinations):
        if step.kind in ("SEMI", "ANTI") and (at in found) == (step.kind == "SEMI"):
            yield combination
        if step.kind in ("LEFT", "FULL") and at not in found:
            yield {**combination, step.stream: None}
    if step.kind in ("RIGHT", "FULL"):
        others = {right for _, right in matches}
        names = [name for combination in combinations for name in combination]
        nothing: Combination = dict.fromkeys(names or ["R"])
        yield from ({**nothing, step.stream: row} for n, row in enumerate(rows) if n not in others)


@st.composite
def chains(draw: Any) -> tuple[int, list[Step]]:
    """Draw a window of R, and two joins."""
    size = st.integers(1, 6)
    second = draw(st.sampled_from(["LEFT", "RIGHT", "FULL", "", "SEMI", "ANTI"]))
    first = draw(st.sampled_from(["LEFT", "RIGHT", "FULL"] if second in ("", "SEMI", "ANTI") else
                                 ["LEFT", "RIGHT", "FULL", ""]))  # fmt: skip
    steps = [Step(first, "S", draw(size), "R"), Step(second, "U", draw(size), draw(st.sampled_from("RS")))]
    return draw(size), steps


def prove_chain(data: st.DataObject) -> None:
    """Check that a chain has the results of its definition, if no row is late."""
    size, steps = data.draw(chains())
    shown = ["v", "w", "z"] if steps[1].kind not in ("SEMI", "ANTI") else ["v", "w"]
    text = f"SELECT {', '.join(shown)} FROM R [SIZE {size / 1000} TIME] {' '.join(map(str, steps))}"
    plan = parse_query(TWO + text)
    items = data.draw(arrivals(plan, most=16, sorted_times=True))
    query = Query(plan)
    rows = {name: [row for given, row in items if given == name] for name in "RSU"}
    columns = {"v": "R", "w": "S", "z": "U"}
    wanted = [
        {name: (found.get(columns[name]) or {}).get(name) for name in shown}
        for found in chain_results(rows, size, steps)
    ]
    assert plain(results_together(query, slices(data.draw, items))) == plain({"result": wanted})
    assert query.metrics().late == 0


@settings(FEW, max_examples=20)
@given(data=st.data())
def test_chains_compare_the_times_of_rows(data: st.DataObject) -> None:
    prove_chain(data)


@pytest.mark.soak
@MANY
@given(data=st.data())
def test_chains_at_length(data: st.DataObject) -> None:
    prove_chain(data)


# Rows that wait.


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_rows_wait_until_they_match_or_leave(data: st.DataObject) -> None:
    pending, waiting, count = Pending(), dict[int, int](), 0
    for _ in range(data.draw(st.integers(1, 12))):
        ends = np.array(data.draw(st.lists(st.integers(0, 9), max_size=9)), np.int64)
        positions = np.arange(count, count + len(ends))
        pending.add(Chunk({"n": pa.array(positions)}, len(ends)), positions, ends)
        waiting |= dict(zip(positions.tolist(), ends.tolist(), strict=True))
        count += len(ends)
        asked = data.draw(st.lists(st.integers(0, max(count - 1, 0)), max_size=9))
        chosen = pending.match(np.array(asked, np.int64)).tolist()
        assert chosen == [n for n, p in enumerate(asked) if p in waiting and p not in asked[:n]]
        waiting = {p: end for p, end in waiting.items() if p not in asked}
        until = data.draw(st.none() | st.integers(0, 9))
        left = pending.leave(until)
        gone = [p for p, end in waiting.items() if until is None or end <= until]
        assert ([] if left is None else left.chunk.columns["n"].to_pylist()) == gone
        waiting = {p: end for p, end in waiting.items() if p not in gone}
        assert len(pending) == len(waiting)


# Pairs that are not results are not made.


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("kind", ["LEFT SEMI", "LEFT ANTI", "RIGHT SEMI", "RIGHT ANTI"])
def test_a_row_gets_one_pair_in_a_search(kind: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    push = JoinEngine.push

    def count_rows(*given: Any) -> list[pa.RecordBatch]:
        nonlocal made
        found = push(*given)
        made += sum(batch.num_rows for batch in found)
        return found

    monkeypatch.setattr(JoinEngine, "push", count_rows)
    shown = "x" if kind.startswith("LEFT") else "y"
    text = f"SELECT {shown} FROM A [SIZE 500 TUPLES] {kind} JOIN B [SIZE 500 TUPLES] ON ABS(x - y) <= 300"
    found = 0
    with Query(TWO_OF_SECONDS + text, cores=cores) as query:
        for start in range(0, 500, 100):
            rows = list(range(start, start + 100))
            for name, column in (("A", "x"), ("B", "y")):
                found += sum(b.num_rows for b in query.push(name, {column: rows, "t": rows})["result"])
        found += sum(b.num_rows for b in query.finish()["result"])
    assert found == (500 if kind.endswith("SEMI") else 0)
    assert 500 <= made <= 500 * 5  # of more than 200,000 pairs


# By hand.

TWO_OF_SECONDS = """CREATE INPUT STREAM A (x int, t int) TIMESTAMP BY t;
    CREATE INPUT STREAM B (y int, t int) TIMESTAMP BY t;"""


def push_steps(text: str, *steps: tuple[str, dict[str, list[Any]]]) -> list[list[dict[str, Any]]]:
    """Return the results of each step, and of the end."""
    with Query(TWO_OF_SECONDS + text) as query:
        found = [query.push(name, rows)["result"] for name, rows in steps]
        found.append(query.finish()["result"])
    return [[row for batch in batches for row in batch.to_pylist()] for batches in found]


def test_a_row_without_a_match_comes_when_the_slower_clock_has_passed_its_window() -> None:
    found = push_steps(
        "SELECT x, y FROM A [SIZE 10 TIME] LEFT JOIN B [SIZE 10 TIME] ON x = y",
        ("A", {"x": [1, 2, None], "t": [0, 1, 2]}),
        ("A", {"x": [3], "t": [30]}),
        ("B", {"y": [2], "t": [9]}),
        ("B", {"y": [9], "t": [10]}),
    )
    null = {"x": None, "y": None}  # matches nothing, and comes at once
    assert found == [[null], [], [{"x": 2, "y": 2}], [{"x": 1, "y": None}], [{"x": 3, "y": None}]]


def test_the_time_of_a_row_without_a_match_is_the_end_of_its_window() -> None:
    found = push_steps(
        """SELECT window_start() AS s, count() AS n, count(y) AS m FROM (SELECT x, y FROM A [SIZE 10 TIME]
            LEFT JOIN B [SIZE 10 TIME] ON x = y) [TUMBLE 10]""",
        ("A", {"x": [1, 2], "t": [5, 5]}),
        ("B", {"y": [2], "t": [6]}),
    )
    assert found == [[], [], [{"s": 0, "n": 1, "m": 1}, {"s": 10, "n": 1, "m": 0}]]


def test_an_as_of_join_gives_left_rows_when_the_slower_clock_has_passed_them() -> None:
    found = push_steps(
        "SELECT x, y FROM A LEFT ASOF JOIN B [SIZE 10 TIME] MATCH_CONDITION (A.t >= B.t) ON x = y OR y > 9",
        ("B", {"y": [1, 10], "t": [0, 3]}),
        ("A", {"x": [1, 1, None, 1], "t": [2, 3, 3, 13]}),
        ("B", {"y": [7, 7], "t": [3, 4]}),
    )
    assert found == [
        [], [{"x": 1, "y": 1}],  # y = 1 has come, and nothing before time 3 can come
        [{"x": 1, "y": 10}, {"x": None, "y": 10}], [{"x": 1, "y": None}],
    ]  # fmt: skip


def test_queries_count_rows_that_match_wait_and_come_alone() -> None:
    kinds = {
        "A [SIZE 10 TIME] LEFT JOIN B [SIZE 10 TIME] ON x = y": [(0, 1, 2, 1), (1, 1, 1, 2), (1, 2, 0, 3)],
        "A [SIZE 10 TIME] FULL JOIN B [SIZE 10 TIME] ON x = y": [(0, 1, 2, 1), (2, 1, 1, 3), (2, 2, 0, 4)],
        "A [SIZE 10 TIME] SEMI JOIN B [SIZE 10 TIME] ON x = y": [(0, 0, 2, 1), (1, 0, 1, 2), (1, 0, 0, 3)],
        "A [SIZE 10 TIME] ANTI JOIN B [SIZE 10 TIME] ON x = y": [(0, 1, 2, 1), (1, 1, 1, 2), (1, 2, 0, 3)],
        "A LEFT ASOF JOIN B [SIZE 10 TIME] MATCH_CONDITION (A.t >= B.t) ON x = y": [
            (0, 1, 2, 1), (0, 2, 1, 2), (1, 2, 0, 3)
        ],
    }  # fmt: skip
    for text, wanted in kinds.items():
        found = []
        with Query(f"{TWO_OF_SECONDS} SELECT x FROM {text}") as query:
            for stream, rows in (("A", {"x": [1, 2, None], "t": [0, 5, 6]}), ("B", {"y": [2], "t": [4]})):
                query.push(stream, rows)
                found.append(query.metrics())
            query.finish()
            found.append(query.metrics())
        assert [(m.matched, m.unmatched, m.pending, m.finalised) for m in found] == wanted, text


def test_of_right_rows_at_one_time_the_last_by_its_columns_is_taken() -> None:
    text = """SELECT x, y FROM A ASOF JOIN (SELECT -y AS z, y, t FROM B) [SIZE 10 TIME] b
        MATCH_CONDITION (A.t >= b.t)"""
    for rows in ([3, 1, 2], [1, 2, 3]):  # -y is the first column, and the last one by it is y = 1
        found = push_steps(text, ("B", {"y": rows, "t": [5, 5, 5]}), ("A", {"x": [0], "t": [6]}))
        assert found == [[], [], [{"x": 0, "y": 1}]]


def test_times_at_the_end_of_their_range() -> None:
    text = "SELECT x, y FROM A [SIZE 10 TIME] FULL JOIN B [SIZE 10 TIME] ON x = y"
    last = 2**62 - 1
    declared = TWO_OF_SECONDS.replace("t int", "t long")
    with Query(declared + text) as query:
        query.push("A", {"x": [1], "t": [last]})
        (batch,) = query.finish()["result"]
        assert batch.to_pylist() == [{"x": 1, "y": None}]
    with Query(f"{declared} SELECT count() AS n FROM ({text}) [TUMBLE 10]") as query:
        query.push("A", {"x": [1], "t": [last]})
        with pytest.raises(InputError, match="the time of a result of a window is beyond 62 bits"):
            query.finish()
