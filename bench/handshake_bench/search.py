"""Search for the highest rate that a join sustains; work grows with the square of the rate."""

from __future__ import annotations

import math

from handshake.joins.join import JoinPlan, prepare
from handshake_bench.report import progress
from handshake_bench.sustained import Sample, measure
from handshake_bench.workload import BAND, left_schema, right_schema

__all__ = ["band_plan", "highest", "warm"]

ENOUGH, AIM = 0.92, 0.965
"""The search ends at a load from `ENOUGH` to 1; each try aims at `AIM`."""
_MORE = 3


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
    measure(plan, max(1.0, 100_000 / window), window, 3.0, 1.0)


def highest(
    plan: JoinPlan, window: float, guess: float, seconds: float, tries: int = 4
) -> tuple[float, list[Sample]]:
    """Return the highest sampled rate with a load of at most 1 (or 0), and all samples.

    If all loads are above 1 after `tries` samples, a few more follow, each with half the work.
    """
    samples: list[Sample] = []
    rate = guess
    for number in range(tries + _MORE):
        if number >= tries and any(sample.load <= 1 for sample in samples):
            break
        samples.append(measure(plan, rate, window, seconds, min(1.0, seconds / 4)))
        load = samples[-1].load
        progress(f"{plan.algorithm}, cores: {plan.cores}: {rate:,.0f} tuples/s/stream, load {load:.2f}")
        if ENOUGH <= load <= 1:
            break
        aim = AIM if number < tries - 1 else AIM / 2
        rate = max(10.0, round(rate * math.sqrt(aim / load), -1))
    return max((s.rate for s in samples if s.load <= 1), default=0.0), samples
