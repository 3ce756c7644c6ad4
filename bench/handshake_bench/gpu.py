"""`handshake bench gpu`: full windows on a GPU; the rate that it sustains, and how long a batch takes.

Both streams are pushed in batches. *Load* is seconds of work per second of stream, and work grows with the
square of the rate, so the sustained rate is the one measured, divided by the root of its load. Times are from
the arrival of a batch of one stream until all its pairs are on the host. Pairs of a scan are words of a row
number and the number of a probe. Pairs by index are the row numbers of each probe, as 32 bits. Another row
makes Arrow results of them. The last one counts them in a query, on the GPU: no pair comes to the host. The
latency is measured without Python's garbage collector, as docs/gpu.md advises.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.joins.arrangements.gpu import OnGpu
from handshake.joins.device import DeviceCore
from handshake.joins.join import prepare
from handshake.joins.pieces import pieces
from handshake.kernels.gpu import driver
from handshake.operators.query import Query
from handshake.operators.reduced_join import ReducingJoin
from handshake_bench import report
from handshake_bench.workload import BAND

__all__ = ["GENERAL", "run"]

GENERAL = "(l.x < r.a - 9970 OR l.y > r.b + 9985) AND l.y <= r.b + 9999 AND l.x + r.a > 5"
"""No band, and one match in 180,000 pairs."""
AGGREGATE = """CREATE INPUT STREAM L (ts timestamp, x int, y float) TIMESTAMP BY ts;
CREATE INPUT STREAM R (ts timestamp, a int, b float) TIMESTAMP BY ts;
SELECT count(*) AS n FROM (SELECT x FROM L [SIZE {window} TIME], R [SIZE {window} TIME]
WHERE x BETWEEN a - 10 AND a + 10 AND y BETWEEN b - 10 AND b + 10) [TUMBLE 1 MINUTE] INTO Counts"""
"""The bands as a query that counts their pairs per minute."""
_LEFT = pa.schema([("ts", pa.timestamp("us")), ("x", pa.int32()), ("y", pa.float32())])
_RIGHT = pa.schema([("ts", pa.timestamp("us")), ("a", pa.int32()), ("b", pa.float32())])
_POOL = 1 << 22
_WARM = 3
_ROUNDS = 5
"""Rounds of the latency; the one with the median p99 counts, since the processor's speed varies."""


@dataclass
class _Streams:
    """Both streams at a rate; values repeat after some millions, so that full windows are made in seconds."""

    rate: float
    pool: int = _POOL

    def __post_init__(self) -> None:
        rng = np.random.default_rng(7)
        self._values = [
            (
                rng.integers(1, 10_001, 2 * self.pool, dtype=np.int32),
                rng.uniform(1, 10_000, 2 * self.pool).astype(np.float32),
            )
            for _ in range(2)
        ]

    def batch(self, side: int, start: int, rows: int) -> pa.RecordBatch:
        """Return rows of a stream; at most `pool`."""
        times = (np.arange(start, start + rows) * (1e6 / self.rate)).astype(np.int64)
        at = start % self.pool
        columns = [pa.array(times).view(pa.timestamp("us"))]
        columns += [pa.array(values[at : at + rows]) for values in self._values[side]]
        return pa.RecordBatch.from_arrays(columns, schema=(_LEFT, _RIGHT)[side])


@dataclass
class _Full:
    """Windows that are filled first."""

    rate: float
    window: float

    def fill(self, put: Callable[[int, pa.RecordBatch], object]) -> None:
        """Fill both windows by a function of a side and a batch."""
        self.streams = _Streams(self.rate, min(_POOL, max(int(self.rate * self.window), 1)))
        self.filled = int(self.rate * self.window)
        for start in range(0, self.filled, self.streams.pool):
            rows = min(self.streams.pool, self.filled - start)
            for side in (0, 1):
                put(side, self.streams.batch(side, start, rows))

    def batches(self, seconds: float, count: int) -> Iterator[list[pa.RecordBatch]]:
        """Yield batches of both streams, made before the clock starts."""
        step = max(1, int(self.rate * seconds))
        made = [
            [self.streams.batch(side, self.filled + k * step, step) for side in (0, 1)] for k in range(count)
        ]
        self.filled += count * step
        return iter(made)


@dataclass
class _Run(_Full):
    """A join with full windows."""

    on: str = BAND
    method: str = "auto"

    def __post_init__(self) -> None:
        plan = prepare(
            _LEFT, _RIGHT, self.on, f"{self.window} seconds", time="ts", method=self.method, device="gpu"
        )
        engine = plan.start()
        assert isinstance(engine, OnGpu)
        self.engine = engine
        self.fill(engine.fill)

    def find(self, side: int, batch: pa.RecordBatch) -> int:
        """Take a batch of a stream; return how many pairs are on the host."""
        engine, pairs = self.engine, 0
        core = engine.core
        assert isinstance(core, DeviceCore)
        for piece in pieces(engine.spec, side, engine.driver.admit(side, batch)):
            near = core.near(piece, list(core.segments[1 - side].windows))
            pairs += sum(len(found) for found in core.find(piece, near))
            core.insert(piece)
        engine.expire()
        return pairs

    def join(self, side: int, batch: pa.RecordBatch) -> int:
        """Take a batch of a stream; return how many results there are."""
        return sum(out.num_rows for out in self.engine.push(side, batch))

    def close(self) -> None:
        """Give the memory back."""
        self.engine.close()


