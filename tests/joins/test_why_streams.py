"""`why_streams` agrees with the oracle on rows of several streams, on tables and while a join runs."""

from __future__ import annotations

import itertools
import re
from random import Random

import pyarrow as pa
import pytest

import handshake as hs
from handshake import InputError, MultiJoin, MultiReplay, why_streams
from handshake.errors import HandshakeError
from multiway_cases import Case

ROW = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("x", pa.int64())])
NAMES = ("a", "b", "c")
WINDOWS = [{"a": "5 seconds", "b": "3 seconds"}, {"a": "4 tuples", "c": "3 tuples"}]


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_several_streams_agree_with_the_oracle(seed: int) -> None:
    case = Case(seed, 3, 6)
    by_time = case.timed or case.rng.random() < 0.5
    pairs = set(case.want(None, by_time=by_time).pairs)
    options = {
        "streams": {f"s{k}": table for k, table in enumerate(case.tables)},
        "windows": {f"s{k}": window for k, window in enumerate(case.windows)},
        "time": "t" if by_time else None,
    }
    every = list(itertools.product(*(range(table.num_rows) for table in case.tables)))
    some = {*case.rng.sample(every, min(40, len(every))), *case.rng.sample(sorted(pairs), min(9, len(pairs)))}
    for members in some:
        found = why_streams({f"s{k}": n for k, n in enumerate(members)}, case.text, **options)
        assert found.joined is (members in pairs), (case.text, case.windows, str(found))


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("cores", [1, 2])
def test_a_running_join_agrees_with_its_results(windows: dict, cores: int) -> None:
    """Combinations that it confirms are results, those that it denies are none; few are left open."""
    rng, came, results = Random(f"{windows}"), {name: [] for name in NAMES}, set[tuple]()
    options = {"windows": windows, "window": None if "5 seconds" not in windows.values() else "4 seconds"}
    on = "a.x <= b.x AND b.x = c.x AND a.x > 0"
    with MultiJoin(dict.fromkeys(NAMES, ROW), on, time="t", cores=cores, **options) as join:
        for step in range(12):
            name = NAMES[step % 3]
            rows = [
                {
                    "t": step // 3 + rng.randint(-2, 3),
                    "n": len(came[name]) + i,
                    "x": rng.choice((None, 1, 2, 2)),
                }
                for i in range(rng.randint(1, 2))
            ]
            came[name] += rows
            for batch in join.push(name, rows):
                results |= set(zip(*(batch[n].to_pylist() for n in ("n", "n_b", "n_c")), strict=True))
        outcomes = []
        for rows in itertools.product(*came.values()):
            found = join.why(dict(zip(NAMES, rows, strict=True)))
            outcomes.append(found.joined)
            assert found.joined in (None, tuple(row["n"] for row in rows) in results), str(found)
            assert found.joined is not None or "unknown" in {c.outcome for c in found.conditions}
    assert {True, False} <= set(outcomes)
    assert results


def test_a_running_join_says_what_has_become_of_rows() -> None:
    with MultiJoin(dict.fromkeys(NAMES, ROW), "a.x = b.x AND c.x > 1", window="5 s", time="t") as join:
        rows = {name: {"t": 40, "n": 0, "x": 2} for name in NAMES}
        join.push("a", [{"t": 20, "n": 9, "x": 2}, rows["a"], {"t": 40, "n": 1, "x": None}])
        for name in ("b", "c"):
            join.push(name, [rows[name], {"t": 40, "n": 1, "x": 1}])
        join.push("b", [{"t": 30, "n": 2, "x": 2}])
        assert str(join.why(rows)).splitlines() == [
            "the rows join",
            "  yes  c.x > 1: 2 > 1",
            "  yes  a.x = b.x: 2 = 2",
            *(f"  yes  window of {n}, 5 seconds: the row of {o} is not later" for n, o in ("ab", "ba", "ca")),
            *(f"  yes  row of {name} in the join: it is held" for name in NAMES),
        ]
        ask = lambda **other: [str(c) for c in join.why(rows | other).reasons]  # noqa: E731
        assert ask(a={"t": 20, "n": 9, "x": 2})[-1] == (
            "?    row of a in the join: not held: it is 20 seconds behind the watermark: it has expired, or "
            "it has not come"
        )
        assert ask(a={"t": 40, "n": 1, "x": None}) == [
            "NULL a.x = b.x: NULL = 2",
            "no   row of a in the join: it can match nothing, so it is not kept",
        ]
        assert ask(b={"t": 30, "n": 2, "x": 2})[-1].endswith(
            "it was late, as 1 of this stream, or it has not come"
        )
        assert ask(c={"t": 40, "n": 1, "x": 1}) == [
            "no   c.x > 1: 1 > 1",
            "no   row of c in the join: it can match nothing, so it is not kept",
        ]
        assert ask(c={"t": 40, "n": 5, "x": 2}) == ["no   row of c in the join: not held: it has not come"]
        assert str(why_streams(rows, join)) == str(join.why(rows))
        with pytest.raises(InputError, match=re.escape("the join says what it is; leave window=… out")):
            why_streams(rows, join, window="5 s")
    with pytest.raises(HandshakeError, match="this join is closed"):
        join.why(rows)


def test_plans_and_replays_explain_rows() -> None:
    tables = {name: pa.table({"t": [0], "n": [0], "x": [1]}, ROW) for name in NAMES}
    plan = hs.prepare_streams(dict.fromkeys(NAMES, ROW), "a.x < b.x", window="5 s", time="t")
    rows = {name: table.to_pylist()[0] for name, table in tables.items()}
    assert [str(c) for c in why_streams(rows, plan).reasons] == ["no   a.x < b.x: 1 < 1"]
    assert str(MultiReplay(plan, tables).why(rows)) == str(why_streams(rows, plan))


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        ({"a": {"x": 1}}, {}, "a join needs two or more streams; 1 was given"),
        ({"a": 0, "b": {"x": 1}}, {}, "the a row is given by its number, 0, so the whole input is needed"),
        ({"a": {"x": 1}, "b": {"x": 1}}, {"streams": {"c": {"x": [1]}}}, "no row of 'c' is given"),
        ({"a": {"x": 1}, "b": {"x": 1}}, {"windows": {"c": "5 s"}}, "a window is given for 'c'"),
    ],
)
def test_rows_that_cannot_be_explained(rows: dict, options: dict, message: str) -> None:
    with pytest.raises(HandshakeError, match=re.escape(message)):
        why_streams(rows, "1 = 1", **options)


def test_running_joins_name_streams_that_are_not_theirs() -> None:
    with MultiJoin(dict.fromkeys(NAMES, ROW), window="5 s", time="t") as join:
        for rows, message in (
            ({"a": {}, "b": {}, "d": {}}, "no stream 'd' (a, b, c)"),
            ({"a": {}, "b": {}}, "no row of 'c' is given; give one row of each stream"),
            ([1], "rows are given by the names of their streams"),
        ):
            with pytest.raises(InputError, match=re.escape(message)):
                join.why(rows)
