"""Benchmarks run and end with the line that scripts read; what they say is for people to judge."""

from __future__ import annotations

import re

import pytest

from handshake.bench import batch, scan, sustained


def result(capsys) -> dict[str, str]:
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[-1].startswith("RESULT ")
    return dict(re.findall(r"(\w+)=(\S+)", lines[-1]))


def test_scan(capsys):
    scan.run(seconds=0.2)
    figures = result(capsys)
    assert {"scan_vs_c", "general_vs_c"} <= figures.keys()


def test_batch_agrees_with_polars_and_duckdb(capsys):
    batch.run(rows=3000, limit=60)
    figures = result(capsys)
    assert float(figures["vs_polars"]) > 0
    assert figures["polars_ended"] == figures["duckdb_ended"] == "yes"


@pytest.mark.parametrize("method", ["scan", "band"])
def test_sustained(capsys, method):
    sustained.run(method=method, window="4 s", rate=2000, seconds=1)
    figures = result(capsys)
    assert figures["method"] == method
    assert float(figures["load"]) > 0


@pytest.mark.parametrize("algorithm", ["three_step", "low_latency"])
def test_sustained_on_every_arrangement(capsys, algorithm):
    sustained.run(algorithm=algorithm, window="4 s", rate=2000, seconds=1)
    assert result(capsys)["algorithm"] == algorithm
