"""The command line on Spark: what the in-process back end gives, quietly, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from cli_runs import COMMAND, process, run_here, write_inputs
from handshake.cli import demo
from handshake.errors import UnsupportedError
from handshake.io import read
from spark_processes import environment, family
from waiting import wait_until

pytest.importorskip("pyspark")

from handshake.engines.spark.java import java_home, prepare_environment

pytestmark = pytest.mark.classic("commands start or take a session with a JVM")

START = datetime(2024, 1, 1)


@pytest.fixture
def handshake(capfd: pytest.CaptureFixture[str], spark: Any) -> Any:
    """Run commands in this process, with the session that the tests have."""
    return partial(run_here, capfd)


def stream(seed: int, rows: int) -> pa.Table:
    """Return rows out of order, with equal times, and NULLs in every column but the first."""
    rng = Random(seed)

    def moment() -> datetime:
        return START + timedelta(seconds=rng.randrange(40))

    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "t": pa.array([rng.choice([None, *[moment()] * 12]) for _ in range(rows)], pa.timestamp("ms")),
            "v": pa.array([rng.choice([None, *[rng.randrange(60)] * 9]) for _ in range(rows)], pa.int32()),
            "s": pa.array([rng.choice([None, "a", "b", ""]) for _ in range(rows)]),
        }
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Write the same two streams in every format."""
    folder = tmp_path_factory.mktemp("inputs")
    left, right = stream(1, 130), stream(2, 110)
    for name, table in (("l", left), ("r", right)):
        parquet.write_table(table, folder / f"{name}.parquet")
        feather.write_feather(table, folder / f"{name}.arrow")
        (folder / name).mkdir()
        for part in range(3):
            parquet.write_table(table.slice(part * 50, 50), folder / name / f"{part}.parquet")
    kinds = {"Parquet": ".parquet", "Arrow": ".arrow", "folders": ""}
    return {kind: (folder / f"l{end}", folder / f"r{end}") for kind, end in kinds.items()}


def rows_of(path: Path) -> Counter[str]:
    return Counter(map(repr, read(path).to_pylist()))


BAND, TIMES = "ABS(l.v - r.v) <= 3", ("--time", "t")
CASES = {
    "time windows": ("Parquet", BAND, ("--window", "7s", *TIMES)),
    "windows that differ": ("folders", BAND, ("--left-window", "20s", "--right-window", "2s", *TIMES)),
    "tuples in turn": ("folders", BAND, ("--window", "9 tuples")),
    "tuples by time": ("Arrow", "l.v < r.v", ("--window", "6 tuples", *TIMES)),
    "tuples and time": ("Parquet", BAND, ("--left-window", "8 tuples", "--right-window", "9s", *TIMES)),
    "equality, no window": ("Arrow", "l.v = r.v AND l.s <> r.s", ()),
    "one side alone": ("Parquet", "l.v > 55 AND r.s = 'a'", ("--cores", "3")),
    "by scan": ("Parquet", "l.v * r.v % 7 = 1", ("--window", "4s", *TIMES, "--method", "scan")),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_local_back_end(
    handshake: Any, tmp_path: Path, inputs: dict[str, tuple[Path, Path]], case: str
) -> None:
    kind, on, options = CASES[case]
    outputs = []
    for backend in ("local", "spark"):
        path = tmp_path / f"{backend}.parquet"
        asked = ("--on", on, *options, "--backend", backend, "--output", path)
        outcome = handshake("join", *inputs[kind], *asked)
        assert (outcome.status, outcome.err) == (0, ""), outcome.err
        outputs.append((rows_of(path), read(path).schema, outcome.out))
    (expected, schema, said), (found, same, told) = outputs
    assert found == expected
    assert found.total() > 0
    assert same == schema
    for fact in ("left", "right", "results", "late", "no time"):
        pattern = rf"^{fact} +(.*)$"
        assert re.findall(pattern, told, re.MULTILINE) == re.findall(pattern, said, re.MULTILINE)


def test_types_that_spark_lacks_come_back_as_they_were(handshake: Any, tmp_path: Path) -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    table = pa.table(
        {
            "x": pa.array([1, 2, None], pa.uint64()),
            "small": pa.array([255, None, 0], pa.uint8()),
            "word": pa.array(["a", None, "b"]).dictionary_encode(),
            "zoned": pa.array([moment] * 3, pa.timestamp("ms", "Europe/Zurich")),
            "exact": pa.array([moment.replace(tzinfo=None)] * 3, pa.timestamp("ns")),
            "price": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(9, 2)),
            "nested": pa.array(
                [{"a": [1, 2], "b": "x"}, None, {"a": None, "b": "y"}],
                pa.struct([("a", pa.list_(pa.uint16())), ("b", pa.large_string())]),
            ),
            "map": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
            "bytes": pa.array([b"ab", None, b"cd"], pa.binary(2)),
            "day": pa.array([moment.date()] * 3),
        }
    )
    feather.write_feather(table, tmp_path / "i.arrow")
    paths = [tmp_path / "i.arrow"] * 2
    tables = []
    for backend in ("local", "spark"):
        output = tmp_path / f"{backend}.arrow"
        outcome = handshake("join", *paths, "--on", "l.x <= r.x", "--backend", backend, "--output", output)
        assert outcome.status == 0, outcome.err
        tables.append(read(output))
    assert tables[0].schema == tables[1].schema
    assert Counter(map(repr, tables[0].to_pylist())) == Counter(map(repr, tables[1].to_pylist()))
    assert tables[0].num_rows == 3


