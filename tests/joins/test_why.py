"""`why` agrees with the oracle on every pair, and its texts say what is wrong."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import handshake
from handshake import AsOfJoin, InputError, Join, MultiJoin, NearestJoin, Query, why
from handshake.cli.app import run
from handshake.errors import HandshakeError
from handshake.page.about import describe
from strategies import Case, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck))


def options_of(case: Case) -> dict:
    """Return the join of a case, as options of `why`."""
    return {
        "left_window": case.windows.left,
        "right_window": case.windows.right,
        "left_time": case.left_time,
        "right_time": case.right_time,
    }


@settings(EXAMPLES, max_examples=15)
@given(case=known_cases(max_rows=20), seed=st.integers(0, 2**32 - 1))
def test_pairs_join_and_others_do_not(case: Case, seed: int) -> None:
    try:
        pairs = set(expect(case).pairs)
        handshake.prepare(case.left.schema, case.right.schema, case.on, **options_of(case))
    except HandshakeError:
        return
    every = [(i, j) for i in range(case.left.num_rows) for j in range(case.right.num_rows)]
    rng = Random(seed)
    for i, j in {*rng.sample(every, min(12, len(every))), *rng.sample(sorted(pairs), min(4, len(pairs)))}:
        found = why(i, j, case.on, left=case.left, right=case.right, **options_of(case))
        assert found.joined is ((i, j) in pairs), (case.on, case.windows, str(found))
        assert (not found.reasons) is found.joined


def test_each_part_of_the_predicate_has_its_values() -> None:
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    found = why(
        {"x": None, "s": "a" * 99}, {"a": 9}, "l.x < r.a AND l.s LIKE 'a%' AND (r.a < 3 OR r.a > 10)",
        left=schema,
    )  # fmt: skip
    assert [(c.outcome, c.detail) for c in found.conditions] == [
        ("null", "NULL < 9"),
        ("holds", "l.s = " + "a" * 59 + "…"),
        ("fails", "r.a = 9"),
    ]
    assert found.joined is False
    assert str(found).splitlines()[:2] == ["the rows do not join", "  NULL l.x < r.a: NULL < 9"]


def test_windows_say_how_far_rows_are_apart() -> None:
    found = why({"t": 10}, {"t": 0}, left_window="1 minute", right_window="5 s", time="t")
    assert [(c.outcome, c.what, c.detail) for c in found.conditions] == [
        ("holds", "left window of 1 minute", "the right row is not later"),
        ("fails", "right window of 5 seconds", "the left row is 10 seconds later"),
    ]
    missing = why({"t": 1}, {"t": None}, window="5 s", time="t", right=pa.schema([("t", pa.int64())]))
    assert [str(c) for c in missing.reasons] == ["no   time of the right row: 't' is NULL"]


def test_windows_of_tuples_need_the_whole_inputs() -> None:
    assert why({"x": 1}, {"x": 1}, "l.x = r.x", window="2 tuples").joined is None
    inputs = {"left": {"x": [1, 2, 3, 4]}, "right": {"x": [0, 0, 0, 1]}}
    found = why(0, 3, "l.x = r.x", window="2 tuples", **inputs)
    assert found.joined is False
    assert found.reasons[0].detail == "when the right row comes, 3 newer rows are in it"


def test_the_watermark_makes_rows_late_and_final() -> None:
    at = [datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in range(5)]
    found = why({"t": at[1]}, {"t": at[2]}, window="2 minutes", time="t", watermark=at[3])
    assert [str(c) for c in found.reasons] == [
        "no   rows in time: the left row is 2 minutes and the right row 1 minute behind the watermark, so "
        "the one that came later was late"
    ]
    assert found.notes == (
        "the left row has left its window",
        "the right row waits for matches until the watermark is 1 minute later",
    )


ROW = pa.schema([("t", pa.int64()), ("n", pa.int64()), ("x", pa.int64())])
EVENT = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])


@pytest.mark.parametrize("left_first", [True, False])
def test_one_watermark_does_not_say_which_row_came_first(left_first: bool) -> None:
    """The watermark is 2 when the later of the rows comes; the left row at 1 is late if it is that one."""
    at = [datetime(1970, 1, 1, 0, 0, second) for second in range(4)]
    with Join(left=EVENT, right=EVENT, on="l.x < r.x", window="5 seconds", time="t") as join:
        results = join.push_left({"t": [at[1]], "x": [1]}) if left_first else []
        results += join.push_left({"t": [at[2]], "x": [9]})
        results += join.push_right({"t": [at[2]], "x": [0]})
        results += join.push_right({"t": [at[3]], "x": [5]})
        results += [] if left_first else join.push_left({"t": [at[1]], "x": [1]})
    assert sum(batch.num_rows for batch in results) == int(left_first)
    found = why(
        {"t": at[1], "x": 1}, {"t": at[3], "x": 5}, "l.x < r.x", window="5 seconds", time="t", left=EVENT,
        right=EVENT, watermark="1970-01-01 00:00:02",
    )  # fmt: skip
    assert found.joined is None
    assert [str(c) for c in found.reasons] == [
        "?    left row in time: it is 1 second behind the watermark, so it was late unless it came before "
        "the right row"
    ]


def test_verdicts_by_a_watermark_agree_with_a_join() -> None:
    """The watermark is the one before the later row of a pair comes."""
    outcomes = set()
    for seed in range(6):
        rng, came, found = Random(seed), [], set()
        join = Join(left=ROW, right=ROW, on="l.x <= r.x", window="4 seconds", time="t", lateness="1 second")
        for n in range(24):
            side, row = rng.randint(0, 1), {"t": n // 2 + rng.randint(-6, 2), "n": n, "x": rng.randint(0, 2)}
            came.append((side, row, join._joined.driver.mark()))
            for batch in (join.push_left, join.push_right)[side]([row]):
                found.update(zip(batch["n"].to_pylist(), batch["n_right"].to_pylist(), strict=True))
        join.close()
        options = {"left": ROW, "right": ROW, "window": "4 seconds", "time": "t"}
        for (first, one, _), (second, other, mark) in combinations(came, 2):
            if first == second:
                continue
            pair = (one, other) if first == 0 else (other, one)
            answer = why(*pair, "l.x <= r.x", watermark=mark, **options)
            outcomes.add(answer.joined)
            assert answer.joined in (None, (pair[0]["n"], pair[1]["n"]) in found), str(answer)
    assert outcomes == {True, False, None}


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.timestamp("us"), "2026-01-01 00:00:03"),
        (pa.timestamp("us", "UTC"), "2026-01-01 00:00:03"),
        (pa.timestamp("ms", "Europe/Paris"), "2026-01-01T01:00:03+01:00"),
        (pa.timestamp("us", "UTC"), datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)),
        (pa.int64(), "1767225603"),
    ],
)  # fmt: skip
def test_watermarks_are_texts_or_values(kind: pa.DataType, given: object) -> None:
    seconds = pa.array([1767225602], pa.int64())
    time = seconds if kind == pa.int64() else seconds.cast(pa.timestamp("s")).cast(kind)
    rows = pa.table({"t": time})
    found = why(0, 0, left=rows, right=rows, window="5 seconds", time="t", watermark=given)
    assert "the left row is 1 second and the right row 1 second behind" in found.reasons[0].detail


@pytest.mark.parametrize("given", ["banana", 5.5, "", datetime(2026, 1, 1)])
def test_a_watermark_that_is_no_time_is_named(given: object) -> None:
    schema = pa.schema([("t", pa.timestamp("us", "UTC") if given != datetime(2026, 1, 1) else pa.int64())])
    message = f"the watermark, {given!r}, is no value of column 't', which is {schema.field('t').type}"
    with pytest.raises(InputError, match=re.escape(message)):
        why({"t": None}, {"t": None}, left=schema, right=schema, window="5 s", time="t", watermark=given)


def test_a_join_or_its_plan_says_what_it_is() -> None:
    rows = {"t": datetime(2026, 1, 1), "x": 1}, {"t": datetime(2026, 1, 1, 0, 0, 2), "x": 2}
    plan = handshake.prepare(EVENT, EVENT, "l.x < r.x", window="5 seconds", time="t")
    assert why(*rows, plan).joined is True
    with Join(left=EVENT, right=EVENT, on="l.x < r.x", window="5 seconds", time="t") as join:
        join.push_left([rows[0]])
        join.push_right([rows[1]])
        assert str(why(*rows, join)) == str(join.why(*rows))
        with pytest.raises(InputError, match=re.escape("the join says what it is; leave window=… out")):
            why(*rows, join, window="5 seconds")
    for name in ("join", "query"):
        message = f"{name}=… names a join in a state, and no state is given (state=…); a running join is the"
        with pytest.raises(InputError, match=re.escape(message)):
            why(*rows, window="5 seconds", time="t", **{name: "matches"})


@pytest.mark.parametrize(
    ("how", "pair", "alone"),
    [
        ("inner", (), ()),
        (
            "left",
            (),
            (
                "without a match, the left row comes with NULLs once it has left its window of 5 seconds",
                "without a match, the right row is no result",
            ),
        ),
        (
            "left_semi",
            ("the left row is a result with its first match",),
            ("without a match, the left row is no result",),
        ),
        (
            "left_anti",
            ("the left row has a match, so it is no result",),
            ("without a match, the left row comes once it has left its window of 5 seconds",),
        ),
    ],
)
def test_the_kind_says_what_becomes_of_rows(how: str, pair: tuple, alone: tuple) -> None:
    options = {"window": "5 seconds", "time": "t", "how": how}
    assert why({"t": 1, "x": 1}, {"t": 2, "x": 2}, "l.x < r.x", **options).notes == pair
    assert why({"t": 1, "x": 1}, {"t": 2, "x": 2}, "l.x > r.x", **options).notes == alone
    joined = handshake.join({"t": [1], "x": [1]}, {"t": [2], "x": [2]}, "l.x > r.x", **options)
    assert joined.num_rows == sum("comes" in note for note in alone)


def test_rows_that_can_match_nothing_come_at_once() -> None:
    schema = pa.schema([("t", pa.int64()), ("x", pa.int64())])
    options = {"left": schema, "right": schema, "window": "5 seconds", "time": "t", "how": "full"}
    found = why({"t": 1, "x": None}, {"t": None, "x": 2}, "l.x = r.x", **options)
    assert found.notes == (
        "the left row can match nothing, so it comes with NULLs at once",
        "the right row can match nothing, so it comes with NULLs at once",
    )
    assert why({"x": 1}, {"x": 2}, "l.x = r.x", how="right").notes[1] == (
        "without a match, the right row comes with NULLs at the end of the input"
    )


def rows_of(rng: Random, start: int, newest: int) -> list[dict]:
    times = [rng.choice((None, *[newest - rng.randint(-3, 9)] * 9)) for _ in range(rng.randint(0, 4))]
    return [{"t": t, "n": start + i, "x": rng.choice((None, 0, 1, 2))} for i, t in enumerate(times)]


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@pytest.mark.parametrize(
    "options", [{"cores": 1}, {"algorithm": "cell", "cores": 2}, {"algorithm": "handshake", "cores": 2}]
)
@pytest.mark.parametrize("window", ["5 seconds", "6 tuples"])
def test_a_running_join_agrees_with_its_results(how: str, options: dict, window: str) -> None:
    """A pair that it confirms is a result, one that it denies is none; few pairs are left open."""
    rng, given, found = Random(f"{how} {window}"), ([], []), set[tuple]()
    join = Join(left=ROW, right=ROW, on="l.x <= r.x", window=window, time="t", how=how, **options)
    for step in range(12):
        side = rng.randint(0, 1)
        rows = rows_of(rng, len(given[side]), 2 * step)
        given[side].extend(rows)
        if rows:
            for batch in (join.push_left, join.push_right)[side](rows):
                found.update(zip(batch["n"].to_pylist(), batch["n_right"].to_pylist(), strict=True))
    answers = {(a["n"], b["n"]): join.why(a, b) for a in given[0] for b in given[1]}
    wrong = [str(a) for pair, a in answers.items() if a.joined is not None and a.joined != (pair in found)]
    assert not wrong
    for pair, answer in answers.items():
        for side in (0, 1):
            matched = any(p[side] == pair[side] and None not in p for p in found)
            for condition in answer.conditions:
                if condition.what.startswith(("left", "right")[side]) and "and it has" in condition.detail:
                    assert (
                        condition.detail
                        == f"it is held, and it has {'' if matched else 'not '}matched"
                        + ("" if matched else " so far")
                    )
    outcomes = [answer.joined for answer in answers.values()]
    assert {True, False} <= set(outcomes)
    join.finish()
    with pytest.raises(HandshakeError, match="this join is closed"):
        join.why(given[0][0], given[1][0])


def test_a_running_join_says_what_has_become_of_rows() -> None:
    shed: list[int] = []
    options = {"left": ROW, "right": ROW, "on": "l.x = r.x", "window": "10 s", "time": "t", "how": "left"}
    with Join(**options) as join:
        join.push_left([{"t": 20, "n": 0, "x": 1}, {"t": 40, "n": 1, "x": 1}, {"t": 40, "n": 2, "x": None}])
        join.push_right([{"t": 41, "n": 0, "x": 1}, {"t": 20, "n": 1, "x": 1}])
        ask = lambda row, n=0: join.why(row, {"t": 41, "n": n, "x": 1})  # noqa: E731
        details = [
            ask({"t": 40, "n": 1, "x": 1}),
            ask({"t": 20, "n": 0, "x": 1}),
            ask({"t": 40, "n": 2, "x": None}),
            ask({"t": 39, "n": 3, "x": 1}),
            ask({"t": None, "n": 3, "x": 1}),
        ]
        late = join.why({"t": 40, "n": 1, "x": 1}, {"t": 33, "n": 1, "x": 1})
        join.finish()
    assert [str(each.conditions[-2]) for each in details] == [
        "yes  left row in the join: it is held, and it has matched",
        "?    left row in the join: not held: it is 20 seconds behind the watermark: it has expired, or it "
        "has not come",
        "no   left row in the join: it can match nothing, so it is not kept",
        "no   left row in the join: not held: it is 1 second behind the watermark: it has not come",
        "no   left row in the join: it has no time, so it is not kept",
    ]
    assert [each.joined for each in details] == [True, False, False, False, False]
    assert str(late.conditions[-1]) == (
        "no   right row in the join: not held: it is 7 seconds behind the watermark: it was late, as 1 of "
        "this side, or it has not come"
    )
    with Join(**options, overload="shed", room=1, on_shed=lambda side, rows: shed.append(rows)) as join:
        while not shed:
            join.push_left([{"t": 1, "n": len(shed), "x": 1}] * 50)
        found = join.why({"t": 1, "n": 9, "x": 1}, {"t": 1, "n": 0, "x": 1})
        join.finish()
    assert found.conditions[-2].outcome == "unknown"
    assert "it was shed, as" in found.conditions[-2].detail
    assert found.conditions[-2].detail.endswith("it still waits before the join, or it has not come")


def test_the_live_page_asks_everything_that_joins_streams() -> None:
    joins = [
        (AsOfJoin(left=ROW, right=ROW, time="t", tolerance="5 s"), ["left", "right"]),
        (NearestJoin(left=ROW, right=ROW, by="ABS(l.x - r.x)", window="5 s", time="t"), ["left", "right"]),
        (MultiJoin({"a": ROW, "b": ROW, "c": ROW}, window="5 s", time="t"), ["a", "b", "c"]),
        (Query("CREATE INPUT STREAM S (a int); SELECT x.a FROM S [NOW] x, S [NOW] y INTO T"), ["x", "y"]),
    ]
    for join, names in joins:
        asked = describe(join)["why"]
        assert [stream["name"] for stream in asked] == names
        assert all(stream["columns"] in (["t", "n", "x"], ["a"]) for stream in asked)
        join.close()
    assert describe(Query("CREATE INPUT STREAM S (a int); SELECT a FROM S INTO T"))["why"] is None


def test_lengths_are_exact_and_readable() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    for microseconds, shown in (
        (5, "5 us"),
        (46_620, "46.62 ms"),
        (4_350_312, "4.350312 seconds"),
        (90_061_500_000, "1 day 1 hour 1 minute 1.5 seconds"),
    ):
        found = why({"t": at}, {"t": at + timedelta(microseconds=microseconds)}, window="2 days", time="t")
        assert found.conditions[0].detail == f"the right row is {shown} later"


def test_the_command_explains_rows_of_files(tmp_path, capsys) -> None:
    left, right = tmp_path / "left.csv", tmp_path / "right.csv"
    left.write_text("t,x\n2026-01-01 00:00:00,7\n2026-01-01 00:00:09,8\n")
    right.write_text("t,x\n2026-01-01 00:00:03,7\n")
    command = ["why", str(left), str(right), "0", "0", "--on", "l.x = r.x", "--window", "2 s", "--time", "t"]
    assert run([*command, "--watermark", "2026-01-01 00:00:01"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "the rows do not join",
        "  yes  l.x = r.x: 7 = 7",
        "  no   left window of 2 seconds: the right row is 3 seconds later",
        "  yes  right window of 2 seconds: the left row is not later",
        "  ?    left row in time: it is 1 second behind the watermark, so it was late unless it came before "
        "the right row",
        "  yes  right row in time: the watermark has not passed it",
        "  the left row waits for matches until the watermark is 1 second later",
        "  the right row waits for matches until the watermark is 4 seconds later",
    ]
    assert run([*command, "--watermark", "banana"]) == 2
    assert "the watermark, 'banana', is no value of column 't'" in capsys.readouterr().err
    assert run([*command, "--how", "left"]) == 0
    assert "without a match, the left row comes with NULLs once it has left" in capsys.readouterr().out
    assert run([*command[:3], "9", *command[4:]]) == 2
    assert "no row 9 in the left input of 2 rows, counted from 0" in capsys.readouterr().err


QUOTES = "t,k,bid\n1,A,8\n4,A,9\n"


def test_the_command_explains_best_matches(tmp_path, capsys) -> None:
    left, right = tmp_path / "trades.csv", tmp_path / "quotes.csv"
    left.write_text("t,k,price\n5,A,9\n")
    right.write_text(QUOTES)
    command = ["why", str(left), str(right), "0", "0"]
    assert run([*command, "--time", "t", "--asof", "backward", "--by", "k", "--tolerance", "3 s"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "the rows do not join",
        "  yes  l.k = r.k: A = A",
        "  yes  right row at or before the left row: it is 4 seconds earlier",
        "  no   within 3 seconds: the right row is 4 seconds earlier, 1 second too far",
        "  the left row takes: t = 4, k = A, bid = 9",
    ]
    assert run([*command, "--nearest", "ABS(l.price - r.bid)", "-k", "2"]) == 0
    assert "yes  2 best by ABS(l.price - r.bid): its value is 1, rank 2 of 2" in capsys.readouterr().out
    for more, message in (
        ([], "a join needs a condition; give --on"),
        (["--by", "k", "--on", "1 = 1"], "--by is for as-of joins; give --asof, too"),
        (["-k", "2", "--on", "1 = 1"], "-k is for nearest joins; give --nearest, too"),
        (["--asof", "backward", "--nearest", "l.t"], "--asof and --nearest are two kinds of joins"),
    ):
        assert run([*command, *more]) == 2
        assert message in capsys.readouterr().err


def test_multijoin_and_run_explain_rows_of_files(tmp_path, capsys) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("Trades", "Quotes")}
    files["Trades"].write_text("t,k,price\n5,A,9\n")
    files["Quotes"].write_text(QUOTES)
    inputs = [f"{name}={path}" for name, path in files.items()]
    command = ["multijoin", *inputs, "--on", "Trades.k = Quotes.k", "--window", "4 s", "--time", "t"]
    assert run([*command, "--why", "Trades=0", "--why", "Quotes=0"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "the rows do not join",
        "  yes  Trades.k = Quotes.k: A = A",
        "  yes  window of Trades, 4 seconds: the row of Quotes is not later",
        "  no   window of Quotes, 4 seconds: the row of Trades is 4 seconds later",
    ]
    query = tmp_path / "query.sql"
    query.write_text(
        """CREATE INPUT STREAM Trades (t int, k string(4), price int) TIMESTAMP BY t;
        CREATE INPUT STREAM Quotes (t int, k string(4), bid int) TIMESTAMP BY t;
        SELECT price, bid FROM Trades ASOF JOIN Quotes [SIZE 9 s] MATCH_CONDITION (Trades.t >= Quotes.t)
        ON Trades.k = Quotes.k INTO Matches"""
    )
    given = [argument for each in inputs for argument in ("--input", each)]
    assert run(["run", str(query), *given, "--why", "Trades=0", "--why", "Quotes=0"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "join of Trades and Quotes for Matches: the rows do not join"
    )
    for more, message in (
        (["Trades=x"], "--why 'Trades=x' is no row; write NAME=N"),
        (["Trades=0", "Trades=1"], "--why is given twice for 'Trades'"),
        (["Trades=0"], "no row of 'Quotes' is given"),
        (["Trades=0", "Quotes=2"], "no row 2 in the Quotes input of 2 rows"),
    ):
        asked = [argument for each in more for argument in ("--why", each)]
        for words in (["run", str(query), *given], command):
            assert run([*words, *asked]) == 2
            assert message in capsys.readouterr().err


def test_run_says_that_a_row_on_standard_input_was_late(tmp_path, capsys, monkeypatch) -> None:
    query = tmp_path / "query.sql"
    query.write_text(
        """CREATE INPUT STREAM R (n int, v int, t int) TIMESTAMP BY t;
        SELECT a.n AS a, b.n AS b FROM R [SIZE 10 s] a, R [SIZE 10 s] b WHERE a.v < b.v INTO T"""
    )
    rows = b"n,v,t\n0,1,5\n1,2,20\n2,0,12\n3,9,21\n"

    def run_query(*more: str) -> str:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(rows)))
        assert run(["run", str(query), "--input", "R=-", *more]) == 0
        return capsys.readouterr().out

    assert run_query("--output", "T=-").splitlines()[1:] == ["1,3"]
    assert run_query("--why", "a=1", "--why", "b=3").startswith("join of a and b for T: the rows join\n")
    late = run_query("--why", "a=2", "--why", "b=3")
    assert late.startswith("join of a and b for T: the rows do not join\n")
    assert "no   row of a in the join: not held: it is 9 seconds behind the watermark: it was late" in late


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((0, {"x": 1}), {}), "given by its number, 0, so the whole input is needed (left=…)"),
        (((3, {"x": 1}), {"left": {"x": [1]}}), "no row 3 in the left input of 1 rows, counted from 0"),
        ((({"x": 1}, {"x": [1, 2]}), {}), "one right row is explained, and 2 were given"),
        ((({"x": 1}, {"x": 1}), {"watermark": 5}), "a watermark, 5, says nothing without time columns"),
        ((({"t": 1}, {"t": 1}), {"watermark": None, "time": "u"}), "no column 'u'"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_explained(given: tuple, message: str) -> None:
    (rows, options) = given
    with pytest.raises((InputError, HandshakeError), match=re.escape(message)):
        why(*rows, **options)
