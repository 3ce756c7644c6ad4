"""Benchmarks with other engines and the workloads of other systems: small real runs, and earlier ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from handshake.cli.app import run as command
from handshake_bench import tuple_windows
from handshake_bench.pairs import Pairs
from handshake_bench.tuple_workload import KINDS, TupleStreams, pairs_by_hand

EARLIER: dict[str, dict[str, Any]] = {
    "tuple_windows": {
        "batch": 4096,
        "points": [
            {"power": 20, "kind": kind, "cores": cores, "method": "band", "rate": 5e5 * cores,
             "per_processor": 6e5, "matches": 2.0}
            for kind in KINDS for cores in (1, 4)
        ],
    },
}  # fmt: skip
EXPECTED = {
    "tuple_windows": {"uniform_20": "6e+05", "inequality_20": "6e+05", "gain": "4", "cores": "4"},
}


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
