"""Outer, semi and anti joins: every arrangement, access method and way of feeding agrees with the oracle."""

from __future__ import annotations

import math
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
from handshake.errors import HandshakeError, UnsupportedError, WindowError
from handshake.joins.join import Join, Replay, prepare
from handshake.joins.tuning import TUNING, Tuning
from handshake.kinds import KINDS, kind_of_join
from handshake.testing.oracle import TIME, evaluate, of_kind
from join_plans import METHODS, plan_join
from oracle_steps import final_after
from pairs import EXAMPLES, with_row_numbers
from pushes import Pushes
from strategies import Case, Clock, bound, cases, expect, make_times, make_windows

ARRANGEMENTS = [
    ("three_step", 1), ("low_latency", 1), ("low_latency", 3), ("cell", 1), ("cell", 2), ("handshake", 1),
    ("handshake", 3),
]  # fmt: skip
ALL_INDEXED = Tuning(
    indexed_from=1, indexed_probes=1, clustered_after=0, merged_at_once=4, slice_rows=37, shared_seconds=-1.0
)
"""Every basic window indexed, merges in threads, slices of a few tuples, and batches shared by all cores."""
NAMES = ("row of left", "row of right")
PREDICATES = (
    "l.k = r.k AND l.x > 0",
    "l.x BETWEEN r.x - 1 AND r.x + 1 AND r.k < 4",
    "l.k < r.k OR l.x = r.x",
)
"""Few, since each takes seconds to compile for all arrangements: by hash, by band, and by scan."""


def small_case(seed: int, sizes: tuple[int, int]) -> Case:
    """Return a join on one of the predicates: ties, disorder, NULL and NaN, under windows of any kind."""
    rng = Random(seed)
    windows = make_windows(rng)
    timed = windows.timed or rng.random() < 0.5
    tables = []
    for size in sizes:
        columns = {
            "k": pa.array(rng.choices((None, 1, 2, 3, 4, 5, 6), k=size), pa.int32()),
            "x": pa.array(rng.choices((None, math.nan, -1.5, 0.0, 0.5, 1.0, 2.0, 7.0), k=size), pa.float64()),
        }
        if timed:
            clock = Clock(("t", "t"), (pa.timestamp("s"), pa.timestamp("s")), 10**9, rng.choice((0, 10**18)))
            columns["t"] = make_times(rng, clock, 0, size, windows.timed)
        tables.append(pa.table(columns))
    time = "t" if timed else None
    return Case(*tables, rng.choice(PREDICATES), windows, time, time)


SIZES = st.integers(0, 30)
SEEDS = st.integers(0, 2**32 - 1)
SMALL_CASES = st.builds(small_case, SEEDS, st.tuples(SIZES, SIZES))


def found_in(batches) -> list[tuple]:
    """Return the numbers of the rows in each result; None for a row of NULLs, or a side that is not shown."""
    found = []
    for batch in batches:
        sides = [
            batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
            for name in NAMES
        ]
        found += zip(*sides, strict=True)
    return found


def expected_results(case: Case, kind: str, result) -> list[tuple]:
    return of_kind(kind, result, (case.left.num_rows, case.right.num_rows))


def in_turn(list_, *numbers):
    return list_[sum(numbers) % len(list_)]


