"""`handshake bench queries`: the paper's queries on Arrow batches in memory, on one core.

Q1 and Q2 are filters. DuckDB and Polars run the same filters on the same batches in turn, each on one thread;
the best of several rounds counts. DuckDB reads the batches as they are, Polars converts them before the
measurement. Our time includes the set-up of the query, which is also reported by itself. Q3 and Q5 slide
windows of 10 and of 1,000 panes over the same tuples. Figures are by the processor time of all threads, which
other work on the machine hardly changes; the table also has rates by wall clock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError
from handshake.operators.query import Query
from handshake_bench import report

__all__ = ["best_rounds", "run"]

TRADES = """CREATE INPUT STREAM Trades (Seqnr int, Symbol string(4), Price int, Volume int, Ts timestamp)
TIMESTAMP BY Ts;"""
FILTERS = {
    "Q1": ("Symbol = 'UBSN'", 'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" INTO Q'),
    "Q2": (
        "Symbol = 'UBSN' AND Volume > 100000",
        'SELECT Price, Volume FROM Trades WHERE Symbol = "UBSN" AND Volume > 100000 INTO Q',
    ),
}
WINDOWED = {
    "Q3": 'SELECT count() AS Number FROM Trades [SIZE {size} ADVANCE 60 TIME] WHERE Symbol = "UBSN" INTO Q',
    "Q5": """SELECT Symbol, avg(Price) AS AvgPrice FROM Trades [SIZE {size} ADVANCE 60 TIME]
        GROUP BY Symbol INTO Q""",
}
PANES = (10, 1000)
_BATCH = 1 << 16
_SYMBOLS = 100
_PANE_ROWS = 1000
"""Tuples per minute of stream time."""


def trades(rows: int) -> list[pa.RecordBatch]:
    """Return trades of 100 symbols; about 1 % are of UBSN."""
    random = np.random.default_rng(3)
    symbols = np.array(["UBSN", *(f"S{n:03}" for n in range(_SYMBOLS - 1))])
    table = pa.table(
        {
            "Seqnr": np.arange(rows, dtype=np.int32),
            "Symbol": pa.array(symbols[random.integers(0, _SYMBOLS, rows)]),
            "Price": random.integers(1, 10_000, rows).astype(np.int32),
            "Volume": random.integers(1, 200_000, rows).astype(np.int32),
            "Ts": pa.array(np.arange(rows) * (60_000_000 // _PANE_ROWS)).cast(pa.timestamp("us")),
        }
    )
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=_BATCH)
    return batches


def run(rows: int = 4_000_000, rounds: int = 5) -> None:
    """Measure tuples per second and core, ratios to other engines, and the cost of 100 times the panes."""
    batches = trades(rows)
    figures: dict[str, float | str] = {}
    lines = []
    for name in FILTERS:
        lines += _filters(name, batches, rounds, figures)
    for name in WINDOWED:
        lines += _windows(name, batches, rounds, figures)
    heads = ("query", "Mtuples/s", "by processor time", "results")
    report.table(f"{rows:,} tuples in batches of {_BATCH:,}, one core", heads, lines)
    report.result(**figures)


class Timed(NamedTuple):
    """Seconds of the best round, and the number of results."""

    wall: float
    processor: float
    results: int


def best_rounds(rounds: int, *runs: Callable[[], int]) -> list[Timed]:
    """Run all in turns, so that a busy machine slows each of them equally; return the best rounds."""
    best = [Timed(float("inf"), float("inf"), 0)] * len(runs)
    for turn in range(rounds + 1):
        for at, work in enumerate(runs):
            start, busy = time.perf_counter(), time.process_time()
            results = work()
            wall, processor = time.perf_counter() - start, time.process_time() - busy
            if turn:  # the first compiles
                best[at] = Timed(min(best[at].wall, wall), min(best[at].processor, processor), results)
    return best


def _ours(text: str, batches: list[pa.RecordBatch]) -> Callable[[], int]:
    def work() -> int:
        with Query(TRADES + text) as query:
            for batch in batches:
                query.push("Trades", batch)
            query.finish()
            return query.metrics().results["Q"]

    return work


def _set_up(text: str) -> Callable[[], int]:
    def work() -> int:
        with Query(TRADES + text):
            return 0

    return work


def _filters(
    name: str, batches: list[pa.RecordBatch], rounds: int, figures: dict[str, float | str]
) -> list[tuple[str, ...]]:
    condition, text = FILTERS[name]
    others = {engine: make(condition, batches) for engine, make in _OTHERS.items() if find_spec(engine)}
    found = best_rounds(rounds, _ours(text, batches), *others.values())
    rows = sum(batch.num_rows for batch in batches)
    if len({timed.results for timed in found}) != 1:
        raise AssertionError(f"{name}: engines differ: {[timed.results for timed in found]}")
    figures[f"{name}_mtps"] = rows / found[0].processor / 1e6
    for engine in _OTHERS:
        known = engine in others
        at = list(others).index(engine) + 1 if known else 0
        figures[f"{name}_vs_{engine}"] = (
            found[at].processor / found[0].processor if known else "not_installed"
        )
    figures[f"{name}_setup_ms"] = 1e3 * best_rounds(rounds, _set_up(text))[0].processor
    return [
        _line(f"{name} {engine}", rows, seen)
        for engine, seen in zip(("handshake", *others), found, strict=True)
    ]


def _line(name: str, rows: int, seen: Timed) -> tuple[str, ...]:
    rates = (f"{rows / seconds / 1e6:.1f}" for seconds in (seen.wall, seen.processor))
    return (name, *rates, f"{seen.results:,}")


def _windows(
    name: str, batches: list[pa.RecordBatch], rounds: int, figures: dict[str, float | str]
) -> list[tuple[str, ...]]:
    runs = [_ours(WINDOWED[name].format(size=60 * panes), batches) for panes in PANES]
    found = best_rounds(rounds, *runs)
    rows = sum(batch.num_rows for batch in batches)
    figures[f"{name}_mtps"] = rows / found[0].processor / 1e6
    figures[f"{name}_1000_vs_10_panes"] = found[1].processor / found[0].processor
    return [_line(f"{name}, {panes} panes", rows, seen) for panes, seen in zip(PANES, found, strict=True)]


def _duckdb(condition: str, batches: list[pa.RecordBatch]) -> Callable[[], int]:
    connection: Any = import_module("duckdb").connect()
    connection.execute("SET threads = 1")
    connection.register("trades", pa.Table.from_batches(batches))
    text = f"SELECT Price, Volume FROM trades WHERE {condition}"
    return lambda: int(connection.sql(text).to_arrow_table().num_rows)


def _polars(condition: str, batches: list[pa.RecordBatch]) -> Callable[[], int]:
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # read when it is imported
    polars: Any = import_module("polars")
    if polars.thread_pool_size() != 1:
        raise HandshakeError("polars runs on several threads; start with POLARS_MAX_THREADS=1")
    frame = polars.from_arrow(pa.Table.from_batches(batches), rechunk=False)
    column = polars.col
    wanted = column("Symbol") == "UBSN"
    if "Volume" in condition:
        wanted = wanted & (column("Volume") > 100_000)
    return lambda: int(frame.lazy().filter(wanted).select("Price", "Volume").collect().height)


_OTHERS: dict[str, Callable[[str, list[pa.RecordBatch]], Callable[[], int]]] = {
    "duckdb": _duckdb,
    "polars": _polars,
}
