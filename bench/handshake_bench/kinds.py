"""`handshake bench kinds`: outer, semi and anti joins against the inner join, on the benchmark of the field.

Windows are filled without joining. Then all kinds get the same seconds of both streams, a batch of each in
turn, so that other load on the machine concerns all of them. Figures are processor time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import prepare
from handshake.windows import Duration
from handshake_bench import report
from handshake_bench.paced import fill
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
    algorithm: str = "three_step", method: str = "band", cores: int | None = None, window: str = "1 minute",
    rate: float = 15_000.0, seconds: float = 10.0, batch: float = 1.0,
) -> None:  # fmt: skip
    """Measure all kinds at one rate; print a table and the rates in terms of that of `inner`."""
    streams, size = Streams(rate), Duration.parse(window).nanoseconds / 1e9
    contenders = []
    for kind in _MEASURED:
        plan = prepare(
            left_schema, right_schema, BAND, window, time="ts", method=method, algorithm=algorithm,
            cores=cores, how=kind,
        )  # fmt: skip
        contenders.append(_Contender(kind, plan.start()))
    try:
        _measure(contenders, streams, int(rate * size), seconds, batch)
        _report(contenders, rate, seconds, f"{algorithm}, {method}, windows of {window}")
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
