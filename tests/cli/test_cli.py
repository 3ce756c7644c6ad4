"""The command line: what goes to which stream, Ctrl-C, closed pipes, demo and bench."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from cli_runs import COMMAND, process, run_here, write_inputs
from handshake import __version__
from handshake.cli import app as cli
from handshake.cli import demo
from handshake.io import read
from waiting import wait_until

START = datetime(2024, 1, 1)


@pytest.fixture
def handshake(capfd: pytest.CaptureFixture[str]) -> Any:
    return partial(run_here, capfd)


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Path, Path]:
    return write_inputs(tmp_path)


# What a join delivers


def test_summary_and_first_rows(handshake: Any, inputs: tuple[Path, Path]) -> None:
    outcome = handshake("join", *inputs, "--on", "l.x < r.a", "--window", "5s", "--time", "t")
    assert (outcome.status, outcome.err) == (0, "")
    table, summary = outcome.out.split("\n\n")
    assert table.splitlines() == [
        "x  s  t                    x_right  a  t_right",
        "2  b  2024-01-01 00:00:05        2  5  2024-01-01 00:00:09",
    ]
    facts = dict(line.split(maxsplit=1) for line in summary.replace("no time", "no_time").splitlines())
    assert facts["left"] == facts["right"] == "3 rows"
    assert (facts["results"], facts["late"]) == ("1", "0")
    assert facts["no_time"] == "1 row without a timestamp, so without a match"
    assert re.fullmatch(r"\d+\.\d\d s", facts["elapsed"])
    assert re.fullmatch(r"[\d,]+ input rows/s", facts["rate"])
    assert facts["method"].startswith("band: ")


def test_only_the_first_rows_are_shown(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("x\n" + "1\n" * 5)
    outcome = handshake("join", tmp_path / "n.csv", tmp_path / "n.csv", "--on", "l.x = r.x")
    assert outcome.out.count("\n1        1") == 10
    assert "… 15 more\n\nleft " in outcome.out


def test_no_results(handshake: Any, inputs: tuple[Path, Path]) -> None:
    outcome = handshake("join", *inputs, "--on", "l.x > 100 AND r.a > 0")
    assert outcome.status == 0
    assert outcome.out.startswith("left ")
    assert re.search(r"^results +0$", outcome.out, re.MULTILINE)


def some_inputs(tmp_path: Path, rows: int = 300) -> tuple[Path, Path]:
    """Write two Parquet files in no order of time."""
    numbers = random.Random(7)
    paths = (tmp_path / "l.parquet", tmp_path / "r.parquet")
    for path in paths:
        times = [START + timedelta(milliseconds=numbers.randrange(60_000)) for _ in range(rows)]
        values = [numbers.choice([None, *range(100)]) for _ in range(rows)]
        parquet.write_table(pa.table({"id": range(rows), "t": times, "v": values}), path)
    return paths


def double_loop(paths: tuple[Path, Path], seconds: int) -> list[tuple[int, int]]:
    left, right = (read(path).to_pylist() for path in paths)
    window = timedelta(seconds=seconds)
    return sorted(
        (r["id"], s["id"])
        for r in left
        for s in right
        if None not in (r["v"], s["v"]) and abs(r["v"] - s["v"]) <= 10 and abs(r["t"] - s["t"]) < window
    )


@pytest.mark.parametrize("method", ["auto", "scan", "band"])
@pytest.mark.parametrize("name", ["o.parquet", "o.arrow", "o.csv", "o.csv.gz", "o.jsonl"])
def test_results_equal_the_double_loop(handshake: Any, tmp_path: Path, name: str, method: str) -> None:
    paths = some_inputs(tmp_path)
    outcome = handshake(
        "join", *paths, "--on", "ABS(l.v - r.v) <= 10", "--window", "7 seconds", "--time", "t",
        "--method", method, "--output", tmp_path / name,
    )  # fmt: skip
    assert (outcome.status, outcome.err) == (0, "")
    table = read(tmp_path / name)
    assert table.column_names == ["id", "t", "v", "id_right", "t_right", "v_right"]
    found = sorted(zip(table["id"].to_pylist(), table["id_right"].to_pylist(), strict=True))
    assert found == double_loop(paths, 7)
    assert f"results  {len(found):,}\n" in outcome.out
    assert outcome.out.endswith(f"output   {tmp_path / name}\n")


def test_folders_are_streams_too(handshake: Any, tmp_path: Path) -> None:
    paths = some_inputs(tmp_path)
    table = read(paths[0])
    (tmp_path / "left").mkdir()
    for part in range(3):
        parquet.write_table(table.slice(part * 100, 100), tmp_path / "left" / f"{part}.parquet")
    arguments = (
        "--on",
        "ABS(l.v - r.v) <= 10",
        "--window",
        "7s",
        "--time",
        "t",
        "--output",
        tmp_path / "o.csv",
    )
    assert handshake("join", tmp_path / "left", paths[1], *arguments).status == 0
    assert read(tmp_path / "o.csv").num_rows == len(double_loop(paths, 7))


def test_windows_and_times_of_each_side(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("sent,x\n0,1\n")
    (tmp_path / "r.csv").write_text("got,y\n-5,1\n-4,2\n0,3\n9,4\n10,5\n")
    outcome = handshake(
        "join", tmp_path / "l.csv", tmp_path / "r.csv", "--on", "TRUE", "--left-window", "10s",
        "--right-window", "5s", "--left-time", "sent", "--right-time", "got", "--output", tmp_path / "o.csv",
    )  # fmt: skip
    assert outcome.status == 0
    assert sorted(read(tmp_path / "o.csv")["y"].to_pylist()) == [2, 3, 4]


def test_tuple_window(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("x\n1\n2\n3\n4\n")
    out = tmp_path / "o.csv"
    paths = [tmp_path / "n.csv"] * 2
    assert handshake("join", *paths, "--on", "TRUE", "--window", "1 tuple", "--output", out).status == 0
    pairs = sorted(zip(*(read(out)[name].to_pylist() for name in ("x", "x_right")), strict=True))
    assert pairs == [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3), (4, 3), (4, 4)]


def test_explain_runs_nothing(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "o.csv"
    outcome = handshake("join", *inputs, "--on", "l.x = r.a", "--explain", "--output", out)
    assert (outcome.status, outcome.err) == (0, "")
    assert "hash" in outcome.out
    assert "results" not in outcome.out
    assert not out.exists()


def test_three_step_says_that_it_runs_on_one_core(handshake: Any, inputs: tuple[Path, Path]) -> None:
    asked = ("--algorithm", "three_step", "--cores", "4")
    outcome = handshake("join", *inputs, "--on", "l.x = r.a", *asked)
    assert outcome.status == 0
    assert outcome.err == "handshake: three_step runs on one core; --cores 4 changes nothing\n"


def test_predicate_on_one_side_filters_it(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    assert handshake("join", *inputs, "--on", "l.x = 2", "--output", tmp_path / "o.csv").status == 0
    table = read(tmp_path / "o.csv")
    assert table["x"].to_pylist() == [2, 2, 2]
    assert table["a"].to_pylist() == [0, 5, 1]


def test_division_by_zero_matches_nothing(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    for predicate in ("l.x / r.a > 0", "NOT (l.x / r.a > 1000)", "l.x % r.a >= 0"):
        assert handshake("join", *inputs, "--on", predicate, "--output", tmp_path / "o.csv").status == 0
        assert sorted(set(read(tmp_path / "o.csv")["a"].to_pylist())) == [1, 5], predicate


def test_input_of_a_header_alone(handshake: Any, inputs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("x,a\n")
    outcome = handshake("join", inputs[0], tmp_path / "e.csv", "--on", "l.x < r.a")
    assert (outcome.status, outcome.err) == (0, "")
    assert "right    0 rows\nresults  0\n" in outcome.out


# Rows on standard output


def test_standard_output_has_rows_alone(inputs: tuple[Path, Path]) -> None:
    done = process("join", *inputs, "--on", "l.x = r.x", "--output", "-")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        '"x","s","t","x_right","a","t_right"',
        '1,"a",2024-01-01 00:00:00,1,0,2024-01-01 00:00:01',
        '2,"b",2024-01-01 00:00:05,2,5,2024-01-01 00:00:09',
    ]
    assert done.stderr.startswith("left     3 rows\nright    3 rows\nresults  2\n")


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    paths = some_inputs(tmp_path, 3000)
    command = [*COMMAND, "join", *map(str, paths), "--on", "l.v <> r.v", "--output", "-"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b'"id","t","v","id_right","t_right","v_right"\n'
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(120) == 0


def test_nobody_reads_the_summary(inputs: tuple[Path, Path]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [*COMMAND, "join", *map(str, inputs), "--on", "l.x = r.x"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


# Ctrl-C


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a join that would take long, and wait until it is in the middle of its work."""
    paths = some_inputs(tmp_path, 60_000)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "o.parquet").write_text("old")
    command = [
        *COMMAND,
        "join",
        *map(str, paths),
        "--on",
        "l.v <> r.v",
        "--output",
        str(folder / "o.parquet"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:

        def has_output() -> bool:
            assert process.poll() is None
            return any(entry.stat().st_size for entry in folder.glob(".handshake-*.tmp"))

        wait_until(has_output)
        yield process
        process.kill()


def test_interrupt_leaves_no_half_written_output(running: Any, tmp_path: Path) -> None:
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    path = tmp_path / "out" / "o.parquet"
    assert running.returncode == 130
    assert (out, err.decode()) == (b"", f"handshake: interrupted; '{path}' was not written\n")
    assert os.listdir(tmp_path / "out") == ["o.parquet"]
    assert path.read_text() == "old"


def test_termination_leaves_no_half_written_output(running: Any, tmp_path: Path) -> None:
    running.send_signal(signal.SIGTERM)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err) == (143, b"", b"")
    assert os.listdir(tmp_path / "out") == ["o.parquet"]


# Progress


def in_terminal(*arguments: str | Path) -> str:
    """Return the text that a command writes to a standard error that is a terminal."""
    master, slave = pty.openpty()
    command = [*COMMAND, *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=slave, env=environment) as process:
        os.close(slave)
        written = b""
        try:
            while chunk := os.read(master, 4096):
                written += chunk
        except OSError:  # the other end has closed
            pass
        assert process.wait(120) == 0
    os.close(master)
    return written.decode()


def test_progress_bar_on_a_terminal(inputs: tuple[Path, Path]) -> None:
    written = in_terminal("join", *inputs, "--on", "l.x = r.x")
    assert "joining" in written
    assert "of 6 rows" in written


# Help, version


def test_version(handshake: Any) -> None:
    outcome = handshake("--version")
    assert (outcome.status, outcome.out) == (0, f"handshake {__version__}\n")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "handshake", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"handshake {__version__}\n", "")