def check_replay(case: Case, tuning: Tuning) -> None:
    """Replay a case as every kind of join."""
    result, (left, right) = expect(case), with_row_numbers(case)
    for n, kind in enumerate(KINDS):
        algorithm, cores = in_turn(ARRANGEMENTS, n, left.num_rows, len(case.on))
        method = in_turn(METHODS, n // 2, right.num_rows)
        chosen = {"method": method, "algorithm": algorithm, "cores": cores, "tuning": tuning, "how": kind}
        by_default = {**chosen, "method": "auto"}
        plan = plan_join(left, right, case, chosen) or plan_join(left, right, case, by_default)
        if plan is None:
            continue
        replay = Replay(plan, left, right)
        got = found_in(replay)
        assert sorted(got, key=repr) == expected_results(case, kind, result), (chosen, case.on, case.windows)
        metrics = replay.metrics()
        assert (metrics.results, metrics.no_time) == (len(got), result.no_time), chosen
        if kind != "inner":
            check_counts(case, kind, result, metrics)


def check_counts(case: Case, kind: str, result, metrics) -> None:
    sizes, tracked = (case.left.num_rows, case.right.num_rows), KINDS[kind].tracked
    matched = sum(len({pair[side] for pair in result.pairs}) for side in (0, 1) if tracked[side])
    assert metrics.matched == matched
    if KINDS[kind].preserves:
        assert metrics.unmatched == sum(sizes[side] for side in (0, 1) if tracked[side]) - matched
        assert (metrics.pending, metrics.finalised) == (0, matched + metrics.unmatched)


@settings(EXAMPLES, max_examples=8)
@given(case=SMALL_CASES, seed=SEEDS)
def test_replayed_tables_agree_with_the_oracle(case, seed):
    check_replay(case, in_turn((TUNING, ALL_INDEXED), seed))


def check_pushes(case: Case, seed: int, tuning: Tuning) -> None:
    """Push a case as every kind of join; check the results, and when rows without a match come."""
    for n, kind in enumerate(KINDS):
        algorithm, cores = in_turn(ARRANGEMENTS, n, seed)
        chosen = {"algorithm": algorithm, "cores": cores, "tuning": tuning, "how": kind}
        if any(p and w is None for p, w in zip(KINDS[kind].preserved, case.windows, strict=True)):
            with pytest.raises(WindowError, match="no row without a match is ever final"):
                Pushes(case, seed, Join, found_in, **chosen)
            continue
        pushes = Pushes(case, seed, Join, found_in, **chosen)
        pushes.run()
        got, result = sorted((pair for *_, pair in pushes.found), key=repr), pushes.expected_result()
        assert got == expected_results(case, kind, result), (chosen, case.on, case.windows, pushes.arrivals)
        if KINDS[kind].preserves:
            check_moments(case, pushes)


def check_moments(case: Case, pushes: Pushes) -> None:
    """Check that a row without a match comes with the push that makes it final.

    If no row could ever match it, it may come with its own push.
    """
    streams, times = [pushes.rows(0), pushes.rows(1)], (TIME, TIME) if case.left_time else None
    final = final_after(streams, case.windows, pushes.lateness, pushes.arrivals, times)
    place = {row: n for n, row in enumerate(pushes.arrivals)}
    on = bound(case)
    for before, after, pair in pushes.found:
        if None not in pair:
            continue
        side = pair.index(None) ^ 1
        row = (side, pair[side])
        if before < final[row] <= after or (final[row] == math.inf and before == len(pushes.arrivals)):
            continue
        assert before <= place[row] < after, (row, final[row], before, after)
        mine = streams[side][row[1]]
        for other in streams[1 - side]:
            assert evaluate(on, (other, mine) if side else (mine, other)) is not True


@settings(EXAMPLES, max_examples=9)
@given(case=SMALL_CASES, seed=SEEDS)
def test_pushed_batches_agree_with_the_oracle_in_any_interleaving(case, seed):
    check_pushes(case, seed, in_turn((TUNING, ALL_INDEXED), seed))


# Order, by hand.

EVENT = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])


def event(*rows: tuple[int | None, int | None]) -> dict:
    return {"t": [t for t, _ in rows], "x": [x for _, x in rows]}


def xs(batches) -> list[tuple]:
    """Return the values of both sides in each result."""
    return [tuple(row[name] for name in row if name[0] == "x") for b in batches for row in b.to_pylist()]


def timed_join(how: str, **more) -> Join:
    return Join(left=EVENT, right=EVENT, on="l.x = r.x", window="10 s", time="t", how=how, **more)


def test_a_row_without_a_match_comes_when_the_watermark_has_passed_its_window():
    join = timed_join("full")
    assert xs(join.push_left(event((0, 1), (5, 2)))) == []
    assert xs(join.push_right(event((9, 2)))) == [(2, 2)]
    assert xs(join.push_left(event((10, 3)))) == []  # the watermark is 9: a right row of time 9 joins (0, 1)
    assert xs(join.advance(right=10)) == [(1, None)]
    assert xs(join.push_right(event((30, 4)))) == []  # the watermark is still that of the left stream
    assert xs(join.advance(left=20)) == [(3, None)]
    assert sorted(xs(join.finish())) == [(None, 4)]


def test_rows_that_can_match_nothing_come_at_once():
    join = timed_join("left_anti")
    assert xs(join.push_left(event((0, None), (None, 7), (0, 1)))) == [(7,), (None,)]
    assert join.metrics().unmatched == 2
    assert xs(join.finish()) == [(1,)]


def test_late_rows_are_no_results():
    join = timed_join("left")
    join.push_right(event((100, 1)))
    assert xs(join.push_left(event((100, 2), (99, 3)))) == []
    assert xs(join.finish()) == [(2, None)]
    assert join.metrics().late == 1


def test_tuple_windows_let_rows_go_by_their_number():
    join = Join(left=EVENT, right=EVENT, on="l.x = r.x", window="2 tuples", how="left")
    assert xs(join.push_left(event((0, 1), (0, 2)))) == []
    assert xs(join.push_left(event((0, 3)))) == [(1, None)]
    assert xs(join.push_right(event((0, 2), (0, 3)))) == [(2, 2), (3, 3)]
    assert xs(join.push_left(event((0, 4), (0, 5), (0, 6)))) == [(4, None)]
    assert xs(join.finish()) == [(5, None), (6, None)]


