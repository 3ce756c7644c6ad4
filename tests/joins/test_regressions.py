"""Faults that were found by attacking the engine, each with the smallest input that showed it."""

from __future__ import annotations

import threading
from decimal import Decimal as D
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import handshake as hs
from handshake import call, left, right
from handshake.joins.core import JoinCore
from handshake.joins.join import Replay, prepare
from handshake.joins.tuning import Tuning
from handshake.kernels.columns import view
from handshake.kernels.keys import edges_of, limits_at
from handshake.plan.analyse import Bound
from handshake.plan.expr import Column
from handshake.schema import BOOL, INT64
from waiting import wait_until


def column(name: str, values: Any, kind: pa.DataType) -> pa.Table:
    return pa.table({name: pa.array(values, kind)})


def count(a: Any, b: Any, on: Any, **options: Any) -> int:
    return int(hs.join(a, b, on, **options).num_rows)


def count_indexed(a: pa.Table, b: pa.Table, on: str) -> int:
    """Count the results of a band join whose basic windows are all indexed."""
    tuning = Tuning(indexed_from=1, indexed_probes=1, clustered_after=0)
    plan = prepare(a.schema, b.schema, on, method="band", tuning=tuning)
    return sum(batch.num_rows for batch in Replay(plan, a, b))


# Keys beyond 64 bits are held at their ends; a limit moved from there must not exclude their like.


@pytest.mark.parametrize(
    ("x", "a", "kind", "on"),
    [
        (2**64 - 1, 2**64 - 20, pa.uint64(), "l.x - r.a >= 10"),
        (D(-(10**30) - 50), D(-(10**30)), pa.decimal128(38, 0), "l.x - r.a <= -10"),
        (D(10**30 - 50), D(10**30 - 80), pa.decimal128(38, 0), "l.x - r.a >= 10"),
        (-(2**63), -(2**63) + 5, pa.int64(), "l.x * 3 - r.a * 3 <= -10"),
    ],
)
def test_limits_of_saturated_keys(x: Any, a: Any, kind: Any, on: str) -> None:
    assert count_indexed(column("x", [x], kind), column("a", [a], kind), on) == 1


FAR = 2**63


def test_a_band_that_is_wider_than_a_word() -> None:
    values = [-FAR, -1, 0, 1, FAR - 1]
    left, right = column("x", values, pa.int64()), column("a", values, pa.int64())
    near = sum(abs(x - a) <= FAR for x in values for a in values)
    assert count_indexed(left, right, f"ABS(l.x - r.a) <= {FAR}") == near < len(values) ** 2


@pytest.mark.parametrize("offset", [0, 5, FAR - 1, FAR, FAR + 7, 2 * FAR - 1, 2 * FAR, 2 * FAR + 1, 2**80])
def test_limits_are_moved_as_far_as_a_word_goes(offset: int) -> None:
    """Limits are exact if the offset fits a word; else they exclude nothing."""
    keys = np.array([-FAR, -FAR + 1, -7, 0, 7, FAR - 2, FAR - 1])
    x = Column(0, "x", type=INT64)
    for move in (offset, -offset):
        for is_lower in (True, False):
            bound = Bound(x, x, ">=" if is_lower else "<=", move)
            low, high = limits_at(keys.ctypes.data, len(keys), edges_of(1, keys.dtype, [bound]))
            found, other = (low, high) if is_lower else (high, low)
            end = -FAR if is_lower else FAR - 1
            exact = [end if key == end else min(max(key + move, -FAR), FAR - 1) for key in keys.tolist()]
            assert found.tolist() == (exact if -FAR <= move < FAR else [end] * len(keys))
            assert other.tolist() == [FAR - 1 if is_lower else -FAR] * len(keys)


@pytest.mark.parametrize("last", ["left", "right"])
def test_rows_without_a_time_come_after_the_largest_time(last: str) -> None:
    without = pa.table({"t": pa.array([None], pa.int64())})
    largest = pa.table({"t": pa.array([FAR - 1, FAR - 1, FAR - 1], pa.int64())})
    tables = (without, largest) if last == "left" else (largest, without)
    assert count(*tables, "TRUE", window="2 tuples", time="t") == 2


