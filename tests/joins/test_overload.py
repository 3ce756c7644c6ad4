"""A join that is behind: sources are held back, or tuples shed; the rest is joined as the oracle says."""

from __future__ import annotations

import json
import re
import threading
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import handshake.joins.join as local
from cli_runs import run_here
from handshake import join
from handshake.errors import HandshakeError, UnsupportedError, WindowError
from handshake.io import sink_for
from handshake.joins.gate import Gate
from handshake.joins.join import Join, Replay, prepare
from handshake.joins.tuning import Tuning
from handshake.plan.build import call, col
from handshake.testing.oracle import TIME, rows
from join_plans import options, plan_join
from pairs import pairs_of, with_row_numbers
from strategies import Case, expect, known_cases

EXAMPLES = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
ARRANGEMENTS = [("three_step", 1), ("cell", 2), ("handshake", 2), ("low_latency", 3)]
NUMBERS = pa.schema([("x", pa.int64())])


class Log:
    """The numbers of the rows that were shed, by side."""

    def __init__(self) -> None:
        self.left: list[int] = []
        self.right: list[int] = []

    def __call__(self, side: str, batch: pa.RecordBatch) -> None:
        getattr(self, side).extend(batch.column(f"row of {side}").to_pylist())

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.left), len(self.right)


@pytest.fixture
def fate(monkeypatch):
    """Let rooms be full at random, whatever waits in them."""
    rng = Random(1)
    monkeypatch.setattr(Gate, "has_room", lambda gate, side: rng.random() < 0.7)


# Pushed joins.


def check_pushes(case: Case, seed: int, algorithm: str, cores: int, ordered: bool) -> None:
    rng = Random(f"pushes {seed}")
    tables, at, log = with_row_numbers(case), {"left": 0, "right": 0}, Log()
    lateness = rng.choice((0, 1, 60)) if case.windows.timed else None
    text = {"lateness": f"{lateness} s"} if lateness is not None else {}
    chosen = {"algorithm": algorithm, "cores": cores, "ordered": ordered, "overload": "shed", "on_shed": log}
    pushed, batches = [], []
    with Join(left=tables[0], right=tables[1], on=case.on, **chosen, **options(case), **text) as running:
        while any(at[side] < t.num_rows for side, t in zip(at, tables, strict=True)):
            side = rng.choice(("left", "right"))
            table, start = tables[side == "right"], at[side]
            count = min(rng.choice((1, 2, 7, 30)), table.num_rows - start)
            batches += (running.push_left if side == "left" else running.push_right)(
                table.slice(start, count)
            )
            pushed += [(side, start + k) for k in range(count)]
            at[side] += count
            if rng.random() < 0.1:
                batches += running.take(rng.choice((0, 0.001)))
        batches += running.finish()
        metrics = running.metrics()
    arrivals = [(side, row) for side, row in pushed if row not in getattr(log, side)]
    want = expect(case, None if lateness is None else lateness * 10**9, arrivals)
    assert pairs_of(batches) == sorted(want.pairs), (case.on, case.windows, lateness)
    assert (metrics.late, metrics.no_time, metrics.results) == (want.late, want.no_time, len(want.pairs))
    assert (metrics.left_shed, metrics.right_shed) == log.counts
    assert (metrics.left_rows, metrics.right_rows) == tuple(
        table.num_rows - shed for table, shed in zip(tables, log.counts, strict=True)
    )
    assert metrics.waiting_rows == 0


@pytest.mark.usefixtures("fate")
@pytest.mark.parametrize(("algorithm", "cores"), ARRANGEMENTS)
@settings(EXAMPLES, max_examples=8)
@given(case=known_cases(), seed=st.integers(0, 2**32 - 1))
def test_pushed_tuples_that_are_not_shed_agree_with_the_oracle(algorithm, cores, case, seed):
    check_pushes(case, seed, algorithm, cores, ordered=case.windows.timed and seed % 3 == 0)


def numbers(values) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=NUMBERS)


