"""`handshake bench push`: how long one push of a few rows into a `Join` takes, with full windows.

Default options but for the access method: the index that fits the predicate, and the scan. Rows of both
streams are pushed in turn, batches of all sizes in rounds. A time is from the call of `push_left` or
`push_right` until it has returned the results. The processor time of all threads is a mean: it says more than
times do on a machine that others use.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import Join
from handshake.joins.replay import spare_old_objects
from handshake_bench import report
from handshake_bench.paced import fill
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["run"]

Array = np.ndarray[Any, Any]
METHODS = {"index": "auto", "scan": "scan"}
SIZES = (1, 3, 100, 10_000)
_PUSHES = {1: 2000, 3: 2000, 100: 600, 10_000: 10}
"""Pushes of each size that are counted."""
_WARM = 6
"""Pushes of 10,000 rows, and hundreds of the other sizes, before anything is counted."""
_ROUNDS = 5
_SECONDS = 900.0


def run(rows: int = 1_500_000, sizes: Sequence[int] = SIZES, share: float = 1.0) -> None:
    """Measure both methods; report the percentiles of pushes of three rows in milliseconds.

    Args:
        rows: The rows in each window.
        sizes: The rows of a push.
        share: The share of the usual number of pushes that is counted.
    """
    lines, figures = [], dict[str, float | str]()
    for name, method in METHODS.items():
        found = _measure(method, rows, sizes, share)
        for size, (seconds, spent) in found.items():
            p50, p90, p99 = (1e3 * float(np.quantile(seconds, q)) for q in (0.5, 0.9, 0.99))
            times = (f"{value:.3f}" for value in (p50, p90, p99, 1e3 * float(seconds.mean()), spent))
            lines.append((f"{name}, {size:,} rows", f"{len(seconds):,}", *times))
            if size == 3:
                figures |= {f"{name}_p50": p50, f"{name}_p99": p99, f"{name}_cpu": spent}
            else:
                figures[f"{name}_{size}_p50"] = p50
        shown = ", ".join(f"{n}: {1e3 * np.median(s):.3f} ms" for n, (s, _) in found.items())
        report.progress(f"{name}: {shown}")
    heads = ("method, rows of a push", "pushes", "p50 ms", "p90 ms", "p99 ms", "mean ms", "processor ms")
    report.table(f"one push, windows of {rows:,} rows each, {BAND}", heads, lines)
    report.result(**figures)


def _measure(method: str, rows: int, sizes: Sequence[int], share: float) -> dict[int, tuple[Array, float]]:
    """Return the seconds of each push and the milliseconds of processors per push, by the number of rows."""
    window, streams = f"{_SECONDS:g} seconds", Streams(rows / _SECONDS)
    with Join(left=left_schema, right=right_schema, on=BAND, window=window, time="ts", method=method) as join:
        assert isinstance(join._joined, Arrangement)
        fill(join._joined, streams, rows)
        at = rows
        for size in sorted({*sizes, 10_000}, reverse=True):  # clusters windows and compiles
            at, *_ = _push(join, streams, at, size, _WARM if size >= 10_000 else 300)
        found: dict[int, list[float]] = {size: [] for size in sizes}
        spent = dict.fromkeys(sizes, 0.0)
        with spare_old_objects():
            for _ in range(_ROUNDS):
                for size in sizes:
                    pushes = max(int(share * _PUSHES.get(size, 100) / _ROUNDS), 2)
                    at, seconds, processors = _push(join, streams, at, size, pushes)
                    found[size] += seconds
                    spent[size] += processors
    return {size: (np.array(seconds), 1e3 * spent[size] / len(seconds)) for size, seconds in found.items()}


def _push(join: Join, streams: Streams, at: int, size: int, pushes: int) -> tuple[int, list[float], float]:
    """Push rows of both sides in turn; return the next row, the seconds of each push and of processors."""
    end = at + size * pushes
    batches = [make(start, size) for start in range(at, end, size) for make in (streams.left, streams.right)]
    seconds, spent = [], time.process_time()
    for number, batch in enumerate(batches):
        push = join.push_right if number % 2 else join.push_left
        began = time.perf_counter()
        push(batch)
        seconds.append(time.perf_counter() - began)
    return end, seconds, time.process_time() - spent