# Columns that are made here.


def test_columns_named_like_hidden_ones() -> None:
    table = pa.table({"#time": [0, 100, 200], "#own": [7, 8, 9], "t": pa.array([0, 1, 2], pa.timestamp("s"))})
    assert count(table, table, "l.`#time` <> r.`#time`", window="5 s", time="t") == 6
    assert count(table, table, "l.`#own` <> r.`#own`", window="2 tuples") == 5


def test_a_column_name_that_begins_with_nul_is_refused() -> None:
    table = pa.table({"\0time": [0]})
    with pytest.raises(hs.SchemaError, match="NUL"):
        hs.join(table, table, None)


@pytest.mark.parametrize("kind", ["tinyint", "smallint", "integer", "bigint"])
def test_text_cast_to_a_narrow_integer(kind: str) -> None:
    texts, numbers = pa.table({"s": ["1", "2", "3", "4"] * 10}), column("a", [1, 2, 3, 4] * 10, pa.int32())
    assert count(texts, numbers, f"CAST(l.s AS {kind}) <= r.a", method="scan") == 1000


def test_two_functions_of_one_name_are_two_columns() -> None:
    table = pa.table({"x": [1, 2, 3]})
    above = call(lambda x: x + 1, left.x, returns="bigint") > right.x
    below = call(lambda x: -5, left.x, returns="bigint") < right.x
    assert count(table, table, above & below) == 6


def test_times_of_day_of_two_units() -> None:
    seconds, thousandths = column("x", [1, 2], pa.time32("s")), column("a", [1000, 2001], pa.time32("ms"))
    assert count(seconds, thousandths, "l.x <= r.a", method="band") == 3


# Python callables.


def test_a_callable_gets_int_however_large() -> None:
    table = pa.table({"x": [2**62, 3]})
    assert count(table, table, call(lambda v: v & 1 == 0, left.x + right.x)) == 2


@pytest.mark.parametrize(
    ("table", "on"),
    [
        (pa.table({"x": [1]}), call(lambda x, y: 2**70, left.x, right.x, returns="bigint") > 0),
        (column("x", [10**7], pa.date32()), call(lambda x, y: True, left.x, right.x)),
    ],
)
def test_what_python_cannot_hold_is_an_error_of_the_callable(table: pa.Table, on: Any) -> None:
    with pytest.raises(hs.HandshakeError, match="Python function"):
        hs.join(table, table, on)


# Tuples from Python.


@pytest.mark.parametrize("tuples", [{"x": [2**70]}, {"x": 1}, [1, 2], {"x": [1.5]}, [{"x": 1.5}]])
def test_python_values_that_do_not_fit(tuples: Any) -> None:
    with hs.Join(left={"x": pa.int64()}, right={"x": pa.int64()}) as join, pytest.raises(hs.InputError):
        join.push_left(tuples)


@pytest.mark.parametrize("tuples", [[{"y": 1}], [{"x": 1, "y": 2}]])
def test_rows_with_other_keys_are_not_taken_for_null(tuples: Any) -> None:
    with hs.Join(left={"x": pa.int64()}, right={"x": pa.int64()}) as join, pytest.raises(hs.SchemaError):
        join.push_left(tuples)


# Times.


def test_decimal_seconds() -> None:
    table = column("t", [D("1.25"), D("2.5"), None], pa.decimal128(10, 2))
    assert count(table, table, None, window="1 s", time="t") == 2


def test_lateness_beyond_64_bits() -> None:
    kind = {"t": pa.timestamp("ns")}
    with hs.Join(left=kind, right=kind, window="1 s", time="t", lateness="200000 days") as join:
        join.push_left({"t": [5]})
        assert sum(b.num_rows for b in join.push_right({"t": [6, 3]})) == 2
        assert join.metrics().late == 0


def test_the_largest_time_comes_before_no_time() -> None:
    last = 2**63 - 1
    a, b = (column("t", times, pa.timestamp("ns")) for times in ([None, last, None], [last]))
    assert count(a, b, None, left_window="1 tuples", right_window="1 s", time="t") == 1