class Held:
    """A predicate that waits until it is let go, so that the join falls behind."""

    def __init__(self) -> None:
        self.open, self.began = threading.Event(), threading.Event()

    def __call__(self, a: int, b: int) -> bool:
        self.began.set()
        assert self.open.wait(60)
        return a <= b

    def options(self, algorithm: str) -> dict:
        on = call(self, col("l.x"), col("r.x"))
        return {
            "left": NUMBERS, "right": NUMBERS, "on": on, "window": "1000 tuples",
            "algorithm": algorithm, "cores": None if algorithm == "three_step" else 2,
        }  # fmt: skip


@pytest.mark.parametrize("algorithm", local.ALGORITHMS)
def test_a_join_that_is_behind_sheds_the_newest_batches_and_never_waits(algorithm):
    held, shed = Held(), []
    running = Join(
        **held.options(algorithm),
        overload="shed",
        room=3,
        on_shed=lambda side, batch: shed.append((side, batch)),
    )
    with running:
        running.push_left(numbers([1]))
        for value in range(100):  # the first is at work at some point, a few are in the queues
            running.push_right(numbers([value, value + 1]))
        metrics = running.metrics()
        assert metrics.left_shed == 0
        assert metrics.right_shed == sum(batch.num_rows for _, batch in shed) >= 100
        assert {side for side, _ in shed} == {"right"}
        assert metrics.most_waiting_rows <= 3 + 2 + 1
        held.open.set()
        running.finish()
        metrics = running.metrics()
    gone = [batch.column("x").to_pylist() for _, batch in shed]
    kept = [v for value in range(100) if (pair := [value, value + 1]) not in gone for v in pair]
    assert metrics.right_rows == len(kept) == 200 - metrics.right_shed
    assert metrics.results == sum(value >= 1 for value in kept)
    assert metrics.shed_shares == (0.0, metrics.right_shed / 200)


def test_one_side_that_floods_does_not_take_the_other_ones_room():
    held = Held()
    with Join(**held.options("low_latency"), overload="shed", room=4) as running:
        running.push_right(numbers([5]))
        running.push_left(numbers([1]))
        assert held.began.wait(60)  # the thread behind the gate now waits for a result
        for _ in range(50):
            running.push_left(numbers([1, 2]))
        running.push_right(numbers([7]))
        metrics = running.metrics()
        held.open.set()
        found = running.finish()
    assert (metrics.left_shed > 0, metrics.right_shed) == (True, 0)
    assert (
        sum(batch.num_rows for batch in found) == running.metrics().results == 2 * (101 - metrics.left_shed)
    )


def test_results_come_without_a_push():
    with Join(left=NUMBERS, right=NUMBERS, on="l.x <= r.x", window="9 tuples", overload="shed") as running:
        found = running.push_left(numbers([1])) + running.push_right(numbers([2]))
        while not found:
            found = running.take(wait=0.05)
        assert found[0].to_pylist() == [{"x": 1, "x_right": 2}]
        assert running.finish() == []
    with pytest.raises(HandshakeError, match="closed"):
        running.take()


def test_without_shedding_nothing_is_left_to_take():
    with Join(left=NUMBERS, right=NUMBERS, on="l.x <= r.x", window="9 tuples") as running:
        running.push_left(numbers([1]))
        assert [b.num_rows for b in running.push_right(numbers([2]))] == [1]
        assert running.take(wait=0.01) == []


def test_a_silent_side_advances_through_the_gate():
    schema = pa.schema([("t", pa.int64())])
    with Join(left=schema, right=schema, on="l.t <= r.t", window="5 s", time="t", overload="shed") as running:
        running.push_left({"t": [0]})
        running.push_right({"t": [1]})
        running.advance(left=100)
        running.push_right({"t": [100]})
        running.push_left({"t": [50]})  # the watermark is 100 by now
        found = running.finish()
    assert [row for batch in found for row in batch.to_pylist()] == [{"t": 0, "t_right": 1}]
    assert (running.metrics().late, running.metrics().left_late) == (1, 1)