def test_leaving_without_the_rows_that_wait_is_an_error():
    with pytest.raises(HandshakeError, match="1 results were held back and not taken"):  # noqa: SIM117
        with timed_join("left") as join:
            join.push_left(event((0, 1)))


def moments(found: list[tuple], times: list[list[int]], length: int) -> list[int]:
    """Return the time of each result: that of its newer row, or the end of its window."""
    return [
        max(times[0][left], times[1][right])
        if left is not None and right is not None
        else (times[0][left] if right is None else times[1][right]) + length
        for left, right in found
    ]


@settings(EXAMPLES, max_examples=8)
@given(seed=SEEDS, sizes=st.tuples(SIZES, SIZES), lateness=st.sampled_from((0, 3)))
def test_ordered_results_come_by_time(seed, sizes, lateness):
    """Pushed and replayed: rows without a match come in order, too."""
    rng = Random(seed)
    tables = []
    for side, size in enumerate(sizes):
        ticks = sorted(rng.choices(range(40), k=size))
        ticks.sort(key=lambda tick: tick + rng.randint(0, 3))
        columns = {
            "t": ticks,
            "k": rng.choices((None, 1, 2, 3, 4, 5, 6, 7), k=size),
            NAMES[side]: range(size),
        }
        schema = pa.schema([("t", pa.int64()), ("k", pa.int32()), (NAMES[side], pa.int64())])
        tables.append(pa.table({name: list(values) for name, values in columns.items()}, schema))
    for kind in KINDS:
        given_options = {"on": "l.k = r.k", "window": "5 s", "time": "t", "how": kind, "ordered": True}
        join = Join(left=tables[0], right=tables[1], lateness=f"{lateness} s", **given_options)
        arrivals = [(side, i) for side in (0, 1) for i in range(sizes[side])]
        arrivals.sort(key=lambda at: tables[at[0]].column("t")[at[1]].as_py() + rng.random())
        got = []
        for side, i in arrivals:
            got += found_in((join.push_right if side else join.push_left)(tables[side].slice(i, 1)))
        got += found_in(join.finish())
        times = [table.column("t").to_pylist() for table in tables]
        check_order(kind, got, times)
        plan = prepare(tables[0].schema, tables[1].schema, **given_options)
        check_order(kind, found_in(Replay(plan, *tables)), times)


def check_order(kind: str, found: list[tuple], times) -> None:
    if KINDS[kind].pairs == "first":
        assert len(set(found)) == len(found)
        return
    by_time = moments(found, times, 5)
    assert by_time == sorted(by_time), kind


def test_rows_of_an_ordered_semi_join_come_with_their_earliest_pair():
    join = timed_join("left_semi", ordered=True)
    join.push_left(event((0, 1), (1, 2)))
    join.push_right(event((5, 1), (3, 2), (4, 1)))
    assert xs(join.advance(left=3)) == [(2,)]
    assert xs(join.advance(left=9, right=9)) == [(1,)]
    assert xs(join.push_left(event((9, 1)))) == [(1,)]
    assert xs(join.push_right(event((9, 1)))) == []
    assert xs(join.finish()) == []


def test_ordered_semi_joins_need_a_time_window_on_the_left():
    with pytest.raises(UnsupportedError, match="need a time window on the side that is shown"):
        timed_join("left_semi", ordered=True, left_window="5 tuples")


# Everything else that a join can be.


def odd_sum(a: int, b: int) -> bool:
    return (a + b) % 2 == 1


@pytest.mark.parametrize("algorithm", ["three_step", "low_latency", "cell", "handshake"])
def test_python_callables_decide_matching(algorithm):
    left, right = {"a": [1, 2, 4]}, {"b": [2, 6]}
    on = hs.call(odd_sum, hs.left.a, hs.right.b)
    for kind, want in {"left": [(1, 2), (1, 6), (2, None), (4, None)], "left_anti": [(2,), (4,)]}.items():
        found = hs.join(left, right, on, how=kind, window="9 tuples", algorithm=algorithm, cores=2)
        assert sorted((tuple(row.values()) for row in found.to_pylist()), key=repr) == want


def test_behind_a_gate_all_rows_come():
    join = timed_join("left", overload="shed")
    found = [*join.push_left(event((0, 1), (0, 2))), *join.push_right(event((0, 2), (50, 3)))]
    found += join.advance(left=50)
    found += join.take(0.2)
    found += join.finish()
    assert sorted(xs(found), key=repr) == [(1, None), (2, 2)]


def test_paced_replays_agree():
    left, right = event((0, 1), (1, 2), (2, 3)), event((0, 2), (2, 9))
    options = {"on": "l.x = r.x", "window": "2 s", "time": "t", "how": "full", "pace": 100.0}
    found = hs.join(left, right, **options).to_pylist()
    assert sorted((row["x"], row["x_right"]) for row in found if row["x"] is not None) == [
        (1, None), (2, 2), (3, None),
    ]  # fmt: skip
    assert [row["x_right"] for row in found if row["x"] is None] == [9]


