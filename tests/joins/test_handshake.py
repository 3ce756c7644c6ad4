"""The handshake line: every order of steps on small lines, random ones on large; threads and the oracle."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.errors import HandshakeError, UnsupportedError
from handshake.joins.arrangements.handshake.line import Handshake
from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.core import JoinCore
from handshake.joins.join import prepare
from handshake.joins.tuning import TUNING, Tuning
from handshake_line import Line, Script, Search, loops
from join_plans import METHODS, options
from pairs import pairs_of, with_row_numbers
from running_lines import SCHEMA, line_of, stream, threads
from strategies import Case, cases, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


# The protocol, without threads.


@pytest.mark.parametrize("patience", [1, 2])
@pytest.mark.parametrize(
    ("cores", "text", "window", "merging"),
    [
        (1, "RSRSS", None, 0),
        (1, "RSRSR", 1, 0),
        (1, "RSR|sSR", 1, 2),
        (2, "RSRS", None, 0),
        (2, "RRSSRS", None, 0),
        (2, "RSRS", 1, 0),
        (2, "SSRR", 1, 0),
        (2, "RRSSRS", None, 2),
        (2, "RSRS|RS", 1, 2),
        (2, "RS|SR", None, 0),
        (2, "rsRSR", None, 0),
        (2, "RRS|srR", 1, 2),
        (2, "rrs|RS", 1, 2),
        (3, "RS", None, 0),
        (3, "RSRS", None, 0),
        (3, "RSR", 1, 0),
        (3, "RS|RS", None, 2),
        (3, "rsRS", 1, 2),
    ],
)
def test_each_pair_meets_exactly_once_in_every_order(cores, text, window, merging, patience):
    """That no pair meets twice is asserted on the way, by the line itself."""
    search = Search().run(Line.of(Script.of(text, window, merging=merging, patience=patience), cores))
    assert search.ends > 0
    assert not search.missed


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("cores", "text", "window"),
    [
        (2, "RSRSRS", 1),
        (2, "RSRS|RSRS", 2),
        (3, "RSRS", 1),
        (3, "RS|rsRS", 1),
        (3, "RRSSRS", None),
        (4, "RSRS", None),
        (4, "RS|RS", 1),
    ],
)
def test_each_pair_meets_exactly_once_in_every_order_at_length(cores, text, window):
    assert not Search().run(Line.of(Script.of(text, window, merging=2), cores)).missed


@pytest.mark.parametrize(
    ("cores", "text", "window"),
    [(2, "RS", None), (2, "RSRS", 1), (3, "RSRS", None), (2, "R|RSRS", 1), (2, "rsRSRS", None)],
)
def test_without_two_phase_forwarding_pairs_in_flight_miss_each_other(cores, text, window):
    """Figure 7: the search above would notice, although draining makes all meet that are still apart."""
    search = Search().run(Line.of(Script.of(text, window), cores, two_phase=False))
    assert search.missed


def walk(script: Script, cores: int, rng: Random, two_phase: bool = True) -> Line:
    """Take steps in a random order to the end; in some walks the driver runs ahead, in some it lags."""
    line = Line.of(script, cores, two_phase)
    haste = rng.choice((0.1, 1, 10))
    while choices := list(line.choices()):
        weights = [haste if kind == "enter" else 1 for kind, _, _ in choices]
        line = line.step(rng.choices(choices, weights)[0])
    return line


@st.composite
def scripts(draw):
    """Draw runs of tuples that drift, and runs of tuples that visit first, which need a drain before them."""
    runs = draw(st.lists(st.text("RS", max_size=8) | st.text("rs", min_size=1, max_size=4).map("|{}".format)))
    text = "".join(runs)[:28]
    rows = draw(st.lists(st.integers(1, 9), min_size=len(text), max_size=len(text)))
    room, merging = draw(st.integers(1, 4)), draw(st.sampled_from((0, 3, 8, 100)))
    patience = draw(st.sampled_from((1, 2, 4, 100)))
    return Script.of(text, draw(st.none() | st.integers(0, 6)), room, rows, merging, patience)


@settings(EXAMPLES, max_examples=150)
@given(script=scripts(), cores=st.integers(1, 8), seed=st.integers(0, 2**32 - 1))
def test_each_pair_meets_exactly_once_in_random_orders(script, cores, seed):
    line = walk(script, cores, Random(seed))
    assert script.required_pairs() <= line.met
    assert all(core.drained == [*map(len, core.windows)] for core in line.cores)


def test_random_orders_find_the_missed_pairs_too():
    script = Script.of("RS" * 8)
    missed = [
        script.required_pairs() - walk(script, 4, Random(seed), two_phase=False).met for seed in range(20)
    ]
    assert any(missed)


@pytest.mark.parametrize("cores", [2, 8, pytest.param(64, marks=pytest.mark.soak)])
def test_a_steady_input_spreads_evenly(cores):
    """Section 4.3: like water in a pipe, without anyone knowing the whole."""
    line = loops(cores, window=20 * cores, rounds=50 * cores, turns=4, seed=cores)
    for side in (0, 1):
        held = [core.sizes[side] for core in line]
        assert sum(held) >= 0.95 * 20 * cores
        assert max(held) <= 1.15 * sum(held) / cores


# Threads, against the oracle.


DRIFTING = Tuning(line_piece=3, line_merged=8)
"""Pieces of few tuples, which drift and merge."""
ALL_INDEXED = replace(DRIFTING, indexed_from=1, indexed_probes=1, line_queue=1, line_results=1)
"""Such pieces, each of them indexed."""
THRESHOLDS = (TUNING, DRIFTING, ALL_INDEXED)
"""First as users run it. All in one example: its predicate is compiled once, which is what takes time."""


def plan_spec(case: Case, method: str, tuning: Tuning):
    (left, right), given = with_row_numbers(case), {**options(case), "tuning": tuning}
    try:
        return prepare(left.schema, right.schema, case.on, method=method, **given).spec
    except UnsupportedError:
        return prepare(left.schema, right.schema, case.on, **given).spec


Push = tuple[int, int, int, np.ndarray | None]
"""Side, first row, rows, and how many of the other side come before each, where that is known beforehand."""


def pushes(case: Case, rng: Random) -> tuple[list[Push], list[int]]:
    """Cut both sides into random batches; return the pushes, and the sides in the same order of arrival."""
    sizes, at = (case.left.num_rows, case.right.num_rows), [0, 0]
    found, order, largest = [], [], rng.choice((1, 3, 10, 40))
    while at[0] < sizes[0] or at[1] < sizes[1]:
        side = rng.randrange(2)
        rows = min(rng.randint(1, largest), sizes[side] - at[side])
        found.append((side, at[side], rows, None))
        order += [side] * rows
        at[side] += rows
    return found, order


def slices(case: Case, rng: Random) -> tuple[list[Push], list[int]]:
    """Draw an order of arrival, and cut it into slices, whose left rows are pushed before the right ones."""
    order = [0] * case.left.num_rows + [1] * case.right.num_rows
    rng.shuffle(order)
    found, at, step = [], [0, 0], rng.choice((2, 7, 30))
    for start in range(0, len(order), step):
        part = np.array(order[start : start + step])
        before = [at[1] + np.cumsum(part == 1), at[0] + np.cumsum(part == 0)]
        for side in (0, 1):
            other = before[side][part == side]
            if len(other):
                found.append((side, at[side], len(other), other))
                at[side] += len(other)
    return found, order


def check_line(case: Case, cores: int, method: str, seed: int, tuning: Tuning) -> None:
    rng = Random(f"line {seed}")
    lateness = rng.choice((0, 1, 5, 60)) * 10**9 if case.windows.timed else None
    try:
        spec = plan_spec(case, method, tuning)
    except UnsupportedError:  # arithmetic that outgrows 512 bits is refused, in words
        return
    unit = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[spec.unit]
    engine = Handshake(spec, (lateness or 0) // unit, cores)
    tables, batches = with_row_numbers(case), []
    known = not case.windows.timed and rng.random() < 0.5
    plan, order = slices(case, rng) if known else pushes(case, rng)
    for side, start, rows, other in plan:
        for batch in tables[side].slice(start, rows).combine_chunks().to_batches():
            batches += engine.push(side, batch, None if other is None else {1 - side: other})
        if rng.random() < 0.05:
            batches += engine.drain()
    batches += engine.drain()
    metrics = engine.metrics()
    engine.close()
    counts = (itertools.count(), itertools.count())
    want = expect(case, lateness, [(("left", "right")[side], next(counts[side])) for side in order])
    assert pairs_of(batches) == sorted(want.pairs), (case.on, case.windows, lateness)
    assert (metrics.late, metrics.no_time, metrics.results) == (want.late, want.no_time, len(want.pairs))


@settings(EXAMPLES, max_examples=9)
@given(
    case=known_cases(),
    cores=st.integers(1, 8),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_line_agrees_with_the_oracle(case, cores, method, seed):
    for tuning in THRESHOLDS:
        check_line(case, cores, method, seed, tuning)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(EXAMPLES, max_examples=2_000, derandomize=False)
@given(
    case=cases(max_rows=60),
    cores=st.integers(1, 8),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 2**32 - 1),
)
def test_soak(case, cores, method, seed):
    for tuning in THRESHOLDS:
        check_line(case, cores, method, seed, tuning)


# Threads: holding back, failing, ending.


def feed(engine, left: pa.RecordBatch, right: pa.RecordBatch, step: int):
    for start in range(0, left.num_rows, step):
        for side, whole in enumerate((left, right)):
            yield from engine.push(side, whole.slice(start, step))
    yield from engine.drain()


@pytest.fixture(autouse=True)
def _no_thread_left_behind():
    yield
    assert not threads()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("cores", [1, 2, 5])
def test_a_slow_consumer_holds_back_the_line_and_loses_nothing(cores):
    """A cross product: a thousand results for each tuple."""
    engine = line_of("TRUE", "1 hour", cores, tuning=Tuning(line_results=1, coalesced_rows=1 << 13))
    rows = 0
    for batch in feed(engine, stream(2000), stream(2000), step=100):
        rows += batch.num_rows
        time.sleep(0.001)  # the slow consumer under test
    metrics = engine.metrics()
    engine.close()
    assert rows == metrics.results == 2000 * 2000
    assert max(core.deepest_queue for core in metrics.cores) <= 2


def test_a_fast_source_is_held_back_so_that_windows_do_not_outgrow_their_size():
    engine = line_of("ABS(l.x - r.x) < 2", "500 ms", cores=6, method="scan")
    largest = 0
    left, right = stream(20_000, 1), stream(20_000, 2)
    for start in range(0, 20_000, 50):
        for side, whole in enumerate((left, right)):
            list(engine.push(side, whole.slice(start, 50)))
        largest = max(largest, engine.metrics().left_window_rows)
    engine.close()
    assert largest < 10 * 500  # without back-pressure all 20,000 would be in the line


@pytest.mark.parametrize("method", ["scan", "hash"])
def test_the_line_agrees_with_three_step_on_full_windows(method):
    left, right = stream(30_000, 1, 5000), stream(30_000, 2, 5000)
    found = []
    for engine in (
        ThreeStep(prepare(SCHEMA, SCHEMA, "l.x = r.x", "4 s", time="t", method=method).spec),
        line_of(window="4 s", cores=4, method=method),
    ):
        tables = [pa.Table.from_batches(feed(engine, left, right, 700), engine.spec.output)]
        found.append(tables[0].sort_by([(name, "ascending") for name in tables[0].column_names]))
        metrics = engine.metrics()
        engine.close()
    assert found[0].equals(found[1])
    assert metrics.expired > 40_000
    assert sum(core.acknowledged for core in metrics.cores) > 0
    assert sum(core.forwarded for core in metrics.cores) > 4 * 40


def test_the_join_goes_on_after_a_drain():
    engine = line_of(window=None)
    left, right = stream(400, 1), stream(400, 2)
    rows = []
    for start in range(0, 400, 100):
        parts = feed(engine, left.slice(start, 100), right.slice(start, 100), 10)
        rows.append(sum(batch.num_rows for batch in parts))
    engine.close()
    counts = [[np.bincount(w.column("x")[:n].to_numpy(), minlength=50) for w in (left, right)]
              for n in (100, 200, 300, 400)]  # fmt: skip
    assert list(np.cumsum(rows)) == [int(a @ b) for a, b in counts]


def test_figures_of_a_line():
    engine = line_of(window=None, cores=2)
    list(feed(engine, stream(1000), stream(500), 10))
    metrics = engine.metrics()
    engine.close()
    assert metrics.algorithm == "handshake"
    assert (metrics.left_rows, metrics.right_rows) == (1000, 500)
    assert (metrics.left_window_rows, metrics.right_window_rows, metrics.expired) == (1000, 500, 0)
    assert sum(core.left_window_rows for core in metrics.cores) == 1000
    assert sum(core.results for core in metrics.cores) == metrics.results
    assert metrics.imbalance >= 1
    assert metrics.state_bytes >= 1500 * 16
    assert engine.metrics() == metrics


@pytest.mark.timeout(60)
@pytest.mark.parametrize("cores", [1, 3])
def test_an_error_in_a_core_reaches_the_caller_and_ends_all_threads(cores, monkeypatch):
    search, calls = JoinCore.search, []

    def failing(self, piece, windows=None):
        calls.append(piece)
        if len(calls) > 20:
            raise ZeroDivisionError("out of luck")
        return search(self, piece, windows)

    monkeypatch.setattr(JoinCore, "search", failing)
    engine = line_of(cores=cores, tuning=Tuning(line_piece=5))
    # Pieces that wait for the line go together.
    text = rf"\d*[05] tuples of the (left|right) input \(core \d of {cores}\): ZeroDivisionError: out of luck"
    with pytest.raises(HandshakeError, match=text) as caught:
        list(feed(engine, stream(400), stream(400), 5))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    for thread in threads():
        thread.join(10)
    assert not threads()
    with pytest.raises(HandshakeError, match=text):
        list(engine.push(0, stream(1)))
    engine.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seconds", [0, 0.05])
def test_closing_in_the_middle_ends_all_threads_at_once(seconds):
    engine = line_of("TRUE", None, 4)
    results = feed(engine, stream(20_000), stream(20_000), 500)
    next(results)
    time.sleep(seconds)  # the moment of closing is under test
    start = time.monotonic()
    engine.close()
    assert time.monotonic() - start < 5
    assert not threads()
    with pytest.raises(HandshakeError, match="this join is closed"):
        list(results)
    with pytest.raises(HandshakeError, match="this join is closed"):
        list(engine.drain())
    engine.close()


def test_a_line_needs_a_core():
    with pytest.raises(UnsupportedError, match="at least one core, not 0"):
        line_of(cores=0)
