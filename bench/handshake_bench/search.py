"""Search for the highest rate that a join sustains; work grows with the square of the rate."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import JoinPlan, prepare
from handshake_bench.paced import fill
from handshake_bench.report import progress
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["Sample", "band_plan", "best_of", "highest", "measure", "warm"]

ENOUGH, AIM = 0.92, 0.965
"""The search ends at a load from `ENOUGH` to 1; each try aims at `AIM`."""
_MORE = 3
_WARM = 100_000
"""Rows of each window that warm up a plan."""


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


def band_plan(
    algorithm: str,
    cores: int,
    window: float,
    method: str = "scan",
    room: int | None = None,
    pin: bool = False,
) -> JoinPlan:
    """Plan the papers' band join with windows of `window` seconds; with `room`, it sheds tuples."""
    return prepare(
        left_schema, right_schema, BAND, f"{round(window * 1000)} ms",
        time="ts", method=method, algorithm=algorithm, cores=cores,
        overload="block" if room is None else "shed", room=room, pin=pin,
    )  # fmt: skip


def warm(plan: JoinPlan, window: float) -> None:
    """Compile the kernels before the measurement, with slow streams that fill the windows."""
    rate = max(1.0, _WARM / window)
    batch = _WARM / 20 / rate  # large enough that windows are clustered
    measure(plan, rate, window, 3 * batch, batch)


def highest(
    plan: JoinPlan, window: float, guess: float, seconds: float, tries: int = 4, batch: float | None = None
) -> tuple[float, list[Sample]]:
    """Return the highest sampled rate with a load of at most 1 (or 0), and all samples.

    If all loads are above 1 after `tries` samples, a few more follow, each with half the work.
    """
    samples: list[Sample] = []
    rate = guess
    for number in range(tries + _MORE):
        if number >= tries and best_of(samples) is not None:
            break
        samples.append(measure(plan, rate, window, seconds, batch or min(1.0, seconds / 4)))
        load = samples[-1].load
        name = f"{plan.spec.kind.name}, {plan.algorithm}, cores: {plan.cores}"
        progress(f"{name}: {rate:,.0f} tuples/s/stream, load {load:.2f}")
        if ENOUGH <= load <= 1:
            break
        aim = AIM if number < tries - 1 else AIM / 2
        rate = max(10.0, round(rate * math.sqrt(aim / load), -1))
    best = best_of(samples)
    return 0.0 if best is None else best.rate, samples


def best_of(samples: list[Sample]) -> Sample | None:
    """Return the sample with the highest rate that is sustained; None if none is."""
    return max((s for s in samples if s.load <= 1), key=lambda s: s.rate, default=None)


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
