"""CellJoin: the partition of windows, batches, the load, and the arrangement against the oracle."""

from __future__ import annotations

import threading
import time
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.errors import HandshakeError, UnsupportedError
from handshake.io.frames import conform
from handshake.joins.arrangements.cell.cell import Cell
from handshake.joins.arrangements.cell.cost import UNIT_BLOCK, CostModel, cost_model
from handshake.joins.arrangements.cell.partition import deal
from handshake.joins.arrangements.crew import Load
from handshake.joins.arrangements.three_step import ThreeStep
from handshake.joins.join import prepare
from handshake.joins.spec import JoinSpec
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan.build import call, col
from handshake.schema import UNITS
from handshake_bench.workload import GENERAL
from pairs import with_row_numbers
from strategies import Case, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
NUMBERS = pa.schema([("x", pa.int64())])


# The partition (4.1.2).


@settings(EXAMPLES, max_examples=150)
@given(size=st.integers(0, 2_000), cores=st.integers(1, 9))
def test_runs_obey_equation_2(size, cores):
    low, extra = divmod(size, cores)
    newest_first, at = list(range(size))[::-1], 0
    runs = deal(size, cores)
    assert len(runs) == cores
    for core, run in enumerate(runs):
        count = low + 1 if core < extra else low  # ceil(B/N) if j <= B mod N, else floor(B/N)
        assert list(range(size))[run][::-1] == newest_first[at : at + count]
        at += count
    assert at == size


def test_the_example_of_figure_5():
    """Basic windows are numbered as they come; one comes, then the oldest goes."""
    windows = [0, 1, 2, 3, 4, 5]
    assert [windows[run] for run in deal(6, 4)] == [[4, 5], [2, 3], [1], [0]]
    windows.append(6)
    assert [windows[run] for run in deal(7, 4)] == [[5, 6], [3, 4], [1, 2], [0]]
    del windows[0]
    assert [windows[run] for run in deal(6, 4)] == [[5, 6], [3, 4], [2], [1]]


# Basic-window size (6).


