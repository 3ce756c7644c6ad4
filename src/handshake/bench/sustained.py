"""`handshake bench sustained`: the highest rate per stream that one can keep up with, windows being full.

Windows are filled without joining, so nobody waits fifteen minutes; then a few seconds of both streams are
pushed, results made as Arrow batches, and the time that takes is compared with the time the streams last.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from handshake.bench import report
from handshake.bench.workload import BAND, Streams, left_schema, right_schema
from handshake.cores.basic_window import BasicWindow
from handshake.cores.three_step import ThreeStep
from handshake.errors import UnsupportedError
from handshake.local import JoinPlan, prepare
from handshake.window import Duration

__all__ = ["Sample", "measure", "run"]

_START = {"scan": 2_500.0, "band": 30_000.0}
_PARTS = 64


@dataclass(frozen=True)
class Sample:
    """One measurement at one rate."""

    rate: float
    load: float
    """Seconds of work per second of stream: at most 1 means that it keeps up."""
    results: int
    comparisons: int
    window_rows: int
    state_ratio: float
    """Bytes held over the raw bytes of the tuples held."""


def run(
    algorithm: str = "three_step", method: str = "band", cores: int = 1, window: str = "15 minutes",
    rate: float | None = None, seconds: float = 10.0, batch: float = 1.0,
) -> None:  # fmt: skip
    """Find the sustained rate, or measure at a given one; print a table, and give `rate`."""
    if algorithm != "three_step" or cores != 1:
        raise UnsupportedError("bench sustained runs three_step on one core in this release")
    plan = prepare(left_schema, right_schema, BAND, window, time="ts", method=method)
    size = Duration.parse(window).nanoseconds / 1e9
    _warm(plan)
    samples = [measure(plan, r, size, seconds, batch) for r in ([rate] if rate else [])]
    if not samples:
        samples = _search(plan, method, size, seconds, batch)
    kept = [s for s in samples if s.load <= 1]
    best = max(kept, key=lambda s: s.rate, default=None)
    _table(samples, method, window)
    if best is None:
        report.result(rate=0, load=samples[-1].load, method=method)
    else:
        report.result(
            rate=round(best.rate), load=best.load, method=method, state_ratio=best.state_ratio,
            results_per_s=round(best.results / seconds), comparisons_per_s=float(best.comparisons / seconds),
        )  # fmt: skip


def _search(plan: JoinPlan, method: str, size: float, seconds: float, batch: float) -> list[Sample]:
    """Work grows with the square of the rate, so a few steps get there."""
    samples: list[Sample] = []
    rate = _START.get(method, 20_000.0)
    for _ in range(5):
        sample = measure(plan, rate, size, seconds, batch)
        samples.append(sample)
        print(f"  {sample.rate:,.0f} tuples/s/stream: load {sample.load:.2f}", flush=True)
        if 0.92 <= sample.load <= 1:
            break
        rate = round(rate * math.sqrt(0.96 / sample.load), -2)
    return samples


def _warm(plan: JoinPlan) -> None:
    """Compile kernels before the clock runs."""
    measure(plan, 4_000, 40.0, 3.0, 1.0)


def measure(plan: JoinPlan, rate: float, size: float, seconds: float, batch: float) -> Sample:
    """Push `seconds` of both streams at `rate` into windows that hold `size` seconds."""
    engine, streams = ThreeStep(plan.spec), Streams(rate)
    filled = int(rate * size)
    _fill(engine, streams, filled)
    step = max(1, int(rate * batch))
    work, before = 0.0, engine.core.comparisons
    results = rows = 0
    for start in range(filled, filled + int(rate * seconds), step):
        pushed = (streams.left(start, step), streams.right(start, step))
        began = time.perf_counter()
        for side, tuples in enumerate(pushed):
            results += sum(out.num_rows for out in engine.push(side, tuples))
        work += time.perf_counter() - began
        rows += step
    metrics = engine.metrics()
    return Sample(
        rate, work / (rows / rate), results, engine.core.comparisons - before,
        metrics.left_window_rows + metrics.right_window_rows, metrics.state_bytes / _raw_bytes(engine),
    )  # fmt: skip


def _fill(engine: ThreeStep, streams: Streams, rows: int) -> None:
    """Put tuples into both windows without probing."""
    step = max(1, -(-rows // _PARTS))
    for start in range(0, rows, step):
        count = min(step, rows - start)
        for side, make in enumerate((streams.left, streams.right)):
            admitted = engine.driver.admit(side, make(start, count))
            engine.core.insert(BasicWindow(engine.spec.sides[side], admitted))
    engine.expire()


def _raw_bytes(engine: ThreeStep) -> int:
    """Bytes of the input's own columns for the tuples held."""
    total = 0
    for segment in engine.core.segments:
        for window in segment:
            total += sum(c.nbytes for c in window.batch.columns[: len(window.spec.schema)])
    return total


def _table(samples: list[Sample], method: str, window: str) -> None:
    rows = [
        (
            f"{s.rate:,.0f}",
            f"{s.load:.2f}",
            f"{s.window_rows:,}",
            f"{s.results:,}",
            f"{s.comparisons / 1e9:.2f}",
            f"{s.state_ratio:.2f}",
        )
        for s in samples
    ]
    heads = ("tuples/s/stream", "load", "tuples held", "results", "billion comparisons", "state / raw bytes")
    report.table(f"three_step, one core, {method}, windows of {window}", heads, rows)
