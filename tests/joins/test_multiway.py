"""The front door for three and more streams: tables, pushes, plans, errors."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import handshake as hs
import handshake.joins.replay as replaying
from handshake.errors import HandshakeError, InputError, SchemaError, UnsupportedError, WindowError
from handshake.joins.tuning import TUNING, Tuning
from handshake.windows import TupleWindow
from multiway_cases import DEALT, SECOND, Case, changing_orders
from pairs import EXAMPLES

EVENT = pa.schema([("t", pa.timestamp("s")), ("x", pa.int64())])
STREAMS = {"a": EVENT, "b": EVENT, "c": EVENT}
TABLES = {
    "a": {"t": [0, 10, 20], "x": [1, 2, None]},
    "b": {"t": [1, 12, 13], "y": [1, 2, 2], "z": [5, 6, 7]},
    "c": {"t": [2, 13, 90], "u": [0, 6, 6], "v": [9, 7, 7]},
}
ON = "a.x = b.y AND b.z BETWEEN c.u AND c.v"


# Replays against the oracle.


def replay_streams(
    case: Case, cores: int, *, by_time: bool, ordered: bool = False, tuning: Tuning = TUNING
) -> pa.Table:
    tables = {f"s{k}": table for k, table in enumerate(case.tables)}
    windows = {f"s{k}": window for k, window in enumerate(case.windows)}
    time = "t" if by_time else None
    schemas = {name: table.schema for name, table in tables.items()}
    plan = hs.prepare_streams(
        schemas, case.text, windows=windows, time=time, cores=cores, ordered=ordered, tuning=tuning
    )
    return pa.Table.from_batches(hs.MultiReplay(plan, tables), plan.output_schema)


@settings(EXAMPLES, max_examples=7)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.sampled_from(((3, 12), (4, 6))),
    cores=st.integers(1, 4),
    slices=st.sampled_from(((1, 3), (4, 8), (1 << 12, 1 << 16))),
)
def test_replayed_tables_agree_with_the_oracle(seed, size, cores, slices):
    case = Case(seed, *size)
    by_time = case.timed or case.rng.random() < 0.5
    with changing_orders(seed) as changing:
        tuning = replace(changing, first_slice_rows=slices[0], slice_rows=slices[1])
        got = replay_streams(case, cores, by_time=by_time, ordered=case.timed, tuning=tuning)
    want = case.want(None, by_time=by_time)
    assert case.members(got.to_batches()) == sorted(want.pairs), (case.text, case.windows)
    if case.timed:
        assert in_order(got)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("cores", [1, 2])
def test_slices_of_a_replay_do_not_expire_what_their_neighbours_ask_for(size, cores):
    case = Case(1, 3, 0)
    case.tables = [pa.table({f"row {k}": range(12), "t": pa.nulls(12, pa.timestamp("s"))}) for k in range(3)]
    case.windows, case.text = [TupleWindow(size)] * 3, "TRUE"
    got = replay_streams(case, cores, by_time=False, tuning=replace(DEALT, slice_rows=9))
    assert case.members(got.to_batches()) == sorted(case.want(None, by_time=False).pairs)


def in_order(table: pa.Table) -> bool:
    times = [name for name in table.column_names if name == "t" or name.startswith("t_")]
    moments = [max(row.values()) for row in table.select(times).to_pylist()]
    return moments == sorted(moments)


# What users see.


def test_windows_of_each_kind_at_once():
    windows = {"a": "15 seconds", "b": hs.Tuples(2), "c": None}
    found = hs.join_streams(TABLES, ON, windows=windows, time="t").to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [
        (0, 1, 1, 1, 5, 2, 0, 9),
        (10, 2, 12, 2, 6, 2, 0, 9),
        (10, 2, 12, 2, 6, 13, 6, 7),
        (10, 2, 13, 2, 7, 2, 0, 9),
        (10, 2, 13, 2, 7, 13, 6, 7),
    ]


def test_columns_that_a_stream_before_has_say_their_stream():
    found = hs.join_streams(TABLES, ON)
    assert found.column_names == ["t", "x", "t_b", "y", "z", "t_c", "u", "v"]


def test_results_come_in_the_kind_that_was_given():
    frames = {name: pd.DataFrame(table) for name, table in TABLES.items()}
    assert isinstance(hs.join_streams(frames, ON), pd.DataFrame)
    lazy = {name: pl.LazyFrame(table) for name, table in TABLES.items()}
    assert isinstance(hs.join_streams(lazy, ON), pl.DataFrame)
    assert isinstance(hs.join_streams({**frames, "a": TABLES["a"]}, ON), pa.Table)


def test_built_predicates_and_python_functions():
    on = (hs.col("a.x") == hs.col("b.y")) & hs.call(lambda z, u: z == u, hs.col("b.z"), hs.col("c.u"))
    found = hs.join_streams(TABLES, on, cores=2)
    assert sorted(row["z"] for row in found.to_pylist()) == [6, 6]


def test_two_streams_join_as_by_join():
    tables = {"a": TABLES["a"], "b": TABLES["b"]}
    many = hs.join_streams(tables, "a.x < b.z", window="12 seconds", time="t")
    two = hs.join(*tables.values(), "l.x < r.z", window="12 seconds", time="t")
    assert sorted(map(str, many.to_pylist())) == sorted(
        str({("t_b" if k == "t_right" else k): v for k, v in row.items()}) for row in two.to_pylist()
    )


def test_no_predicate_joins_all_that_windows_allow():
    found = hs.join_streams({"a": {"x": [1, 2]}, "b": {"y": [3]}, "c": {"z": [4, 5]}})
    assert found.num_rows == 4
    assert hs.join_streams({"a": {"x": [1, 2]}, "b": {"y": [3]}, "c": {"z": [4, 5]}}, "1 = 2").num_rows == 0


def test_empty_streams_make_no_results():
    empty = {**TABLES, "b": pa.table({"t": pa.array([], pa.int64()), "y": [], "z": []})}
    assert hs.join_streams(empty, ON, window="5 s", time="t").num_rows == 0
    nothing = {name: pa.table(table).slice(0, 0) for name, table in TABLES.items()}
    assert hs.join_streams(nothing, ON, window="5 s", time="t", cores=2).num_rows == 0


def test_time_columns_by_name_of_the_stream():
    tables = {"a": {"s": [1], "x": [1]}, "b": {"t": [2], "x": [1]}, "c": {"T": [30], "x": [1]}}
    on, time = "a.x = b.x AND b.x = c.x", {"a": "s", "b": "t", "c": "t"}
    assert hs.join_streams(tables, on, window="60 s", time=time).num_rows == 1
    assert hs.join_streams(tables, on, window="9 s", time=time).num_rows == 0
    assert hs.join_streams(tables, on, window="9 s", windows={"a": None, "b": "1 h"}, time=time).num_rows == 1


# Pushed.


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


@pytest.mark.parametrize("cores", [1, 2])
def test_a_push_returns_what_it_completes(cores):
    with hs.MultiJoin(STREAMS, "a.x < b.x AND b.x < c.x", window="1 minute", time="t", cores=cores) as join:
        assert join.push("a", {"t": [0, 1], "x": [1, 9]}) == []
        assert join.push("c", [{"t": 2, "x": 7}]) == []
        (found,) = join.push("b", pa.record_batch([pa.array([3], pa.timestamp("s")), [5]], schema=EVENT))
        assert found.schema == join.output_schema
        assert found.num_rows == 1
        figures = join.metrics()
    assert [stream.rows for stream in figures.streams] == [2, 1, 1]
    assert (figures.results, figures.rows, len(figures.cores)) == (1, 4, cores)
    assert join.metrics().results == 1
    assert join.explain().splitlines()[-1].startswith(f"algorithm   mjoin, cores: {cores}")


def test_late_tuples_are_dropped_and_counted_by_stream():
    with hs.MultiJoin(STREAMS, "a.x = b.x AND b.x = c.x", window="1 h", time="t", lateness="5 s") as join:
        for name in "abc":
            join.push(name, {"t": [100], "x": [0]})
        assert join.push("b", {"t": [95, 94, None], "x": [0, 0, 0]})[0].num_rows == 1
        figures = join.metrics()
    assert [(s.late, s.no_time) for s in figures.streams] == [(0, 0), (1, 1), (0, 0)]
    assert (figures.late, figures.no_time) == (1, 1)


def test_tuples_that_their_own_conditions_rule_out_are_counted_and_keep_their_place():
    with hs.MultiJoin(STREAMS, "a.x > 5 AND a.x = b.x AND b.x = c.x", windows={"a": hs.Tuples(2)}) as join:
        join.push("a", {"t": [0, 0, 0], "x": [6, 1, 2]})
        join.push("b", {"t": [0], "x": [6]})
        assert join.push("c", {"t": [0], "x": [6]}) == []  # 6 is the last but two
        assert join.metrics().streams[0].unmatchable == 2


def test_ordered_results_wait_for_the_watermark():
    with hs.MultiJoin(STREAMS, "a.x = b.x AND b.x = c.x", window="1 h", time="t", ordered=True) as join:
        join.push("a", {"t": [0, 5], "x": [1, 1]})
        join.push("b", {"t": [3], "x": [1]})
        assert join.push("c", {"t": [1], "x": [1]}) == []
        assert rows_of(join.advance("c", 2)) == []
        assert len(rows_of(join.advance("c", 4))) == 1
        assert len(rows_of(join.finish())) == 1


def test_held_back_results_are_not_forgotten_silently():
    def leave() -> None:
        with hs.MultiJoin(STREAMS, "TRUE", window="1 h", time="t", ordered=True) as join:
            for name in "abc":
                join.push(name, {"t": [ord(name)], "x": [1]})

    with pytest.raises(HandshakeError, match="1 results were held back and not taken; call finish"):
        leave()


def test_a_silent_stream_that_advances_lets_windows_expire():
    with hs.MultiJoin(STREAMS, "a.x = b.x AND b.x = c.x", window="10 s", time="t") as join:
        for start in range(0, 40_000, 4000):
            for name in "ab":
                join.push(name, {"t": list(range(start, start + 4000)), "x": [0] * 4000})
        held = join.metrics().streams[0].window_rows
        join.advance("c", 39_999)
        assert held == 40_000
        assert join.metrics().streams[0].window_rows < 10_000


def test_threads_end_when_a_join_is_closed_or_forgotten():
    before = threading.active_count()
    join = hs.MultiJoin(STREAMS, "a.x = b.x AND b.x = c.x", cores=3)
    assert threading.active_count() == before + 3
    join.close()
    assert threading.active_count() == before
    with pytest.raises(HandshakeError, match="this join is closed; make a new one to push more tuples"):
        join.push("a", {"t": [0], "x": [0]})
    join = hs.MultiJoin(STREAMS, "a.x = b.x AND b.x = c.x", cores=3)
    del join
    gc.collect()
    ended = threading.Event()
    for _ in range(100):
        if threading.active_count() == before:
            ended.set()
            break
        ended.wait(0.05)
    assert ended.is_set()


def test_a_failing_function_closes_the_join():
    def bad(a: int, b: int) -> bool:
        raise ValueError("no luck")

    on = hs.call(bad, hs.col("a.x"), hs.col("b.x")) & (hs.col("b.x") == hs.col("c.x"))
    with hs.MultiJoin(STREAMS, on, cores=2) as join:
        for name in "cb":
            join.push(name, {"t": [0], "x": [0]})
        told = "a join core failed on a batch of 1 tuples of the a input: the Python function bad .*no luck"
        with pytest.raises(HandshakeError, match=told):
            join.push("a", {"t": [0], "x": [0]})
        with pytest.raises(HandshakeError, match="this join is closed"):
            join.push("a", {"t": [0], "x": [0]})


def test_metrics_tell_what_each_step_did():
    replay = replaying.MultiReplay(
        hs.prepare_streams({n: pa.table(t).schema for n, t in TABLES.items()}, ON),
        {n: pa.table(t) for n, t in TABLES.items()},
    )
    with pytest.raises(HandshakeError, match="the replay has not begun; iterate over it first"):
        replay.metrics()
    results = sum(batch.num_rows for batch in replay)
    figures = replay.metrics()
    assert (replay.done, replay.total, figures.results) == (9, 9, results)
    assert {step.method for step in figures.steps} == {"hash", "band"}
    assert all(step.found <= step.probed * 3 for step in figures.steps)
    assert figures.streams[0].order == ("b", "c")


# Plans in words.


def test_explain_shows_orders_and_why_and_how():
    windows = {"a": "15 minutes", "b": "1000 tuples"}
    lines = hs.explain_streams(TABLES, ON + " AND a.x > 0", windows=windows, time="t", cores=2).splitlines()
    assert lines[0] == "join of     a, b, c"
    assert lines[2] == "windows     a 15 minutes, b 1000 tuples, c unbounded"
    assert lines[3] == "filter      a.x > 0, once per tuple"
    assert lines[4].startswith("from a      a -> b -> c: about ")
    assert " a tuple; a -> c -> b would take " in lines[4]
    assert lines[5].startswith("  -> b      hash: a.x = b.y; ")
    assert lines[5].endswith(" matches each (sampled)")
    assert lines[6].startswith("  -> c      band: b.z >= c.u AND b.z <= c.v; ")
    assert lines[-1] == (
        "algorithm   mjoin, cores: 2; they share the first window of an order, or the input if it is indexed"
    )


def test_explain_names_streams_that_nothing_connects():
    join = hs.MultiJoin(STREAMS, "a.x = b.x", cores=1)
    assert (
        "  -> c      scan: every tuple, no condition connects it; 1e+03 matches each (guessed)"
        in join.explain()
    )
    join.close()
    assert "the only order" in hs.explain_streams({"a": {"x": [1]}, "b": {"x": [1]}}, "a.x = b.x", cores=1)


# Mistakes.


def refusal(kind: type[HandshakeError], streams: Any = TABLES, on: Any = ON, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        hs.join_streams(streams, on, **options)
    return str(caught.value)


def test_mistakes_are_told():
    told = refusal(SchemaError, list(TABLES.values()))
    assert told == "streams are given by name, such as {'a': …, 'b': …, 'c': …}, not as list"
    told = refusal(WindowError, windows={"bb": "3 s"})
    assert told == "a window is given for 'bb', but the streams are a, b, c; did you mean 'b'?"
    told = refusal(WindowError, windows="3 s")
    assert told == "windows= takes one for each stream, by name; for one window for all, window='3 s'"
    told = refusal(WindowError, window=hs.Time(left="3 s", right="4 s"), time="t")
    assert told == "the window of stream 'a' has a left and a right size; give it one"
    told = refusal(WindowError, time={"a": "t"}, window="3 s")
    assert told == "no time column is named for the b input; name one for every stream, or for none"
    told = refusal(WindowError, time={"q": "t"})
    assert told == "a time column is named for 'q', but the streams are a, b, c"
    told = refusal(SchemaError, time="time")
    assert told == "no column 'time' in the a input (t, x)"
    told = refusal(WindowError, window="3 s")
    assert told == (
        "a time window needs a time column for every stream, and none is named for the a input; "
        "name one of t, x (time=…)"
    )
    assert "cores is a whole number from 1 up" in refusal(UnsupportedError, cores=0)
    assert "ordered results need a time window" in refusal(UnsupportedError, ordered=True)
    assert refusal(SchemaError, {"a": TABLES["a"]}, "a.x = 1").startswith("a join needs two or more streams")
    assert "cannot read rows from int" in refusal(InputError, {**TABLES, "a": 3})


def test_mistakes_of_pushes_are_told():
    with hs.MultiJoin(STREAMS, "a.x = b.x", window=hs.Tuples(3)) as join:
        with pytest.raises(SchemaError, match=r"no stream 'aa' \(a, b, c\); did you mean 'a'\?"):
            join.push("aa", {"t": [0], "x": [0]})
        with pytest.raises(SchemaError, match=r"a batch of the a input lacks column 'x'"):
            join.push("a", {"t": [0]})
        with pytest.raises(
            WindowError, match="no time column is named for the a input, so it cannot advance"
        ):
            join.advance("a", 3)
        assert join.push("a", {"t": [0], "x": [0]}) == []
    with (
        hs.MultiJoin(STREAMS, "a.x = b.x", window="3 s", time="t") as join,
        pytest.raises(InputError, match="None is not a time to advance the a input to"),
    ):
        join.advance("a", None)


def test_lateness_of_each_kind():
    with pytest.raises(WindowError, match="lateness cannot be negative"):
        hs.MultiJoin(STREAMS, "a.x = b.x", window="3 s", time="t", lateness="-1 s")
    join = hs.MultiJoin(STREAMS, "a.x = b.x", window="3 s", time="t", lateness="2 s", cores=1)
    assert join.plan.lateness * 10**9 == 2 * SECOND
    join.close()


# The example.


def test_the_example_prints_what_it_should():
    example = Path(__file__).parents[2] / "examples" / "three_streams.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[:5] == [
        "order 1 (99 paid) on the lathe",
        "order 2 (20 paid) on the lathe",
        "order 2 (20 paid) on the mill",
        "order 3 (35 paid) on the lathe",
        "order 3 (35 paid) on the mill",
    ]


# Processors.


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")
def test_cores_can_be_pinned():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one processor cannot be shared out")
    streams = dict.fromkeys("abc", pa.schema([("x", pa.int64())]))
    with hs.MultiJoin(streams, "a.x = b.x AND b.x = c.x", window="9 tuples", cores=2, pin=True) as join:
        for name in "abc":
            found = join.push(name, {"x": [1, 2]})
        threads = [thread.native_id for thread in join._engine.crew._threads]
        pinned = [sorted(os.sched_getaffinity(thread)) for thread in threads]
    assert sum(batch.num_rows for batch in found) == 2
    assert sorted(pinned) == sorted([cpu] for cpu in join.plan.cpus)


def test_one_core_is_not_pinned():
    with pytest.raises(UnsupportedError, match="one core runs in the caller's thread, which is not pinned"):
        hs.join_streams({"a": {"x": [1]}, "b": {"x": [1]}}, "a.x = b.x", cores=1, pin=True)