@pytest.mark.parametrize(("kind", "now"), [(pa.float64(), 100.0), (pa.timestamp("s"), 100)])
def test_advance_takes_values_of_the_time_column(kind: pa.DataType, now: Any) -> None:
    with hs.Join(left={"t": kind}, right={"t": kind}, window="10 s", time="t") as join:
        join.push_left({"t": [now]})
        join.advance(right=now)
        join.push_right({"t": [now / 2]} if kind == pa.float64() else {"t": [50]})
        assert join.metrics().late == 1


# Memory and time.


def test_dictionaries_that_together_outgrow_their_index() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    found = 0
    with hs.Join(left={"d": kind, "x": pa.int64()}, right={"x": pa.int64()}, on="l.x = r.x") as join:
        for k in range(6):
            words = pa.array([f"{k} {i}" for i in range(50)]).dictionary_encode().cast(kind)
            join.push_left(pa.table({"d": words, "x": pa.array([1] * 50, pa.int64())}))
        found = sum(b.num_rows for b in join.push_right({"x": [1]}))
    assert found == 300


def test_wide_tuples_come_in_smaller_batches() -> None:
    wide = pa.table({"s": ["z" * 100_000] * 40})
    sizes = [b.nbytes for b in hs.Replay(hs.prepare(wide.schema, wide.schema), wide, wide)]
    assert max(sizes) < 1 << 28
    assert len(sizes) > 1


def test_a_slice_of_a_bitmap_copies_only_itself() -> None:
    bits = pa.array(np.arange(80_000) % 3 == 0)
    packed = view(bits.slice(40_001, 50), BOOL).owner[-1]
    assert packed.nbytes == 7
    assert np.unpackbits(packed, bitorder="little")[:50].tolist() == [
        int(b) for b in bits.slice(40_001, 50).to_pylist()
    ]


def test_an_index_that_saves_nothing_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tuples are candidates: one key, and two attributes without a spread."""
    used: list[bool] = []
    by_index = JoinCore._by_index

    def watch(*args: Any) -> Any:
        found = by_index(*args)
        used.append(found is not None)
        return found

    monkeypatch.setattr(JoinCore, "_by_index", watch)
    same = pa.table({"k": [1] * 3000, "x": np.arange(3000)})
    assert count(same, same, "l.k = r.k AND l.x * r.x < 0") == 0
    assert count(same, same, "ABS(l.k - r.k) <= 1 AND ABS(l.x - r.x) <= 5000 AND l.x + r.x < 0") == 0
    assert used
    assert not any(used)


def test_a_join_that_is_forgotten_leaves_no_threads() -> None:
    before = threading.active_count()
    for _ in range(10):
        hs.Join(left={"x": pa.int64()}, right={"x": pa.int64()}, cores=3)
    wait_until(lambda: threading.active_count() <= before, what="the end of all threads")


@pytest.mark.parametrize("first", ["near", "far"])
def test_an_index_of_keys_that_need_more_bits_in_some_basic_windows(first: str) -> None:
    """Days beyond 32 bits made the keys of one basic window wider than those of the next."""
    day = 86_400
    left, right = pa.schema([("d", pa.date32())]), pa.schema([("ts", pa.timestamp("s"))])
    days = {"near": np.arange(100), "far": np.arange(60) + 2**33}
    batches = {
        name: pa.record_batch([pa.array(n * day).view("timestamp[s]")], right) for name, n in days.items()
    }
    tuning = Tuning(
        indexed_from=1, indexed_probes=1, clustered_after=1, compiles_aside=False, merged_at_once=0, tiny=0
    )
    on = "l.d >= CAST(r.ts AS DATE) AND l.d <= CAST(r.ts AS DATE)"
    with hs.Join(left=left, right=right, on=on, cores=1, tuning=tuning) as join:
        for name in sorted(days, key=lambda name: name != first):
            join.push_right(batches[name])
        for _ in range(3):
            found = join.push_left(pa.record_batch([pa.array([5, 7, 99], pa.date32())], left))
            assert sum(batch.num_rows for batch in found) == 3
