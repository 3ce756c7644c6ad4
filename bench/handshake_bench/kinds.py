"""`handshake bench kinds`: outer, semi and anti joins against the inner join, on the benchmark of the field.

Windows are filled without joining. Then all kinds get the same seconds of both streams, a batch of each in
turn, so that other load on the machine concerns all of them. Figures are processor time. With `--sustained`,
the highest rate of each kind is searched for, as in `handshake bench sustained`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import JoinPlan, prepare
from handshake.windows import Duration
from handshake_bench import report
from handshake_bench.paced import fill
from handshake_bench.search import Sample, best_of, highest, warm
from handshake_bench.sustained import START
from handshake_bench.workload import BAND, Streams, left_schema, right_schema

__all__ = ["run"]

_MEASURED = ("inner", "left", "full", "left_semi", "left_anti")
_WARM = 3
"""Batches of each stream before the measurement: they compile kernels and cluster windows."""


@dataclass
class _Contender:
    kind: str
    engine: Arrangement
    seconds: float = 0.0
    results: int = 0

    def push(self, side: int, batch: pa.RecordBatch) -> None:
        """Push as `Join` does: all results of a batch are there when the next one comes."""
        began = time.process_time()
        for found in (self.engine.push(side, batch), self.engine.drain()):
            self.results += sum(out.num_rows for out in found)
        self.seconds += time.process_time() - began


def run(
    algorithm: str = "three_step", method: str = "band", cores: int | None = None, window: str | None = None,
    rate: float | None = None, seconds: float = 10.0, batch: float = 1.0, *, sustained: bool = False,
) -> None:  # fmt: skip
    """Measure all kinds; print a table and the rates in terms of that of `inner`.

    Args:
        algorithm: The arrangement of join cores.
        method: The access method.
        cores: Join cores.
        window: The window of both streams; by default 1 minute, or 15 minutes to search for rates.
        rate: Rows per second of each stream, 15,000 by default; with `sustained`, where the search starts.
        seconds: Stream time to measure.
        batch: Stream time of a batch.
        sustained: Whether to search for the highest rate of each kind.
    """
    window = window or ("15 minutes" if sustained else "1 minute")
    size, title = Duration.parse(window).nanoseconds / 1e9, f"{algorithm}, {method}, windows of {window}"
    plans = {
        kind: prepare(
            left_schema, right_schema, BAND, window, time="ts", method=method, algorithm=algorithm,
            cores=cores, how=kind,
        )
        for kind in _MEASURED
    }  # fmt: skip
    if sustained:
        _search(plans, size, rate or START.get(method, 20_000.0), seconds, batch, title)
    else:
        _compare(plans, size, rate or 15_000.0, seconds, batch, title)


def _search(
    plans: dict[str, JoinPlan], size: float, guess: float, seconds: float, batch: float, title: str
) -> None:
    """Search for the highest rate of each kind, one after the other, from that of the kind before."""
    best: dict[str, Sample] = {}
    for kind, plan in plans.items():
        warm(plan, size)
        samples = highest(plan, size, guess, seconds, batch=batch)[1]
        best[kind] = best_of(samples) or samples[-1]
        guess = best[kind].rate
    inner = best["inner"]
    rows = [
        (kind, f"{s.rate:,.0f}", f"{s.load:.2f}", f"{s.rate / inner.rate:.2f}", f"{s.results:,}")
        for kind, s in best.items()
    ]
    heads = ("kind", "tuples/s/stream", "load", "rate / inner", "results")
    report.table(f"{title}: the highest rate with a load of at most 1", heads, rows)
    shares = {kind: round(s.rate / inner.rate, 3) for kind, s in best.items()}
    loads = {f"{kind}_load": round(s.load, 3) for kind, s in best.items()}
    report.result(**shares, **loads, rate=round(inner.rate))


def _compare(
    plans: dict[str, JoinPlan], size: float, rate: float, seconds: float, batch: float, title: str
) -> None:
    """Measure all kinds at one rate, in turn."""
    contenders = [_Contender(kind, plan.start()) for kind, plan in plans.items()]
    try:
        _measure(contenders, Streams(rate), int(rate * size), seconds, batch)
        _report(contenders, rate, seconds, title)
    finally:
        for contender in contenders:
            contender.engine.close()


def _measure(
    contenders: list[_Contender], streams: Streams, filled: int, seconds: float, batch: float
) -> None:
    step = max(1, int(streams.rate * batch))
    for contender in contenders:
        fill(contender.engine, streams, filled)
        report.progress(f"{contender.kind}: {filled:,} rows per window")
    last = filled + int(streams.rate * seconds) + _WARM * step
    for start in range(filled, last, step):
        for side, make in enumerate((streams.left, streams.right)):
            pushed = make(start, step)
            for contender in contenders:
                contender.push(side, pushed)
        if start == filled + (_WARM - 1) * step:
            for contender in contenders:
                contender.seconds, contender.results = 0.0, 0


def _report(contenders: list[_Contender], rate: float, seconds: float, title: str) -> None:
    inner = contenders[0]
    figures = [contender.engine.metrics() for contender in contenders]
    shares = [inner.seconds / contender.seconds for contender in contenders]
    states = [figure.state_bytes / figures[0].state_bytes for figure in figures]
    rows = [
        (c.kind, f"{c.seconds / seconds:.3f}", f"{share:.2f}", f"{state:.2f}", f"{c.results:,}")
        for c, share, state in zip(contenders, shares, states, strict=True)
    ]
    heads = ("kind", "processor s per s", "rate / inner", "state / inner", "results")
    report.table(f"{title}, {rate:,.0f} tuples/s/stream", heads, rows)
    named = {c.kind: round(share, 3) for c, share in zip(contenders, shares, strict=True)}
    held = {f"{c.kind}_state": round(state, 3) for c, state in zip(contenders, states, strict=True)}
    report.result(**named, **held, rate=rate, load=round(inner.seconds / seconds, 3))
