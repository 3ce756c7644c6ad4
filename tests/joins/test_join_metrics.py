"""Figures: latency histograms, and what each arrangement says about its cores and queues."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_runs import run_here
from handshake import join
from handshake.joins.join import ALGORITHMS, Join, Replay, prepare
from handshake.joins.latency import LEAST, PER_DECADE, Histogram, Latencies, Latency, together
from waiting import wait_until

NUMBERS = pa.schema([("x", pa.int64())])
STEP = 10 ** (1 / PER_DECADE)
samples = st.lists(st.tuples(st.floats(0, 900), st.integers(1, 1000)), min_size=1, max_size=30)


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


# Histograms.


def histogram_of(pairs) -> Histogram:
    histogram = Histogram()
    for seconds, count in pairs:
        histogram.add(seconds, count)
    return histogram


@given(pairs=samples)
def test_percentiles_are_at_most_a_bucket_above_the_exact_ones(pairs):
    figures = histogram_of(pairs).figures()
    every = sorted(seconds for seconds, count in pairs for _ in range(count))
    assert figures.results == len(every)
    assert figures.longest == every[-1]
    for share, given_ in ((0.5, figures.p50), (0.9, figures.p90), (0.99, figures.p99)):
        exact = every[math.ceil(share * len(every)) - 1]
        assert exact <= given_ * (1 + 1e-9)
        assert given_ <= max(exact * STEP, LEAST) * (1 + 1e-9)


@given(pairs=samples)
def test_every_result_is_in_the_bucket_of_its_time(pairs):
    figures = histogram_of(pairs).figures()
    assert sum(count for _, count in figures.buckets) == figures.results
    for bound, count in figures.buckets:
        inside = sum(c for s, c in pairs if bound / STEP * (1 + 1e-9) < s <= bound * (1 - 1e-9))
        assert count >= (inside if bound > LEAST else 0)
    assert [bound for bound, _ in figures.buckets] == sorted({bound for bound, _ in figures.buckets})


@given(first=samples, second=samples)
def test_histograms_add_up(first, second):
    both = together([histogram_of(first).figures(), histogram_of(second).figures()])
    assert both.to_dict() == histogram_of([*first, *second]).figures().to_dict()


def test_times_beyond_the_buckets_are_counted_too():
    figures = histogram_of([(5000.0, 3), (0.0, 1), (-1e-9, 1)]).figures()
    assert figures.buckets == ((LEAST, 2), (math.inf, 3))
    assert (figures.p50, figures.longest) == (5000.0, 5000.0)
    assert Histogram().figures().to_dict() == Latency().to_dict()


def test_results_are_late_until_they_are_delivered():
    latencies = Latencies(2)
    now = time.perf_counter()
    latencies.note(0, 5, now - 10)
    latencies.note(1, 7, now - 100)
    assert latencies.figures().results == 0
    list(latencies.time_delivery(iter([numbers([1])])))
    assert [h.figures().results for h in latencies.cores] == [5, 7]
    assert latencies.cores[0].longest >= 10
    assert latencies.figures().longest >= 100


# What joins say.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_result_has_a_latency_on_the_core_that_found_it(algorithm):
    rng = np.random.default_rng(1)
    cores = None if algorithm == "three_step" else 3
    with Join(
        left=NUMBERS,
        right=NUMBERS,
        on="ABS(l.x - r.x) <= 5",
        window="500 tuples",
        algorithm=algorithm,
        cores=cores,
    ) as running:
        for k in range(40):
            (running.push_left, running.push_right)[k % 2](numbers(rng.integers(0, 100, 100)))
        metrics = running.metrics()
    assert metrics.results > 0
    assert metrics.latency.results == metrics.results
    assert [core.latency.results for core in metrics.cores] == [core.results for core in metrics.cores]
    assert metrics.latency.longest == max(core.latency.longest for core in metrics.cores)
    assert 0 < metrics.latency.p50 <= metrics.latency.p90 <= metrics.latency.p99 <= metrics.latency.longest
    assert metrics.imbalance >= 1
    assert metrics.load_imbalance == pytest.approx(
        max(c.comparisons for c in metrics.cores) * len(metrics.cores) / metrics.comparisons
    )
    assert all(core.queue == core.results_waiting == 0 for core in metrics.cores)
    if algorithm in ("cell", "handshake"):  # low_latency joins batches as small as these at once
        assert max(core.deepest_queue for core in metrics.cores) >= 1
        assert max(core.deepest_results for core in metrics.cores) >= 1
    if algorithm == "handshake":
        assert sum(core.forwarded for core in metrics.cores) > 0
        assert sum(core.acknowledged for core in metrics.cores) > 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_latency_counts_from_the_arrival_of_the_later_tuple(algorithm):
    """The left tuple has been there for 1,000 seconds, the right one for 100."""
    plan = prepare(NUMBERS, NUMBERS, "l.x <= r.x", "9 tuples", algorithm=algorithm, cores=None)
    gate = plan.gate()
    try:
        now = time.perf_counter()
        found = [*gate.push(0, numbers([1, 2, 3]), at=now - 1000), *gate.push(1, numbers([4]), at=now - 100)]
        found += gate.drain()
        latency = gate.metrics().latency
    finally:
        gate.close()
    assert sum(batch.num_rows for batch in found) == latency.results == 3
    assert 100 <= latency.p50 <= latency.longest < 1000


def test_tuples_that_gather_count_from_the_first_of_them():
    """A line of cores takes tuples in pieces: those that wait for a whole piece have waited."""
    plan = prepare(NUMBERS, NUMBERS, "l.x <= r.x", "100000 tuples", algorithm="handshake", cores=2)
    gate = plan.gate()
    try:
        now = time.perf_counter()
        for side in (0, 1):
            list(gate.push(side, numbers(np.full(6400, 10 - side)), at=now - 500))  # none of these match
        list(gate.push(0, numbers([1]), at=now - 60))
        list(gate.push(0, numbers([20]), at=now - 10))
        list(gate.drain())
        latency = gate.metrics().latency
    finally:
        gate.close()
    assert latency.results == 6400
    assert 60 <= latency.p50 < 500


def test_time_that_the_consumer_takes_counts():
    """Results that wait behind the gate are not delivered yet."""
    plan = prepare(NUMBERS, NUMBERS, "l.x <= r.x", "9 tuples", algorithm="low_latency", cores=1)
    gate = plan.gate()
    try:
        list(gate.push(0, numbers([1])))
        list(gate.push(1, numbers([2])))
        wait_until(lambda: len(gate._outbox), pause=0.001)
        time.sleep(0.2)  # the time under test
        list(gate.drain())
        assert gate.metrics().latency.p50 >= 0.2
    finally:
        gate.close()


@pytest.mark.parametrize("side", ["left", "right"])
def test_late_tuples_are_counted_by_side(side):
    schema = pa.schema([("t", pa.int64())])
    with Join(left=schema, right=schema, on="l.t = r.t", window="5 s", time="t") as running:
        running.push_left({"t": [100]})
        running.push_right({"t": [100]})
        getattr(running, f"push_{side}")({"t": [1, 2, 3]})
        metrics = running.metrics()
    assert metrics.late == getattr(metrics, f"{side}_late") == 3


def test_joins_without_windows_have_figures_too():
    plan = prepare(NUMBERS, NUMBERS, "l.x <= r.x", cores=2)
    replay = Replay(plan, pa.table({"x": range(3000)}), pa.table({"x": range(1000)}))
    found = sum(batch.num_rows for batch in replay)
    metrics = replay.metrics()
    assert (metrics.algorithm, metrics.results, metrics.latency.results) == ("unbounded", found, found)


# As JSON.


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "unbounded"])
def test_the_metrics_file_has_every_documented_figure(capfd, tmp_path, algorithm):
    for name in ("l.csv", "r.csv"):
        (tmp_path / name).write_text("t,x\n" + "".join(f"{k},{k % 5}\n" for k in range(200)))
    windows = () if algorithm == "unbounded" else ("--window", "50 tuples", "--algorithm", algorithm)
    target = tmp_path / "figures.json"
    outcome = run_here(
        capfd,
        "join",
        tmp_path / "l.csv",
        tmp_path / "r.csv",
        "--on",
        "l.x = r.x",
        *windows,
        "--metrics",
        target,
    )
    assert outcome.status == 0, outcome.err
    figures = json.loads(target.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    names = {*figures, *figures["cores"][0], *figures["latency"]}
    assert {name for name in names if f"`{name}`" not in text} == set()
    assert figures["results"] == figures["latency"]["results"] > 0
    assert sum(count for _, count in figures["latency"]["buckets"]) == figures["results"]
    assert figures["imbalance"] >= 1
    assert figures["left_shed"] == figures["left_shed_share"] == 0


def test_a_bound_without_end_is_null_in_json():
    plan = prepare(NUMBERS, NUMBERS, "l.x <= r.x", "9 tuples", algorithm="three_step")
    gate = plan.gate()
    try:
        list(gate.push(0, numbers([1])))
        list(gate.push(1, numbers([2]), at=time.perf_counter() - 10_000))
        list(gate.drain())
        metrics = gate.metrics()
    finally:
        gate.close()
    assert metrics.latency.buckets == ((math.inf, 1),)
    assert metrics.to_dict()["latency"]["buckets"] == [[None, 1]]
    assert {"left_rows", "imbalance", "left_shed_share", "cores"} < metrics.to_dict().keys()
    json.dumps(metrics.to_dict(), allow_nan=False)


def test_the_front_door_gives_what_it_gave_before():
    table = pa.table({"x": [1, 2]})
    assert join(table, table, "l.x = r.x", window="5 tuples").num_rows == 2
