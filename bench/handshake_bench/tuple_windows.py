"""`handshake bench tuple_windows`: joins over windows of tuples, as PIM-Tree and SPO-Join measure them.

PIM-Tree joins on a band of one key, with two matches per tuple: keys are uniform, Gaussian, gamma or Gaussian
with a mean that moves. SPO-Join joins on two inequalities; here `y` is `x` and some noise, so that a tuple
also has two matches. Batches of both streams come in turn. All pairs found are compared with NumPy by hand.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pyarrow as pa

from handshake.joins.arrangements.arrangement import Arrangement
from handshake.joins.join import prepare
from handshake_bench import report
from handshake_bench.options import parse_numbers
from handshake_bench.paced import fill
from handshake_bench.pairs import Pairs
from handshake_bench.published import PIM_TREE_CORES, PIM_TREE_GAIN
from handshake_bench.report import Data, Report
from handshake_bench.throughput import core_counts
from handshake_bench.tuple_workload import KINDS, TupleStreams, left_schema, pairs_by_hand, right_schema

__all__ = ["run"]

_WARM = 16
"""Batches of each stream before the measurement: they compile kernels and cluster windows."""
_ROWS = {"inequality": 1 << 16}
"""Tuples of each stream that are measured; 2^20 in the other workloads."""

_ALONE = 0.8
"""The share of the clock that a join on one core works if it has the core to itself."""


@dataclass
class _Clock:
    wall: float
    processor: float

    @classmethod
    def now(cls) -> _Clock:
        return cls(time.perf_counter(), time.process_time())


def run(
    windows: str = "20,23", batch: int = 4096, cores: str | None = None, quick: bool = False,
    out: str | None = None, source: str | None = None,
) -> None:  # fmt: skip
    """Measure each workload with windows of each size, on one core and on more.

    Args:
        windows: The sizes of windows as powers of two, with commas.
        batch: The tuples of a batch.
        cores: The numbers of cores, with commas.
        quick: Take small windows and few tuples.
        out: The folder for the table and the figures.
        source: The figures of an earlier run, instead of measuring.
    """
    if source:
        data = report.load(source, "tuple_windows")
    else:
        powers = [10] if quick else parse_numbers(windows, "20,23")
        data = _measure(powers, 256 if quick else batch, core_counts(cores), 1 << 11 if quick else 1 << 20)
        data["quick"] = quick
    report.publish("tuple_windows", data, _show, _draw, out)


def _measure(powers: list[int], batch: int, counts: list[int], rows: int) -> Data:
    points = []
    for power, kind in product(powers, KINDS):
        counted = min(rows, _ROWS.get(kind, rows))
        streams = TupleStreams(kind, 1 << power, (1 << power) + _WARM * batch + counted)
        wanted = pairs_by_hand(streams, streams.rows - counted, batch)
        points += [{"power": power, **_point(streams, batch, cores, wanted)} for cores in counts]
    head = {"benchmark": "tuple_windows", "machine": report.machine(), "batch": batch}
    return {**head, "points": points}


def _point(streams: TupleStreams, batch: int, cores: int, wanted: Pairs) -> Data:
    algorithm = "three_step" if cores == 1 else "low_latency"
    plan = prepare(
        left_schema, right_schema, streams.on, f"{streams.window} tuples", algorithm=algorithm, cores=cores
    )
    engine = plan.start()
    try:
        fill(engine, streams, streams.window)
        warm = streams.window + _WARM * batch
        _push(engine, streams, range(streams.window, warm, batch), batch)
        began = _Clock.now()
        results = _push(engine, streams, range(warm, streams.rows, batch), batch)
        ended = _Clock.now()
    finally:
        engine.close()
    found = Pairs.of(*(results.column(name).to_numpy() for name in ("n", "m")))
    if found != wanted:
        raise AssertionError(f"{streams.kind}, windows of {streams.window}: {found}, by hand {wanted}")
    tuples = 2 * (streams.rows - warm)
    point = {
        "kind": streams.kind, "cores": cores, "method": plan.method, "algorithm": algorithm,
        "rate": tuples / (ended.wall - began.wall),
        "per_processor": tuples / (ended.processor - began.processor), "matches": found.count / tuples,
    }  # fmt: skip
    report.progress(
        f"{streams.kind}, 2^{streams.window.bit_length() - 1}, cores: {cores}: {point['rate']:,.0f}/s"
    )
    return point


def _push(engine: Arrangement, streams: TupleStreams, starts: range, batch: int) -> pa.Table:
    """Push batches of both streams in turn; wait for all results and return them."""
    found: list[pa.RecordBatch] = []
    for start in starts:
        for side, make in enumerate((streams.left, streams.right)):
            found += engine.push(side, make(start, batch))
    found += engine.drain()
    return pa.Table.from_batches(found)


def _show(page: Report, data: Data) -> None:
    rows = [
        (
            p["kind"], f"2^{p['power']}", f"{p['cores']}", p["method"], f"{p['rate']:,.0f}",
            f"{p['per_processor']:,.0f}", f"{p['matches']:.2f}",
        )
        for p in data["points"]
    ]  # fmt: skip
    heads = ("keys", "window", "cores", "method", "tuples/s", "per processor s", "matches per tuple")
    page.table(f"Windows of tuples, batches of {data['batch']:,} tuples of each stream in turn", heads, rows)
    page.say("tuples/s are those of both streams together. All pairs are those that NumPy finds by hand.")
    page.say("Other work on the machine lowers tuples/s; it concerns those per processor second far less.")
    page.say(
        f"Published (PIM-Tree, abstract): up to {PIM_TREE_GAIN} times the throughput of one thread on "
        f"{PIM_TREE_CORES} cores. Its rates, and all figures of SPO-Join, were not at hand."
    )
    fewest = min(p["cores"] for p in data["points"])
    rates = {
        f"{p['kind']}_{p['power']}": p["per_processor"]
        for p in data["points"]
        if p["kind"] in ("uniform", "inequality") and p["cores"] == fewest
    }
    page.result(**rates, **_gain(data))


def _gain(data: Data) -> dict[str, float | str]:
    """Return the rate on most cores in terms of that on fewest, for uniform keys and the smallest windows.

    If the clock ran much longer than a single core worked, other work disturbed the run.
    """
    points = {p["cores"]: p for p in reversed(data["points"]) if p["kind"] == "uniform"}
    most, fewest = points[max(points)], points[min(points)]
    disturbed = fewest["cores"] == 1 and fewest["rate"] < _ALONE * fewest["per_processor"]
    gain = "disturbed" if disturbed else most["rate"] / fewest["rate"]
    return {"gain": gain, "cores": max(points)}


def _draw(data: Data, folder: Path) -> None:
    """Draw nothing: the table says it all."""
