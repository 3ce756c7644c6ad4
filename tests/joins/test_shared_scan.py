"""A scan that cores share: every pair once, in any order of cores and with any room."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gathered_rows import check_gathered
from handshake.joins.arrangements.low_latency import shared_scan
from handshake.joins.arrangements.low_latency.helpers import Helpers
from handshake.joins.basic_window import BasicWindow, seal
from handshake.joins.core import JoinCore
from handshake.joins.join import prepare
from handshake.joins.tuning import Tuning
from handshake.kernels.compile import TILE
from pairs import EXAMPLES, rows_of
from strategies import known_cases
from waiting import wait_until

TIMED = pa.schema([("ts", pa.int64()), ("x", pa.int32())])


def timed_batch(times, values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(times, pa.int64()), pa.array(values, pa.int32())], schema=TIMED)


def windows_of(spec, side: int, rng: Random, cores: int) -> list[list[BasicWindow]]:
    """Return basic windows of a side by core, of all sizes.

    Some have missing values or values without headroom.
    """
    held: list[list[BasicWindow]] = []
    for _ in range(cores):
        held.append([])
        for _ in range(rng.choice((0, 1, 3))):
            rows = rng.choice((1, 3, 64, 700, TILE + 70))
            start = rng.choice((0, 50, 90, 10**6))
            values: list[int | None] = [rng.randint(0, 40) for _ in range(rows)]
            values[0] = rng.choice((None, 2**31 - 1, 7))
            times = [start + rng.randint(0, 20) for _ in range(rows)]
            held[-1].append(BasicWindow(spec.sides[side], timed_batch(times, values)))
    return held


def expected_pairs(piece: BasicWindow, held: list[list[BasicWindow]]) -> tuple[list[tuple], list[int]]:
    """Return the pairs by a double loop, and their counts by core."""
    found, counts = [], [0] * len(held)
    for home, windows in enumerate(held):
        for window in windows:
            for new in piece.batch.to_pylist():
                for old in window.batch.to_pylist():
                    left, right = (new, old) if piece.spec.side == 0 else (old, new)
                    near = abs(left["ts"] - right["ts"]) < 60
                    if near and None not in (left["x"], right["x"]) and left["x"] <= right["x"]:
                        found.append((*left.values(), *right.values()))
                        counts[home] += 1
    return found, counts


@pytest.mark.parametrize("room", [TILE + 3, 16 * TILE])
@settings(EXAMPLES, max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_every_pair_is_found_once_whoever_helps_when(room, seed):
    rng = Random(seed)
    cores = rng.randint(1, 4)
    tuning = Tuning(scan_buffer=room, shared_pairs=0)
    plan = prepare(TIMED, TIMED, "l.x <= r.x", "60 s", time="ts", method="scan", tuning=tuning)
    visits = []
    for side in rng.choice(((0,), (1,), (0, 1))):
        values = [rng.choice((30, 38, None)), 39] if side == 0 else [rng.choice((3, None)), 1]
        piece = BasicWindow(plan.spec.sides[side], timed_batch([100, 80], values))
        held = windows_of(plan.spec, 1 - side, rng, cores)
        visits.append(shared_scan.Visit(piece, held, JoinCore(plan.spec).outer(piece), float(side)))
    helpers = [k for k in range(1, cores) if rng.random() < 0.7]
    rng.shuffle(helpers)
    with pytest.MonkeyPatch.context() as patch:
        # Helpers come before the caller begins, twice each, in any order; the others never.
        patch.setattr(Helpers, "offer", lambda self, job: [job.help(k) for k in helpers + helpers])
        members = [JoinCore(plan.spec) for _ in range(cores)]
        made = list(shared_scan.SharedScan(plan.spec, members).search(visits))
    expected = [expected_pairs(visit.piece, visit.held) for visit in visits]
    assert rows_of([batch for batch, _ in made]) == sorted(
        (row for rows, _ in expected for row in rows), key=repr
    )
    assert [core.results for core in members] == [
        sum(counts) for counts in zip(*(c for _, c in expected), strict=True)
    ]
    notes = [note for _, notes in made for note in notes]
    for visit, (_, counts) in zip(visits, expected, strict=True):
        of = [(core, n) for core, n, arrived in notes if arrived == visit.arrived]
        assert [sum(n for core, n in of if core == k) for k in range(cores)] == counts
    # Times 80 and 100: whatever is before 21, or after 159, is not even looked at.
    held = [[w for visit in visits for w in visit.held[k]] for k in range(cores)]
    near = [[w for w in some if w.first[1] >= 21 and w.first[0] <= 159] for some in held]
    assert [core.comparisons for core in members] == [sum(w.rows for w in some) * 2 for some in near]
    assert [core.skipped for core in members] == [len(a) - len(b) for a, b in zip(held, near, strict=True)]


@pytest.mark.parametrize(("room", "indexed"), [(TILE + 3, True), (16 * TILE, False)])
@settings(EXAMPLES, max_examples=6)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_threads_that_share_agree_with_the_oracle(room, indexed, case, seed):
    tuning = Tuning(scan_buffer=room, shared_pairs=0)
    if indexed:
        tuning = replace(tuning, indexed_from=1, clustered_after=0, selective=2.0, compiles_aside=False)
    check_gathered(case, seed, tuning)


@settings(EXAMPLES, max_examples=12)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_pushes_that_wait_for_their_results_agree_with_the_oracle(case, seed):
    check_gathered(case, seed, Tuning(tiny_batches=2), at_once=True)


NUMBERED = pa.schema([("ts", pa.int64()), ("x", pa.int32()), ("y", pa.float32()), ("n", pa.int16())])
BANDS = {
    "l.x BETWEEN r.x - 2 AND r.x + 2 AND l.y BETWEEN r.y - 2.5 AND r.y + 2.5": (
        lambda a, b: abs(a["x"] - b["x"]) <= 2 and abs(a["y"] - b["y"]) <= 2.5
    ),
    "l.x <= r.x AND l.n <> r.n": (
        lambda a, b: a["x"] <= b["x"] and None not in (a["n"], b["n"]) and a["n"] != b["n"]
    ),
    "l.y < r.y + 3 AND l.y >= r.y": lambda a, b: b["y"] <= a["y"] < b["y"] + 3,
    "l.x = r.x AND l.y <= r.y": lambda a, b: a["x"] == b["x"] and a["y"] <= b["y"],
    "l.y = r.y": lambda a, b: a["y"] == b["y"],
}


def random_batch(rng: Random, rows: int, start: int) -> pa.RecordBatch:
    """Return values near each other, and at the ends of their types; floats are halves, so sums are exact."""
    extremes = (2**31 - 1, -(2**31), 2**30)
    return pa.RecordBatch.from_pylist(
        [
            {
                "ts": start + rng.randint(0, 20),
                "x": rng.choice(extremes) if rng.random() < 0.02 else rng.randint(0, 40),
                "y": rng.choice((float("inf"), -0.0)) if rng.random() < 0.02 else rng.randint(0, 80) / 2,
                "n": rng.choice((None, 1, 2)),
            }
            for _ in range(rows)
        ],
        NUMBERED,
    )


@pytest.mark.parametrize("text", BANDS)
@settings(EXAMPLES, max_examples=4)
@given(seed=st.integers(0, 2**32 - 1))
def test_few_tuples_are_looked_up_in_all_windows_at_once(text, seed):
    rng, cores = Random(seed), 2
    tuning = Tuning(indexed_from=50, compiles_aside=False, scan_buffer=rng.choice((TILE + 3, 16 * TILE)))
    spec = prepare(NUMBERED, NUMBERED, text, "60 s", time="ts", tuning=tuning).spec
    assert spec.method == ("hash" if " = " in text else "band")
    members, piece_of = [JoinCore(spec) for _ in range(cores)], {}
    for side in (0, 1):
        piece = BasicWindow(spec.sides[side], random_batch(rng, rng.choice((1, 3, 40)), 80))
        held = [
            [
                seal(BasicWindow(spec.sides[1 - side], random_batch(rng, rows, rng.choice((0, 70, 10**6)))))
                for rows in rng.choices((1, 7, 50, 330), k=rng.choice((0, 1, 4)))
            ]
            for _ in range(cores)
        ]
        piece_of[side] = (piece, held)
    shared = shared_scan.SharedScan(spec, members)
    for _ in range(2):  # what is looked up the first time may be scanned the second time
        visits = [
            shared_scan.Visit(piece, [list(some) for some in held], members[0].outer(piece), 0.0)
            for piece, held in piece_of.values()
        ]
        made = rows_of([batch for batch, _ in shared.search(visits)])
        assert made == pairs_by_loops(BANDS[text], piece_of.values())


def test_what_one_kind_of_windows_has_filled_is_taken_before_the_next_kind():
    """Far from the window's edge and at it: each gives less than buffers hold, both together more."""
    holds, text = lambda a, b: abs(a["x"] - b["x"]) <= 100, "l.x BETWEEN r.x - 100 AND r.x + 100"
    tuning = Tuning(indexed_from=50, compiles_aside=False, scan_buffer=TILE + 3)
    spec = prepare(NUMBERED, NUMBERED, text, "60 s", time="ts", tuning=tuning).spec
    rows = [{"ts": 80, "x": 1, "y": 0.0, "n": 1}]
    piece = BasicWindow(spec.sides[0], pa.RecordBatch.from_pylist(rows * 12, NUMBERED))
    times = ([80] * 250, [20, 21] * 125)
    held = [[{**rows[0], "ts": at} for at in some] for some in times]
    windows = [seal(BasicWindow(spec.sides[1], pa.RecordBatch.from_pylist(some, NUMBERED))) for some in held]
    core = JoinCore(spec)
    visit = shared_scan.Visit(piece, [list(windows)], core.outer(piece), 0.0)
    made = rows_of([batch for batch, _ in shared_scan.SharedScan(spec, [core]).search([visit])])
    assert made == pairs_by_loops(holds, [(piece, [windows])])


