"""`handshake join --backend circuit`: the same rows as the local back end, or clear words."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from handshake.cli.app import run
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.host import simulator_for


def _file(folder: Path, name: str, columns: dict[str, Any]) -> str:
    path = folder / name
    pq.write_table(pa.table(columns), path)
    return str(path)


def _inputs(folder: Path, rows: int = 40) -> tuple[str, str]:
    rng, start = Random(3), datetime(2024, 1, 1)
    times = [start + timedelta(seconds=rng.randint(0, 60)) for _ in range(2 * rows)]
    left = {
        "t": times[:rows], "x": pa.array([rng.randint(0, 9) for _ in range(rows)], pa.int16()),
        "name": [rng.choice(("ab", "c", None)) for _ in range(rows)],
    }  # fmt: skip
    right = {
        "t": times[rows:], "a": pa.array([rng.randint(0, 9) for _ in range(rows)], pa.int16()),
        "d": pa.array([rng.randint(0, 999) for _ in range(rows)], pa.int32()).cast(pa.decimal128(12, 2)),
    }  # fmt: skip
    return _file(folder, "left.parquet", left), _file(folder, "right.parquet", right)


def _rows(path: Path) -> list[str]:
    return sorted(map(str, pq.read_table(path).to_pylist()))


def test_same_rows_as_the_local_back_end(tmp_path: Path, capsys: Any) -> None:
    left, right = _inputs(tmp_path)
    common = [
        "join",
        left,
        right,
        "--on",
        "l.x BETWEEN r.a - 1 AND r.a + 1",
        "--window",
        "12 tuples",
        "--time",
        "t",
    ]
    assert run([*common, "--output", str(tmp_path / "local.parquet")]) == 0
    circuit = [
        "--backend",
        "circuit",
        "--cores",
        "3",
        "--text-bytes",
        "2",
        "--metrics",
        str(tmp_path / "m.json"),
    ]
    assert run([*common, *circuit, "--output", str(tmp_path / "circuit.parquet")]) == 0
    assert _rows(tmp_path / "circuit.parquet") == _rows(tmp_path / "local.parquet")
    schemas = [pq.read_schema(tmp_path / f"{name}.parquet") for name in ("local", "circuit")]
    assert schemas[0] == schemas[1]
    figures = json.loads((tmp_path / "m.json").read_text())
    assert figures["results"] == len(_rows(tmp_path / "local.parquet")) > 0
    assert figures["cores"] == 3
    assert f"{figures['cycles']:,}, the last tuples pushed through included" in capsys.readouterr().out


def test_simulations_are_built_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    designs = (Design(2, 8, 8), Design(8, 64, 64), Design(64, 512, 512))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/" + name)
    assert [simulator_for(d, 100) for d in designs] == ["amaranth", "cxxrtl-quick", "cxxrtl-quick"]
    assert simulator_for(designs[-1], 100_000) == "cxxrtl"
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert {simulator_for(d, 100_000) for d in designs} == {"amaranth"}


def test_explain_tells_of_wires_and_cycles(tmp_path: Path, capsys: Any) -> None:
    left, right = _inputs(tmp_path)
    arguments = ["join", left, right, "--on", "l.x = r.a", "--window", "64 tuples", "--backend", "circuit"]
    assert run([*arguments, "--cores", "8", "--text-bytes", "2", "--explain"]) == 0
    text = capsys.readouterr().out
    assert "8 join cores in a line, 7 mergers over them" in text
    assert "17 cycles for a tuple of each side" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ["--window", "5 seconds", "--time", "t"],
            "the left window is 5 seconds: how many tuples that will be is not known before they come, and a "
            "join circuit holds a fixed number; give one, such as --window '1000 tuples', or use "
            "--backend local",
        ),
        ([], "the left input has no window, so no circuit can hold it; give a number of tuples"),
        (
            ["--window", "9 tuples"],
            "column 'name' of the left input is string without a length, and wires need one; give the most "
            "bytes that a text has with --text-bytes",
        ),
        (
            ["--window", "9 tuples", "--pin"],
            "--pin is only supported by --backend local",
        ),
        (
            ["--window", "9 tuples", "--text-bytes", "1"],
            "'ab' has 2 bytes, field 'name' has room for 1 on its wires",
        ),
    ],
)
def test_what_a_circuit_cannot_hold(tmp_path: Path, capsys: Any, options: list[str], text: str) -> None:
    left, right = _inputs(tmp_path)
    assert run(["join", left, right, "--on", "l.x = r.a", "--backend", "circuit", *options]) == 2
    assert text in capsys.readouterr().err


def test_columns_and_predicates_without_gates(tmp_path: Path, capsys: Any) -> None:
    left = _file(tmp_path, "f.parquet", {"x": pa.array([1.5])})
    right = _file(tmp_path, "i.parquet", {"a": pa.array([1]), "s": ["b"]})
    arguments = ["--window", "9 tuples", "--backend", "circuit", "--text-bytes", "4"]
    assert run(["join", left, right, "--on", "l.x < r.a", *arguments]) == 2
    assert (
        "column 'x' of the left input is float64, which a join circuit does not carry"
        in capsys.readouterr().err
    )
    assert run(["join", right, right, "--on", "l.s LIKE r.s", *arguments]) == 2
    assert "the circuit has no unit for like()" in capsys.readouterr().err


HEADER, BLANK, ROWS = "x,s\n", "x,s\n,\n,\n", "x,s\n1,u\n2,v\n,w\n"


@pytest.mark.parametrize(
    ("left", "right", "on"),
    [
        (HEADER, ROWS, "l.x = r.x"),
        (ROWS, HEADER, "l.s = r.s AND l.x + 1 > r.x"),
        (HEADER, HEADER, "l.x BETWEEN r.x - 1 AND r.x + 1"),
        (BLANK, ROWS, "l.x = r.x OR l.s IS NULL AND r.x > 1"),
        (ROWS, BLANK, "NOT (l.x = r.x) OR r.s IS NULL"),
    ],
)
def test_inputs_without_rows_or_values(tmp_path: Path, left: str, right: str, on: str) -> None:
    """A CSV file whose columns have no values has no types, and need not have them."""
    (tmp_path / "l.csv").write_text(left)
    (tmp_path / "r.csv").write_text(right)
    asked = ["join", *(str(tmp_path / f"{side}.csv") for side in "lr"), "--on", on, "--window", "4 tuples"]
    assert run([*asked, "--output", str(tmp_path / "local.parquet")]) == 0
    circuit = ["--backend", "circuit", "--text-bytes", "1", "--output", str(tmp_path / "circuit.parquet")]
    assert run([*asked, *circuit]) == 0
    assert _rows(tmp_path / "circuit.parquet") == _rows(tmp_path / "local.parquet")
    schemas = [pq.read_schema(tmp_path / f"{name}.parquet") for name in ("local", "circuit")]
    assert schemas[0] == schemas[1]