COMMANDS = [[], ["join"], ["demo"], ["bench"]]
COMMANDS += [
    ["bench", name] for name in ("scan", "batch", "sustained", "overload", "latency", "simd", "work")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(handshake: Any, command: list[str]) -> None:
    outcome = handshake(*command, "--help")
    assert (outcome.status, outcome.err) == (0, "")
    assert re.search(r"Examples?:\n +\S", outcome.out)


def test_no_command_shows_the_help(handshake: Any) -> None:
    assert handshake().out == handshake("--help").out


# Demo and bench


def test_demo(handshake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = handshake("demo", "--backend", "local", "--seconds", "0.3", "--rate", "3000")
    assert (outcome.status, outcome.err) == (0, "")
    assert re.search(r"^exact: [1-9][\d,]* results equal the double loop$", outcome.out, re.MULTILINE)
    assert "trades, quotes 900, 900" in outcome.out
    assert len(re.findall(r"^  .* handshake (?:demo|join) ", outcome.out, re.MULTILINE)) == 3
    assert os.listdir(tmp_path) == []


def test_demo_saves_streams_that_the_next_commands_take(handshake: Any, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    outcome = handshake("demo", "--backend", "local", "--seconds", "0.2", "--rate", "2000", "--save", folder)
    assert sorted(os.listdir(folder)) == ["quotes.parquet", "trades.parquet"]
    command = re.search(r"handshake (join .*) --explain", outcome.out)
    assert command is not None
    words = re.findall(r'"([^"]*)"|(\S+)', command[1])
    again = handshake(*(quoted or plain for quoted, plain in words))
    assert again.status == 0
    assert "results" in again.out


def test_demo_says_so_when_results_are_wrong(handshake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_double_loop", lambda *_: iter([(0, 0)]))
    outcome = handshake("demo", "--backend", "local", "--seconds", "0.1", "--rate", "1000")
    assert outcome.status == 1
    assert "NOT exact" in outcome.out


def test_demo_folder_that_cannot_be_made(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    complaint = handshake(
        "demo", "--backend", "local", "--seconds", "0.1", "--save", tmp_path / "file"
    ).complaint
    assert complaint == f"folder '{tmp_path / 'file'}' cannot be created: File exists"


BENCHES = [
    (["scan"], {"seconds": 1.0}),
    (["scan", "--seconds", "3"], {"seconds": 3.0}),
    (["batch"], {"rows": 600_000, "limit": 120.0}),
    (["batch", "--rows", "10", "--limit", "5"], {"rows": 10, "limit": 5.0}),
    (
        ["sustained"],
        {
            "algorithm": "three_step",
            "method": "band",
            "cores": None,
            "window": "15 minutes",
            "rate": None,
            "seconds": 5.0,
        },
    ),
    (
        [
            "sustained",
            "--method",
            "scan",
            "--cores",
            "2",
            "--window",
            "1 minute",
            "--rate",
            "900",
            "--seconds",
            "2",
        ],
        {
            "algorithm": "three_step",
            "method": "scan",
            "cores": 2,
            "window": "1 minute",
            "rate": 900.0,
            "seconds": 2.0,
        },
    ),
]


@pytest.mark.parametrize(("arguments", "options"), BENCHES)
def test_bench_passes_its_options(
    handshake: Any, monkeypatch: pytest.MonkeyPatch, arguments: list[str], options: dict[str, Any]
) -> None:
    given: list[dict[str, Any]] = []
    module = types.ModuleType("bench")
    module.run = lambda **kept: given.append(kept)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "handshake_bench", types.ModuleType("handshake_bench"))
    monkeypatch.setitem(sys.modules, f"handshake_bench.{arguments[0]}", module)
    assert handshake("bench", *arguments).status == 0
    assert given == [options]


def test_bench_refuses_what_is_not_there(handshake: Any) -> None:
    assert handshake("bench", "sustained", "--algorithm", "cel").complaint == (
        "unknown algorithm 'cel'; choose three_step, cell, handshake, low_latency; did you mean 'cell'?"
    )
    assert handshake("bench", "sustained", "--method", "hash").complaint == (
        "unknown access method 'hash'; choose band or scan"
    )


def test_bench_without_its_packages(handshake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'polars'", name="polars")

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    assert handshake("bench", "batch").complaint == (
        "bench batch needs 'polars', which is not installed; from a checkout: pip install -e '.[bench]'"
    )


@pytest.mark.parametrize("algorithm", ["three_step", "cell", "handshake", "low_latency"])
def test_metrics_are_written_as_json(
    handshake: Any, inputs: tuple[Path, Path], tmp_path: Path, algorithm: str
) -> None:
    figures = tmp_path / "figures.json"
    asked = ("--on", "l.x = r.a", "--window", "5 tuples", "--algorithm", algorithm, "--cores", "2")
    assert handshake("join", *inputs, *asked, "--metrics", figures).status == 0
    seen = json.loads(figures.read_text())
    assert seen["algorithm"] == algorithm
    assert sum(core["results"] for core in seen["cores"]) == seen["results"] > 0
    assert list(tmp_path.glob(".*")) == []


def test_times_need_not_be_sorted(handshake: Any, tmp_path: Path) -> None:
    """Rows arrive by time, whatever their order in the file; nothing is late."""
    left, right, out = (tmp_path / name for name in ("l.csv", "r.csv", "o.csv"))
    left.write_text("t,x\n30,3\n10,1\n20,2\n")
    right.write_text("t,a\n21,2\n31,3\n11,1\n")
    asked = ("--on", "l.x <= r.a", "--window", "5s", "--time", "t", "--output", out)
    outcome = handshake("join", left, right, *asked)
    assert outcome.status == 0
    assert re.search(r"late +0\n", outcome.out)
    assert sorted(read(out)["x"].to_pylist()) == [1, 2, 3]


def test_how_chooses_the_kind_of_join(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,t\n1,0\n2,1\n")
    (tmp_path / "b.csv").write_text("y,t\n2,1\n")
    files = [tmp_path / "a.csv", tmp_path / "b.csv", "--on", "l.x = r.y", "--time", "t", "--window", "5s"]
    done = handshake("join", *files, "--how", "left_outer", "--output", "-", "--metrics", tmp_path / "m.json")
    assert sorted(done.out.splitlines()[1:]) == ["1,0,,", "2,1,2,1"]
    assert "1 row with a match, 1 without a match" in done.err
    metrics = json.loads((tmp_path / "m.json").read_text())
    figures = ("results", "matched", "unmatched", "pending", "finalised")
    assert [metrics[name] for name in figures] == [2, 1, 1, 0, 2]
    assert "kind        left" in handshake("join", *files, "--how", "left", "--explain").out
    refused = handshake("join", *files, "--how", "sideways")
    assert refused.status == 2
    assert "no kind of join 'sideways'; choose one of inner, left" in refused.err
