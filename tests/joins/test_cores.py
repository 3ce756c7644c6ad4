"""Basic windows, segments and the core: sizes, skipping, expiry."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.basic_window import BasicWindow, seal
from handshake.joins.join import prepare
from handshake.joins.segment import SHARE, Segment
from handshake.joins.tuning import TUNING, Tuning

SCHEMA = pa.schema([("t", pa.timestamp("us")), ("x", pa.int64())])


def spec_of(on="ABS(l.x - r.x) < 3", window="100 s", method="auto", **options):
    return prepare(SCHEMA, SCHEMA, on, window, time="t", method=method, **options).spec


def batch(seconds, x=0):
    times = (np.asarray(seconds) * 10**6).astype(np.int64)
    values = np.broadcast_to(x, times.shape).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        [pa.array(times).view(pa.timestamp("us")), pa.array(values)], schema=SCHEMA
    )


def window(spec, seconds, x=0, side=0):
    return BasicWindow(spec.sides[side], batch(seconds, x))


def test_many_small_batches_make_few_basic_windows():
    spec = spec_of()
    segment = Segment(spec, 0)
    for second in np.arange(0, 12, 0.01):
        segment.insert(window(spec, [second]))
    assert segment.rows == 1200
    assert len(segment.windows) <= 12


def test_no_basic_window_spans_more_than_its_share_of_the_window():
    spec = spec_of()
    segment = Segment(spec, 0)
    for start in range(100):
        segment.insert(window(spec, start + np.arange(0, 1, 0.0005)))
    spans = [w.second[1] - w.second[0] for w in segment if w.rows > 1024]
    assert max(spans) <= 100 * 10**6 / SHARE


def test_without_windows_size_alone_bounds_a_basic_window():
    spec = prepare(SCHEMA, SCHEMA, "ABS(l.x - r.x) < 3").spec
    segment = Segment(spec, 0, largest=5000)
    for _ in range(10):
        segment.insert(window(spec, np.zeros(1000)))
    assert max(w.rows for w in segment) <= 5000
    assert segment.rows == 10_000


def test_sealing_clusters_and_keeps_every_tuple():
    spec = spec_of()
    values = np.random.default_rng(0).permutation(TUNING.indexed_from)
    closed = seal(window(spec, np.zeros(TUNING.indexed_from), values))
    assert closed.cells is not None
    assert closed.batch.column("x").to_pylist() == list(range(TUNING.indexed_from))
    assert seal(window(spec, [0.0])).cells is None


def test_an_index_is_made_when_enough_tuples_have_asked_for_it():
    spec = spec_of()
    segment = Segment(spec, 0, lazy=True)
    segment.insert(window(spec, np.zeros(TUNING.indexed_from), np.arange(TUNING.indexed_from)))
    (first,) = segment.ready(TUNING.clustered_after - 1)
    assert first.cells is None
    (same,) = segment.ready(1)  # too few tuples to ask an index
    assert same is first
    (second,) = segment.ready(TUNING.clustered_after - 1)
    assert second.cells is not None
    assert list(segment.ready(1)) == [second]
    assert sorted(second.batch.column("x").to_pylist()) == list(range(TUNING.indexed_from))


def test_large_merges_are_done_aside_and_lose_nothing():
    spec = spec_of(method="scan", tuning=Tuning(merged_at_once=100))
    segment = Segment(spec, 0, lazy=True, aside=True)
    for start in range(200):
        segment.insert(window(spec, np.full(50, start / 100), np.arange(50 * start, 50 * start + 50)))
        segment.settle()
    held = [x for w in segment.ready(1) for x in w.batch.column("x").to_pylist()]
    assert sorted(held) == list(range(10_000))
    assert len(segment.windows) <= 12


def test_what_expires_while_it_is_merged_stays_away():
    spec = spec_of(method="scan", tuning=Tuning(merged_at_once=1, tiny_batches=2))
    segment = Segment(spec, 0, lazy=True, aside=True)
    segment.insert(window(spec, [0.0]))
    segment.insert(window(spec, [1.0]))
    assert segment.expire(oldest=1) == 1
    segment.settle()
    assert [w.rows for w in segment.ready(1)] == [1]


@pytest.mark.parametrize("rows", [40, 3000])
def test_disordered_batches_make_few_basic_windows(rows):
    spec = spec_of()
    engine, random = ThreeStep(spec, lateness=10**12), np.random.default_rng(1)
    for start in range(60_000 // rows):
        list(engine.push(0, batch(start * rows / 6000 + random.uniform(0, 90, rows))))
    assert engine.metrics().left_window_rows == 60_000 // rows * rows
    assert engine.metrics().basic_windows <= 60


def test_expiry_takes_whole_basic_windows_only():
    spec = spec_of()
    segment = Segment(spec, 0)
    segment.insert(window(spec, np.arange(2000) / 1000))
    segment.insert(window(spec, 50 + np.arange(2000) / 1000))
    assert segment.expire(oldest=1 * 10**6) == 0
    assert segment.expire(oldest=2 * 10**6) == 2000
    assert segment.rows == 2000


@pytest.mark.parametrize(
    ("seconds", "relation"),
    [
        ((0, 10), "inside"),
        ((0, 99), "inside"),
        ((0, 100), "boundary"),
        ((-150, -101), "apart"),
        ((200, 300), "apart"),
    ],
)
def test_extremes_tell_what_must_be_checked(seconds, relation):
    spec = spec_of()
    core = ThreeStep(spec).core
    assert core._relation(window(spec, [0.0, 1.0]), window(spec, seconds, side=1)) == relation


def test_apart_basic_windows_cost_no_comparisons():
    engine = ThreeStep(spec_of(method="scan"))
    list(engine.push(0, batch(np.arange(20_000))))
    list(engine.push(1, batch(np.arange(20_000))))
    metrics = engine.metrics()
    assert metrics.skipped > 0
    assert metrics.comparisons < 20_000**2 / 5


def test_results_do_not_depend_on_how_batches_are_cut():
    rng = np.random.default_rng(5)
    left, right = (batch(np.sort(rng.uniform(0, 500, 3000)), rng.integers(0, 50, 3000)) for _ in range(2))
    found = set()
    for step in (1, 50, 701, 3000):
        engine = ThreeStep(spec_of())
        total = 0
        rows = 300 if step == 1 else 3000
        for start in range(0, rows, step):
            for side, whole in enumerate((left, right)):
                total += sum(
                    b.num_rows for b in engine.push(side, whole.slice(start, min(step, rows - start)))
                )
        if rows == 3000:
            found.add(total)
    assert len(found) == 1


def test_rows_that_cannot_match_are_counted_and_not_held():
    engine = ThreeStep(spec_of("l.x = r.x AND l.x > 5"))
    list(engine.push(0, batch([1, 2, 3], [4, 5, 6])))
    metrics = engine.metrics()
    assert (metrics.unmatchable, metrics.left_window_rows) == (2, 1)
