"""`handshake bench sessions`: session windows of many groups on Arrow batches in memory, on one core.

Rows arrive almost in order: their times are up to a second behind, which the lateness of the stream allows.
Algebraic aggregates keep states, the median keeps rows. Figures are by wall clock, the best of some rounds;
the table also has the processor time, which other work on the machine hardly changes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from handshake.operators.query import Query
from handshake_bench import report
from handshake_bench.queries import best_rounds

__all__ = ["run"]

CLICKS = "CREATE INPUT STREAM Clicks (k int, v int, t long) TIMESTAMP BY t IN MILLISECONDS LATENESS 1;"
QUERIES = {
    "states": "SELECT k, count() AS n, sum(v) AS s, max(v) AS m FROM Clicks [SESSION 30 SECONDS] GROUP BY k",
    "rows": "SELECT k, median(v) AS m FROM Clicks [SESSION 30 SECONDS] GROUP BY k",
}
_BATCH = 1 << 16
_MEAN = 10_000
"""Milliseconds between two rows of a group, on average: a session has about twenty rows."""


def clicks(rows: int, groups: int) -> list[pa.RecordBatch]:
    """Return rows of many groups, up to a second out of order."""
    random = np.random.default_rng(3)
    times = np.arange(rows) * _MEAN // groups - random.integers(0, 1000, rows)
    table = pa.table(
        {
            "k": random.integers(0, groups, rows).astype(np.int32),
            "v": random.integers(0, 1000, rows).astype(np.int32),
            "t": times,
        }
    )
    batches: list[pa.RecordBatch] = table.to_batches(max_chunksize=_BATCH)
    return batches


def run(rows: int = 4_000_000, groups: int = 1000, rounds: int = 3) -> None:
    """Measure rows per second of session windows."""
    batches, lines, figures = clicks(rows, groups), list[tuple[str, ...]](), dict[str, float | str]()
    for name, text in QUERIES.items():
        (found,) = best_rounds(rounds, _work(text, batches))
        wall, processor = (rows / seconds / 1e6 for seconds in (found.wall, found.processor))
        lines.append((name, f"{wall:.2f}", f"{processor:.2f}", f"{found.results:,}"))
        figures |= {f"{name}_mrps": wall, f"{name}_processor_mrps": processor}
    heads = ("query", "Mrows/s", "by processor time", "sessions")
    report.table(f"{rows:,} rows of {groups:,} groups in batches of {_BATCH:,}, one core", heads, lines)
    report.result(rows=rows, groups=groups, **figures)


def _work(text: str, batches: list[pa.RecordBatch]) -> Callable[[], int]:
    def work() -> int:
        with Query(f"{CLICKS} {text} INTO Q") as query:
            for batch in batches:
                query.push("Clicks", batch)
            query.finish()
            return query.metrics().results["Q"]

    return work
