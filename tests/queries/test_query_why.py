# ruff: noqa: E501 - a query is easier to read in one line
"""`why` of queries agrees with the oracle: pairs that all joins confirm are results, others are none."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest

import query_oracle
from handshake import InputError, Query, UnsupportedError, why_streams
from handshake.plan.query import parse_query
from query_streams import seen

STREAMS = """CREATE INPUT STREAM R (n int, k int, v int, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM S (n int, k int, w int, t timestamp(3)) TIMESTAMP BY t;
CREATE INPUT STREAM U (n int, k int, z int, t timestamp(3)) TIMESTAMP BY t;"""
TEXTS = {
    "two": "SELECT R.n AS R, S.n AS S FROM R [SIZE .006 TIME], S [SIZE .004 TIME] WHERE R.k = S.k AND v <= w",
    "three": """SELECT R.n AS R, S.n AS S, U.n AS U FROM R [SIZE .008 TIME], S [SIZE .01 TIME], U [SIZE .006 TIME]
        WHERE R.k = S.k AND U.z > R.v""",
    "one stream twice": """SELECT a.n AS a, b.n AS b FROM R [SIZE .01 TIME] a, R [SIZE .004 TIME] b
        WHERE a.k <= b.k AND a.v < b.v""",
    "selected": """SELECT a.n AS a, S.n AS S FROM (SELECT n, k + 1 AS k, v * 2 AS d, t FROM R WHERE v > 1 AND k < 3)
        [SIZE .009 TIME] a, S [SIZE .007 TIME] WHERE a.k >= S.k AND d > w""",
    "left, selected above": """SELECT R.n AS R, S.n AS S FROM R [SIZE .006 TIME] LEFT JOIN S [SIZE .004 TIME]
        ON R.k = S.k WHERE v > 1 AND (w IS NULL OR w + v < 6)""",
    "chain": """SELECT R.n AS R, S.n AS S, U.n AS U FROM R [SIZE .009 TIME] JOIN S [SIZE .009 TIME] ON R.k = S.k
        LEFT JOIN U [SIZE .009 TIME] ON S.k <= U.k""",
    "last": """SELECT R.n AS R, S.n AS S FROM R LEFT ASOF JOIN S [SIZE .009 TIME] MATCH_CONDITION (R.t >= S.t)
        ON R.k <= S.k""",
    "next, selected": """SELECT R.n AS R, c.n AS c FROM R [SIZE .009 TIME] ASOF JOIN (SELECT n, k, w + 1 AS x, t FROM S WHERE w > 0)
        c MATCH_CONDITION (R.t < c.t) ON c.k >= R.k""",
}  # fmt: skip
NAMES = ("R", "S", "U")
VALUES = {"R": "v", "S": "w", "U": "z"}


def make_rows(rng: Random, name: str, size: int) -> list[dict]:
    times = sorted(rng.choices(range(16), k=size))
    keys, values = rng.choices((None, 1, 2, 3), k=size), rng.choices((None, 0, 1, 2, 3, 4), k=size)
    rows = zip(range(size), keys, values, times, strict=True)
    return [{"n": n, "k": k, VALUES[name]: v, "t": t} for n, k, v, t in rows]


@pytest.mark.parametrize("name", TEXTS)
def test_pairs_of_queries_agree_with_the_oracle(name: str) -> None:
    rng, plan, found = Random(name), parse_query(f"{STREAMS} {TEXTS[name]} INTO T"), 0
    read = {source.name for source in plan.inputs}
    for _ in range(2):
        inputs = {stream: make_rows(rng, stream, 6) for stream in NAMES if stream in read}
        arrivals = [(stream, row) for stream, rows in inputs.items() for row in rows]
        arrivals.sort(key=lambda item: item[1]["t"])
        query = Query(plan)
        results = query_oracle.run(plan, seen(query, arrivals))["T"]
        streams = list(plan.outputs[0].schema.names)
        want = {tuple(row[s] for s in streams) for row in results}
        homes = {s: s if s in inputs else ("S" if s == "c" else "R") for s in streams}
        for members in itertools.product(*(range(len(inputs[homes[s]])) for s in streams)):
            answers = query.why(dict(zip(streams, members, strict=True)), inputs)
            joined = all(answer.joined is True for answer in answers)
            assert None not in {answer.joined for answer in answers}
            assert joined == (members in want), "\n".join(map(str, answers))
            found += joined
    assert found


def test_each_join_of_a_text_has_its_answer() -> None:
    text = f"{STREAMS} {TEXTS['chain']} INTO T; {TEXTS['two']} INTO V"
    row = {"n": 0, "k": 1, "t": "1970-01-01 00:00:00.002"}
    rows = {"R": {**row, "v": 1}, "S": {**row, "w": 0}}
    answers = why_streams(rows, query=text)
    assert [answer.title for answer in answers] == ["join of R and S for T", "join of R and S for V"]
    assert [answer.joined for answer in answers] == [True, False]
    assert str(answers[1]).splitlines()[:3] == [
        "join of R and S for V: the rows do not join",
        "  yes  R.k = S.k: 1 = 1",
        "  no   R.v <= S.w: 1 <= 0",
    ]
    late = {**row, "z": 5, "t": "1970-01-01 00:00:00.050"}
    assert [answer.joined for answer in why_streams({**rows, "U": late}, query=text)] == [False, True, False]
    alone = why_streams({"R": rows["R"], "S": None, "U": {**late, "t": row["t"]}}, query=text)
    assert [answer.title for answer in alone] == ["join of (R, S) and U for T"]


def test_what_is_not_known_is_said() -> None:
    tuples = f"{STREAMS} SELECT R.n FROM R [SIZE 3 TUPLES], S [SIZE 2 TUPLES] WHERE R.k = S.k INTO T"
    rows = {"R": {"n": 0, "k": 1, "v": 1, "t": None}, "S": {"n": 0, "k": 1, "w": 1, "t": None}}
    (found,) = why_streams(rows, query=tuples)
    assert {c.outcome for c in found.reasons} == {"unknown"}
    best = f"{STREAMS} {TEXTS['last']} INTO T"
    at = "1970-01-01 00:00:00.002"
    (found,) = why_streams({name: {**row, "t": at} for name, row in rows.items()}, query=best)
    assert [str(c) for c in found.reasons] == [
        "?    best match: the other rows of S are not known; give the whole inputs"
    ]
    arrival = """CREATE INPUT STREAM A (x int); CREATE INPUT STREAM B (x int);
        SELECT A.x FROM A [SIZE 5 s], B [SIZE 5 s] WHERE A.x = B.x INTO T"""
    (found,) = why_streams({"A": {"x": 1}, "B": {"x": 1}}, query=arrival)
    assert "the time of the row of A is not known" in found.reasons[0].detail
    windows = f"""{STREAMS} SELECT c.m, w FROM (SELECT max(v) AS m FROM R [SIZE .004 ADVANCE .004 TIME])
        [SIZE .01 TIME] c, S [SIZE .01 TIME] WHERE c.m < w INTO T"""
    (found,) = why_streams({"c": {"m": 3}, "S": {"n": 0, "k": 1, "w": 9, "t": at}}, query=windows)
    assert found.conditions[0].outcome == "holds"
    assert found.joined is None


@pytest.mark.parametrize(
    ("rows", "inputs", "message"),
    [
        ({"R": {}}, None, "no row of 'S' is given; the join of R and S needs a row of each"),
        ({"R": {}, "X": {}}, None, "no join of the query reads a stream 'X' (R, S)"),
        ({"R": 0, "S": 0}, None, "the R row is given by its number, 0, so the whole input is needed"),
        ({"R": 0, "S": 0}, {"X": []}, "no input 'X' (R, S, U)"),
    ],
)
def test_rows_that_cannot_be_explained(rows: dict, inputs: dict | None, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        why_streams(rows, query=f"{STREAMS} {TEXTS['two']} INTO T", streams=inputs)


def test_queries_without_joins_refuse() -> None:
    with pytest.raises(UnsupportedError, match="the query joins no streams"):
        why_streams({"S": {"a": 1}}, query="CREATE INPUT STREAM S (a int); SELECT a FROM S INTO T")
    with pytest.raises(InputError, match=re.escape("the query says what its joins are; leave window=… out")):
        why_streams({}, query="", window="5 s")