def test_an_error_behind_the_gate_reaches_the_caller_and_all_threads_end():
    def broken(a: int, b: int) -> bool:
        raise ZeroDivisionError("by design")

    before = threading.active_count()
    on = call(broken, col("l.x"), col("r.x"))
    running = Join(left=NUMBERS, right=NUMBERS, on=on, window="9 tuples", overload="shed")
    running.push_left(numbers([1, 2]))
    running.push_right(numbers([3]))
    with pytest.raises(HandshakeError, match="by design"):
        running.finish()
    assert threading.active_count() == before


# Replays at a pace.


def shed_arrivals(case: Case, log: Log) -> list[tuple[str, int]]:
    """Return the rows that were not shed: by time, ties left first and in row order, without a time last."""
    sides = ((case.left, case.left_time, log.left), (case.right, case.right_time, log.right))
    every = [
        (row[TIME] is None, row[TIME] or 0, side, number)
        for side, (table, name, gone) in enumerate(sides)
        for number, row in enumerate(rows(table, name))
        if number not in gone
    ]
    return [(("left", "right")[side], number) for *_, side, number in sorted(every)]


def span_of(case: Case) -> float:
    """Return the seconds from the first time to the last."""
    times = [
        row[TIME]
        for table, name in ((case.left, case.left_time), (case.right, case.right_time))
        for row in rows(table, name)
        if row[TIME] is not None
    ]
    return (max(times) - min(times)) / 1e9 if times else 0.0


def check_paced(case: Case, overload: str, algorithm: str, cores: int, ticks: int, ordered: bool) -> None:
    tables, log = with_row_numbers(case), Log()
    chosen = {"method": "auto", "algorithm": algorithm, "cores": cores, "overload": overload}
    tuning = Tuning(tick_seconds=1e-4)
    plan = plan_join(*tables, case, {**chosen, "ordered": ordered, "room": 5, "tuning": tuning})
    assume(plan is not None)
    pace = span_of(case) / (ticks * tuning.tick_seconds) or 1.0
    replay = Replay(plan, *tables, pace=pace, on_shed=log)
    got = pairs_of(list(replay))
    want = expect(case, None, shed_arrivals(case, log))
    assert got == sorted(want.pairs), (case.on, case.windows)
    metrics = replay.metrics()
    assert (metrics.left_shed, metrics.right_shed) == log.counts
    assert (metrics.late, metrics.no_time, metrics.results) == (0, want.no_time, len(want.pairs))
    assert replay.done == replay.total


@pytest.mark.usefixtures("fate")
@pytest.mark.parametrize(("algorithm", "cores"), ARRANGEMENTS)
@settings(EXAMPLES, max_examples=8)
@given(case=known_cases(), ticks=st.integers(1, 20))
def test_paced_tuples_that_are_not_shed_agree_with_the_oracle(algorithm, cores, case, ticks):
    """Tuple windows too: positions count the tuples that were taken, and no others."""
    assume(case.left_time is not None)
    check_paced(case, "shed", algorithm, cores, ticks, case.windows.timed and ticks % 3 == 0)


@settings(EXAMPLES, max_examples=8)
@given(case=known_cases(), ticks=st.integers(1, 20), number=st.integers(0, 3))
def test_a_paced_replay_that_blocks_loses_nothing(case, ticks, number):
    assume(case.left_time is not None)
    check_paced(case, "block", *ARRANGEMENTS[number], ticks, case.windows.timed and ticks % 3 == 0)


def flood(ticks: int, each: int) -> pa.Table:
    """Return rows of which `each` share a tick of the clock."""
    times = np.repeat(np.arange(ticks) * 10_000, each)
    return pa.table({"t": pa.array(times).cast(pa.timestamp("us")), "x": np.arange(len(times))})