def pairs_by_loops(holds, visits) -> list[tuple]:
    found = []
    for piece, held in visits:
        for old in (row for some in held for window in some for row in window.batch.to_pylist()):
            for new in piece.batch.to_pylist():
                left, right = (new, old) if piece.spec.side == 0 else (old, new)
                if abs(left["ts"] - right["ts"]) < 60 and holds(left, right):
                    found.append((*left.values(), *right.values()))
    return sorted(found, key=repr)


def await_kernel(engine) -> None:
    """Check that windows are scanned while the kernel is compiled, and wait for the kernel."""
    before, rows = engine.metrics().comparisons, engine.metrics().right_window_rows
    list(engine.push(0, timed_batch([2], [-9])))
    assert engine.metrics().comparisons - before == rows
    engine._shared.look_ups.settle()


@pytest.mark.parametrize(("text", "reach"), [("l.x = r.x", 0), ("l.x BETWEEN r.x - 2 AND r.x + 2", 2)])
def test_few_tuples_meet_few_of_those_that_an_index_holds(text, reach):
    """Three tuples by 150,000 on each core: some hundred comparisons, and the same results as by a scan."""
    plan = prepare(TIMED, TIMED, text, "60 s", time="ts", cores=2)
    rng, engine = np.random.default_rng(4), plan.start()
    values = rng.integers(0, 100_000, 300_000)
    try:
        engine.fill(1, timed_batch(np.zeros(len(values)), values))
        for _ in (*engine.push(0, timed_batch(np.ones(6000), np.arange(6000))), *engine.drain()):
            pass  # asked so often, windows are clustered
        await_kernel(engine)
        before = engine.metrics().comparisons
        for number in range(20):
            new = rng.integers(0, 100_000, 3)
            found = sum(batch.num_rows for batch in engine.push(0, timed_batch([2, 2, 2], new)))
            assert found == sum(np.count_nonzero(abs(values - x) <= reach) for x in new), number
        assert engine.metrics().comparisons - before < 20 * 3 * 2000
    finally:
        engine.close()


