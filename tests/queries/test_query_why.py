# ruff: noqa: E501 - a query is easier to read in one line
"""`why` of queries agrees with the oracle: pairs that all joins confirm are results, others are none."""

from __future__ import annotations

import itertools
import re
from random import Random

import pytest

import query_oracle
from handshake import InputError, Query, UnsupportedError, why_streams
from handshake.operators.why import running_joins
from handshake.plan.optimise import optimise
from handshake.plan.query import parse_query
from query_cases import ASOF, CHAINS, JOINS, KINDS, LAYERED, TWO
from query_streams import as_physical

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
        results = query_oracle.run(plan, as_physical(query, arrivals))["T"]
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


RUNNING = {
    **TEXTS,
    "tuples": "SELECT R.n AS R, S.n AS S FROM R [SIZE 2 TUPLES], S [SIZE 3 TUPLES] WHERE R.k <= S.k AND v > 0",
    "semi": "SELECT R.n AS R FROM R [SIZE .006 TIME] LEFT SEMI JOIN S [SIZE .006 TIME] ON R.k = S.k AND v <= w",
    "full": """SELECT R.n AS R, S.n AS S FROM R [SIZE .006 TIME] FULL JOIN S [SIZE .004 TIME] ON R.k <= S.k
        AND v <= w + 3 AND w > 0""",
}  # fmt: skip
ALL_JOINS = {**JOINS, **LAYERED, **KINDS, **ASOF, **CHAINS}
REACH = {"two": {"R": 5, "S": 3}, "full": {"R": 5, "S": 3}, "three": {"R": 7, "S": 9, "U": 5}}
"""How long rows are held, in the texts whose joins read the streams themselves."""