def test_a_replay_that_cannot_keep_pace_says_what_it_shed(capfd, tmp_path):
    """Each tick brings a thousand rows a side, all of which join all of the window."""
    for name in ("l", "r"):
        with sink_for(str(tmp_path / f"{name}.parquet"), flood(1, 1).schema) as sink:
            for batch in flood(30, 1000).to_batches():
                sink.write(batch)
    outcome = run_here(
        capfd, "join", tmp_path / "l.parquet", tmp_path / "r.parquet", "--on", "l.x + r.x >= 0",
        "--time", "t", "--window", "1 minute", "--pace", "1", "--overload", "shed", "--room", "1",
        "--metrics", tmp_path / "figures.json",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    for side in ("left", "right"):
        shed, taken = figures[f"{side}_shed"], figures[f"{side}_rows"]
        assert (shed > 0, shed + taken) == (True, 30_000)
        assert figures[f"{side}_shed_share"] == shed / 30_000
        assert re.search(rf"shed .*{side} {shed:,} \({shed / 300:.2f}%\)", outcome.out)
    assert figures["results"] == figures["left_rows"] * figures["right_rows"]
    assert re.search(r"latency +p50 [\d,.]+ ms, p99 [\d,.]+ ms, longest [\d,.]+ ms", outcome.out)


def test_a_front_door_that_sheds_warns_unless_somebody_listens(monkeypatch):
    monkeypatch.setattr(Gate, "has_room", lambda gate, side: False)
    asked = {"window": "1 minute", "time": "t", "pace": 1e6, "overload": "shed"}
    with pytest.warns(RuntimeWarning, match="behind and shed 3 left and 2 right tuples"):
        assert join(flood(1, 3), flood(1, 2), "l.x <= r.x", **asked).num_rows == 0
    shed = []
    join(
        flood(1, 3),
        flood(1, 2),
        "l.x <= r.x",
        on_shed=lambda side, b: shed.append((side, b.num_rows)),
        **asked,
    )
    assert sorted(shed) == [("left", 3), ("right", 2)]


def test_a_pace_spreads_arrivals_over_the_clock(monkeypatch):
    """Each tick's tuples are pushed at its end, and no earlier."""
    moments = []
    monkeypatch.setattr(
        Gate, "until", lambda gate, moment: moments.append(moment) or iter(())
    )  # does not wait, but keeps the times
    plan = prepare(flood(1, 1).schema, flood(1, 1).schema, "l.x = r.x", "1 minute", time="t")
    assert sum(b.num_rows for b in Replay(plan, flood(5, 2), flood(5, 2), pace=0.5)) == 10
    gaps = np.diff(moments)
    assert gaps == pytest.approx([0.02] * 4, abs=1e-9)


# What is refused.


def test_what_has_no_meaning_is_refused():
    schema = pa.schema([("t", pa.int64())])
    table = pa.table({"t": [1]})
    with pytest.raises(UnsupportedError, match=r"^unknown overload 'drop'; choose block or shed$"):
        prepare(schema, schema, "l.t = r.t", "5 tuples", overload="drop")
    for room in (0, -1, 1.5, True):
        with pytest.raises(UnsupportedError, match=f"^room is a whole number from 1 up; {room!r} was given$"):
            prepare(schema, schema, "l.t = r.t", "5 tuples", room=room)
    plan = prepare(schema, schema, "l.t = r.t", "5 tuples", overload="shed")
    with pytest.raises(UnsupportedError, match="needs a clock that the join can fall behind"):
        Replay(plan, table, table)
    with pytest.raises(WindowError, match="a pace goes by time columns, and none is named"):
        Replay(plan, table, table, pace=1)
    for pace in (0, -1, float("inf"), float("nan"), "2", True):
        with pytest.raises(UnsupportedError, match="pace is a number above 0"):
            Replay(plan, table, table, pace=pace)


def test_the_command_line_refuses_what_it_cannot_do(capfd, tmp_path):
    for name in ("l.csv", "r.csv"):
        (tmp_path / name).write_text("t,x\n1,1\n")
    paths = (tmp_path / "l.csv", tmp_path / "r.csv", "--on", "l.x = r.x", "--window", "5 tuples")
    assert run_here(capfd, "join", *paths, "--overload", "drop").complaint == (
        "unknown overload 'drop'; choose block or shed"
    )
    assert "needs a clock" in run_here(capfd, "join", *paths, "--overload", "shed").complaint
    assert "none is named" in run_here(capfd, "join", *paths, "--pace", "1").complaint
