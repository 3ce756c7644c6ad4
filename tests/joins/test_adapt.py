"""Cores that come and go with the load (CellJoin 7.3): results stay exact, threads really end."""

from __future__ import annotations

import json
import threading
import time
from itertools import pairwise
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli_runs import run_here
from handshake import explain
from handshake.errors import UnsupportedError
from handshake.io.frames import conform
from handshake.joins.arrangements.cell.cell import Cell
from handshake.joins.arrangements.crew import Crew, Load
from handshake.joins.join import Join, prepare
from handshake.joins.tuning import TUNING, Tuning
from handshake.plan.build import call, col
from handshake.schema import UNITS
from join_plans import options
from pairs import pairs_of, with_row_numbers
from strategies import Case, expect, known_cases
from waiting import wait_until

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
NUMBERS = pa.schema([("x", pa.int64())])


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


class Forced(Load):
    """A load that asks for any number of cores at any batch."""

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(most)
        self.rng, self.asked = Random(seed), [1]

    def note(self, busy: float) -> int:
        self.active = self.rng.randint(1, self.most)
        self.asked.append(self.active)
        return self.active


def check_forced(case: Case, seed: int, method: str, tuning: Tuning = TUNING) -> None:
    rng, tables = Random(f"forced {seed}"), with_row_numbers(case)
    try:
        plan = prepare(
            *(table.schema for table in tables), case.on, **options(case), method=method, algorithm="cell",
            cores=rng.randint(2, 8), adapt=True, tuning=tuning,
        )  # fmt: skip
    except UnsupportedError:
        return
    lateness = rng.choice((0, 1, 60)) if case.windows.timed else None
    cell = Cell(
        plan.spec, (lateness or 0) * 10**9 // UNITS[plan.spec.unit], plan.cores, adapt=True,
        blocks=rng.choice((1, 4096)),
    )  # fmt: skip
    cell.load = load = Forced(plan.cores, seed)
    for window in cell.windows:
        window.segment.largest = rng.choice((1, 4, None))
    at, arrivals, batches = [0, 0], [], []
    try:
        while any(at[side] < table.num_rows for side, table in enumerate(tables)):
            side = rng.randint(0, 1)
            count = min(rng.choice((1, 2, 7, 30)), tables[side].num_rows - at[side])
            part = tables[side].slice(at[side], count)
            batches += cell.push(side, conform(part, part.schema, "input"))
            arrivals += [(("left", "right")[side], at[side] + k) for k in range(count)]
            at[side] += count
        batches += cell.drain()
        metrics = cell.metrics()
    finally:
        cell.close()
    want = expect(case, None if lateness is None else lateness * 10**9, arrivals)
    assert pairs_of(batches) == sorted(want.pairs), (case.on, case.windows, load.asked)
    assert metrics.results == metrics.latency.results == len(want.pairs)
    assert [n for _, n in metrics.core_counts] == [
        n for k, n in enumerate(load.asked) if [n] != load.asked[k - 1 : k]
    ]
    assert cell.crew.running() == 0


@settings(EXAMPLES, max_examples=8)
@given(
    case=known_cases(),
    seed=st.integers(0, 2**32 - 1),
    method=st.sampled_from(("auto", "scan", "hash", "band")),
)
def test_changes_in_the_middle_of_a_run_agree_with_the_oracle(case, seed, method):
    """As shipped; then with every basic window indexed."""
    check_forced(case, seed, method)
    check_forced(case, seed, method, Tuning(indexed_from=1, indexed_probes=1))


# Threads.


def wait_for_threads(crew: Crew, threads: int) -> None:
    """Wait until a crew has this number of threads."""
    wait_until(lambda: crew.running() == threads, 300, pause=0.001)


def came(task: pa.RecordBatch) -> float:
    """Return when the tuples of a task came; no test here looks at latencies."""
    return 0.0


def test_threads_start_and_end_with_the_number_of_cores():
    before = threading.active_count()
    crew = Crew(6, lambda k, task: iter([task]), str, came, active=1)
    for size in (1, 4, 2, 6, 6, 1, 3):
        crew.resize(size)
        wait_for_threads(crew, size)
        assert threading.active_count() == before + size
        for k in range(size):
            list(crew.hand(k, numbers([k])))
        assert sum(batch.num_rows for batch in crew.drain()) <= size
    crew.close()
    assert threading.active_count() == before