@dataclass
class _Counts(_Full):
    """A query over a join with full windows."""

    def __post_init__(self) -> None:
        self._query = Query(AGGREGATE.format(window=self.window), device="gpu")
        self._core = next(s.operator.core for s in self._query._steps if isinstance(s.operator, ReducingJoin))
        search = self._core.search
        self._core.search = lambda *rest: iter(())  # type: ignore[method-assign]
        self.fill(self.count)
        self._core.search = search  # type: ignore[method-assign]

    def count(self, side: int, batch: pa.RecordBatch) -> int:
        """Take a batch of a stream; return how many pairs were counted."""
        before = self._core.results
        self._query.push("LR"[side], batch)
        return self._core.results - before

    def close(self) -> None:
        """Give the memory back."""
        self._query.close()


@dataclass
class _Figures:
    load: float
    pairs: int
    times: Any
    sustained: float
    comparisons: float


def _measure(run: _Full, take: Any, batch: float, count: int) -> _Figures:
    for both in run.batches(batch, _WARM):
        for side, rows in enumerate(both):
            take(side, rows)
    times, pairs = [], 0
    for both in run.batches(batch, count):
        for side, rows in enumerate(both):
            began = time.perf_counter()
            pairs += take(side, rows)
            times.append(time.perf_counter() - began)
    load = sum(times) / (batch * count)
    work = 2 * run.rate * run.rate * run.window
    return _Figures(load, pairs, np.array(times), run.rate / load**0.5, work / load)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(
    window: float = 900.0, rate: float = 92_000.0, general: float = 42_000.0, latency: float = 100_000.0,
    index: float = 1_000_000.0, arrow: float = 200_000.0, aggregate: float = 1_000_000.0,
    batch: float = 0.01, count: int = 100, only: str = "",
) -> None:  # fmt: skip
    """Measure scans of bands and of any comparisons, the latency, and the index; print a table.

    `only` is the name of a line, such as `aggregate`, to be measured alone.
    """
    device = driver.open_device()
    rows, figures = [], dict[str, float | str]()

    def note(name: str, run: _Full, found: _Figures, seconds: float) -> None:
        p50, p99 = np.quantile(found.times, (0.5, 0.99)) * 1e3
        rows.append(
            (name, f"{run.rate:,.0f}", f"{seconds * 1e3:g}", f"{found.load:.3f}", f"{found.sustained:,.0f}",
             f"{found.comparisons / 1e12:.2f}", f"{found.pairs / found.times.sum() / 1e6:.1f}",
             f"{p50:.3f}", f"{p99:.3f}")
        )  # fmt: skip
        report.progress(f"{name}: load {found.load:.3f}, sustains {found.sustained:,.0f}, p99 {p99:.3f} ms")

    if only in ("", "scan"):
        scan = _Run(rate, window, method="scan")
        found = _measure(scan, scan.find, batch, count)
        note("bands, scan", scan, found, batch)
        figures["scan_rate"] = round(found.sustained)
        scan.close()
    if only in ("", "general"):
        any_kind = _Run(general, window, GENERAL, "scan")
        found = _measure(any_kind, any_kind.find, batch, count)
        note("any comparisons, scan", any_kind, found, batch)
        figures["general_rate"] = round(found.sustained)
        any_kind.close()
    if only in ("", "latency"):
        quick = _Run(latency, window)
        with _without_collector():
            rounds = [_measure(quick, quick.find, 0.001, 10 * count) for _ in range(_ROUNDS)]
        found = sorted(rounds, key=lambda figures: float(np.quantile(figures.times, 0.99)))[_ROUNDS // 2]
        note("bands, index, 1 ms batches", quick, found, 0.001)
        figures["latency_p99"] = round(float(np.quantile(found.times, 0.99)) * 1e3, 3)
        figures["latency_load"] = round(found.load, 3)
        quick.close()
    if only in ("", "index"):
        indexed = _Run(index, window)
        found = _measure(indexed, indexed.find, 10 * batch, max(count // 4, 1))
        note("bands, index", indexed, found, 10 * batch)
        figures["index_rate"] = round(found.sustained)
        figures["index_load"] = round(found.load, 3)
        indexed.close()
    if only in ("", "arrow"):
        arrows = _Run(arrow, window)
        found = _measure(arrows, arrows.join, 10 * batch, 3)
        note("bands, index, Arrow results", arrows, found, 10 * batch)
        figures["arrow_results"] = round(found.pairs / float(found.times.sum()))
        arrows.close()
    if only in ("", "aggregate"):
        counts = _Counts(aggregate, window)
        found = _measure(counts, counts.count, 10 * batch, max(count // 4, 1))
        note("bands, index, counted by a query", counts, found, 10 * batch)
        figures["aggregate_rate"] = round(found.sustained)
        figures["aggregate_load"] = round(found.load, 3)
        counts.close()
    heads = (
        "join",
        "rows/s/stream",
        "batch ms",
        "load",
        "sustained",
        "T pairs/s",
        "M found/s",
        "p50 ms",
        "p99 ms",
    )
    report.table(f"{device.name}, windows of {window:g} s", heads, rows)
    report.result(**figures, device=device.name.replace(" ", "_"))
