"""The handshake line under load: who compares how much, counted; what draining costs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from handshake.joins.arrangements.handshake.line import Handshake
from handshake.joins.join import Join, prepare
from handshake_bench.simulated import simulate
from running_lines import SCHEMA, line_of, stream, threads


@pytest.fixture(autouse=True)
def _no_thread_left_behind():
    yield
    assert not threads()


PERIODS = {"in phase": 20, "in phase, rare": 50}
"""Tenths of a second between bursts of both streams; a window has a hundred."""


def uneven(kind: str, rounds: int = 600):
    """Yield the streams by tenths of a second, with an uneven load.

    Bursts come at random, or in both streams at once with a period that divides the window. A skewed load
    has hot values that move, and many R.
    """
    rng = np.random.default_rng(2)
    bursts = rng.random((rounds, 2)) < 0.125
    for n in range(rounds):
        for side in (0, 1):
            burst = bursts[n // 5, side] if kind == "bursty" else n % PERIODS.get(kind, 1) < 5
            rows = (600, 60)[side] if kind == "skewed" else 400 if burst else 20
            times = np.sort(rng.integers(100 * n, 100 * n + 100, rows)) * 1000
            x = np.minimum(rng.zipf(1.3, rows), 1000) + n // 10 % 7 * 50
            arrays = [pa.array(times).view(pa.timestamp("us")), pa.array(x)]
            yield side, pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


FULL = 250
"""Pushes after which windows of ten seconds are full."""


def busiest(before, after) -> float:
    """Divide the comparisons of the busiest core by their mean over all cores."""
    compared = [b - a for a, b in zip(before, after, strict=True)]
    return max(compared) * len(compared) / sum(compared)


@pytest.mark.parametrize("kind", ["bursty", "skewed", *PERIODS])
@pytest.mark.parametrize("method", ["scan", "band"])
@pytest.mark.parametrize("cores", [2, pytest.param(3, marks=pytest.mark.soak), 8])
def test_no_core_has_much_more_than_its_share_of_an_uneven_input(cores, method, kind):
    """Section 4.3. Cores that are only simulated: counts are the same in every run."""
    spec = prepare(SCHEMA, SCHEMA, "ABS(l.x - r.x) < 1", "10 s", time="t", method=method).spec
    line = simulate("handshake", spec, cores)
    for n, (side, batch) in enumerate(uneven(kind)):
        line.push(side, batch, n * 0.05)
        if n == FULL:
            before = line.counts().comparisons
    assert busiest(before, line.counts().comparisons) <= 1.15


def comparisons_by_core(engine: Handshake) -> list[int]:
    return [core.comparisons for core in engine.metrics().cores]


@pytest.mark.parametrize("kind", ["bursty", "skewed"])
@pytest.mark.parametrize("cores", [2, pytest.param(5, marks=pytest.mark.soak)])
def test_a_saturated_line_shares_its_work(cores, kind):
    """Threads, and a source that is held back all the time."""
    engine = line_of("ABS(l.x - r.x) < 1", "10 s", cores, method="scan")
    for n, (side, batch) in enumerate(uneven(kind)):
        list(engine.push(side, batch))
        if n == FULL:
            before = comparisons_by_core(engine)
    list(engine.settle())
    after = comparisons_by_core(engine)
    engine.close()
    assert busiest(before, after) <= 1.15


@pytest.mark.parametrize("every", [3, 40])
def test_draining_costs_no_balance(every):
    engine = line_of("ABS(l.x - r.x) < 1", "10 s", cores=4, method="scan")
    for n, (side, batch) in enumerate(uneven("bursty")):
        list(engine.push(side, batch))
        if n % every == 0:
            list(engine.drain())
        if n == FULL:
            before = comparisons_by_core(engine)
    list(engine.drain())
    metrics = engine.metrics()
    engine.close()
    assert busiest(before, [core.comparisons for core in metrics.cores]) <= 1.15
    assert metrics.imbalance <= 1.15
    for side in ("left_window_rows", "right_window_rows"):
        held = [getattr(core, side) for core in metrics.cores]
        assert max(held) <= 1.3 * sum(held) / len(held)


@pytest.mark.parametrize("every", [1, 3, 100])
@pytest.mark.parametrize("cores", [1, 3, 4])
def test_no_pair_is_compared_twice_however_often_the_line_is_drained(every, cores):
    engine = line_of("l.x <> r.x", "1 hour", cores, method="scan")
    rows = [0, 0]
    for n, (side, batch) in enumerate(uneven("skewed", 20)):
        list(engine.push(side, batch))
        rows[side] += batch.num_rows
        if n % every == 0:
            list(engine.drain())
            assert sum(comparisons_by_core(engine)) == rows[0] * rows[1]
    list(engine.drain())
    metrics = engine.metrics()
    engine.close()
    assert metrics.comparisons == rows[0] * rows[1]
    assert metrics.basic_windows < 120 * cores


def test_many_tiny_pushes_leave_few_pieces():
    """Each costs a fixed time to look at."""
    for cores in (1, 2, 3):
        engine = line_of(window="1 hour", cores=cores)
        whole = stream(600)
        for n in range(600):
            for side in (0, 1):
                list(engine.push(side, whole.slice(n, 1)))
                list(engine.drain())
        metrics = engine.metrics()
        engine.close()
        assert metrics.left_window_rows == metrics.right_window_rows == 600
        assert metrics.basic_windows <= 50 * cores


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("cores", [1, 3])
def test_each_push_returns_the_results_that_it_completes(cores, ordered):
    """Also on a line, where tuples would take long to drift together."""
    whole = (stream(300, 1), stream(300, 2))
    join = Join(
        left=SCHEMA, right=SCHEMA, on="l.x = r.x", window="1 hour", time="t", algorithm="handshake",
        cores=cores, ordered=ordered,
    )  # fmt: skip
    seen, found = ([], []), []
    with join:
        for start in range(0, 300, 20):
            for side, push in enumerate((join.push_left, join.push_right)):
                batch = whole[side].slice(start, 20)
                seen[side].extend(batch.column("x").to_pylist())
                found += push(batch)
                if not ordered:
                    counts = [np.bincount(values, minlength=50) for values in seen]
                    assert sum(part.num_rows for part in found) == (counts[0] @ counts[1] if seen[1] else 0)
        found += join.finish()
        metrics = join.metrics()
    counts = [np.bincount(w.column("x").to_numpy(), minlength=50) for w in whole]
    assert sum(part.num_rows for part in found) == counts[0] @ counts[1]
    assert metrics.comparisons <= 300 * 300
    if ordered:
        times = np.concatenate([np.maximum(part.column(0), part.column(2)) for part in found])
        assert np.all(times[1:] >= times[:-1])
