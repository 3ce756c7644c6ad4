"""Benchmarks with other engines and the workloads of other systems: small real runs, and earlier ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from handshake.cli.app import bench
from handshake.cli.app import run as command
from handshake_bench import flink, tuple_windows
from handshake_bench.maven import UnreachableError, is_fetched
from handshake_bench.pairs import Pairs
from handshake_bench.tuple_workload import KINDS, TupleStreams, pairs_by_hand

ROOT = Path(__file__).parents[2]
EARLIER: dict[str, dict[str, Any]] = {
    "tuple_windows": {
        "batch": 4096,
        "points": [
            {"power": 20, "kind": kind, "cores": cores, "method": "band", "rate": 5e5 * cores,
             "per_processor": 6e5, "matches": 2.0}
            for kind in KINDS for cores in (1, 4)
        ],
    },
    "flink": {
        "package": "flink:1",
        "runs": [
            {"kind": kind, "engine": engine, "rate": 1000, "keys": 9, "window": 60, "seconds": 2, "cores": 2,
             "count": 5, "left": 1, "right": 1, "products": 1, "wall": 1.0, "processor": 1.0, "load": load}
            for kind, engine, load in (
                ("equi", "Flink", 0.5), ("equi", "handshake, hash", 0.1), ("any", "Flink", 0.25),
                ("any", "handshake, scan", 0.05),
            )
        ],
    },
}  # fmt: skip
EXPECTED: dict[str, dict[str, str]] = {
    "tuple_windows": {"uniform_20": "6e+05", "inequality_20": "6e+05", "gain": "4", "cores": "4"},
    "flink": {
        "equi_flink": "2000", "any_flink": "2000", "equi_hash_vs_flink": "5", "any_scan_vs_flink": "5",
    },
}  # fmt: skip


def test_every_benchmark_is_described_and_every_described_one_exists() -> None:
    names = {one.name or one.callback.__name__ for one in bench.registered_commands if one.callback}
    described, figures = (
        set(re.findall(r"`handshake bench (\w+)", (ROOT / name).read_text()))
        for name in ("bench/README.md", "README.md")
    )
    assert described == names
    assert len(figures) == 5
    assert figures <= names


def result(text: str) -> dict[str, str]:
    last = text.strip().splitlines()[-1]
    assert last.startswith("RESULT ")
    return dict(pair.split("=") for pair in last.split()[1:])


@pytest.mark.parametrize("name", EARLIER)
def test_tables_are_made_of_an_earlier_run(capsys: Any, tmp_path: Any, name: str) -> None:
    path, out = tmp_path / "kept.json", tmp_path / "out"
    path.write_text(json.dumps({"benchmark": name, "machine": "a machine", **EARLIER[name]}))
    assert command(["bench", name, "--from", str(path), "--out", str(out)]) == 0
    assert EXPECTED[name].items() <= result(capsys.readouterr().out).items()
    assert "a machine" in (out / f"{name}.txt").read_text()


def test_gains_on_a_busy_machine_are_not_given(capsys: Any, tmp_path: Any) -> None:
    path, data = tmp_path / "kept.json", EARLIER["tuple_windows"]
    slow = [{**point, "rate": 1e5 * point["cores"]} for point in data["points"]]
    path.write_text(json.dumps({"benchmark": "tuple_windows", "machine": "one", **data, "points": slow}))
    tuple_windows.run(source=str(path))
    assert result(capsys.readouterr().out)["gain"] == "disturbed"


def test_joins_over_windows_of_tuples_find_the_pairs_that_numpy_finds(capsys: Any) -> None:
    assert command(["bench", "tuple_windows", "--quick", "--cores", "2"]) == 0
    assert result(capsys.readouterr().out).keys() == {"uniform_10", "inequality_10", "gain", "cores"}


def test_other_pairs_than_numpy_finds_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuple_windows, "pairs_by_hand", lambda *_: Pairs(1))
    with pytest.raises(AssertionError, match=r"uniform, windows of 1024: .* by hand Pairs\(count=1"):
        tuple_windows.run(quick=True, cores="1")


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_by_hand_are_those_of_a_double_loop(kind: str) -> None:
    streams, batch, first = TupleStreams(kind, 16, 48), 8, 24
    left, right = (table.to_pylist() for table in streams.tables)
    found = []
    for one in left:
        for two in right:
            n, m = one["n"], two["m"]
            if n // batch > m // batch:  # the left tuple comes later and sees all batches before its own
                later, held = n, m >= n // batch * batch - 16
            else:
                later, held = m, n >= (m // batch + 1) * batch - 16
            if kind == "inequality":
                matches = one["x"] < two["a"] and one["y"] > two["b"]
            else:
                matches = abs(one["x"] - two["a"]) <= streams.reach
            if matches and held and later >= first:
                found.append((n, m))
    pairs = pairs_by_hand(streams, first, batch)
    assert pairs.count == len(found) > 0
    assert (pairs.left, pairs.right) == (sum(n for n, _ in found), sum(m for _, m in found))
    assert pairs.products == sum(n * m for n, m in found)


def test_sums_of_pairs_wrap_around() -> None:
    assert (Pairs(1, 2, 3, 2**62) + Pairs(1, 2, 3, 2**62)).products == -(2**63)


@pytest.mark.soak
@pytest.mark.skipif(not is_fetched(flink.PACKAGE), reason="handshake bench flink has not fetched Flink")
def test_flink_finds_the_same_pairs(capsys: Any) -> None:
    assert command(["bench", "flink", "--quick"]) == 0
    names = {"equi_flink", "any_flink", "equi_hash_vs_flink", "any_scan_vs_flink", "any_band_vs_flink"}
    assert result(capsys.readouterr().out).keys() == names


def test_without_maven_flink_is_skipped(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(package: str) -> None:
        raise UnreachableError(f"Maven Central cannot be reached, or lacks {package}")

    monkeypatch.setattr(flink, "fetch", fetch)
    flink.run()
    said = capsys.readouterr().out
    assert f"Flink is not measured: Maven Central cannot be reached, or lacks {flink.PACKAGE}" in said
    assert result(said) == {"flink": "skipped"}


def test_rows_are_those_that_flink_makes() -> None:
    made = flink._rows(flink._Work("equi", 300, 7, 1, 1, 1), 1, 5, 2).to_pylist()
    for n, row in enumerate(made, 5):
        assert (row["n"], row["t"].microsecond) == (n, n * 1000 // 300 * 1000)
        assert [row["k"], row["x"], row["y"]] == [
            mix(3 * (2 * n + 1) + column) % limit for column, limit in enumerate((7, 10_000, 10_000))
        ]


def mix(number: int) -> int:
    """Mix a number by splitmix64, in whole numbers of any size; 31 bits of it."""
    z = number * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) >> 33


def test_pairs_of_flinks_rows_are_those_of_a_double_loop() -> None:
    work = flink._Work("equi", 100, 9, 1, 3, 1)
    left, right = (flink._rows(work, side, 0, work.rows).to_pylist() for side in (0, 1))
    found = [
        (one["n"], two["n"])
        for one in left
        for two in right
        if one["k"] == two["k"] and abs(one["t"] - two["t"]).total_seconds() < 1
    ]
    seen = flink._join(work, "hash", work.rows)
    assert seen["count"] == len(found) > 0
    assert seen["products"] == sum(n * m for n, m in found)
