"""`handshake bench mway`: joins of two to four streams, and the effect of the join order (CellJoin 7.1).

Streams form a chain: neighbours match on two bands, as in the field's workload, with one match in a window.
Windows are filled, then batches of all streams come in turn, on one core and on all. The best order takes a
tuple to its neighbours first; the worst takes it to a stream that it has no condition with, where all pairs
are made before most of them are dropped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import pairwise, permutations
from pathlib import Path

import numpy as np
import pyarrow as pa

from handshake.joins.join import MultiPlan, prepare_streams
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.multiway.order import Order, cost_order
from handshake_bench import report
from handshake_bench.report import Data, Report
from handshake_bench.throughput import core_counts

__all__ = ["run", "show"]

_SCHEMA = pa.schema([("x", pa.int32()), ("y", pa.float32())])
_RANGE = 1000
_BATCH = 4096
_WORST = 1 / 512
"""Size of batches for the worst order, relative to `_BATCH`: its combinations must fit into memory."""


_NEVER = 1 << 62
"""A number of tuples that is never reached, so that orders stay fixed during the measurement."""


def run(quick: bool = False, out: str | None = None, source: str | None = None) -> None:
    """Measure, or take an earlier run's figures; give tuples per second and what orders are worth."""
    data = report.load(source, "mway") if source else _measure(quick)
    report.publish("mway", data, show, _draw, out)


def _measure(quick: bool) -> Data:
    held, rounds = (2_000, 4) if quick else (20_000, 16)
    points = []
    for streams in (2, 3, 4):
        for cores in core_counts(None):
            speed = _warm_speed(_plan(streams, held, cores), held, rounds, _BATCH)
            points.append({"streams": streams, "cores": cores, "order": "best", **speed})
        if streams > 2:
            plan, few = _plan(streams, held, 1), int(_BATCH * _WORST)
            good, bad = (_warm_speed(plan, held, max(rounds // 8, 1), few, worst) for worst in (False, True))
            gain = good["tuples_per_s"] / bad["tuples_per_s"]
            points.append({"streams": streams, "cores": 1, "order": "worst", **bad, "gain": gain})
    head = {"benchmark": "mway", "machine": report.machine(), "quick": quick}
    return {**head, "held": held, "batch": _BATCH, "points": points}


def _warm_speed(plan: MultiPlan, held: int, rounds: int, batch: int, worst: bool = False) -> Data:
    """Measure twice and return the second run, when everything is compiled."""
    _measure_speed(plan, held, rounds, batch, worst)
    found = _measure_speed(plan, held, rounds, batch, worst)
    report.progress(
        f"{len(plan.spec.streams)} streams, cores: {plan.cores}: {found['tuples_per_s']:,.0f} tuples/s"
    )
    return found


def _plan(streams: int, held: int, cores: int) -> MultiPlan:
    names = "abcd"[:streams]
    near = [
        f"ABS({one}.{column} - {two}.{column}) <= {_RANGE / 2 / math.sqrt(held):.2f}"
        for one, two in pairwise(names)
        for column in ("x", "y")
    ]
    window = f"{held} tuples"
    return prepare_streams(dict.fromkeys(names, _SCHEMA), " AND ".join(near), window=window, cores=cores)


def _measure_speed(plan: MultiPlan, held: int, rounds: int, batch: int, worst: bool = False) -> Data:
    """Return the tuples of all streams joined per second, with full windows."""
    engine, random = plan.start(), np.random.default_rng(3)
    try:
        streams = range(len(plan.spec.streams))
        engine.foresee([_tuples(random, _BATCH) for _ in streams], [held for _ in streams])
        engine._next_look = _NEVER
        if worst:
            _turn(engine)
        for k in streams:
            _fill(engine, k, _tuples(random, held))
        pushes = [(k, _tuples(random, batch)) for _ in range(rounds) for k in streams]
        start = time.perf_counter()
        results = sum(_count(engine, k, tuples) for k, tuples in pushes)
        seconds = time.perf_counter() - start
    finally:
        engine.close()
    return {"tuples_per_s": rounds * len(streams) * batch / seconds, "results": results, "seconds": seconds}


def _count(engine: MJoin, stream: int, tuples: pa.RecordBatch) -> int:
    return sum(out.num_rows for out in (*engine.push(stream, tuples), *engine.drain()))


def _fill(engine: MJoin, stream: int, tuples: pa.RecordBatch) -> None:
    """Put tuples into the windows of a stream without joining them."""
    stamped = engine.driver.admit(stream, tuples, None)
    for window in engine._windows.values():
        if window.step.target == stream:
            window.insert(stamped)


def _turn(engine: MJoin) -> None:
    """Give each stream its worst order."""
    worst = [max(_all_orders(engine, k), key=lambda o: o.seconds) for k in range(len(engine.orders))]
    engine.orders = worst
    engine._arrange()


def _all_orders(engine: MJoin, source: int) -> Iterator[Order]:
    others = [k for k in range(len(engine.orders)) if k != source]
    return (cost_order(source, targets, engine.spec, engine.statistics) for targets in permutations(others))


def _tuples(random: np.random.Generator, rows: int) -> pa.RecordBatch:
    whole = random.integers(0, _RANGE, rows, dtype=np.int32)
    real = random.uniform(0, _RANGE, rows).astype(np.float32)
    return pa.RecordBatch.from_arrays([pa.array(whole), pa.array(real)], schema=_SCHEMA)


def show(page: Report, data: Data) -> None:
    """Show the figures."""
    rows = [
        (
            f"{p['streams']}, {p['cores']}, {p['order']}",
            f"{p['tuples_per_s']:,.0f}",
            f"{p['results'] / p['seconds']:,.0f}",
            f"{p['gain']:.1f}" if "gain" in p else "-",
        )
        for p in data["points"]
    ]
    heads = ("streams, cores, order", "tuples/s of all streams", "results/s", "best order is faster by")
    page.table(f"chains of streams, windows of {data['held']:,} tuples", heads, rows)
    page.say(f"Batches of {data['batch']} tuples; smaller ones for the worst order and its reference.")
    page.result(**{_key(p): round(p["tuples_per_s"]) for p in data["points"]}, **_gains(data))


def _key(point: Data) -> str:
    worst = "_worst" if point["order"] == "worst" else ""
    return f"streams_{point['streams']}_cores_{point['cores']}{worst}"


def _gains(data: Data) -> dict[str, float]:
    return {f"order_gain_{p['streams']}": p["gain"] for p in data["points"] if "gain" in p}


def _draw(data: Data, folder: Path) -> None:
    from handshake_bench import plots

    title = f"Chains of two to four streams, windows of {data['held']:,} tuples"
    with plots.figure(folder / "mway.svg", 1, title) as (_, (axes,)):
        kinds = sorted({(p["order"], p["cores"]) for p in data["points"]})
        for (order, cores), colour in zip(kinds, plots.SERIES, strict=False):
            line = [p for p in data["points"] if (p["order"], p["cores"]) == (order, cores)]
            label = f"{order} orders, cores: {cores}"
            streams, speeds = ([p[name] for p in line] for name in ("streams", "tuples_per_s"))
            axes.plot(streams, speeds, "o-", color=colour, label=label)
        axes.set_xticks([2, 3, 4])
        axes.set_yscale("log")
        plots.plain_logarithmic(axes.yaxis)
        axes.set_xlabel("streams")
        axes.set_ylabel("tuples/s of all streams")
        axes.legend(loc="best", fontsize=8)
        plots.machine(axes, data)