def test_types_that_spark_cannot_hold(handshake: Any, tmp_path: Path) -> None:
    table = pa.table({"x": [1], "t": pa.array([1], pa.timestamp("ns"))})
    parquet.write_table(table, tmp_path / "i.parquet")
    outcome = handshake("join", *[tmp_path / "i.parquet"] * 2, "--on", "l.x = r.x", "--backend", "spark")
    assert re.fullmatch(
        r"column 't' of the left input is timestamp\[ns\], which Spark cannot hold exactly \(.*\); "
        "convert or leave out the column, or use the local back end",
        outcome.complaint,
    )


def test_first_rows_summary_and_metrics(handshake: Any, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    asked = ("--on", "l.x < r.a", "--window", "5s", "--time", "t", "--metrics", figures)
    outcome = handshake("join", *write_inputs(tmp_path), *asked, "--backend", "spark")
    assert (outcome.status, outcome.err) == (0, "")
    table, summary = outcome.out.split("\n\n")
    assert table.splitlines() == [
        "x  s  t                    x_right  a  t_right",
        "2  b  2024-01-01 00:00:05        2  5  2024-01-01 00:00:09",
    ]
    assert re.search(r"^results +1$", summary, re.MULTILINE)
    assert re.search(r"^spark +\d+\.\d+\.\d+ on local\[2\]$", summary, re.MULTILINE)
    seen = json.loads(figures.read_text())
    assert (seen["left_rows"], seen["right_rows"], seen["results"], seen["no_time"]) == (3, 3, 1, 1)


def test_empty_inputs(handshake: Any, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("x,a\n")
    for paths in ([tmp_path / "e.csv"] * 2, [write_inputs(tmp_path)[0], tmp_path / "e.csv"]):
        outcome = handshake("join", *paths, "--on", "l.x < r.a" if len(set(paths)) == 2 else "l.x < r.x",
                            "--backend", "spark")  # fmt: skip
        assert (outcome.status, outcome.err) == (0, "")
        assert "results   0\n" in outcome.out


def test_explain_starts_nothing(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("--on", "l.x = r.a", "--backend", "spark", "--explain", "--cores", "3")
    outcome = run_here(capfd, "join", *write_inputs(tmp_path), *asked)
    assert (outcome.status, outcome.err) == (0, "")
    assert "hash" in outcome.out
    assert re.search(r"^segments +3 on Spark; tuples go by hash", outcome.out, re.MULTILINE)


# In processes of their own


def test_java_that_is_not_there(tmp_path: Path) -> None:
    asked = ("--on", "l.x = r.a", "--backend", "spark")
    for command in (("join", *write_inputs(tmp_path), *asked), ("demo", "--seconds", "1")):
        done = process(*command, env=environment(JAVA_HOME=str(tmp_path)))
        assert done.returncode == 2
        said = f"handshake: Spark needs Java, but JAVA_HOME is '{tmp_path}', where no bin/java runs; install"
        assert done.stderr.startswith(said)
        assert done.stderr.count("\n") == 1


def test_a_session_of_its_own_is_quiet(tmp_path: Path) -> None:
    asked = ("--on", "l.x = r.x", "--output", "-", "--backend", "spark", "--master", "local[1]")
    command = [*COMMAND, "join", *map(str, write_inputs(tmp_path)), *asked]
    settings = {"env": environment(TMPDIR=str(tmp_path)), "timeout": 500, "check": False}
    done = subprocess.run(command, capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == '"x","s","t","x_right","a","t_right"'
    assert sorted(lines[1:]) == [
        '1,"a",2024-01-01 00:00:00,1,0,2024-01-01 00:00:01',
        '2,"b",2024-01-01 00:00:05,2,5,2024-01-01 00:00:09',
    ]
    assert done.stderr.startswith("left      3 rows\nright     3 rows\nresults   2\n")
    assert len(done.stderr.splitlines()) == 9
    assert list(tmp_path.glob("handshake-*")) == []


def test_interrupt_leaves_neither_output_nor_jvm(tmp_path: Path) -> None:
    table = pa.table({"v": range(60_000)})
    parquet.write_table(table, tmp_path / "i.parquet")
    (tmp_path / "out").mkdir()
    (tmp_path / "tmp").mkdir()
    output = tmp_path / "out" / "o.parquet"
    asked = ["--on", "l.v <> r.v", "--backend", "spark", "--output", str(output)]
    command = [*COMMAND, "join", *[str(tmp_path / "i.parquet")] * 2, *asked]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env=environment(TMPDIR=str(tmp_path / "tmp"))) as running:
        chunks = (tmp_path / "tmp").glob
        wait_until(
            lambda: (
                running.poll() is not None or any(chunks("handshake-*/state/handshake-batch-*/*/*.chunk"))
            ),
            240,
        )
        below = family(running.pid)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=240)
    assert (running.returncode, out) == (130, b"")
    assert err.decode() == f"handshake: interrupted; '{output}' was not written\n"
    assert len(below) >= 2  # the JVM and Python workers
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below), 240)
    assert os.listdir(tmp_path / "out") == []
    assert list((tmp_path / "tmp").glob("handshake-*")) == []


