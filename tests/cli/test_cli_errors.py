"""Errors on the command line: pinned texts, one line each, exit status 2, no traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cli_runs import process, run_here, write_inputs


@pytest.fixture
def handshake(capfd: pytest.CaptureFixture[str]) -> Any:
    return partial(run_here, capfd)


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    return write_inputs(tmp_path)


PREDICATES = [
    ("l.y < r.a", "no column 'y' in the left input (x, s, t) (line 1, column 1)"),
    ("l.x < r.tt", "no column 'tt' in the right input (x, a, t); did you mean 't'? (line 1, column 7)"),
    ("l.s < r.a", "cannot compare l.s (string) with r.a (int64); cast one of them (line 1, column 1)"),
    (
        "l.x + r.a",
        "the predicate must be true or false, but l.x + r.a is int64; "
        "compare it with something (line 1, column 1)",
    ),
    ("x < a", "column 'x' is in both inputs; write l. or r. before it (line 1, column 1)"),
    ("l.x <", "cannot read the predicate near '<': an operand is missing (line 1, column 5)"),
    ("", "the predicate is empty; write a condition such as 'l.x < r.a'"),
]


@pytest.mark.parametrize(("predicate", "message"), PREDICATES)
def test_bad_predicates(handshake: Any, inputs: tuple[Path, Path], predicate: str, message: str) -> None:
    assert handshake("join", *inputs, "--on", predicate).complaint == message


OPTIONS = [
    (["--window", "0 seconds"], "a time window must be longer than zero; '0 seconds' is not"),
    (["--window=-5s"], "a time window must be longer than zero; '-5s' is not"),
    (["--window", "0 tuples"], "a tuple window must hold at least one tuple; 0 does not"),
    (["--left-window", "-1 tuples"], "a tuple window must hold at least one tuple; -1 does not"),
    (["--window", "5"], "window '5' has no unit; write '5 seconds' or '5 tuples'"),
    (
        ["--window", "5 tupels"],
        "cannot read '5 tupels' as a length of time; write a number and a unit, "
        "such as '15 minutes', '900s' or '1h30m' (ns, us, ms, s, min, h, d)",
    ),
    (
        ["--window", "5s"],
        "a time window needs a time column, and none is named for the left input; "
        "name one of x, s, t (--time)",
    ),
    (["--window", "5s", "--time", "tt"], "no column 'tt' in the left input (x, s, t); did you mean 't'?"),
    (
        ["--window", "5s", "--left-time", "s", "--right-time", "t"],
        "column 's' of the left input is string, which is not a time; "
        "a timestamp, a date or a number of seconds is",
    ),
    (["--backend", "lokal"], "unknown backend 'lokal'; choose local, spark, circuit; did you mean 'local'?"),
    (["--master", "local[2]"], "--master is only supported by --backend spark"),
    (
        ["--backend", "spark", "--algorithm", "cell"],
        "--algorithm is only supported by --backend local",
    ),
    (
        ["--backend", "spark", "--master", "spark://host:7077"],
        "a join on 'spark://host:7077' needs a directory that every executor reaches, for tuples on "
        "their way; name one: --state-dir 's3://bucket/folder', or a shared mount",
    ),
    (
        ["--algorithm", "two_step"],
        "unknown algorithm 'two_step'; choose three_step, cell, handshake, low_latency; "
        "did you mean 'three_step'?",
    ),
    (["--method", "tree"], "unknown access method 'tree'; choose auto, scan, hash, band"),
    (
        ["--method", "hash"],
        "method 'hash' needs an equality between the sides, and the predicate has none; "
        "use auto, band or scan",
    ),
]


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_bad_options(handshake: Any, inputs: tuple[Path, Path], options: list[str], message: str) -> None:
    assert handshake("join", *inputs, "--on", "l.x < r.a", *options).complaint == message


def test_bad_inputs(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    left, right = inputs
    empty = tmp_path / "empty.csv"
    empty.touch()
    assert handshake("join", empty, right, "--on", "l.x < r.a").complaint == (
        f"left input: '{empty}' is empty (0 bytes); it needs at least the names of its columns"
    )
    missing = tmp_path / "rihgt.csv"
    assert handshake("join", left, missing, "--on", "l.x < r.a").complaint == (
        f"right input: no file or folder '{missing}'; did you mean 'right.csv'?"
    )
    doubled = tmp_path / "doubled.csv"
    doubled.write_text("x,x\n1,2\n")
    assert handshake("join", doubled, right, "--on", "l.x < r.a").complaint == (
        f"left input: '{doubled}' has more than one column named 'x' (x, x); rename one of them"
    )


def test_schema_that_changes_between_files(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "1.csv").write_text("x\n1\n")
    (folder / "2.csv").write_text("x\none\n")
    assert handshake("join", folder, inputs[1], "--on", "l.x < r.a").complaint == (
        f"left input: column 'x' is int64 in '{folder / '1.csv'}' but string in '{folder / '2.csv'}'; "
        "all files of a folder must have the same columns"
    )


def test_bad_outputs(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert handshake("join", *inputs, "--on", "l.x < r.a", "--output", folder).complaint == (
        f"output: '{folder}' is a folder; give the name of a file"
    )
    lost = tmp_path / "no" / "o.csv"
    assert handshake("join", *inputs, "--on", "l.x < r.a", "--output", lost).complaint == (
        f"output: '{lost}' cannot be written: no folder '{tmp_path / 'no'}'"
    )
    nested = tmp_path / "nested.jsonl"
    nested.write_text('{"x": 1, "n": [1]}\n')
    assert handshake("join", nested, inputs[1], "--on", "l.x = r.x", "--output", "-").complaint == (
        "output: column 'n' (list<item: int64>) cannot be written as CSV, which has no nested values; "
        "use .parquet or .arrow"
    )


def test_outputs_do_not_replace_inputs(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    left, right = inputs
    before = left.read_bytes(), right.read_bytes()
    asked = ("join", *inputs, "--on", "l.x = r.x")
    assert handshake(*asked, "--output", right).complaint == (
        f"--output would replace the right input, '{right}'; give it another file"
    )
    assert handshake(*asked, "--output", tmp_path / "o.csv", "--metrics", tmp_path / "o.csv").complaint == (
        f"--output and --metrics both go to '{tmp_path / 'o.csv'}'; give each a file of its own"
    )
    (tmp_path / "link.csv").symlink_to(left)
    asked = ("multijoin", f"a={left}", f"b={right}", "--on", "a.x = b.x")
    assert handshake(*asked, "--output", tmp_path / "link.csv").complaint == (
        f"--output would replace the input a, '{tmp_path / 'link.csv'}'; give it another file"
    )
    assert (left.read_bytes(), right.read_bytes()) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is of Linux")
@pytest.mark.parametrize("command", ["--version", "join --help", "options"])
def test_a_standard_output_that_is_full(command: str) -> None:
    with open("/dev/full", "w") as full:
        asked = [sys.executable, "-m", "handshake.cli", *command.split()]
        done = subprocess.run(asked, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == "handshake: standard output cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_output_column_that_would_appear_twice(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("x,x_right\n1,2\n")
    (tmp_path / "r.csv").write_text("x\n1\n")
    assert handshake("join", tmp_path / "l.csv", tmp_path / "r.csv", "--on", "l.x = r.x").complaint == (
        "output column 'x_right' would appear twice; rename a column or choose another suffix"
    )


QUERY = "CREATE INPUT STREAM L (x int); SELECT x FROM L INTO T"


@pytest.mark.parametrize("backend", ["local", "spark", "circuit"])
@pytest.mark.parametrize("command", ["join", "run"])
def test_metrics_that_cannot_be_written_are_refused_before_anything_runs(
    handshake: Any, inputs: tuple[Path, Path], tmp_path: Path, command: str, backend: str
) -> None:
    (tmp_path / "q.sql").write_text(QUERY)
    lost, out = tmp_path / "no" / "m.json", tmp_path / "o.csv"
    asked = {
        "join": ("join", *inputs, "--on", "l.x = r.x"),
        "run": ("run", tmp_path / "q.sql", "--input", f"L={inputs[0]}"),
    }[command]
    outcome = handshake(*asked, "--backend", backend, "--metrics", lost, "--output", out)
    assert outcome.complaint == f"metrics file '{lost}' cannot be written: No such file or directory"
    assert not out.exists()


USAGE = [
    (["join"], "'LEFT'"),
    (["join", "a.csv"], "'RIGHT'"),
    (["join", "a.csv", "b.csv"], "'--on'"),
    (["join", "a.csv", "b.csv", "--onn", "x"], "--onn"),
    (["join", "a.csv", "b.csv", "--on"], "'--on'"),
    (["join", "a.csv", "b.csv", "--on", "x", "--cores", "0"], "'--cores'"),
    (["join", "a.csv", "b.csv", "--on", "x", "--cores", "two"], "'--cores'"),
    (
        ["jion"],
        "'jion'. Did you mean 'join'?; the commands of 'handshake' are join, demo, multijoin, run, explain",
    ),
    (["bench"], "the commands of 'handshake bench' are scan, batch, sustained"),
    (["bench", "all"], "'all'; the commands of 'handshake bench' are scan, batch, sustained"),
    (["bench", "batch", "--rows", "0"], "'--rows'"),
]


@pytest.mark.parametrize(("arguments", "part"), USAGE)
def test_bad_usage_is_one_line(handshake: Any, arguments: list[str], part: str) -> None:
    assert part in handshake(*arguments).complaint


@pytest.mark.parametrize("arguments", [["join", "no.csv", "no.csv", "--on", "l.x = r.x"], ["jion"], ["join"]])
def test_a_process_reports_in_one_line_too(arguments: list[str], tmp_path: Path) -> None:
    done = process(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"handshake: [^\n]+\n", done.stderr)
