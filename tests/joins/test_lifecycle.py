"""Start, drain, stop, Ctrl-C, errors, slow consumers, pinned threads: for every arrangement."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import handshake.joins.plan as planning
from cli_runs import COMMAND, run_here
from handshake.errors import HandshakeError, UnsupportedError
from handshake.joins.arrangements import placement as placement_module
from handshake.joins.arrangements.placement import order_processors, placement
from handshake.joins.basic_window import BasicWindow
from handshake.joins.core import JoinCore
from handshake.joins.gate import Gate
from handshake.joins.join import ALGORITHMS, Join, Replay, prepare
from handshake.joins.replay import spare_old_objects
from handshake.joins.tuning import Tuning
from handshake.plan.build import call, col
from waiting import wait_until

NUMBERS = pa.schema([("x", pa.int64())])
LINUX = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
ENGINES = [*ALGORITHMS, "gate"]


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


def start_engine(name: str, on="l.x <= r.x", window="10000 tuples", cores=3, **options):
    """Start an arrangement, or one behind a gate."""
    algorithm = "low_latency" if name == "gate" else name
    plan = prepare(
        NUMBERS,
        NUMBERS,
        on,
        window,
        algorithm=algorithm,
        cores=None if name == "three_step" else cores,
        **options,
    )
    return plan.gate() if name == "gate" else plan.start()


def rows_of(batches) -> list[tuple[int, int]]:
    return sorted(p for b in batches for p in zip(*(c.to_pylist() for c in b.columns), strict=True))


@pytest.fixture
def threads() -> Iterator[int]:
    """Yield the number of threads; check that it is the same afterwards."""
    before = threading.active_count()
    yield before
    assert threading.active_count() == before


# Start, drain, stop.


@pytest.mark.parametrize("name", ENGINES)
def test_drain_can_be_followed_by_more_and_stop_ends_all_threads(threads, name):
    engine = start_engine(name)
    running = threading.active_count()
    assert running == threads + {"three_step": 0, "gate": 4}.get(name, 3)
    found = []
    for round_ in range(3):
        for side in (0, 1):
            found += engine.push(side, numbers([round_, round_ + 1]))
        found += engine.drain()
        assert list(engine.drain()) == []
        assert threading.active_count() == running
    engine.close()
    assert threading.active_count() == threads
    values = [0, 1, 1, 2, 2, 3]
    assert rows_of(found) == sorted((a, b) for a in values for b in values if a <= b)
    engine.close()  # twice does no harm


@pytest.mark.parametrize("name", ENGINES)
def test_stop_without_a_tuple(threads, name):
    start_engine(name).close()


@pytest.mark.parametrize("name", ENGINES)
def test_stop_in_the_middle_drops_what_is_under_way_and_ends(threads, name):
    """Far more results than queues can hold are on their way, and no caller takes them."""
    engine = start_engine(name, "l.x + r.x >= 0")
    engine.push(0, numbers([1]))  # never begun: nothing happens
    list(engine.push(0, numbers(np.zeros(10_000, np.int64))))
    results = engine.push(1, numbers(np.zeros(10_000, np.int64)))
    next(iter(results), None)
    engine.close()


def test_an_abandoned_replay_ends_its_threads(threads):
    for algorithm in ALGORITHMS:
        plan = prepare(NUMBERS, NUMBERS, "l.x + r.x >= 0", "5000 tuples", algorithm=algorithm)
        table = pa.table({"x": np.zeros(5000, np.int64)})
        results = iter(Replay(plan, table, table))
        next(results)
        results.close()
        assert threading.active_count() == threads


@pytest.mark.parametrize("name", ENGINES)
def test_after_the_end_a_push_is_refused(name):
    engine = start_engine(name)
    engine.close()
    if name == "three_step":
        return  # has nothing to stop
    with pytest.raises(HandshakeError, match="closed"):
        list(engine.push(0, numbers([1])))


# Errors.


@pytest.mark.parametrize("name", ENGINES)
def test_an_error_in_a_core_reaches_the_caller_with_its_batch_and_ends_all_threads(threads, name):
    def fragile(a: int, b: int) -> bool:
        if b == 13:
            raise ZeroDivisionError("by design")
        return a <= b

    engine = start_engine(name, call(fragile, col("l.x"), col("r.x")))
    found = []
    for side, values in ((0, [1, 2, 3]), (1, [4, 5])):
        found += engine.push(side, numbers(values))
        found += engine.drain()
    assert len(rows_of(found)) == 6
    with pytest.raises(
        HandshakeError, match=r"a batch of \d tuples of the (left|right) input.*: .*by design"
    ):
        list(engine.push(1, numbers([11, 12, 13, 14]))) + list(engine.drain())
    engine.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_join_that_has_failed_is_closed(threads, algorithm):
    def broken(a: int, b: int) -> bool:
        raise ValueError("by design")

    running = Join(
        left=NUMBERS,
        right=NUMBERS,
        on=call(broken, col("l.x"), col("r.x")),
        window="9 tuples",
        algorithm=algorithm,
    )
    running.push_left(numbers([1]))
    with pytest.raises(HandshakeError, match=r"a batch of \d tuples? of the .* input.*by design"):
        running.push_right(numbers([2]))
    assert threading.active_count() == threads
    with pytest.raises(HandshakeError, match="closed"):
        running.push_left(numbers([1]))
    assert running.metrics().left_rows == 1


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_error_in_a_replay_ends_its_threads(threads, monkeypatch, algorithm):
    search = JoinCore.search

    def failing(core, piece, *rest, **more):
        if core.batches > 3:
            raise MemoryError
        return search(core, piece, *rest, **more)

    monkeypatch.setattr(JoinCore, "search", failing)
    tuning = Tuning(slice_rows=50, gathered_rows=50)
    plan = prepare(NUMBERS, NUMBERS, "l.x <= r.x", "100 tuples", algorithm=algorithm, tuning=tuning)
    table = pa.table({"x": range(2000)})
    with pytest.raises(MemoryError, match="a join core ran out of memory on a batch of"):
        list(Replay(plan, table, table))


# Slow consumers.


@pytest.mark.parametrize("name", ENGINES)
def test_an_output_a_thousand_times_the_input_stays_in_bounded_queues(threads, name):
    """Every pair joins; the consumer is slow, and what waits for it is bounded. Nothing is lost."""
    rows, count = 4000, 0
    engine = start_engine(name, "l.x + r.x >= 0")
    for start in range(0, rows, 500):
        for side in (0, 1):
            for batch in engine.push(side, numbers(np.arange(start, start + 500))):
                time.sleep(0.001)  # the slow consumer under test
                count += batch.num_rows
                check_queues(engine)
    for batch in engine.drain():
        count += batch.num_rows
        check_queues(engine)
    metrics = engine.metrics()
    engine.close()
    assert count == rows * rows == metrics.results == 1000 * 2 * rows * 2


def check_queues(engine) -> None:
    metrics = engine.metrics()
    assert all(core.deepest_results <= 16 for core in metrics.cores)
    assert all(core.deepest_queue <= 8 for core in metrics.cores)
    if isinstance(engine, Gate):
        assert len(engine._outbox) <= 16
        assert metrics.most_waiting_rows <= 2 * (engine.room + 500)


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "three_step"])
def test_a_consumer_that_stops_holds_back_the_source(name):
    """If no caller takes results, cores stop when queues are full, however much more there is to find."""
    engine = start_engine(name, "l.x + r.x >= 0", cores=2)
    list(engine.push(0, numbers(np.zeros(10_000, np.int64))))
    list(engine.drain())
    # Unless more follows, low_latency joins this batch in the caller's thread, where nothing has to wait.
    follows = {"more": True} if name == "low_latency" else {}
    pushed = engine.push(1, numbers(np.zeros(10_000, np.int64)), **follows)
    taken = sum(b.num_rows for b in pushed) if name in ("gate", "low_latency", "cell") else 0
    found, still = -1, 0
    while still < 20:  # cores that have stopped send no event, so wait until nothing changes any more
        time.sleep(0.01)  # between two looks
        now = engine.metrics().results
        found, still = (now, still + 1) if now == found else (now, 0)
    assert found < 10_000 * 10_000
    taken += sum(b.num_rows for b in pushed)
    taken += sum(b.num_rows for b in engine.drain())
    engine.close()
    assert taken == 10_000 * 10_000


TIMED = pa.schema([("t", pa.int64())])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_in_order_are_held_in_bounded_memory_when_pushed(algorithm):
    """Only the results of one second's tuples are held back, not those of the stream so far."""
    cores = None if algorithm == "three_step" else 2
    most, seen, last = 0, 0, -1
    with Join(
        left=TIMED, right=TIMED, on="l.t <= r.t + 99", window="50 s", time="t", ordered=True,
        algorithm=algorithm, cores=cores,
    ) as running:  # fmt: skip
        for second in range(100):
            for push in (running.push_left, running.push_right):
                for batch in push({"t": [second] * 20}):
                    moments = np.maximum(*(column.to_numpy() for column in batch.columns))
                    assert last <= moments[0]
                    assert np.all(moments[1:] >= moments[:-1])
                    last, seen = moments[-1], seen + batch.num_rows
                most = max(most, running._ordering.rows)
        seen += sum(batch.num_rows for batch in running.finish())
    assert seen == sum(400 for a in range(100) for b in range(100) if abs(a - b) < 50)
    assert most <= 2 * 20 * 20 * 50


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_in_order_are_held_in_bounded_memory_when_replayed(monkeypatch, algorithm):
    """Slices shrink until each gives about as many results as may be held back."""
    most = 0

    class Watched(planning.InOrder):
        def add(self, batches) -> None:
            nonlocal most
            super().add(batches)
            most = max(most, self.rows)

    monkeypatch.setattr(planning, "InOrder", Watched)
    plan = prepare(
        TIMED,
        TIMED,
        "l.t <= r.t + 99",
        "50 s",
        time="t",
        ordered=True,
        algorithm=algorithm,
        tuning=Tuning(held_results=5_000, first_slice_rows=16),
    )
    table = pa.table({"t": np.repeat(np.arange(300), 10)})
    moments = [
        np.maximum(*(column.to_numpy() for column in batch.columns)) for batch in Replay(plan, table, table)
    ]
    whole = np.concatenate(moments)
    assert len(whole) == sum(100 for a in range(300) for b in range(300) if abs(a - b) < 50)
    assert np.all(whole[1:] >= whole[:-1])
    # A slice's results, and those of the moment that the watermark has not passed.
    assert most < 50_000 < len(whole) / 4


