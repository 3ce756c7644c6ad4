"""Tests of `handshake.testing`: it agrees with the engines, finds wrong results, and says what differs."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pyarrow as pa
import pytest

import handshake
from handshake import testing
from handshake.errors import InputError, SchemaError, UnsupportedError, WindowError
from handshake.joins.join import Join
from handshake.kinds import KINDS
from handshake.testing.oracle import TIME, rows
from worked_example import EVENT, START, worked_example


def events(rng: Random, size: int) -> pa.Table:
    """Return rows with ties of times, rows without a time, NULL and NaN."""
    return pa.table(
        {
            "t": [
                rng.choice((None, *[START + timedelta(seconds=rng.randint(0, 30))] * 9)) for _ in range(size)
            ],
            "k": [rng.choice((None, 0, 1, 2)) for _ in range(size)],
            "x": [rng.choice((None, float("nan"), 0.0, 1.0, 2.5)) for _ in range(size)],
        },
        EVENT,
    )


@pytest.mark.parametrize("how", [kind for kind in KINDS if kind not in ("best", "nearest")])
@pytest.mark.parametrize("window", ["5 seconds", "4 tuples"])
def test_scripts_agree_with_joins_in_process(how, window):
    join = {"on": "l.k = r.k AND l.x <= r.x", "window": window, "time": "t", "how": how}
    for seed in range(6):
        rng = Random(f"{how} {seed}")
        tables = events(rng, rng.randint(0, 25)), events(rng, rng.randint(0, 25))
        script = testing.scramble(
            *tables, time="t", disorder="9 seconds", steps=5, restarts=seed % 3, seed=seed
        )
        late = {**join, "lateness": f"{seed} seconds"}
        found = script.check(late)
        assert found.late == script.expect(late).late
        joined = handshake.join(*tables, **join)
        testing.assert_same_rows(joined, testing.reference(join, *tables))


def test_the_reference_takes_plans_and_running_joins():
    left, right = pa.table({"x": [1, 5], "n": [0, 1]}), pa.table({"x": [2, 9], "n": [7, 8]})
    plan = handshake.prepare(left.schema, right.schema, "ABS(l.x - r.x) <= 1", how="left", suffix="_r")
    expected = {"x": [1, 5], "n": [0, 1], "x_r": [2, None], "n_r": [7, None]}
    testing.assert_same_rows(testing.reference(plan, left, right), expected)
    with Join(left=left, right=right, on="l.n < r.n", window="9 tuples") as join:
        assert testing.reference(join, left, right).num_rows == 4


def test_floats_are_times_and_nan_is_none():
    table = pa.table({"t": [1.5, float("nan"), None, 0.1]})
    assert [row[TIME] for row in rows(table, "t")] == [1_500_000_000, None, None, 100_000_000]


def test_a_circuit_takes_scripts_without_restarts():
    pytest.importorskip("amaranth")
    left, right = {"x": [1, 2, 3], "t": [0, 1, 2]}, {"a": [2, 3], "t": [0, 2]}
    join = {"on": "l.x = r.a", "window": "2 tuples", "time": "t"}
    script = testing.scramble(left, right, time="t", steps=2)
    assert script.check(join, "circuit").results.num_rows == 2
    with pytest.raises(UnsupportedError, match=r"leave restart\(\) and advance\(\) out"):
        script.restart().run(join, "circuit")


def test_promises_make_rows_final_and_late():
    script = testing.Script(EVENT, EVENT).push(left={"t": [0], "k": [1], "x": [0.0]})
    script = script.advance(left=START, right=START).push(right={"t": [0], "k": [1], "x": [0.0]})
    outcome = script.check({"on": "l.k = r.k", "window": "1 second", "time": "t", "how": "left"})
    assert (outcome.results["k_right"].to_pylist(), outcome.late) == ([None], 1)
    with pytest.raises(WindowError, match="no time column is named for the left input"):
        script.expect({"on": "l.k = r.k"})


def test_a_wrong_result_is_found(monkeypatch):
    """A join that loses its last result fails the check."""
    push = Join.push_right
    monkeypatch.setattr(
        Join, "push_right", lambda self, rows: [b.slice(0, len(b) - 1) for b in push(self, rows)]
    )
    script = testing.Script({"x": pa.int64()}, {"a": pa.int64()}).push({"x": [1]}, {"a": [1, 2]})
    with pytest.raises(AssertionError, match=r"the local engine differs .*: 1 row is missing"):
        script.check({"on": "l.x <= r.a"})


def test_a_restart_that_changes_results_is_found(monkeypatch):
    answers = iter([1, 0])
    push = Join.push_right
    monkeypatch.setattr(Join, "push_right", lambda self, rows: push(self, rows) * next(answers))
    script = testing.Script({"x": pa.int64()}, {"a": pa.int64()}).push({"x": [1]}, {"a": [1]}).restart()
    with pytest.raises(AssertionError, match="results before the restart in step 2 differ: 1 row is missing"):
        script.run({"on": "l.x = r.a"})


def test_differences_are_shown_up_to_a_number_of_lines():
    with pytest.raises(AssertionError) as caught:
        testing.assert_same_rows({"x": list(range(30))}, {"x": [0, 0]}, message="after step 3")
    lines = str(caught.value).splitlines()
    assert lines[0] == "after step 3: 1 row is missing, 29 rows are unexpected"
    assert lines[1] == "  missing   x=0"
    assert lines[-1] == "  …"
    assert len(lines) == 12
    with pytest.raises(AssertionError, match="columns differ: x instead of y"):
        testing.assert_same_rows({"x": [1]}, {"y": [1]})
    testing.assert_same_rows({"x": [float("nan"), None]}, {"x": [None, float("nan")]})


def test_mistakes_are_named():
    with pytest.raises(
        UnsupportedError, match="no argument 'windw' that a test can take; did you mean 'window'"
    ):
        testing.reference({"windw": "1 s"}, {"x": [1]}, {"x": [1]})
    script = testing.Script({"x": pa.int64()}, {"a": pa.int64()})
    with pytest.raises(UnsupportedError, match="there is no engine 'gpu'"):
        script.run({}, "gpu")
    with pytest.raises(InputError, match="needs a session and an empty folder"):
        script.run({}, "spark")
    for side in ("up", "steps"):
        with pytest.raises(InputError, match="a script has the streams left and right, and no"):
            script.table(side)
    for call in (script.run, script.expect, lambda join: testing.reference(join, {"x": [1]}, {"x": [1]})):
        with pytest.raises(InputError, match=r"a join is a dictionary of arguments, .* not int"):
            call(5)
    with pytest.raises(UnsupportedError, match="there is no engine 'gpu'"):
        script.expect({}, "gpu")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"time": "zz"}, SchemaError, "no column 'zz' in the left input \\(t, x\\)"),
        ({"time": "x"}, SchemaError, "column 'x' of the left input is string, which is not a time"),
        (
            {"time": "t", "disorder": "-3 seconds"},
            WindowError,
            "disorder cannot be negative; '-3 seconds' is",
        ),
        (
            {"time": "t", "disorder": 3},
            WindowError,
            "disorder is a length of time such as '5 seconds', not 3",
        ),
        ({"steps": 0, "restarts": 1}, InputError, "a script has a number of steps from 1 up; 0 was given"),
    ],
)
def test_scramble_names_mistakes(given, error, message):
    rows = {"t": [1, 2], "x": ["a", "b"]}
    with pytest.raises(error, match=message):
        testing.scramble(rows, rows, **given)


def test_the_worked_example_of_the_page(tmp_path, monkeypatch):
    for test in worked_example(monkeypatch):
        if "spark" not in test.__name__:
            test()
