"""Joins of several streams that shed what they cannot keep up with, and whose cores come and go."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import handshake as hs
from cli_runs import run_here
from handshake.errors import HandshakeError, UnsupportedError, WindowError
from handshake.joins.arrangements.crew import Load
from handshake.joins.gate import Gate
from handshake.joins.multiway.mjoin import MJoin
from handshake.joins.plan import prepare_streams
from handshake.joins.replay import MultiReplay
from handshake.joins.tuning import Tuning
from handshake.plan.build import call, col
from handshake.schema import UNITS
from handshake.testing.oracle import TIME, rows
from multiway_cases import DEALT, SECOND, Case, changing_orders
from pairs import EXAMPLES

NUMBERS = pa.schema([("x", pa.int64())])
STREAMS = {"a": NUMBERS, "b": NUMBERS, "c": NUMBERS}
SIZES = ((3, 12), (4, 6), (2, 20))


@pytest.fixture(autouse=True)
def _no_thread_left_behind():
    yield
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith(("join core", "join gate"))]


# Cores that come and go (CellJoin 7.3).


class Forced(Load):
    """A load that asks for any number of cores at any batch."""

    def __init__(self, most: int, seed: int) -> None:
        super().__init__(most)
        self.rng, self.asked = Random(seed), {1}

    def note(self, busy: float) -> int:
        self.active = self.rng.randint(1, self.most)
        self.asked.add(self.active)
        return self.active


def check_forced(seed: int, many: int, most: int, cores: int, tuning: Tuning) -> None:
    case = Case(seed, many, most)
    spec = case.spec(tuning)
    join = MJoin(spec, case.lateness * SECOND // UNITS[spec.unit], cores, adapt=True)
    join.load = forced = Forced(cores, seed)
    arrivals, found = case.push_all(join)
    metrics = join.metrics()
    want = case.want(arrivals, by_time=case.timed)
    assert case.members(found) == sorted(want.pairs), (case.text, case.windows)
    assert (metrics.late, metrics.no_time, metrics.results) == (want.late, want.no_time, len(want.pairs))
    assert {count for _, count in metrics.core_counts} == forced.asked
    assert [moment for moment, _ in metrics.core_counts] == sorted(m for m, _ in metrics.core_counts)


@settings(EXAMPLES, max_examples=7)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), cores=st.integers(2, 4))
def test_cores_that_come_and_go_at_any_batch_lose_and_double_nothing(seed, size, cores):
    with changing_orders(seed if seed % 2 else None) as tuning:
        check_forced(seed, *size, cores, tuning)


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_busy_join_adds_cores_and_an_idle_one_releases_them():
    spec = prepare_streams(STREAMS, "a.x = b.x AND b.x = c.x", window="50 tuples").spec
    join = MJoin(spec, cores=3, adapt=True)
    batch = pa.record_batch([pa.array(range(50))], schema=NUMBERS)
    assert join.crew is not None
    assert join.crew.running() == 1

    def push(rounds: int, busy: float) -> list[int]:
        """Push a batch a second; in that second, each core in use has worked for `busy` seconds."""
        counts = []
        for _ in range(rounds):
            for k in range(3):
                clock.now += 1.0
                join.crew.busy[0] += busy * join.crew.active
                list(join.push(k, batch))
                list(join.drain())
            counts.append(join.crew.active)
        return counts

    join.load.clock = clock = Clock()
    push(2, 0.0)  # windows are empty to begin with
    assert push(12, 0.95)[-1] == 3
    assert join.crew.running() == 3
    assert push(12, 0.05)[-1] == 1
    changes = [count for _, count in join.metrics().core_counts]
    assert changes == [1, 2, 3, 2, 1]
    join.close()


# Shedding.


class Log:
    """The numbers of the rows that were shed, by stream."""

    def __init__(self, many: int) -> None:
        self.rows: list[set[int]] = [set() for _ in range(many)]

    def __call__(self, stream: str, batch: pa.RecordBatch) -> None:
        k = int(stream[1:])
        self.rows[k].update(batch.column(f"row {k}").to_pylist())


@pytest.fixture
def fate(monkeypatch):
    """Let rooms be full at random, whatever waits in them."""
    rng = Random(1)
    monkeypatch.setattr(Gate, "has_room", lambda gate, stream: rng.random() < 0.7)


def chosen(case: Case) -> dict[str, Any]:
    return {
        "windows": {f"s{k}": window for k, window in enumerate(case.windows)},
        "time": "t" if case.timed else None,
        "overload": "shed",
        "ordered": case.timed and case.rng.random() < 0.3,
    }


def check_pushes(seed: int, many: int, most: int, cores: int, tuning: Tuning) -> None:
    case, at, arrivals, found = Case(seed, many, most), [0] * many, [], []
    log, tables = Log(many), {f"s{k}": table for k, table in enumerate(case.tables)}
    lateness = f"{case.lateness} s" if case.timed else None
    options = {**chosen(case), "lateness": lateness, "cores": cores, "adapt": seed % 2 == 0, "tuning": tuning}
    with hs.MultiJoin(tables, case.text, on_shed=log, **options) as join:
        while any(at[k] < table.num_rows for k, table in enumerate(case.tables)):
            k = case.rng.randrange(many)
            size = min(case.rng.choice((1, 2, 5)), case.tables[k].num_rows - at[k])
            if size:
                found += join.push(f"s{k}", case.tables[k].slice(at[k], size))
            arrivals += [(k, at[k] + n) for n in range(size)]
            at[k] += size
            if case.rng.random() < 0.1:
                found += join.take(case.rng.choice((0, 0.001)))
        found += join.finish()
        metrics = join.metrics()
    want = case.want([(k, n) for k, n in arrivals if n not in log.rows[k]], by_time=case.timed)
    assert case.members(found) == sorted(want.pairs), (case.text, case.windows)
    assert (metrics.late, metrics.no_time, metrics.results) == (want.late, want.no_time, len(want.pairs))
    assert [stream.shed for stream in metrics.streams] == [len(gone) for gone in log.rows]
    taken = [table.num_rows - len(gone) for table, gone in zip(case.tables, log.rows, strict=True)]
    assert [stream.rows for stream in metrics.streams] == taken
    assert metrics.waiting_rows == 0


@pytest.mark.usefixtures("fate")
@settings(EXAMPLES, max_examples=7)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), cores=st.integers(1, 3))
def test_pushed_tuples_that_are_not_shed_agree_with_the_oracle(seed, size, cores):
    check_pushes(seed, *size, cores, DEALT)


def check_paced(seed: int, many: int, most: int, cores: int, overload: str, tuning: Tuning) -> None:
    case, log = Case(seed, many, most), Log(many)
    stamped = [[row[TIME] for row in rows(table, "t")] for table in case.tables]
    known = [moment for times in stamped for moment in times if moment is not None]
    assume(known)
    tables = {f"s{k}": table for k, table in enumerate(case.tables)}
    options = {**chosen(case), "time": "t", "overload": overload, "room": 3, "tuning": tuning}
    plan = prepare_streams({name: t.schema for name, t in tables.items()}, case.text, cores=cores, **options)
    span = (max(known) - min(known)) / SECOND
    pace = span / (case.rng.randint(1, 20) * tuning.tick_seconds) or 1.0
    replay = MultiReplay(plan, tables, pace=pace, on_shed=log)
    found = case.members(list(replay))
    order = sorted(
        (moment is None, moment or 0, k, n)
        for k, times in enumerate(stamped)
        for n, moment in enumerate(times)
        if n not in log.rows[k]
    )
    want = case.want([(k, n) for *_, k, n in order], by_time=True)
    metrics = replay.metrics()
    assert found == sorted(want.pairs), (case.text, case.windows)
    assert (metrics.late, metrics.no_time, metrics.results) == (0, want.no_time, len(want.pairs))
    assert [stream.shed for stream in metrics.streams] == [len(gone) for gone in log.rows]
    assert replay.done == replay.total


@pytest.mark.usefixtures("fate")
@settings(EXAMPLES, max_examples=7)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from(SIZES), cores=st.integers(1, 3))
def test_paced_tuples_that_are_not_shed_agree_with_the_oracle(seed, size, cores):
    """Tuple windows too: positions count the tuples that were taken, and no others."""
    check_paced(seed, *size, cores, "shed", replace(DEALT, tick_seconds=1e-4))


@settings(EXAMPLES, max_examples=3)
@given(seed=st.integers(0, 2**32 - 1), cores=st.integers(1, 2))
def test_a_paced_replay_that_blocks_loses_nothing(seed, cores):
    check_paced(seed, 3, 12, cores, "block", Tuning(tick_seconds=1e-4))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("fate")
@settings(EXAMPLES, max_examples=500, derandomize=False)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from(((3, 14), (4, 7), (5, 4), (2, 40))),
    cores=st.integers(1, 4),
)
def test_soak(seed, size, cores):
    with changing_orders(seed) as tuning:
        check_forced(seed, *size, max(cores, 2), tuning)
        check_pushes(seed, *size, cores, tuning)
        check_paced(seed, *size, cores, "shed", replace(tuning, tick_seconds=1e-4))


def numbers(values: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


@pytest.mark.parametrize("cores", [1, 2])
def test_a_join_that_is_behind_sheds_the_newest_batches_and_never_waits(cores):
    gate, shed = threading.Event(), []

    def slow(a: int, b: int) -> bool:
        assert gate.wait(60)
        return a <= b

    on = call(slow, col("a.x"), col("b.x")) & (col("c.x") == 0)
    join = hs.MultiJoin(
        STREAMS, on, window="1000 tuples", cores=cores, overload="shed", room=3,
        on_shed=lambda stream, batch: shed.append((stream, batch.column("x").to_pylist())),
    )  # fmt: skip
    with join:
        join.push("a", numbers([1]))
        join.push("c", numbers([0]))
        for value in range(100):  # a few are in the queues, one is at work at some point
            join.push("b", numbers([value, value + 1]))
        assert {stream for stream, _ in shed} == {"b"}
        assert join.metrics().most_waiting_rows <= 3 + 2 + 2
        gate.set()
        join.finish()
        metrics = join.metrics()
    gone = [pair for _, pair in shed]
    kept = [v for value in range(100) if (pair := [value, value + 1]) not in gone for v in pair]
    b = metrics.streams[1]
    assert (b.shed, b.rows) == (2 * len(gone), len(kept))
    assert b.shed_share == b.shed / 200
    assert (metrics.shed, metrics.results) == (b.shed, sum(value >= 1 for value in kept))
    assert metrics.to_dict()["streams"][1]["shed_share"] == b.shed_share


def test_results_come_without_a_push_and_a_silent_stream_advances():
    event = pa.schema([("t", pa.int64())])
    streams = {"a": event, "b": event, "c": event}
    on = "a.t <= b.t AND b.t <= c.t"
    with hs.MultiJoin(streams, on, window="5 s", time="t", overload="shed", ordered=True) as join:
        found = join.push("a", {"t": [0]}) + join.push("b", {"t": [1]}) + join.push("c", {"t": [2]})
        for stream in streams:
            found += join.advance(stream, 100)
        while not found:
            found = join.take(wait=0.05)
        assert found[0].to_pylist() == [{"t": 0, "t_b": 1, "t_c": 2}]
        join.push("a", {"t": [50]})
        assert join.finish() == []
        assert join.metrics().late == 1
    with pytest.raises(HandshakeError, match="closed"):
        join.take()


def test_an_error_behind_the_gate_reaches_the_caller_and_all_threads_end():
    def broken(a: int, b: int) -> bool:
        raise ZeroDivisionError("by design")

    on = call(broken, col("a.x"), col("b.x")) & (col("b.x") == col("c.x"))
    join = hs.MultiJoin(STREAMS, on, window="9 tuples", cores=2, overload="shed")
    for stream in STREAMS:
        join.push(stream, numbers([1, 2]))
    with pytest.raises(HandshakeError, match="by design"):
        join.finish()


# The command line, plans, and what is refused.


def flood(ticks: int, each: int) -> pa.Table:
    times = np.repeat(np.arange(ticks) * 10_000, each)
    return pa.table({"t": pa.array(times).cast(pa.timestamp("us")), "x": np.arange(len(times))})


def test_a_replay_that_cannot_keep_pace_says_what_it_shed(capfd, tmp_path):
    inputs = []
    for name in "abc":
        pa.parquet.write_table(flood(20, 40), tmp_path / f"{name}.parquet")
        inputs.append(f"{name}={tmp_path / name}.parquet")
    outcome = run_here(
        capfd, "multijoin", *inputs, "--on", "a.x + b.x + c.x >= 0 AND a.x % 50 = 0", "--time", "t",
        "--window", "1 minute", "--pace", "10", "--overload", "shed", "--room", "1", "--adapt",
        "--output", tmp_path / "out.parquet", "--metrics", tmp_path / "figures.json",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["shed"] > 0
    for stream in figures["streams"]:
        assert stream["shed"] + stream["rows"] == 800
        share = f"{stream['name']} {stream['shed']:,} ({stream['shed'] / 800:.2%})"
        assert re.search(rf"shed .*{re.escape(share)}", outcome.out)
    assert figures["core_counts"][0] == [0.0, 1]


def test_a_front_door_that_sheds_warns_unless_somebody_listens(monkeypatch):
    monkeypatch.setattr(Gate, "has_room", lambda gate, stream: stream == 0)
    tables = {"a": flood(1, 3), "b": flood(1, 2), "c": flood(1, 1)}
    asked = {"window": "1 minute", "time": "t", "pace": 1e6, "overload": "shed"}
    with pytest.warns(RuntimeWarning, match="behind and shed tuples: 0 of a, 2 of b, 1 of c"):
        assert hs.join_streams(tables, "a.x <= b.x AND b.x <= c.x", **asked).num_rows == 0
    shed = []
    hs.join_streams(tables, "a.x <= b.x", on_shed=lambda name, b: shed.append((name, b.num_rows)), **asked)
    assert sorted(shed) == [("b", 2), ("c", 1)]


def test_plans_say_that_cores_adapt_and_tuples_may_be_shed():
    tables = {name: flood(1, 2) for name in "abc"}
    plain = hs.explain_streams(tables, "a.x = b.x", cores=2)
    text = hs.explain_streams(tables, "a.x = b.x", cores=2, adapt=True, overload="shed", room=5, window="9 s",
                              time="t")  # fmt: skip
    assert text.splitlines()[-2:] == [
        "adapts      from 1 to 2 cores, as the load asks for",
        "overload    a batch is shed when 5 tuples of its stream wait before the join",
    ]
    assert "adapts" not in plain


def test_what_has_no_meaning_is_refused(capfd, tmp_path):
    tables = {name: {"x": [1]} for name in "abc"}
    with pytest.raises(UnsupportedError, match=r"^unknown overload 'drop'; choose block or shed$"):
        hs.join_streams(tables, "a.x = b.x", overload="drop")
    with pytest.raises(UnsupportedError, match=r"^room is a whole number from 1 up; 0 was given$"):
        hs.join_streams(tables, "a.x = b.x", room=0)
    with pytest.raises(UnsupportedError, match=r"needs a clock that the join can fall behind.* a MultiJoin"):
        hs.join_streams(tables, "a.x = b.x", overload="shed")
    with pytest.raises(WindowError, match="a pace goes by time columns, and none is named"):
        hs.join_streams(tables, "a.x = b.x", pace=1)
    for pace in (0, -1, float("inf"), "2", True):
        with pytest.raises(UnsupportedError, match="pace is a number above 0"):
            hs.join_streams(tables, "a.x = b.x", pace=pace)
    (tmp_path / "a.csv").write_text("x\n1\n")
    inputs = [f"{name}={tmp_path / 'a'}.csv" for name in "abc"]
    told = run_here(capfd, "multijoin", *inputs, "--on", "a.x = b.x", "--overload", "drop").complaint
    assert told == "unknown overload 'drop'; choose block or shed"
    told = run_here(capfd, "multijoin", *inputs, "--on", "a.x = b.x", "--overload", "shed").complaint
    assert "needs a clock" in told