def test_a_band_that_lets_most_tuples_through_is_scanned_after_all():
    plan = prepare(TIMED, TIMED, "l.x <= r.x AND l.x * 2 = r.x", "60 s", time="ts", method="band", cores=1)
    values, engine = np.arange(4000), plan.start()
    try:
        engine.fill(1, timed_batch(np.zeros(len(values)), values))
        for _ in (*engine.push(0, timed_batch(np.ones(6000), np.full(6000, 9999))), *engine.drain()):
            pass
        await_kernel(engine)
        seen = []
        for _ in range(70):
            before = engine.metrics().comparisons
            found = [batch.column("x")[0].as_py() for batch in engine.push(0, timed_batch([2], [700]))]
            seen.append(engine.metrics().comparisons - before)
            assert found == [700]
    finally:
        engine.close()
    # A look-up compares 3,300 tuples, a scan all of them. Once in 64 jobs the index is tried again.
    assert seen[0] < 3400
    assert seen[1:64] == [4000] * 63
    assert min(seen[64:]) < 3400


def test_threads_share_chunks_of_large_windows():
    """Three threads at a time, more than once: all pairs, and each on the core that holds the older tuple."""
    plan = prepare(TIMED, TIMED, "l.x = r.x", "60 s", time="ts", method="scan", cores=3)
    rng = np.random.default_rng(3)
    engine = plan.start()
    found = 0
    try:
        values = rng.integers(0, 5000, 600_000)
        engine.fill(1, timed_batch(np.zeros(len(values)), values))
        held = [core.right_window_rows for core in engine.metrics().cores]
        for number in range(40):
            batches = list(engine.push(0, timed_batch([1, 1, 1], rng.choice(5000, 3, replace=False))))
            probes = np.concatenate([batch.column("x") for batch in batches])
            found += len(probes)
            assert len(probes) == sum(np.count_nonzero(values == x) for x in np.unique(probes)), number
        figures = engine.metrics()
    finally:
        engine.close()
    assert held == [200_000] * 3
    assert [core.comparisons for core in figures.cores] == [40 * 3 * 200_000] * 3
    assert sum(core.results for core in figures.cores) == found == figures.latency.results
    assert min(core.results for core in figures.cores) > 0.8 * found / 3


