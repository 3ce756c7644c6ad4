"""Benchmarks on Spark: small real runs, and tables and plots of earlier ones. No time is asserted."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from typing import Any

import pytest

from handshake.cli.app import run as command

pytest.importorskip("pyspark")

from handshake_bench import (
    spark_batch,
    spark_equi,
    spark_kinds,
    spark_latency,
    spark_queries,
    spark_segments,
    spark_sustained,
)

BATCHES = [(20.0 * n, 0.1 * n) for n in range(1, 50)]
EARLIER = {
    "spark_sustained": {
        "window": 900, "step": 20, "bucket": 50,
        "runs": [
            {"engine": "handshake", "rate": 15_000, "took": 5.0, "full": True, "sustained": True,
             "batches": BATCHES},
            {"engine": "bucketed", "rate": 3_000, "took": 30.0, "full": False, "sustained": False,
             "batches": BATCHES[:9]},
            {"engine": "bucketed", "rate": 1_000, "took": 15.0, "full": True, "sustained": True,
             "batches": BATCHES},
        ],
    },
    "spark_growth": {
        "rate": 2_000, "step": 20, "window": 900,
        "points": [{"stream": at, "took": 1.2 if at > 900 else 1.0, "results": int(at)} for at, _ in BATCHES],
    },
    "spark_kinds": {
        "rate": 2_000, "step": 20, "window": 900,
        "runs": [
            {"kind": kind, "took": took, "worked": 2 * took, "full": True, "sustained": True, "state": 10,
             "results": 9, "pending": 0, "batches": [(at, took, 2 * took, 0) for at, _ in BATCHES]}
            for kind, took in (("inner", 3.0), ("left", 4.0), ("left_anti", 2.0))
        ],
    },
    "spark_equi": {
        "rate": 2_000, "step": 10, "window": 300, "keys": 9,
        "runs": [
            {"engine": name, "took": took, "worked": 2 * took, "full": True, "sustained": True, "pairs": 9}
            for name, took in (("handshake", 2.0), ("store", 3.0), ("spark", 5.0))
        ],
    },
    "spark_batch": {
        "rows": 500, "limit": 60.0, "ours": [3.0, 2.0], "spark": None, "results": 7,
        "equi": [(3.0, 2.0), (1.0, 2.0)],
    },
    "spark_latency": {
        "rate": 1_000, "trigger": 500, "window": 900, "micro_batches": [0.5, 0.6], "results": 9, "p50": 0.9,
        "p90": 1.1, "p99": 1.5, "longest": 1.6, "curve": [n / 60 for n in range(101)],
    },
    "spark_segments": {
        "rows": 100, "partitions": 2,
        "points": [
            {"segments": 4, "cells": 1024, "planning": 0.002, "references": 16, "reference_bytes": 16_000,
             "referring": 0.1, "opening": 0.1, "segment": 0.02, "all": 0.08, "manifest_bytes": 7_000,
             "manifests": 28_000, "manifest": 0.001, "progress_bytes": 900, "progress": 0.001}
        ],
    },
    "spark_queries": {
        "rows": 100,
        "queries": [
            {"query": "Q1", "translated": [1.0, 1.1, 1.2], "by hand": [1.0, 1.0, 2.0]},
            {"query": "Q5", "translated": [1.0, 1.0, 9.0], "by hand": [2.0, 2.0, 2.0]},
        ],
    },
}  # fmt: skip
EXPECTED = {
    "spark_sustained": {"rate": "15000", "load": "0.25", "bucketed": "1000", "vs_bucketed": "15"},
    "spark_growth": {"growth": "1.2"},
    "spark_kinds": {"inner": "1", "left": "0.75", "left_anti": "1.5", "left_processor": "0.75"},
    "spark_equi": {"store_took": "1.5", "spark_took": "2.5", "spark_processor": "2.5", "load": "0.2"},
    "spark_batch": {"vs_spark": "30", "spark_ended": "no", "equi_vs_spark": "0.5"},
    "spark_latency": {"p50": "0.9", "p99": "1.5"},
    "spark_segments": {"segments": "4", "planning_ms": "2", "segment_ms": "20"},
    "spark_queries": {"worst": "1.1", "q1_ratio": "1.1", "q5_ratio": "0.5"},
}
PICTURES = {"spark_sustained", "spark_growth", "spark_latency"}


def result(text: str) -> dict[str, str]:
    last = text.strip().splitlines()[-1]
    assert last.startswith("RESULT ")
    return dict(pair.split("=") for pair in last.split()[1:])


@pytest.mark.parametrize("name", EARLIER)
def test_tables_and_plots_are_made_of_an_earlier_run(capsys: Any, tmp_path: Any, name: str) -> None:
    path, out = tmp_path / "kept.json", tmp_path / "out"
    path.write_text(json.dumps({"benchmark": name, "machine": "a machine", "cores": 2, **EARLIER[name]}))
    assert command(["bench", name, "--from", str(path), "--out", str(out)]) == 0
    assert EXPECTED[name].items() <= result(capsys.readouterr().out).items()
    assert "a machine" in (out / f"{name}.txt").read_text()
    pictures = list(out.glob("*.svg"))
    assert len(pictures) == (name in PICTURES)
    assert all(xml.parse(picture).getroot().tag.endswith("svg") for picture in pictures)


def test_segments_are_simulated_without_a_cluster(capsys: Any, tmp_path: Any) -> None:
    spark_segments.run(segments="2,5", rows=200, partitions=2, out=str(tmp_path))
    kept = json.loads((tmp_path / "spark_segments.json").read_text())["points"]
    assert [point["references"] for point in kept] == [8, 20]
    assert all(point["manifests"] > point["segments"] * 1_000 for point in kept)
    assert result(capsys.readouterr().out)["segments"] == "5"


def test_files_as_the_sink_have_a_table_of_their_own(capsys: Any, tmp_path: Any) -> None:
    path, out = tmp_path / "kept.json", tmp_path / "out"
    one = {**EARLIER["spark_sustained"]["runs"][0], "spent": {"jvm": 1.25, "python": 7.5}, "results": 1_000}
    data = {**EARLIER["spark_sustained"], "sink": "files", "runs": [one]}
    path.write_text(
        json.dumps({"benchmark": "spark_sustained_files", "machine": "a machine", "cores": 2, **data})
    )
    spark_sustained.run(source=str(path), sink="files", out=str(out))
    text = capsys.readouterr().out
    assert result(text) == {"rate": "15000", "load": "0.25"}
    assert "Results: 1,000 in the last micro-batch" in text
    assert (out / "spark_sustained_files.svg").exists()


@pytest.mark.soak
def test_a_rate_is_sustained_with_full_windows_only(capsys: Any, spark: Any, tmp_path: Any) -> None:
    spark_sustained.run(rate=200, baseline=100, step=2, window=4, batches=1, out=str(tmp_path))
    kept = json.loads((tmp_path / "spark_sustained.json").read_text())["runs"]
    assert [one["engine"] for one in kept[:2]] == ["handshake", "bucketed"]
    assert kept[0]["full"]
    assert kept[0]["batches"][-1][0] == 6.0
    assert set(result(capsys.readouterr().out)) == {"rate", "load", "bucketed", "vs_bucketed"}


@pytest.mark.soak
def test_kinds_are_measured_with_full_windows(capsys: Any, spark: Any, tmp_path: Any) -> None:
    spark_kinds.run(rate=200, step=2, window=4, batches=1, out=str(tmp_path))
    kept = json.loads((tmp_path / "spark_kinds.json").read_text())["runs"]
    assert [one["kind"] for one in kept] == ["inner", "left", "left_anti", "store"]
    assert all(one["full"] for one in kept)
    assert kept[0]["results"] == kept[1]["results"] == kept[3]["results"] > 0
    assert [one["pending"] > 0 for one in kept] == [False, True, True, False]
    assert {"inner", "left", "left_anti", "store"} < set(result(capsys.readouterr().out))


@pytest.mark.soak
def test_equi_joins_find_the_pairs_that_spark_finds(capsys: Any, spark: Any, tmp_path: Any) -> None:
    spark_equi.run(rate=200, keys=50, step=2, window=4, batches=1, out=str(tmp_path))
    kept = json.loads((tmp_path / "spark_equi.json").read_text())["runs"]
    assert [one["engine"] for one in kept] == ["handshake", "store", "spark"]
    assert all(one["full"] and one["worked"] > 0 for one in kept)
    assert len({one["pairs"] for one in kept}) == 1
    assert kept[0]["pairs"] > 0
    assert float(result(capsys.readouterr().out)["spark_processor"]) > 0


@pytest.mark.soak
def test_both_plans_are_measured_and_give_the_same_rows(capsys: Any, spark: Any, tmp_path: Any) -> None:
    spark_batch.run(rows=2_000, limit=300, out=str(tmp_path))
    kept = json.loads((tmp_path / "spark_batch.json").read_text())
    assert kept["spark"] > 0
    assert kept["results"] == kept["spark_results"]
    assert result(capsys.readouterr().out)["spark_ended"] == "yes"


@pytest.mark.soak
def test_queries_by_hand_give_what_the_translated_ones_give(spark: Any, tmp_path: Any) -> None:
    from handshake.engines.spark.queries import query_frames

    spark_queries.write_trades(tmp_path / "trades", 3_000, 2)
    trades = spark.read.parquet(str(tmp_path / "trades"))
    for name, make in spark_queries.BY_HAND.items():
        (ours,) = query_frames(
            spark_queries.DECLARED + spark_queries.QUERIES[name], {"Trades": trades}
        ).values()
        found, wanted = ours.collect(), make(trades).collect()
        assert sorted(map(numbers, found)) == sorted(map(numbers, wanted)) != [], name


def numbers(row: Any) -> tuple[Any, ...]:
    return tuple(value if isinstance(value, str) else float(value) for value in row)


@pytest.mark.soak
def test_a_plan_that_takes_too_long_is_stopped(capsys: Any, spark: Any, tmp_path: Any) -> None:
    spark_batch.run(rows=100_000, limit=2, out=str(tmp_path))
    assert json.loads((tmp_path / "spark_batch.json").read_text())["spark"] is None
    assert spark.range(3).count() == 3


@pytest.mark.soak
def test_latency_counts_from_the_later_tuple(
    capsys: Any, spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_latency, "_SETTLE", 1.0)
    spark_latency.run(rate=500, trigger=300, seconds=3, window=30, out=str(tmp_path))
    kept = json.loads((tmp_path / "spark_latency.json").read_text())
    assert kept["results"] > 0
    assert 0 < kept["p50"] <= kept["p99"] <= kept["longest"] == kept["curve"][-1]
