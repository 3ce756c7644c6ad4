"""`handshake bench batch`: a band join of two tables on two attributes, compared with other ways to do it.

Polars runs `join_where`, also with its streaming engine, and DuckDB its plan for ranges. pandas has no such
join: it merges buckets as wide as the band, each row of the left table copied to three of them. NumPy is a
join by hand: one table sorted by the first attribute, two `searchsorted` calls, and the candidates checked.
Every engine runs in a process of its own, with the same tables and a time limit, and counts its results.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow as pa

from handshake import join
from handshake_bench import report
from handshake_bench.workload import BAND

__all__ = ["run"]

ENGINES = ("handshake", "numpy", "pandas", "polars", "polars_streaming", "duckdb")
_PART = 1 << 14
"""Rows of the left table that are joined at once by hand, so that candidates fit into memory."""
_BAND = 10


def run(rows: int = 600_000, limit: float = 120.0) -> None:
    """Run each installed engine; report the ratios of seconds to ours: `vs_numpy`, `vs_polars`, …"""
    limits: dict[str, float | None] = {"handshake": None}  # the others are compared with it
    found = {e: _measure(e, rows, limits.get(e, limit)) for e in ENGINES if _is_installed(e)}
    ours = found["handshake"]
    lines = [_line(engine, seen, ours, limit) for engine, seen in found.items()]
    heads = ("engine", "seconds", "first call", "results", "times handshake's")
    report.table(f"{rows:,} x {rows:,} tuples, {BAND}", heads, lines)
    figures: dict[str, float | str] = {"seconds": ours["seconds"], "first_call": ours["first"]}
    for engine in ENGINES[1:]:
        seen = found.get(engine)
        if seen is None:
            figures[f"vs_{engine}"] = "not_installed"
        else:
            figures[f"vs_{engine}"] = seen.get("seconds", limit) / ours["seconds"]
            figures[f"{engine}_ended"] = "yes" if "seconds" in seen else "no"
    report.result(**figures)


def _is_installed(engine: str) -> bool:
    return engine == "handshake" or find_spec(engine.partition("_")[0]) is not None


def _line(engine: str, seen: dict[str, Any], ours: dict[str, Any], limit: float) -> tuple[str, ...]:
    if "seconds" not in seen:
        return (engine, f"> {limit:.0f}", "-", "-", f"> {limit / ours['seconds']:.0f}")
    if seen["results"] != ours["results"]:
        raise AssertionError(f"{engine} found {seen['results']} results, handshake {ours['results']}")
    ratio = seen["seconds"] / ours["seconds"]
    return (engine, f"{seen['seconds']:.3f}", f"{seen['first']:.3f}", f"{seen['results']:,}", f"{ratio:.1f}")


def _measure(engine: str, rows: int, limit: float | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "handshake_bench.batch", engine, str(rows)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {}
    if done.returncode:
        raise RuntimeError(f"{engine} failed: {done.stderr.strip().splitlines()[-1:]}")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def _tables(rows: int) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(8)

    def columns(*names: str) -> pa.Table:
        whole = random.integers(1, 10_001, rows, dtype=np.int32)
        real = random.uniform(1, 10_000, rows).astype(np.float32)
        return pa.table(dict(zip(names, (whole, real), strict=True)))

    return columns("x", "y"), columns("a", "b")


def _handshake(left: pa.Table, right: pa.Table) -> int:
    return int(join(left, right, BAND).num_rows)


def _numpy(left: pa.Table, right: pa.Table) -> int:
    x, y = (left.column(name).to_numpy() for name in ("x", "y"))
    order = np.argsort(right.column("a").to_numpy(), kind="stable")
    a, b = (right.column(name).to_numpy()[order] for name in ("a", "b"))
    found = []
    for start in range(0, len(x), _PART):
        some = slice(start, start + _PART)
        first, last = np.searchsorted(a, x[some] - _BAND), np.searchsorted(a, x[some] + _BAND, "right")
        counts = last - first
        here = np.repeat(np.arange(start, start + len(counts)), counts)
        there = np.arange(len(here)) - np.repeat(np.cumsum(counts) - counts - first, counts)
        near = (y[here] >= b[there] - _BAND) & (y[here] <= b[there] + _BAND)
        found.append((here[near], order[there[near]]))
    taken = [left.take(np.concatenate([here for here, _ in found]))]
    taken.append(right.take(np.concatenate([there for _, there in found])))
    return int(taken[0].num_rows)


def _pandas(left: pa.Table, right: pa.Table) -> int:
    import pandas as pd

    wide = 2 * _BAND + 1
    mine, r = left.to_pandas(), right.to_pandas()
    r["bucket"] = r["a"] // wide
    parts = []
    for start in range(0, len(mine), 4 * _PART):
        some = mine.iloc[start : start + 4 * _PART]
        copies = pd.concat([some.assign(bucket=some["x"] // wide + step) for step in (-1, 0, 1)])
        near = copies.merge(r, on="bucket")
        inside = (near["x"] - near["a"]).abs() <= _BAND
        inside &= near["y"].between(near["b"] - _BAND, near["b"] + _BAND)
        parts.append(near[inside])
    return len(pd.concat(parts))


def _polars_join(left: pa.Table, right: pa.Table, engine: str) -> int:
    import polars as pl

    a, b = pl.from_arrow(left), pl.from_arrow(right)
    assert isinstance(a, pl.DataFrame)
    assert isinstance(b, pl.DataFrame)
    x, y, p, q = (pl.col(name) for name in ("x", "y", "a", "b"))
    joined = a.lazy().join_where(b.lazy(), x >= p - 10, x <= p + 10, y >= q - 10, y <= q + 10)
    return joined.collect(engine="streaming" if engine == "streaming" else "in-memory").height


def _polars(left: pa.Table, right: pa.Table) -> int:
    return _polars_join(left, right, "in-memory")


def _polars_streaming(left: pa.Table, right: pa.Table) -> int:
    return _polars_join(left, right, "streaming")


def _duckdb(left: pa.Table, right: pa.Table) -> int:
    import duckdb

    connection = duckdb.connect()
    connection.register("l", left)
    connection.register("r", right)
    return int(connection.sql(f"SELECT * FROM l JOIN r ON {BAND}").to_arrow_table().num_rows)


def _child(engine: str, rows: int) -> None:
    calls = (_handshake, _numpy, _pandas, _polars, _polars_streaming, _duckdb)
    call = dict(zip(ENGINES, calls, strict=True))[engine]
    left, right = _tables(rows)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        results = call(left, right)
        times.append(time.perf_counter() - start)
        if sum(times) > 10:
            break
    print(json.dumps({"seconds": min(times), "first": times[0], "results": results}))


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
