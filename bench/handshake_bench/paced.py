"""Streams that arrive in real time, after the windows have been filled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import JoinPlan
from handshake.joins.metrics import Metrics
from handshake.joins.replay import spare_old_objects
from handshake_bench.workload import Source, Streams

__all__ = ["Run", "feed", "fill"]

_PARTS = 64
_SETTLED = 1.0
"""Seconds of both streams that are pushed before the measurement."""


@dataclass(frozen=True)
class Run:
    """Results and metrics of some seconds of both streams."""

    offered: int
    """Tuples of both streams that came."""
    results: int
    seconds: float
    """Until the last result."""
    metrics: Metrics
    """Metrics after the last tuple, before the join is drained."""
    shed: int
    """Tuples of both streams shed in the second half; queues fill in the first."""

    @property
    def shed_share(self) -> float:
        """Share of the tuples of the second half that were shed."""
        return self.shed / (self.offered / 2)


def feed(
    plan: JoinPlan, rate: float, window: float, seconds: float, *, tick: float, held: float | None = None,
    unseen: float = 0.0,
) -> Run:  # fmt: skip
    """Push both streams at `rate` for some seconds, one batch of each every `tick` seconds.

    Windows are full at the start, with streams at the rate `held`, which a shedding join would have kept.
    Latencies of the first `unseen` seconds are ignored.
    """
    engine = plan.start()
    gate = plan.gate(engine=engine)
    with contextlib.closing(gate), contextlib.ExitStack() as stack:
        earlier = Streams(held or rate)
        fill(engine, earlier, int(earlier.rate * window))
        _settle(engine, Streams(earlier.rate, seed=9), int(earlier.rate * window))
        batches = list(_ticks(Streams(rate, seed=8), int(rate * (window + _SETTLED)), seconds, tick))
        stack.enter_context(spare_old_objects())
        results, earlier_shed, start = 0, 0, time.perf_counter()
        for number, pair in enumerate(batches):
            moment = start + number * tick
            if number == round(unseen / tick):
                gate.engine.latencies.clear()
            if number == len(batches) // 2:
                earlier_shed = sum(gate.shed_rows)
            results += sum(out.num_rows for out in gate.until(moment))
            for side, batch in enumerate(pair):
                results += sum(out.num_rows for out in gate.push(side, batch, at=moment))
        results += sum(out.num_rows for out in gate.until(start + len(batches) * tick))
        metrics = gate.metrics()
        results += sum(out.num_rows for out in gate.drain())
        offered = sum(batch.num_rows for pair in batches for batch in pair)
        shed = metrics.left_shed + metrics.right_shed - earlier_shed
        return Run(offered, results, time.perf_counter() - start, metrics, shed)


def _settle(engine: Arrangement, streams: Streams, first: int) -> None:
    """Push some tuples uncounted, because filled windows are clustered at the first probe."""
    rows = int(streams.rate * _SETTLED)
    for side, batch in enumerate((streams.left(first, rows), streams.right(first, rows))):
        for _ in engine.push(side, batch):
            pass
    for _ in engine.settle():
        pass
    engine.latencies.take_notes()


def _ticks(
    streams: Streams, first: int, seconds: float, tick: float
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    cuts = [first + round(streams.rate * tick * n) for n in range(round(seconds / tick) + 1)]
    for start, stop in pairwise(cuts):
        yield streams.left(start, stop - start), streams.right(start, stop - start)


def fill(engine: Arrangement, streams: Source, rows: int) -> None:
    """Put `rows` tuples into both windows without joining them."""
    step = max(1, -(-rows // _PARTS))
    for start in range(0, rows, step):
        count = min(step, rows - start)
        engine.fill(0, streams.left(start, count))
        engine.fill(1, streams.right(start, count))
    engine.expire()
