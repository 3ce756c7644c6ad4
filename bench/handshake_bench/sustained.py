"""`handshake bench sustained`: the highest rate per stream that the join sustains with full windows.

Windows are filled without joining, to save fifteen minutes. Then a few seconds of both streams are pushed,
with results as Arrow batches, and the time is compared with the duration of the streams. The clock runs until
every pair has been compared, in all arrangements.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import JoinPlan, prepare
from handshake.windows import Duration
from handshake_bench import report
from handshake_bench.paced import fill
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["Sample", "measure", "run"]

_START = {"scan": 2_500.0, "band": 30_000.0}
_WARM = 100_000


@dataclass(frozen=True)
class Sample:
    """One measurement at one rate."""

    rate: float
    load: float
    """Seconds of work per second of stream; a rate with a load of at most 1 is sustained."""
    results: int
    comparisons: int
    window_rows: int
    state_ratio: float
    """Bytes of state per raw byte of the tuples in the windows."""


def run(
    algorithm: str = "three_step", method: str = "band", cores: int | None = None,
    window: str = "15 minutes", rate: float | None = None, seconds: float = 10.0, batch: float = 1.0,
) -> None:  # fmt: skip
    """Find the sustained rate, or measure at a given one; print a table and `rate`."""
    plan = prepare(
        left_schema, right_schema, BAND, window, time="ts", method=method, algorithm=algorithm, cores=cores
    )
    size = Duration.parse(window).nanoseconds / 1e9
    _warm(plan, size)
    if rate is not None:
        samples = [measure(plan, rate, size, seconds, batch)]
    else:
        samples = _search(plan, method, size, seconds, batch)
    best = max((s for s in samples if s.load <= 1), key=lambda s: s.rate, default=None)
    _table(samples, plan, window)
    report.result(rate=round(best.rate) if best else 0, **_figures(best or samples[-1], plan, seconds))


def _figures(sample: Sample, plan: JoinPlan, seconds: float) -> dict[str, float | str]:
    return {
        "load": sample.load,
        "algorithm": plan.algorithm,
        "method": plan.method,
        "cores": plan.cores,
        "state_ratio": sample.state_ratio,
        "results_per_s": round(sample.results / seconds),
        "comparisons_per_s": sample.comparisons / seconds,
    }


def _search(plan: JoinPlan, method: str, size: float, seconds: float, batch: float) -> list[Sample]:
    """Search in a few steps, because work grows with the square of the rate."""
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


def _warm(plan: JoinPlan, size: float) -> None:
    """Compile the kernels before the measurement, with slow streams that fill the windows."""
    rate = max(1.0, _WARM / size)
    batch = _WARM / 20 / rate  # large enough that windows are clustered
    measure(plan, rate, size, 3 * batch, batch)


def measure(plan: JoinPlan, rate: float, size: float, seconds: float, batch: float) -> Sample:
    """Push `seconds` of both streams at `rate` into windows that hold `size` seconds."""
    engine, streams = plan.start(), Streams(rate)
    try:
        filled, step = int(rate * size), max(1, int(rate * batch))
        fill(engine, streams, filled)
        # Filled windows are clustered at the first probe, which is not part of the measurement.
        _push_all(engine, [(0, streams.left(filled, step)), (1, streams.right(filled, step))])
        filled += step
        return _measure_filled(plan, engine, streams, filled, seconds, batch)
    finally:
        engine.close()


def _measure_filled(
    plan: JoinPlan, engine: Arrangement, streams: Streams, filled: int, seconds: float, batch: float
) -> Sample:
    before = engine.metrics()
    step = max(1, int(streams.rate * batch))
    pushes = [
        (side, make(start, step))
        for start in range(filled, filled + int(streams.rate * seconds), step)
        for side, make in enumerate((streams.left, streams.right))
    ]
    began = time.perf_counter()
    results = _push_all(engine, pushes)
    work = time.perf_counter() - began
    after = engine.metrics()
    held = (after.left_window_rows, after.right_window_rows)
    raw = sum(rows * made.nbytes / step for rows, (_, made) in zip(held, pushes[:2], strict=True))
    lasted = len(pushes) // 2 * step / streams.rate
    compared = after.comparisons - before.comparisons
    return Sample(streams.rate, work / lasted, results, compared, sum(held), after.state_bytes / raw)


def _push_all(engine: Arrangement, pushes: list[tuple[int, pa.RecordBatch]]) -> int:
    """Push all batches, wait for all results, and return their number."""
    results: int = 0
    for side, tuples in pushes:
        results += sum(out.num_rows for out in engine.push(side, tuples))
    # In a handshake line tuples drift together for minutes: the clock runs until all pairs have met.
    return results + int(sum(out.num_rows for out in engine.drain()))


def _table(samples: list[Sample], plan: JoinPlan, window: str) -> None:
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
    title = f"{plan.algorithm}, cores: {plan.cores}, {plan.method}, windows of {window}"
    report.table(title, heads, rows)
