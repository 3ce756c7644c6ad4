"""`why` agrees with the oracle on every pair, and its texts say what is wrong."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from random import Random

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import handshake
from handshake import InputError, Join, why
from handshake.cli.app import run
from handshake.errors import HandshakeError
from strategies import Case, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck))


def options_of(case: Case) -> dict:
    """The join of a case, as options of `why`."""
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
        "no   left row in time: it is 2 minutes behind the watermark",
        "no   right row in time: it is 1 minute behind the watermark",
    ]
    assert found.notes == (
        "the left row has left its window",
        "the right row waits for matches until the watermark is 1 minute later",
    )


def test_a_running_join_explains_pairs_at_its_watermark() -> None:
    event = pa.schema([("t", pa.int64()), ("x", pa.int64())])
    with Join(left=event, right=event, on="l.x = r.x", window="10 s", time="t") as join:
        join.push_left({"t": [20], "x": [1]})
        join.push_right({"t": [20], "x": [2]})
        found = join.why({"t": 15, "x": 1}, {"t": 20, "x": 1})
    assert [str(c) for c in found.reasons] == [
        "?    left row in time: it is 5 seconds behind the watermark now; it had to come before"
    ]
    assert (found.joined, str(found).splitlines()[0]) == (None, "the rows join if what is marked ? holds")
    with pytest.raises(HandshakeError, match="this join is closed"):
        join.why({"t": 15, "x": 1}, {"t": 20, "x": 1})


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
        "  no   left row in time: it is 1 second behind the watermark",
        "  yes  right row in time: the watermark has not passed it",
        "  the left row waits for matches until the watermark is 1 second later",
        "  the right row waits for matches until the watermark is 4 seconds later",
    ]
    assert run([*command[:3], "9", *command[4:]]) == 2
    assert "no row 9 in the left input of 2 rows, counted from 0" in capsys.readouterr().err


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
