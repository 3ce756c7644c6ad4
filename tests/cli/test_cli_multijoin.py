"""`handshake multijoin`: files in, rows and a summary out, one line per mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.csv
import pytest

from cli_runs import Outcome, run_here

FILES = {
    "a": "t,x\n2024-01-01 00:00:00,1\n2024-01-01 00:00:05,2\n",
    "b": "t,x\n2024-01-01 00:00:03,2\n2024-01-01 00:00:01,1\n,7\n",
    "c": "t,y\n2024-01-01 00:00:09,2\n2024-01-01 00:01:00,1\n",
}
ON = "a.x = b.x AND b.x <= c.y"


@pytest.fixture
def multijoin(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    inputs = []
    for name, text in FILES.items():
        (tmp_path / f"{name}.csv").write_text(text)
        inputs.append(f"{name}={tmp_path / name}.csv")

    def run(*options: str | Path, given: list[str] | None = None) -> Outcome:
        return run_here(capfd, "multijoin", *(inputs if given is None else given), *options)

    return run


def test_rows_and_summary(multijoin, tmp_path):
    target, figures = tmp_path / "out.csv", tmp_path / "figures.json"
    outcome = multijoin(
        *("--on", ON, "--time", "t", "--window", "10 s", "--window", "b=2 tuples", "--cores", "2"),
        *("--output", target, "--metrics", figures),
    )
    assert (outcome.status, outcome.err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in outcome.out.splitlines())
    assert lines["a"] == "2 rows, joined with b, then c"
    assert (lines["results"], lines["late"], lines["cores"]) == ("2", "0", "2, mjoin")
    assert lines["no"] == "time  1 row without a timestamp, so without a match"
    found = pyarrow.csv.read_csv(target)
    assert found.column_names == ["t", "x", "t_b", "x_b", "t_c", "y"]
    assert sorted(found.column("x").to_pylist()) == [1, 2]
    metrics = json.loads(figures.read_text())
    assert (metrics["results"], metrics["algorithm"], len(metrics["cores"])) == (2, "mjoin", 2)
    assert metrics["latency"]["results"] == 2


def test_rows_are_shown_where_there_is_no_output(multijoin):
    outcome = multijoin("--on", ON)
    assert "t_b" in outcome.out.splitlines()[0]
    assert "results  3" in outcome.out
    rows = multijoin("--on", ON, "--output", "-")
    assert rows.out.count("\n") == 4
    assert "results  3" in rows.err


def test_time_columns_of_each_input(multijoin):
    times = ("--time", "a=t", "--time", "b=t", "--time", "c=t")
    assert "results  2" in multijoin("--on", ON, *times, "--window", "10 s").out


def test_explain_shows_the_orders_and_stops(multijoin):
    outcome = multijoin("--on", ON, "--explain", "--cores", "1")
    assert [line[:11].rstrip() for line in outcome.out.splitlines() if line.startswith("from")] == [
        *("from a", "from b", "from c")
    ]
    assert "  -> b      hash: a.x = b.x; " in outcome.out


def test_help_has_examples(capfd):
    text = run_here(capfd, "multijoin", "--help").out
    assert "Examples:\n" in text
    assert "handshake multijoin a=a.csv b=b.csv c=c.csv" in text


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--on", "a.x = b.q"], "no column 'q' in the b input (t, x) (line 1, column 7)"),
        (["--on", ON, "--window", "3 s", "--window", "4 s"],
         "--window is given twice for all inputs; write NAME=4 s"),
        (["--on", ON, "--window", "a=3 s", "--window", "a=4 s"],
         "--window is given twice for 'a'; give it once"),
        (["--on", ON, "--window", "q=3 s"], "--window 'q=3 s' is for no input; the inputs are a, b, c"),
        (["--on", ON, "--window", "a=3"], "window '3' has no unit; write '3 seconds' or '3 tuples'"),
        (["--on", ON, "--time", "a=t"],
         "no time column is named for the b input; name one for every stream, or for none"),
        (["--on", ON, "--metrics", "."], "metrics file '.' is a folder; name a file in it"),
        (["--on", ON, "--window", "3 s"],
         "a time window needs a time column for every stream, and none is named for the a input; "
         "name one of t, x (--time)"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(multijoin, options, told):
    assert multijoin(*options).complaint == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["a.csv", "b=b.csv"], "input 'a.csv' has no name; write NAME=PATH, such as trades=trades.csv"),
        (["a=a.csv", "a=b.csv"], "two inputs are called 'a'; give each a name of its own"),
        (["a=nowhere.csv", "b=b.csv"], "a input: no file or folder 'nowhere.csv'"),
    ],
)
def test_inputs_are_named_files(multijoin, given, told):
    assert multijoin("--on", "a.x = b.x", given=given).complaint.startswith(told)