def test_best_rows_is_equation_4_to_the_nearest_power_of_two():
    model = CostModel(alpha=20e-6, beta=1e-10, row_bytes=8)
    for batch in (16, 256, 4096):
        best = model.best_rows(1000, 900, batch)
        d = ((20e-6 / (1e-10 * batch / 16)) * (1000 * 900) / (UNIT_BLOCK**2 * 8)) ** 0.5
        assert best & (best - 1) == 0
        assert 2**-0.5 <= best / (d * UNIT_BLOCK) <= 2**0.5

        def cost(rows, batch=batch):
            return 20e-6 * 900_000 / rows + 1e-10 * batch / 16 * 8 * rows

        assert cost(best) <= min(cost(2 * best), cost(best // 2)) * 1.000001


def test_best_rows_grows_with_rate_and_window_and_stays_in_range():
    model = CostModel(alpha=20e-6, beta=1e-10, row_bytes=8)
    sizes = [model.best_rows(rate, 900) for rate in (0.001, 1, 10, 100, 1000, 1e9)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1]) == (1 << 10, 1 << 17)


def test_constants_are_measured_once():
    model = cost_model()
    assert cost_model() is model
    assert 1e-6 <= model.alpha < 1
    assert model.beta > 0
    assert model.row_bytes == 8


# The arrangement against the oracle.


def spec_of(case: Case, method: str, left: pa.Schema, right: pa.Schema, tuning: Tuning = TUNING) -> JoinSpec:
    return prepare(
        left, right, case.on, left_window=case.windows.left, right_window=case.windows.right,
        left_time=case.left_time, right_time=case.right_time, method=method, algorithm="three_step",
        tuning=tuning,
    ).spec  # fmt: skip


def pairs_of(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    names = ("row of left", "row of right")
    return sorted(p for b in batches for p in zip(*(b.column(n).to_pylist() for n in names), strict=True))


def check_cell(case: Case, seed: int, method: str, tuning: Tuning = TUNING) -> None:
    """Push both sides in random batches, on a random number of cores, with windows of many small parts."""
    rng = Random(f"cell {seed}")
    tables = with_row_numbers(case)
    try:
        spec = spec_of(case, method, *(table.schema for table in tables), tuning=tuning)
    except UnsupportedError:
        return
    lateness = rng.choice((0, 1, 5, 60)) if case.windows.timed else None
    cell = Cell(
        spec, (lateness or 0) * 10**9 // UNITS[spec.unit], cores=rng.randint(1, 8),
        adapt=rng.random() < 0.3, blocks=rng.choice((1, 2, 4096)),
    )  # fmt: skip
    for window in cell.windows:
        window.segment.largest = rng.choice((1, 4, 16, None))
    at, arrivals, batches = [0, 0], [], []
    try:
        while any(at[side] < table.num_rows for side, table in enumerate(tables)):
            side = rng.randint(0, 1)
            table = tables[side]
            rows = min(rng.choice((1, 2, 7, 30)), table.num_rows - at[side])
            part = conform(table.slice(at[side], rows), table.schema, "input")
            batches += cell.push(side, part)
            arrivals += [(("left", "right")[side], at[side] + k) for k in range(rows)]
            at[side] += rows
            if rng.random() < 0.1:
                batches += cell.drain()
        batches += cell.drain()
        metrics = cell.metrics()
    finally:
        cell.close()
    want = expect(case, None if lateness is None else lateness * 10**9, arrivals)
    assert pairs_of(batches) == sorted(want.pairs), (method, case.on, case.windows, lateness)
    assert (metrics.late, metrics.no_time, metrics.results) == (want.late, want.no_time, len(want.pairs))
    check_windows(cell, metrics)


def check_windows(cell: Cell, metrics) -> None:
    """Check that each basic window is in one run, and that the figures say so."""
    for side, window in enumerate(cell.windows):
        if cell.spec.method == "scan":
            runs = [part for run in reversed(window.runs()) for part in run]
            assert [id(part) for part in runs] == [id(part) for part in window.segment.windows]
        name = ("left_window_rows", "right_window_rows")[side]
        assert sum(getattr(core, name) for core in metrics.cores) == getattr(metrics, name)
    assert sum(core.comparisons for core in metrics.cores) == metrics.comparisons
    assert sum(core.results for core in metrics.cores) == metrics.results


@settings(EXAMPLES, max_examples=12)
@given(
    case=known_cases(),
    seed=st.integers(0, 2**32 - 1),
    method=st.sampled_from(("auto", "scan", "hash", "band")),
)
def test_any_batches_on_any_number_of_cores_agree_with_the_oracle(case, seed, method):
    """As shipped; then with every basic window indexed."""
    check_cell(case, seed, method)
    check_cell(case, seed, method, Tuning(indexed_from=1, indexed_probes=1))


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


def number_spec(on, **options) -> JoinSpec:
    return prepare(NUMBERS, NUMBERS, on, algorithm="three_step", **options).spec


def push_all(cell: Cell, parts) -> list[pa.RecordBatch]:
    found = []
    for side, batch in parts:
        found += cell.push(side, batch)
    found += cell.drain()
    return found


def sorted_pairs(batches) -> list[tuple[int, int]]:
    return sorted(p for b in batches for p in zip(*(c.to_pylist() for c in b.columns), strict=True))


@pytest.mark.parametrize("on", ["l.x = r.x", "ABS(l.x - r.x) <= 3", "l.x % 7919 = r.x % 7907 + l.x - l.x"])
def test_windows_that_fill_and_expire_agree_with_three_steps(on):
    """Long enough for index, merging and expiry as shipped."""
    spec = number_spec(on, window="6000 tuples")
    rng = np.random.default_rng(3)
    parts = [(k % 2, numbers(rng.integers(0, 50_000, 700))) for k in range(60)]
    three = ThreeStep(spec)
    want = push_all(three, parts)
    for cores in (1, 3):
        cell = Cell(spec, cores=cores, blocks=64)
        assert sorted_pairs(push_all(cell, parts)) == sorted_pairs(want)
        figures = cell.metrics()
        cell.close()
        assert figures.expired > 0
        assert figures.left_window_rows < 9_000
        assert figures.algorithm == "cell"
        if cores == 3:
            assert all(core.comparisons > 0 for core in figures.cores)


def test_scanned_basic_windows_take_the_size_of_the_cost_model():
    fixed = CostModel(alpha=20e-6, beta=1e-9, row_bytes=8)
    spec = number_spec("l.x = r.x + 1", method="scan", tuning=Tuning(fitted_from=4096))
    cell = Cell(spec, cores=2, model=fixed)
    for k in range(64):
        push_all(cell, [(k % 2, numbers(np.arange(1024) * 31 + k))])  # drained, so that none are put together
    cell.close()
    assert cell.model is fixed
    assert 512 < cell._usual < 1024  # on its way from small batches to these
    for window in cell.windows:
        limit = window.segment.largest
        assert limit == fixed.best_rows(32 * 1024, 1.0, round(cell._usual))
        assert max(part.rows for part in window.segment.windows[4:]) <= limit


# Batches (4.2).


def test_tuples_that_come_while_cores_are_busy_are_searched_together():
    gate = threading.Event()

    def slow(a: int, b: int) -> bool:
        gate.wait(30)
        return a == b

    spec = number_spec(call(slow, col("l.x"), col("r.x")))
    cell = Cell(spec, cores=1)
    found = list(cell.push(0, numbers([1, 2, 3])))
    for value in (1, 2, 3, 1, 2, 3):
        found += cell.push(1, numbers([value]))
    gate.set()
    found += cell.drain()
    figures = cell.metrics()
    cell.close()
    assert sorted_pairs(found) == sorted([(v, v) for v in (1, 2, 3)] * 2)
    # One is searched, at most one waits before the core; the others have gathered.
    assert figures.cores[0].batches <= 3


def test_a_large_batch_is_cut_into_whole_unit_blocks():
    spec = number_spec("l.x = r.x")
    cell = Cell(spec, cores=2, blocks=2)
    sizes = []
    hand = cell.crew.hand
    cell.crew.hand = lambda k, job: sizes.append(job.piece.rows) or hand(k, job)
    found = push_all(cell, [(0, numbers(range(100))), (1, numbers(range(100)))])
    cell.close()
    assert len(sorted_pairs(found)) == 100
    assert set(sizes) <= {2 * UNIT_BLOCK, 100 % (2 * UNIT_BLOCK)}


def test_waiting_tuples_keep_what_they_ask_for_from_expiring():
    gate = threading.Event()

    def slow(a: int, b: int) -> bool:
        gate.wait(30)
        return a == b

    spec = number_spec(call(slow, col("l.x"), col("r.x")), window="4 tuples")
    cell, three = Cell(spec, cores=2), ThreeStep(spec)
    for window in cell.windows:
        window.segment.largest = 1
    parts = [(k % 2, numbers([k // 2, k // 2 + 1])) for k in range(40)]
    found = []
    for side, batch in parts:
        found += cell.push(side, batch)
    gate.set()
    found += cell.drain()
    cell.close()
    assert sorted_pairs(found) == sorted_pairs(push_all(three, parts))
    assert cell.metrics().expired > 0


# The load (7.3).


class Clock:
    """Time that passes when a test says so, on each thread its own."""

    def __init__(self) -> None:
        self.main = threading.get_ident()
        self.now = 0.0
        self.work = 0.0
        self.own = threading.local()

    def __call__(self) -> float:
        if threading.get_ident() == self.main:
            return self.now
        self.own.now = getattr(self.own, "now", 0.0) + self.work
        return self.own.now


def test_cores_are_added_when_busy_and_released_when_idle():
    clock = Clock()
    load = Load(3, clock=clock, interval=4)
    busy, used = 0.0, []
    for share in [0.99] * 15 + [0.7] * 5 + [0.1] * 15:
        clock.now += 1.0
        busy += share * load.active
        used.append(load.note(busy))
    assert (used[0], max(used), used[-1]) == (1, 3, 1)
    assert all(abs(a - b) <= 1 for a, b in pairwise(used))
    changes = [k for k in range(1, len(used)) if used[k] != used[k - 1]]
    assert all(b - a >= 4 for a, b in pairwise(changes))


def test_a_load_between_the_limits_changes_nothing():
    clock = Clock()
    load = Load(4, active=2, clock=clock, interval=2)
    busy = 0.0
    for _ in range(20):
        clock.now += 1.0
        busy += 0.7 * load.active
        assert load.note(busy) == 2


def test_cores_come_and_go_in_the_middle_of_a_join():
    clock = Clock()
    spec = number_spec("l.x % 17 = r.x % 17 + l.x - l.x", window="300 tuples")
    cell, three = Cell(spec, cores=4, adapt=True, clock=clock), ThreeStep(spec)
    for window in cell.windows:
        window.segment.largest = 16
    rng = np.random.default_rng(5)
    parts = [(k % 2, numbers(rng.integers(0, 1000, 10))) for k in range(240)]
    want, found, used = [], [], []
    for number, (side, batch) in enumerate(parts):
        clock.work = 10.0 if 40 <= number < 140 else 0.0001
        clock.now += 1.0
        found += cell.push(side, batch)
        found += cell.drain()
        used.append(cell.load.active)
        want += three.push(side, batch)
    cell.close()
    assert sorted_pairs(found) == sorted_pairs(want)
    assert (used[0], max(used), used[-1]) == (1, 4, 1)
    assert set(used) == {1, 2, 3, 4}
    assert cell.metrics().cores[3].comparisons > 0


# Slow consumers, errors, the end.


def test_a_slow_consumer_holds_back_the_source_and_loses_nothing():
    """A thousand results for each tuple that comes."""
    spec = number_spec("l.x <= r.x + 10")
    cell = Cell(spec, cores=3)
    count = sum(b.num_rows for b in cell.push(0, numbers([5] * 4000)))
    deepest = 0
    for _ in range(8):
        for batch in cell.push(1, numbers([7] * 500)):
            time.sleep(0.002)  # the slow consumer under test
            count += batch.num_rows
            deepest = max(deepest, *(len(outbox) for outbox in cell.crew.outboxes))
    count += sum(b.num_rows for b in cell.drain())
    cell.close()
    assert count == 4000 * 4000
    assert deepest <= cell.crew.outboxes[0].capacity


def has_ended(cell: Cell) -> bool:
    return not any(thread.is_alive() for thread in cell.crew._threads)


def test_an_error_on_a_core_reaches_the_caller():
    def broken(piece, windows):
        raise ZeroDivisionError("by design")

    spec = number_spec("l.x <= r.x")
    cell = Cell(spec, cores=2)
    push_all(cell, [(0, numbers([1, 2])), (1, numbers([3]))])
    for core in cell._cores:
        core.probe = broken
    with pytest.raises(
        HandshakeError, match=r"a batch of 2 tuples of the right input: ZeroDivisionError: by design"
    ) as caught:
        push_all(cell, [(1, numbers([12, 13]))])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert has_ended(cell)
    with pytest.raises(HandshakeError):
        list(cell.push(0, numbers([1])))


def test_close_in_the_middle_ends_promptly():
    spec = number_spec("l.x <= r.x + 10")
    cell = Cell(spec, cores=4)
    list(cell.push(0, numbers([5] * 20_000)))
    list(cell.push(1, numbers([7] * 20_000)))
    running = cell.drain()
    next(running)
    names = {thread.name for thread in cell.crew._threads}
    assert all(thread.daemon for thread in cell.crew._threads)
    assert len(names) == 4
    start = time.perf_counter()
    cell.close()
    assert time.perf_counter() - start < 5
    assert has_ended(cell)
    with pytest.raises(HandshakeError, match="closed"):
        list(running)


def test_the_predicate_that_no_index_can_use_agrees_with_three_steps():
    left = pa.schema([("x", pa.int32()), ("y", pa.float32()), ("w", pa.float32())])
    right = pa.schema([("a", pa.int32()), ("b", pa.float32())])
    spec = prepare(left, right, GENERAL, window="5000 tuples", algorithm="three_step").spec
    rng = np.random.default_rng(11)

    def some(schema, rows):
        arrays = [
            pa.array(rng.integers(1, 10_001, rows).astype(field.type.to_pandas_dtype())) for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    parts = [(k % 2, some((left, right)[k % 2], 500)) for k in range(40)]
    want = sorted_pairs(push_all(ThreeStep(spec), parts))
    cell = Cell(spec, cores=2)
    assert sorted_pairs(push_all(cell, parts)) == want
    cell.close()
    assert want