def test_helpers_begin_with_the_first_job_and_end_with_close():
    before = threading.active_count()
    helpers, asked = Helpers(3), threading.Semaphore(0)

    class Asked:
        def help(self, k: int) -> None:
            asked.release()

    assert threading.active_count() == before
    for _ in range(5):
        helpers.offer(Asked())
        assert asked.acquire(timeout=10)
        assert asked.acquire(timeout=10)
    helpers.withdraw()
    assert threading.active_count() == before + 2
    helpers.close()
    assert threading.active_count() == before
    helpers.offer(Asked())
    assert threading.active_count() == before


def test_what_a_helper_dies_of_reaches_the_caller():
    plan = prepare(TIMED, TIMED, "l.x = r.x", "60 s", time="ts", method="scan", cores=2)
    cores = [JoinCore(plan.spec) for _ in range(2)]
    shared = shared_scan.SharedScan(plan.spec, cores)

    class Broken:
        def help(self, k: int) -> None:
            raise MemoryError("no room")

    shared.helpers.offer(Broken())
    wait_until(lambda: shared.helpers.error, pause=0.001)
    piece = BasicWindow(plan.spec.sides[0], timed_batch([1], [1]))
    with pytest.raises(MemoryError, match="no room"):
        list(shared.search([shared_scan.Visit(piece, [[], []], cores[0].outer(piece), 0.0)]))
    shared.close()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_where_cores_are_pinned_the_feeding_thread_stands_in_for_the_first():
    mine = os.sched_getaffinity(0)
    plan = prepare(TIMED, TIMED, "l.x = r.x", "60 s", time="ts", method="scan", cores=1, pin=True)
    engine = plan.start()
    list(engine.push(0, timed_batch([1], [1])))
    seen = [os.sched_getaffinity(0) for _ in engine.push(1, timed_batch([1], [1]))]
    engine.close()
    assert seen == [{plan.cpus[0]}]
    assert os.sched_getaffinity(0) == mine