# Java


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_java_is_looked_for_in_three_places(tmp_path: Path) -> None:
    versions = {"a": "17", "b": "21.0.1", "c": "18"}
    named, set_up, on_path = (fake_java(tmp_path / name, version) for name, version in versions.items())
    prefix = tmp_path / "venv"
    prefix.mkdir()
    path = {"PATH": str(on_path / "bin")}
    assert java_home({**path}, str(prefix)) == str(on_path)
    (prefix / "java_home").write_text(f"{set_up}\n")
    assert java_home({**path}, str(prefix)) == str(set_up)
    assert java_home({**path, "JAVA_HOME": str(named)}, str(prefix)) == str(named)


def test_java_that_is_too_old_or_missing(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_401")
    with pytest.raises(
        UnsupportedError, match=f"Java 17 or later, but JAVA_HOME is '{old}', which is Java 8"
    ):
        java_home({"JAVA_HOME": str(old)})
    with pytest.raises(UnsupportedError, match="there is none: JAVA_HOME is not set; install Java 17"):
        java_home({"PATH": str(tmp_path)}, str(tmp_path))


def test_workers_run_on_this_python(tmp_path: Path) -> None:
    home = fake_java(tmp_path, "17.0.1")
    variables = {"JAVA_HOME": str(home)}
    prepare_environment(variables)
    assert variables == {"JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    chosen = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": "python3.11"}
    prepare_environment(chosen)
    assert chosen["PYSPARK_PYTHON"] == "python3.11"


# Demo


def test_demo_streams_are_the_same_in_sql_and_python(spark: Any) -> None:
    streams = demo.Streams(100, 300, 1_700_000_000_000_000)
    numbers = spark.range(300).withColumnRenamed("id", "value")
    frames = [frame.toArrow().drop_columns(key) for frame, key in _static(streams, numbers)]
    for frame, batch in zip(frames, streams.batches(), strict=True):
        assert [list(row.values())[1:] for row in frame.to_pylist()] == [
            list(row.values())[1:] for row in batch.to_pylist()
        ]
        assert frame["time"].cast(pa.int64()).to_pylist() == batch["time"].cast(pa.int64()).to_pylist()


def _static(streams: Any, numbers: Any) -> list[tuple[Any, str]]:
    """Return the demo's frames for given row numbers."""
    trades, quotes = streams.columns()
    return [(numbers.selectExpr(*trades), "trade"), (numbers.selectExpr(*quotes), "quote")]


def test_demo(handshake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = handshake("demo", "--seconds", "3", "--rate", "400", "--save", "data")
    assert (outcome.status, outcome.err) == (0, "")
    assert re.search(
        r"^batch \d+, took .* rows [\d,]+ .* results .* windows .* lag ", outcome.out, re.MULTILINE
    )
    assert "checking 1,200 trades (all) against all 1,200 quotes" in outcome.out
    found = re.search(r"^exact: ([1-9]\d*) results equal the double loop", outcome.out, re.MULTILINE)
    assert found is not None
    command = re.search(r"handshake (join .*) --explain", outcome.out)
    assert command is not None
    words = [quoted or plain for quoted, plain in re.findall(r'"([^"]*)"|(\S+)', command[1])]
    again = handshake(*words)
    assert re.search(rf"^results +{found[1]}$", again.out, re.MULTILINE)
    assert os.listdir(tmp_path) == ["data"]


def test_demo_says_so_when_results_are_wrong(capfd: pytest.CaptureFixture[str]) -> None:
    streams = demo.Streams(100, 200, 0)
    right = sorted(demo._double_loop(streams, range(200), 200))
    assert len(right) > 0
    assert demo._check(streams, right, (200, 200))
    for wrong in (right[1:], [*right, right[0]], [*right[1:], (0, 199)]):
        assert not demo._check(streams, wrong, (200, 200))
    assert capfd.readouterr().out.count("NOT exact") == 3