class Running:
    """A query to which rows come out of order, and a plain model of what its join holds."""

    def __init__(self, rng: Random, name: str, cores: int) -> None:
        self.plan = parse_query(f"{STREAMS} {RUNNING[name]} INTO T")
        self.query, self.reach = Query(self.plan, cores=cores), REACH.get(name, {})
        self.rows: dict[str, list[dict]] = {source.name: [] for source in self.plan.inputs}
        self.newest: dict[str, int] = {}
        self.arrivals: list[tuple[str, dict]] = []
        self.late: list[tuple[str, int]] = []
        self.rng = rng
        self.used = [s.name for s in self.plan.inputs if re.search(rf"\b{s.name}\b", RUNNING[name])]

    @property
    def clock(self) -> int | None:
        return min(self.newest.values()) if len(self.newest) == len(self.used) else None

    def push(self, step: int) -> None:
        """Push a row, whose time may be one that its join has passed."""
        stream = self.rng.choice(self.used)
        row = make_rows(self.rng, stream, 1)[0]
        time = self.rng.choice((None, *[max(step // 2 + self.rng.randint(-4, 2), 0)] * 12))
        row |= {"n": len(self.rows[stream]), "t": time}
        if time is not None and self.clock is not None and time < self.clock:
            self.late.append((stream, row["n"]))
        if time is not None:
            self.newest[stream] = max(self.newest.get(stream, time), time)
        self.rows[stream].append(row)
        self.arrivals.append((stream, row))
        self.query.push(stream, [row])

    def holds(self, stream: str, row: dict) -> bool:
        """Return whether a join that reads the streams themselves holds a row that can match."""
        clock, came = self.clock, row["t"] is not None and (stream, row["n"]) not in self.late
        return came and (clock is None or row["t"] + self.reach[stream] >= clock)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", RUNNING)
def test_running_queries_agree_with_the_oracle(name: str, cores: int) -> None:
    run = Running(Random(f"{name} {cores}"), name, cores)
    streams = [s for s in ("a", "b", "c", *NAMES) if re.search(rf"\b{s}\.n\b", RUNNING[name])]
    streams += ["S"] if name == "semi" else []
    homes = {s: s if s in NAMES else ("S" if s == "c" else "R") for s in streams}
    answers: dict[tuple, list] = {}
    for step in range(45):
        run.push(step)
        if step % 3:
            continue
        for _ in range(20):
            if not all(run.rows[homes[s]] for s in streams):
                continue
            rows = {s: run.rng.choice(run.rows[homes[s]][-run.rng.choice((4, 99)) :]) for s in streams}
            found = run.query.why(rows)
            answers.setdefault(tuple(row["n"] for row in rows.values()), []).append(found)
            for s in streams if run.reach else ():
                (what,) = [c for c in found[0].conditions if c.what == f"row of {s} in the join"]
                if "it can match nothing" not in what.detail:
                    assert (what.outcome == "holds") == run.holds(s, rows[s]), str(found[0])
                else:
                    assert found[0].joined is False
    results = query_oracle.run(run.plan, as_physical(run.query, run.arrivals))["T"]
    want = {tuple(row.get(s) for s in streams) for row in results}
    outcomes = set()
    for members, found in answers.items():
        joined = [all_of([answer.joined for answer in each]) for each in found]
        outcomes |= {*joined}
        if name == "semi":
            members = (members[0], None)
            assert True not in joined or members in want
            continue
        assert True not in joined or members in want, str(found)
        assert False not in joined or members not in want, str(found)
    assert {False, None if "ASOF" in RUNNING[name] else True} <= outcomes
    run.query.close()


@pytest.mark.parametrize("name", ALL_JOINS)
def test_the_optimiser_keeps_the_joins_of_a_text(name: str) -> None:
    plan = parse_query(TWO + ALL_JOINS[name])
    pairs = [*running_joins(plan, optimise(plan))]
    assert pairs
    for text, join in pairs:
        assert f"names={join.names!r}, windows={join.windows!r}" in text


def test_a_running_query_says_what_has_become_of_rows() -> None:
    text = f"""{STREAMS} {TEXTS["two"]} AND w > 0 INTO T; {TEXTS["last"]} INTO A;
        SELECT R.n AS R, S.n AS S FROM R [SIZE 2 TUPLES] LEFT JOIN S [SIZE 2 TUPLES] ON R.k = S.k INTO V"""
    left = lambda t: {"n": t, "k": 1, "v": 1, "t": t}  # noqa: E731
    right = lambda t, w=1: {"n": t, "k": 1, "w": w, "t": t}  # noqa: E731
    with Query(text) as query:
        assert "in the join" not in "".join(map(str, query.why({"R": left(1), "S": right(2)})))
        query.push("R", [left(1), left(10)])
        query.push("S", [right(2), right(9, 0), right(11)])
        query.push("R", [left(8), left(12)])

        def ask(at: int, mine: dict, other: dict) -> list[str]:
            why = query.why({"R": mine, "S": other})[at]
            return [str(c).partition(" in the join: ")[2] for c in why.conditions if "in the join" in c.what]

        assert ask(0, left(10), right(11)) == ["it is held", "it is held"]
        behind = "not held: it is {} ms behind the watermark: {}"
        late = "it was late, as 1 of this stream, or it has not come"
        assert ask(0, left(8), right(9, 0)) == [
            behind.format(3, late),
            "it can match nothing, so it is not kept",
        ]
        assert ask(0, left(1), right(2)) == [
            behind.format(10, f"it has expired, or {late}"),
            behind.format(9, "it has expired, or it has not come"),
        ]
        assert ask(0, left(20), right(12)) == ["not held: it has not come"] * 2
        assert ask(0, left(12) | {"t": None}, right(11))[0] == "it has no time, so it is not kept"
        assert ask(1, left(12), right(11)) == [
            "it is held, and waits until the watermark is 2 ms later",
            "it is held",
        ]
        assert ask(1, left(10), right(9, 0)) == [
            behind.format(1, f"its result has come, or {late}"),
            "it is held",
        ]
        assert ask(2, left(8), right(11)) == ["it is held, and it has matched", "it is held"]
        assert ask(2, left(1), right(2)) == [
            behind.format(10, "newer rows have pushed it out, or it has not come"),
            behind.format(9, "newer rows have pushed it out, or it has not come"),
        ]
        answer = query.why({"R": left(12), "S": right(9, 0)})[1]
        assert str(answer.reasons[-1]) == (
            "no   best match: another right row is better, S.n = 11, S.k = 1, S.w = 1, S.t = 1970-01-01 "
            "00:00:00.011000: it is 1 ms away, not 3 ms"
        )
        counted = query.why({"R": left(12), "S": right(9, 0)})[2]
        assert counted.joined is True
        assert str(counted.conditions[2]) == (
            "yes  window of S, 2 tuples: when the row of R comes, 1 newer rows are in it"
        )
    assert "in the join" not in "".join(map(str, query.why({"R": left(1), "S": right(2)})))


def all_of(joined: list[bool | None]) -> bool | None:
    return False if False in joined else None if None in joined else True


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