def test_a_released_core_ends_what_it_was_given():
    gate = threading.Event()

    def work(k, task):
        gate.wait(60)
        yield task

    crew = Crew(3, work, str, came)
    for value in range(5):
        list(crew.hand(2, numbers([value])))
    crew.resize(1)
    assert crew.running() == 3
    gate.set()
    assert sorted(batch.column("x")[0].as_py() for batch in crew.drain()) == [0, 1, 2, 3, 4]
    wait_for_threads(crew, 1)
    crew.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_core_that_is_wanted_back_while_it_ends_goes_on(seed):
    """Released and added again and again, under load: every task is done once."""
    rng = Random(seed)
    crew = Crew(4, lambda k, task: iter([task]), str, came, active=1)
    done, size = [], 1
    for value in range(400):
        if rng.random() < 0.5:
            size = rng.randint(1, 4)
            crew.resize(size)
        done += crew.hand(rng.randrange(size), numbers([value]))
    done += crew.drain()
    crew.close()
    assert sorted(batch.column("x")[0].as_py() for batch in done) == list(range(400))


# The public switch.


def test_a_busy_join_takes_cores_and_a_quiet_one_gives_them_back():
    """Real time: a predicate that takes its time keeps cores busy, until it has next to nothing to do."""
    before = threading.active_count()
    slow = threading.Event()

    def same(a: int, b: int) -> bool:
        if slow.is_set():
            time.sleep(0.0005)  # the load under test
        return a == b

    on = call(same, col("l.x"), col("r.x"))
    with Join(
        left=NUMBERS, right=NUMBERS, on=on, window="64 tuples", algorithm="cell", cores=3, adapt=True
    ) as running:
        running._engine.windows[0].segment.largest = running._engine.windows[1].segment.largest = 4
        rows = slow.set() or 0
        for k in range(60):
            rows += sum(
                b.num_rows for b in (running.push_left, running.push_right)[k % 2](numbers([k // 2] * 4))
            )
        grown = [cores for _, cores in running.metrics().core_counts]
        slow.clear()

        def is_quiet() -> bool:
            running.push_left(numbers([-1]))
            return running._engine.load.active == 1

        wait_until(is_quiet, 300, pause=0.02)
        wait_for_threads(running._engine.crew, 1)
        metrics = running.metrics()
        assert threading.active_count() == before + 1
    assert (grown[0], max(grown)) == (1, 3)
    assert rows == 30 * 16
    counts = [cores for _, cores in metrics.core_counts]
    assert counts[-1] == 1
    assert all(abs(a - b) == 1 for a, b in pairwise(counts))
    moments = [seconds for seconds, _ in metrics.core_counts]
    assert moments == sorted(moments)
    assert all(core.comparisons > 0 for core in metrics.cores)


def test_on_the_command_line(capfd, tmp_path):
    rng = np.random.default_rng(2)
    for name in ("l.csv", "r.csv"):
        (tmp_path / name).write_text("x\n" + "".join(f"{v}\n" for v in rng.integers(0, 9, 500)))
    asked = ("--on", "l.x = r.x", "--window", "50 tuples", "--algorithm", "cell", "--cores", "2", "--adapt")
    paths, target = (tmp_path / "l.csv", tmp_path / "r.csv"), tmp_path / "figures.json"
    outcome = run_here(capfd, "join", *paths, *asked, "--metrics", target)
    assert outcome.status == 0, outcome.err
    figures = json.loads(target.read_text())
    assert figures["core_counts"][0] == [0.0, 1]
    assert f"1 to {max(n for _, n in figures['core_counts'])} of 2, cell" in outcome.out
    assert "cores: 1 to 2, as the load asks for" in run_here(capfd, "join", *paths, *asked, "--explain").out
    refused = run_here(capfd, "join", *paths, "--on", "l.x = r.x", "--adapt")
    assert "under algorithm 'cell' only, and 'low_latency' was given" in refused.complaint


def test_explain_shows_the_measured_cost_model():
    table = pa.table({"x": [1]})
    text = explain(table, table, "l.x * l.x < r.x", window="200000 tuples", algorithm="cell", method="scan")
    line = next(line for line in text.splitlines() if line.startswith("cost model"))
    assert "us for a basic window of any size" in line
    assert "a window of 200,000 tuples is best cut into basic windows of" in line
    text = explain(table, table, "l.x = r.x", window="200000 tuples", algorithm="cell")
    assert "for scans; basic windows that an index clusters" in text
    assert "cost model" not in explain(table, table, "l.x = r.x", window="5 tuples")
