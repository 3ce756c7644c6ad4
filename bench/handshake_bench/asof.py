"""`handshake bench asof`: as-of joins by key, compared with Polars and DuckDB, without and with a band.

All run in one process on the same tables, in turn; the best of some rounds counts. Neither of the others can
use an index for the band: Polars has no such join, and DuckDB joins by key and filters. The streaming part
pushes both streams in batches of a twentieth of a second, and counts processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from handshake import AsOfJoin, asof
from handshake_bench import report

__all__ = ["run"]

_BAND = "l.x BETWEEN r.a - 10 AND r.a + 10"
_DUCKDB = "SELECT l.*, r.t AS rt, r.k AS rk, r.a FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.t >= r.t"
_DUCKDB_BAND = f"""
SELECT l.*, best.rt, best.a FROM l LEFT JOIN (
    SELECT l.n, max(r.t) AS rt, arg_max(r.a, r.t) AS a FROM l JOIN r ON l.k = r.k AND r.t <= l.t AND {_BAND}
    GROUP BY l.n) AS best USING (n)"""


_STREAM_RATE, _STREAM_BATCHES = 200_000, 20
"""Rows per second of each stream, by their times, and batches per second."""


def run(
    rows: int = 10_000_000,
    keys: int = 1000,
    band_rows: int = 1_000_000,
    rounds: int = 3,
    stream_rows: int = 4_000_000,
) -> None:
    """Measure all joins; print a table, `vs_polars`, `vs_duckdb`, `band_vs_best` and `stream_rate`."""
    plain, band = _plain(rows, keys, rounds), _band(band_rows, keys, rounds)
    lines = [
        (f"{name}{band_text}", f"{size:,}", f"{seconds:.2f}", f"{seconds / measured['handshake']:.2f}")
        for measured, size, band_text in ((plain, rows, ""), (band, band_rows, ", with a band"))
        for name, seconds in measured.items()
    ]
    stream_rate = max(_stream(stream_rows, keys) for _ in range(rounds))
    print(f"streams, tolerance 1 minute: {stream_rate:,.0f} rows/s per stream, on one core")
    heads = ("engine", "rows a side", "seconds", "times handshake's")
    report.table(f"the last right row of {keys:,} keys at or before each left row", heads, lines)
    report.result(
        vs_polars=plain["polars"] / plain["handshake"], vs_duckdb=plain["duckdb"] / plain["handshake"],
        band_vs_best=band["duckdb"] / band["handshake"], seconds=plain["handshake"],
        stream_rate=stream_rate,
    )  # fmt: skip


def _plain(rows: int, keys: int, rounds: int) -> dict[str, float]:
    left, right = _tables(rows, keys)
    polars = [pl.DataFrame(table) for table in (left, right)]
    connection = _connection(left, right)
    return _best(
        rounds,
        handshake=lambda: asof(left, right, by="k", time="t")["a"].null_count,
        polars=lambda: (
            polars[0]
            .join_asof(polars[1], on="t", by="k", coalesce=False, check_sortedness=False)["a"]
            .null_count()
        ),
        duckdb=lambda: connection.sql(_DUCKDB).to_arrow_table()["a"].null_count,
    )


def _band(rows: int, keys: int, rounds: int) -> dict[str, float]:
    left, right = _tables(rows, keys)
    connection = _connection(left, right)
    return _best(
        rounds,
        handshake=lambda: asof(left, right, _BAND, by="k", time="t")["a"].null_count,
        duckdb=lambda: connection.sql(_DUCKDB_BAND).to_arrow_table()["a"].null_count,
    )


def _stream(rows: int, keys: int) -> float:
    """Return the rows per second of processor time and stream of an as-of join of streams."""
    left, right = (_with_times(table) for table in _tables(rows, keys))
    results, size = 0, _STREAM_RATE // _STREAM_BATCHES
    with AsOfJoin(left=left, right=right, by="k", time="t", tolerance="1 minute") as join:
        began = time.process_time()
        for start in range(0, rows, size):
            for push, table in ((join.push_right, right), (join.push_left, left)):
                results += sum(batch.num_rows for batch in push(table.slice(start, size)))
        results += sum(batch.num_rows for batch in join.finish())
        seconds = time.process_time() - began
    if results + join.metrics().late != rows:
        raise AssertionError(f"{rows - results:,} of {rows:,} left rows are missing")
    return rows / seconds


def _with_times(table: pa.Table) -> pa.Table:
    """Return a table whose times are those of a stream of the rate to measure with."""
    times = np.arange(table.num_rows) * (10**6 // _STREAM_RATE)
    return table.set_column(0, "t", pa.array(times).cast(pa.timestamp("us")))


def _tables(rows: int, keys: int) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(9)
    left, right = (
        pa.table(
            {
                "t": np.sort(random.integers(0, 100 * rows, rows)),
                "k": random.integers(0, keys, rows, dtype=np.int32),
                name: random.uniform(0, 10_000, rows),
                "n": np.arange(rows),
            }
        )
        for name in ("x", "a")
    )
    return left, right.drop_columns("n")


def _connection(left: pa.Table, right: pa.Table) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.register("l", left)
    connection.register("r", right)
    return connection


def _best(rounds: int, **calls: Callable[[], int]) -> dict[str, float]:
    """Return the least seconds of each engine; all must leave the same number of rows without a match."""
    seconds = dict.fromkeys(calls, float("inf"))
    for number in range(rounds):
        alone = {}
        for name, call in calls.items():
            began = time.perf_counter()
            alone[name] = call()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
        report.progress(f"round {number + 1} of {rounds}: {alone}")
        if len(set(alone.values())) > 1:
            raise AssertionError(f"engines differ in rows without a match: {alone}")
    return seconds