def test_schemas_of_results():
    text = pa.dictionary(pa.int8(), pa.string())
    strict = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("s", text)])
    table = pa.table({"x": [1, 2], "s": pa.array(["a", None]).dictionary_encode().cast(text)}, strict)
    found = {how: hs.join(table, table, "l.x = r.x - 1", how=how) for how in KINDS}
    nullable = {
        how: tuple(field.nullable for field in result.schema if field.name[0] == "x")
        for how, result in found.items()
    }
    assert nullable == {
        "inner": (False, False), "left": (False, True), "right": (True, False), "full": (True, True),
        "left_semi": (False,), "left_anti": (False,), "right_semi": (False,), "right_anti": (False,),
    }  # fmt: skip
    assert found["full"].num_rows == 3
    assert found["left"].to_pylist()[1] == {"x": 2, "s": None, "x_right": None, "s_right": None}
    assert found["right_anti"].to_pylist() == [{"x": 1, "s": "a"}]


def test_frames_stay_what_they_are():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    left, right = {"x": [1, 2]}, {"a": [2]}
    for made in (pandas.DataFrame, polars.DataFrame):
        found = hs.join(made(left), made(right), "l.x = r.a", how="left_anti")
        assert type(found) is made
        assert list(found["x"]) == [1]
        assert len(hs.join(made(left), made(right), "l.x = r.a", how="outer")) == 2


def test_empty_sides():
    none = pa.table({"x": pa.array([], pa.int64())})
    some = pa.table({"x": [1]})
    sizes = {how: hs.join(some, none, "l.x = r.x", how=how).num_rows for how in KINDS}
    assert sizes == {
        "inner": 0, "left": 1, "right": 0, "full": 1, "left_semi": 0, "left_anti": 1, "right_semi": 0,
        "right_anti": 0,
    }  # fmt: skip


def test_states_are_forgotten_when_rows_leave():
    """A long stream does not grow the state; numbers may pass 2**32."""
    join = timed_join("left", algorithm="three_step")
    states = join._joined.driver.tracked[0].states
    states._first = 2**32 - 1500
    found = []
    for second in range(0, 3000, 5):
        found += join.push_left(event(*((second, second) for _ in range(5))))
        found += join.push_right(event((second, second if second % 2 else None)))
    found += join.finish()
    assert sum(batch.num_rows for batch in found) == 3000
    assert states.nbytes <= 4096
    assert (states.matched, states.unmatched, states.pending) == (1500, 1500, 0)


def test_explanations_name_the_kind():
    plan = prepare(EVENT, EVENT, "l.x = r.x", "10 s", time="t", how="left_outer")
    lines = plan.explain().splitlines()
    assert "kind        left: the pairs, and left rows without a match, with NULLs" in lines
    assert "held        5 bytes per left row in the window: its number and whether it matched" in lines
    assert any(line.startswith("unmatched   left rows come when they have left 10 seconds") for line in lines)


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("inner", "inner"), ("cross", "inner"), ("outer", "full"), ("full", "full"), ("fullouter", "full"),
        ("full_outer", "full"), ("left", "left"), ("leftouter", "left"), ("left_outer", "left"),
        ("right", "right"), ("rightouter", "right"), ("right_outer", "right"), ("semi", "left_semi"),
        ("leftsemi", "left_semi"), ("left_semi", "left_semi"), ("anti", "left_anti"),
        ("leftanti", "left_anti"), ("left_anti", "left_anti"), ("LEFT", "left"), ("Right Semi", "right_semi"),
    ],
)  # fmt: skip
def test_spellings(how, name):
    assert kind_of_join(how).name == name


def test_spellings_of_best_matches():
    left, right = {"t": [1, 9], "x": [1, 2]}, {"t": [5], "x": [2]}
    for how, rows in (("LEFT", 2), ("left_outer", 2), ("Inner", 1)):
        assert hs.asof(left, right, time="t", how=how).num_rows == rows
        assert hs.nearest(left, right, "l.x = r.x", by="l.t", how=how).num_rows == rows
    for how in ("semi", "full", None, ["left"]):
        with pytest.raises(hs.UnsupportedError, match="how='inner'"):
            hs.asof(left, right, time="t", how=how)


@pytest.mark.soak
@pytest.mark.timeout(0)
@settings(EXAMPLES, max_examples=1_000, derandomize=False)
@given(case=cases(max_rows=60), seed=SEEDS)
def test_soak(case, seed):
    for tuning in (TUNING, ALL_INDEXED):
        check_replay(case, tuning)
        check_pushes(case, seed, tuning)