# Ctrl-C.


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> tuple[Path, Path]:
    """Write streams that join for hours: a flood at a pace of 100, then a trickle.

    The flood lasts 40 seconds, the trickle 67 minutes. A slow machine may shed all but a few tuples of the
    flood; the trickle still has results.
    """
    folder = tmp_path_factory.mktemp("inputs")
    times = np.concatenate([np.arange(400_000) // 100, 4_000 + 2 * np.arange(200_000)])
    for name in ("l", "r"):
        pq.write_table(
            pa.table({"t": times, "x": np.zeros(len(times), np.int64)}), folder / f"{name}.parquet"
        )
    return folder / "l.parquet", folder / "r.parquet"


RUNS = {
    **{algorithm: ("--algorithm", algorithm) for algorithm in ALGORITHMS},
    "adapted": ("--algorithm", "cell", "--adapt"),
    "paced": ("--pace", "100"),
    "shedding": ("--pace", "100", "--overload", "shed", "--room", "100"),
}
SOME_RUNS = ("three_step", "low_latency", "shedding")
"""Without threads, with them, and with a gate; every arrangement is stopped in its process above."""


def _has_output(process: subprocess.Popen, folder: Path) -> bool:
    assert process.poll() is None, process.stderr.read().decode()
    return any(entry.stat().st_size for entry in folder.glob(".handshake-*.tmp"))


@pytest.mark.parametrize(
    "run",
    [run if run in SOME_RUNS else pytest.param(run, marks=pytest.mark.soak) for run in RUNS],
)
def test_ctrl_c_ends_a_join_and_leaves_no_half_written_output(inputs, tmp_path, run):
    out = tmp_path / "o.parquet"
    asked = ("--on", "l.x + r.x >= 0", "--window", "1 hour", "--time", "t", "--output", out, *RUNS[run])
    command = [*COMMAND, "join", *map(str, (*inputs, *asked, "--metrics", tmp_path / "m.json"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: _has_output(process, tmp_path), 300)
            process.send_signal(signal.SIGINT)
            printed, complaint = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert (printed, complaint.decode()) == (b"", f"handshake: interrupted; '{out}' was not written\n")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_a_paced_stream_is_silent(tmp_path):
    """The next tuple is due in an hour, and the program ends without it."""
    for name in ("l.csv", "r.csv"):
        (tmp_path / name).write_text("t,x\n0,1\n3600,2\n")
    paths = [str(tmp_path / name) for name in ("l.csv", "r.csv")]
    code = (
        "import sys, handshake.joins.gate as gate, handshake.cli as cli\n"
        "until = gate.Gate.until\n"
        "def told(gate, moment):\n"
        "    print('waiting', flush=True)\n"
        "    return until(gate, moment)\n"
        "gate.Gate.until = told\n"
        "sys.argv[1:] = ['join', *sys.argv[1:]]\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, *paths, "--on", "l.x = r.x", "--window", "1 day", "--time", "t"]
    with subprocess.Popen(
        [*command, "--pace", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert [process.stdout.readline() for _ in range(2)] == [b"waiting\n"] * 2
            process.send_signal(signal.SIGINT)
            _, complaint = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, complaint) == (130, b"handshake: interrupted\n")


# Pinned threads.


@LINUX
@pytest.mark.parametrize("algorithm", [a for a in ALGORITHMS if a != "three_step"])
def test_each_core_stays_on_its_processor(algorithm):
    mine = os.sched_getaffinity(0)
    cores = min(len(mine), 3)
    with Join(
        left=NUMBERS,
        right=NUMBERS,
        on="l.x <= r.x",
        window="9 tuples",
        algorithm=algorithm,
        cores=cores,
        pin=True,
    ) as running:
        running.push_left(numbers([1]))
        assert len(running.push_right(numbers([2]))) == 1
        names = ("join core", "handshake core")
        pinned = [
            os.sched_getaffinity(thread.native_id)
            for thread in threading.enumerate()
            if thread.name.startswith(names)
        ]
        text = running.explain()
    assert sorted(map(sorted, pinned)) == sorted([cpu] for cpu in running.plan.cpus)
    assert len(set(running.plan.cpus)) == cores
    assert f"pinned      to processors {', '.join(map(str, running.plan.cpus))}" in text
    assert os.sched_getaffinity(0) == mine


@LINUX
def test_pinned_on_the_command_line(capfd, tmp_path):
    for name in ("l.csv", "r.csv"):
        (tmp_path / name).write_text("x\n1\n2\n")
    paths = (tmp_path / "l.csv", tmp_path / "r.csv", "--on", "l.x = r.x")
    for windows in ((), ("--window", "5 tuples")):
        assert run_here(capfd, "join", *paths, *windows, "--cores", "1", "--pin").status == 0
    complaint = run_here(capfd, "join", *paths, "--cores", "4096", "--pin").complaint
    assert "4096 cores were asked for, and this process may use" in complaint
    complaint = run_here(capfd, "join", *paths, "--algorithm", "three_step", "--pin").complaint
    assert "three_step runs in the caller's thread" in complaint


def machine(folder: Path, nodes: list[str], siblings: dict[int, str]) -> Path:
    """Write a system's description of its processors."""
    for number, cpus in enumerate(nodes):
        (folder / f"node/node{number}").mkdir(parents=True)
        (folder / f"node/node{number}/cpulist").write_text(cpus + "\n")
    for cpu, others in siblings.items():
        (folder / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (folder / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(others + "\n")
    return folder


def test_neighbours_get_processors_of_one_node_and_siblings_come_last(tmp_path):
    pairs = {cpu: f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    system = machine(tmp_path, ["0-1,4-5", "2-3,6-7"], pairs)
    assert order_processors(set(range(8)), system) == (0, 1, 4, 5, 2, 3, 6, 7)


def test_the_node_with_most_processors_to_use_comes_first(tmp_path):
    system = machine(tmp_path, ["0-3", "4-7"], {})
    assert order_processors({0, 4, 5, 6}, system) == (4, 5, 6, 0)


def test_a_node_without_processors_and_processors_without_a_node(tmp_path):
    assert order_processors({2, 9, 1}, machine(tmp_path, ["", "1-2"], {})) == (1, 2, 9)


def test_a_system_that_says_nothing_about_nodes(tmp_path):
    assert order_processors({3, 0, 2}, tmp_path) == (0, 2, 3)


@LINUX
def test_only_processors_that_this_process_may_use_are_taken():
    mine = os.sched_getaffinity(0)
    assert set(placement(len(mine))) == mine


def test_a_system_without_pinning_says_so(monkeypatch):
    monkeypatch.delattr(placement_module.os, "sched_setaffinity", raising=False)
    with pytest.raises(
        UnsupportedError, match=r"cannot be pinned on this system: it has no sched_setaffinity"
    ):
        prepare(NUMBERS, NUMBERS, "l.x = r.x", "5 tuples", pin=True)


def test_programs_spare_old_objects_the_collector_while_they_run():
    assert gc.get_freeze_count() == 0
    with spare_old_objects():
        assert gc.get_freeze_count() > 1000
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("name", ENGINES)
def test_batches_are_freed_without_the_garbage_collector(name):
    """docs/gpu.md tells users that they may switch it off."""
    engine = start_engine(name, on="l.x = r.x", window="100 tuples")
    gc.collect()
    gc.disable()
    try:
        for k in range(300):
            for side in (0, 1):
                engine.push(side, numbers([k, k + 1]))
        engine.close()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert not [o for o in gc.garbage if isinstance(o, pa.RecordBatch | pa.Array | BasicWindow)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
