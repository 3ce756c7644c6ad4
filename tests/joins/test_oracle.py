"""The oracle against examples worked out by hand, and against DuckDB where the rules agree."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from random import Random
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handshake.plan import bind, call, left, parse
from handshake.plan.expr import IsNull
from handshake.schema import DATE, FLOAT32, FLOAT64, Decimal, Int, Interval, Schema, TimeOfDay, Timestamp
from handshake.testing.oracle import TIME, Result, cast, evaluate, join, join_many, logical, physical, rows
from handshake.windows import Windows, windows_of
from strategies import Case, bound, cases, expect, make_case, scope_of

SCHEMA = pa.schema(
    {
        "i8": pa.int8(),
        "i": pa.int64(),
        "j": pa.int64(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "d": pa.float64(),
        "n": pa.decimal128(10, 2),
        "day": pa.date32(),
        "ts": pa.timestamp("us"),
        "ns": pa.timestamp("ns"),
        "tz": pa.timestamp("ms", "Europe/Berlin"),
        "du": pa.duration("ms"),
        "s": pa.string(),
        "z": pa.string(),
        "b": pa.bool_(),
        "raw": pa.binary(),
    }
)
SCOPE = scope_of(SCHEMA, pa.schema({}))
TYPES = {field.name: field.type for field in Schema.from_arrow(SCHEMA, "left")}
NAN, INF = math.nan, math.inf
BIG = 2**63 - 1


def value(text: str, **given: Any) -> Any:
    """Evaluate an SQL expression for one row; columns that are not given are NULL."""
    row = {name: physical(given.get(name), kind) for name, kind in TYPES.items()}
    tested = bind(parse(f"({text}) IS NULL"), SCOPE)
    assert isinstance(tested, IsNull), "constant expressions are folded before the oracle sees them"
    return evaluate(tested.arg, (row,))


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))


EXAMPLES = [
    # Whole numbers never wrap.
    ("i8 - 10", {"i8": -128}, -138),
    ("i + 1", {"i": BIG}, 2**63),
    ("i * i * i", {"i": BIG}, BIG**3),
    ("u - 1", {"u": 0}, -1),
    ("-i", {"i": -(2**63)}, 2**63),
    ("i DIV j", {"i": -7, "j": 2}, -3),
    ("i DIV j", {"i": 7, "j": -2}, -3),
    ("i % j", {"i": -7, "j": 2}, -1),
    ("i % j", {"i": 7, "j": -2}, 1),
    ("ABS(i8)", {"i8": -128}, 128),
    ("SIGN(i)", {"i": -3}, -1),
    # An operation without a value is NULL.
    ("i DIV j", {"i": 1, "j": 0}, None),
    ("i % j", {"i": 1, "j": 0}, None),
    ("i / j", {"i": 1, "j": 0}, None),
    ("d / f", {"d": NAN, "f": -0.0}, None),
    ("d % 0", {"d": 1.0}, None),
    ("i + j", {"i": 1}, None),
    # Floats.
    ("i / j", {"i": 1, "j": 2}, 0.5),
    ("d % 2", {"d": -3.5}, -1.5),
    ("d % 2", {"d": INF}, NAN),
    ("d % i", {"d": 1.5, "i": BIG}, 1.5),
    ("f * f", {"f": 1e30}, INF),
    ("f + 1", {"f": 2.0**24}, 2.0**24),
    ("f + 0.1", {"f": 1.0}, 1.1),
    ("d + i", {"d": 0.0, "i": 2**53 + 1}, 2.0**53),
    ("d * d", {"d": 1e200}, INF),
    ("-d", {"d": 0.0}, -0.0),
    ("d + n", {"d": 0.0, "n": PyDecimal("0.1")}, 0.1),
    # Decimals are exact.
    ("n + 0.001", {"n": PyDecimal("1.25")}, 1251),
    ("n * n", {"n": PyDecimal("99999999.99")}, 9999999999**2),
    ("n % 1", {"n": PyDecimal("-1.25")}, -25),
    # Functions of numbers.
    ("FLOOR(d)", {"d": -1.5}, -2.0),
    ("CEIL(d)", {"d": -1.5}, -1.0),
    ("ROUND(d)", {"d": -2.5}, -3.0),
    ("ROUND(d)", {"d": 0.49999999999999994}, 0.0),
    ("ROUND(d)", {"d": INF}, INF),
    ("FLOOR(n)", {"n": PyDecimal("-1.25")}, -2),
    ("CEIL(n)", {"n": PyDecimal("-1.25")}, -1),
    ("ROUND(n)", {"n": PyDecimal("-1.50")}, -2),
    ("ROUND(i)", {"i": 5}, 5),
    ("SIGN(d)", {"d": -0.5}, -1.0),
    ("SIGN(d)", {"d": NAN}, NAN),
    ("SIGN(n)", {"n": PyDecimal("0.01")}, 1),
    ("SQRT(d)", {"d": -1.0}, NAN),
    ("SQRT(i)", {"i": 9}, 3.0),
    ("SQRT(f)", {"f": 2.0}, 1.4142135381698608),
    ("LN(d)", {"d": 0.0}, -INF),
    ("LN(d)", {"d": -1.0}, NAN),
    ("EXP(d)", {"d": 1000.0}, INF),
    ("EXP(d)", {"d": 709.785}, INF),
    ("EXP(i)", {"i": 0}, 1.0),
    ("POWER(d, 3)", {"d": -1e200}, -INF),
    ("POWER(d, 2)", {"d": -1e200}, INF),
    ("POWER(d, 0.5)", {"d": -1.0}, NAN),
    ("POWER(d, -1)", {"d": -0.0}, -INF),
    ("POWER(d, -2)", {"d": -0.0}, INF),
    ("POWER(d, 0)", {"d": NAN}, 1.0),
    ("SIN(d)", {"d": INF}, NAN),
    ("COS(d)", {"d": 0.0}, 1.0),
    ("ABS(d)", {"d": -INF}, INF),
    # LEAST and GREATEST skip NULL and put NaN last; COALESCE.
    ("LEAST(d, f)", {"d": NAN, "f": 1.0}, 1.0),
    ("GREATEST(d, f)", {"d": NAN, "f": INF}, NAN),
    ("LEAST(i, j)", {"j": 3}, 3),
    ("GREATEST(i, j)", {}, None),
    ("LEAST(i, n)", {"i": 2, "n": PyDecimal("1.50")}, 150),
    ("COALESCE(i, j, 7)", {}, 7),
    ("COALESCE(d, 1)", {"d": NAN}, NAN),
    # Casts.
    ("CAST(d AS INT)", {"d": -1.9}, -1),
    ("CAST(d AS INT)", {"d": 2.0**31}, None),
    ("CAST(d AS INT)", {"d": NAN}, None),
    ("CAST(i AS TINYINT)", {"i": 128}, None),
    ("CAST(i * i AS BIGINT)", {"i": BIG}, None),
    ("CAST(u AS BIGINT)", {"u": 2**63}, None),
    ("CAST(n AS INT)", {"n": PyDecimal("-1.50")}, -2),
    ("CAST(n AS DECIMAL(5, 1))", {"n": PyDecimal("1.25")}, 13),
    ("CAST(n AS DECIMAL(5, 1))", {"n": PyDecimal("-1.25")}, -13),
    ("CAST(n AS DECIMAL(3, 2))", {"n": PyDecimal("10.00")}, None),
    ("CAST(i AS DECIMAL(5, 2))", {"i": 7}, 700),
    ("CAST(d AS DECIMAL(5, 2))", {"d": INF}, None),
    ("CAST(n AS DOUBLE)", {"n": PyDecimal("0.10")}, 0.1),
    ("CAST(i AS FLOAT)", {"i": 2**24 + 1}, 2.0**24),
    ("CAST(i AS FLOAT)", {"i": 2**54 + 2**30 + 1}, 2.0**54 + 2.0**31),
    ("CAST(d AS FLOAT)", {"d": 1e300}, INF),
    ("CAST(s AS INT)", {"s": " 12 "}, 12),
    ("CAST(s AS INT)", {"s": "12.5"}, None),
    ("CAST(s AS DOUBLE)", {"s": "1e3"}, 1000.0),
    ("CAST(s AS DECIMAL(5, 1))", {"s": "1.25"}, 13),
    ("CAST(s AS DECIMAL(5, 1))", {"s": "NaN"}, None),
    ("CAST(s AS DATE)", {"s": "1970-01-03"}, 2),
    ("CAST(s AS DATE)", {"s": "soon"}, None),
    ("CAST(s AS TIMESTAMP)", {"s": "1970-01-01 00:00:01"}, 10**6),
    ("CAST(s AS BOOLEAN)", {"s": "True"}, True),
    ("CAST(s AS TIMESTAMP)", {"s": "1970-01-01T01:00:00+01:00"}, 0),
    ("CAST(s AS BOOLEAN)", {"s": "maybe"}, None),
    ("CAST(s AS BOOLEAN)", {"s": "1"}, True),
    ("CAST(b AS INT)", {"b": True}, 1),
    ("CAST(b AS STRING)", {"b": False}, "false"),
    ("CAST(i AS STRING)", {"i": -5}, "-5"),
    ("CAST(n AS STRING)", {"n": PyDecimal("-1.05")}, "-1.05"),
    ("CAST(day AS STRING)", {"day": date(2024, 2, 29)}, "2024-02-29"),
    # Dates, timestamps and intervals.
    ("day - DATE '2024-01-01'", {"day": date(2024, 3, 1)}, 60),
    ("day + 3", {"day": date(1970, 1, 1)}, 3),
    ("3 + day", {"day": date(1970, 1, 1)}, 3),
    ("(day - DATE '2024-01-01') + i", {"day": date(2024, 3, 1), "i": 2}, 62),
    ("day + (day - DATE '1970-01-01')", {"day": date(1970, 1, 3)}, 4),
    ("day + INTERVAL 3 DAYS", {"day": date(1970, 1, 1)}, 3),
    ("day + INTERVAL 1 HOUR", {"day": date(1970, 1, 2)}, 90_000 * 10**6),
    ("ts - INTERVAL 1 DAY", {"ts": datetime(1970, 1, 2)}, 0),
    ("ns - ts", {"ns": datetime(1970, 1, 1, 0, 0, 1), "ts": datetime(1970, 1, 1)}, 10**9),
    ("CAST(ns AS TIMESTAMP)", {"ns": -1}, -1),
    ("CAST(ts AS DATE)", {"ts": datetime(1969, 12, 31, 23)}, -1),
    ("CAST(tz AS DATE)", {"tz": datetime(1970, 1, 1, 23, 30, tzinfo=UTC)}, 1),
    ("CAST(day AS TIMESTAMP)", {"day": date(1970, 1, 2)}, 86_400 * 10**6),
    ("du * 3", {"du": timedelta(seconds=2)}, 6000),
    ("ABS(du)", {"du": timedelta(seconds=-2)}, 2000),
    ("YEAR(day)", {"day": date(2024, 2, 29)}, 2024),
    ("MONTH(ts)", {"ts": datetime(2024, 2, 29)}, 2),
    ("DAY(tz)", {"tz": datetime(2024, 2, 29, 23, 30, tzinfo=UTC)}, 1),
    ("HOUR(tz)", {"tz": datetime(2024, 7, 1, 0, 30, tzinfo=UTC)}, 2),
    ("MINUTE(ts)", {"ts": datetime(1969, 12, 31, 23, 59, 58)}, 59),
    ("SECOND(ts)", {"ts": datetime(1969, 12, 31, 23, 59, 58)}, 58),
    # Text.
    ("LOWER(s)", {"s": "AÉ"}, "aé"),
    ("UPPER(s)", {"s": "aé"}, "AÉ"),
    ("TRIM(s)", {"s": " a "}, "a"),
    ("TRIM(s)", {"s": " \ta\n "}, "\ta\n"),
    ("LTRIM(s)", {"s": " a "}, "a "),
    ("RTRIM(s)", {"s": " a "}, " a"),
    ("LENGTH(s)", {"s": "😀é"}, 2),
    ("s || z", {"s": "a", "z": "b"}, "ab"),
    ("CONCAT(s, z)", {"s": "a"}, None),
    ("SUBSTRING(s, 2)", {"s": "abcd"}, "bcd"),
    ("SUBSTRING(s, 0, 2)", {"s": "abcd"}, "ab"),
    ("SUBSTRING(s, -3, 2)", {"s": "abcd"}, "bc"),
    ("SUBSTRING(s, -5, 2)", {"s": "abcd"}, "a"),
    ("SUBSTRING(s, 2, 0)", {"s": "abcd"}, ""),
    # Choice.
    ("CASE WHEN b THEN i ELSE j END", {"i": 1, "j": 2}, 2),
    ("CASE WHEN b THEN i END", {"b": False, "i": 1}, None),
    ("NULLIF(i, j)", {"i": 1, "j": 1}, None),
]

CONDITIONS = [
    ("i = j", {"i": 1}, None),
    ("d = d", {"d": NAN}, False),
    ("d <> d", {"d": NAN}, True),
    ("NOT (d < 1)", {"d": NAN}, True),
    ("d >= 1", {"d": NAN}, False),
    ("d = 0", {"d": -0.0}, True),
    ("d < i", {"d": 2.0**53, "i": 2**53 + 1}, False),
    ("u > i", {"u": 2**64 - 1, "i": -1}, True),
    ("s < z", {"s": "\uffff", "z": "😀"}, True),
    ("raw < raw", {"raw": b"\x80"}, False),
    ("ts = ns", {"ts": 5, "ns": 5000}, True),
    ("ts = ns", {"ts": 5, "ns": 5001}, False),
    ("tz = '1970-01-01 01:00:00'", {"tz": 0}, True),
    ("tz = '1970-01-01T00:00:00+00:00'", {"tz": 0}, True),
    ("day = ts", {"day": 1, "ts": datetime(1970, 1, 2)}, True),
    ("b AND i = 1", {"b": False}, False),
    ("b AND i = 1", {"b": True}, None),
    ("b OR i = 1", {"b": True}, True),
    ("b OR i = 1", {"b": False}, None),
    ("NOT b", {}, None),
    ("i IS NULL", {}, True),
    ("i <=> j", {}, True),
    ("i <=> j", {"i": 1}, False),
    ("i IN (j, 2)", {"i": 2}, True),
    ("i IN (j, 2)", {"i": 3}, None),
    ("i NOT IN (1, 2)", {"i": 3}, True),
    ("s LIKE 'a%_'", {"s": "a\nb"}, True),
    ("s LIKE 'a.c'", {"s": "abc"}, False),
    ("s LIKE '\\\\%'", {"s": "%"}, True),
    ("s LIKE '\\\\%'", {"s": "a"}, False),
    ("s LIKE '10!%' ESCAPE '!'", {"s": "10%"}, True),
    ("s LIKE '10!%' ESCAPE '!'", {"s": "100"}, False),
    ("s LIKE 'a\\\\%' ESCAPE '!'", {"s": "a\\b"}, True),
    ("tz > TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1 HOUR", {"tz": 0}, False),
    ("tz >= TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1 HOUR", {"tz": 0}, True),
    ("s NOT LIKE 'a%'", {"s": "b"}, True),
    ("s NOT LIKE 'a%'", {}, None),
    ("s ILIKE 'A_'", {"s": "ab"}, True),
    ("REGEXP_LIKE(s, 'b+')", {"s": "abb"}, True),
    ("STARTSWITH(s, 'a')", {"s": "ab"}, True),
    ("ENDSWITH(s, z)", {"s": "ab", "z": "b"}, True),
    ("CONTAINS(s, 'c')", {"s": "ab"}, False),
]


@pytest.mark.parametrize(("text", "given", "wanted"), EXAMPLES, ids=lambda x: str(x)[:40])
def test_values(text: str, given: dict[str, Any], wanted: Any) -> None:
    got = value(text, **given)
    assert same(got, wanted), f"{got!r} instead of {wanted!r}"
    assert math.copysign(1, got) == math.copysign(1, wanted) if isinstance(wanted, float) else True


@pytest.mark.parametrize(("text", "given", "wanted"), CONDITIONS, ids=lambda x: str(x)[:40])
def test_conditions(text: str, given: dict[str, Any], wanted: bool | None) -> None:
    row = {name: physical(given.get(name), kind) for name, kind in TYPES.items()}
    assert evaluate(bind(parse(text), SCOPE), (row,)) is wanted


def test_python_callables_get_python_values() -> None:
    got: list[Any] = []
    built = call(lambda *args: got.extend(args), left.day, left.n, left.tz, left.du, left.i)
    row = {"day": 1, "n": 125, "tz": 0, "du": 1500, "i": None}
    assert evaluate(bind(built.expr, SCOPE), (row,)) is None
    hour = timedelta(hours=1)
    assert got[:2] == [date(1970, 1, 2), PyDecimal("1.25")]
    assert got[2] == datetime(1970, 1, 1, tzinfo=UTC)
    assert got[2].utcoffset() == hour
    assert got[3:] == [timedelta(seconds=1.5), None]


PHYSICAL = [
    (True, Int(8), 1),
    (0.1, FLOAT32, 0.10000000149011612),
    (1, FLOAT64, 1.0),
    (PyDecimal("1.5"), Decimal(5, 2), 150),
    (PyDecimal(10**37), Decimal(38, 0), 10**37),
    (date(1969, 12, 31), DATE, -1),
    (datetime(1970, 1, 1, 1), Timestamp("s"), 3600),
    (datetime.fromisoformat("1970-01-01T01:00:00+01:00"), Timestamp("ms", "UTC"), 0),
    (pd.Timestamp("1970-01-01 00:00:00.000000001"), Timestamp("ns"), 1),
    (pd.Timedelta(1, "ns"), Interval("ns"), 1),
    (timedelta(microseconds=-1), Interval("us"), -1),
    (time(0, 0, 1), TimeOfDay("ms"), 1000),
    (17, Timestamp("us"), 17),
    (None, DATE, None),
]


@pytest.mark.parametrize(("given", "kind", "wanted"), PHYSICAL, ids=str)
def test_physical(given: Any, kind: Any, wanted: Any) -> None:
    assert physical(given, kind) == wanted


def test_rows_reads_every_type() -> None:
    table = pa.table(
        {
            "t": pa.array([1, None], pa.timestamp("ms")),
            "w": pa.array([3, 4], pa.time32("s")),
            "n": pa.array([PyDecimal("0.10"), None], pa.decimal128(38, 38)),
            "k": pa.array(["a", None]).dictionary_encode(),
            "day": pa.array([86_400_000, None], pa.date64()),
        }
    )
    first, second = rows(table, "t")
    assert first == {"t": 1, "w": 3, "n": 10**37, "k": "a", "day": 1, TIME: 10**6}
    assert second == {"t": None, "w": 4, "n": None, "k": None, "day": None, TIME: None}


def test_casts_of_intervals_round_down() -> None:
    assert cast(-1, Interval("ms"), Interval("s")) == -1
    assert cast(3, Int(64), Interval("d")) == 3
    assert logical(1500, TimeOfDay("ms")) == time(0, 0, 1, 500_000)


# Windows.


def pairs(times: tuple[list[Any], list[Any]], windows: Windows, on: str = "TRUE", **options: Any) -> Result:
    inputs = [[{TIME: t, "x": t} for t in side] for side in times]
    schema = pa.schema({"x": pa.int64()})
    predicate = bind(parse(on), scope_of(schema, schema))
    return join(*inputs, predicate, windows, left_time=TIME, right_time=TIME, **options)


def test_time_windows_are_strict_and_equal_times_join() -> None:
    found = pairs(([10], [7, 8, 10, 12, 13]), windows_of("3 ns"))
    assert found == Result([(0, 1), (0, 2), (0, 3)])


def test_time_windows_may_differ() -> None:
    # R's window of 2 decides about later right tuples, S's of 4 about earlier ones.
    found = pairs(([10], [6, 7, 11, 12]), windows_of(left="2 ns", right="4 ns"))
    assert found.pairs == [(0, 1), (0, 2)]


def test_a_side_without_a_window_keeps_its_tuples() -> None:
    assert pairs(([10], [0, 99]), windows_of(left="2 ns")).pairs == [(0, 0)]
    assert pairs(([10], [0, 99]), windows_of(right="2 ns")).pairs == [(0, 1)]
    assert pairs(([10], [0, 99]), windows_of()).pairs == [(0, 0), (0, 1)]


def test_tuple_windows_count_arrivals() -> None:
    # Arrival: r0 s0 r1 s1 r2 s2, one tuple each side stays.
    times = ([0, 1, 2], [0, 1, 2])
    assert pairs(times, windows_of("1 tuple")).pairs == [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)]
    only_left = [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert pairs(times, windows_of(left="1 tuple")).pairs == only_left


def test_arrival_without_times_takes_turns() -> None:
    inputs = [{"x": 0}] * 3, [{"x": 0}]
    schema = pa.schema({"x": pa.int64()})
    always = bind(parse("TRUE"), scope_of(schema, schema))
    # r0 s0 r1 r2: s0 is the last of its stream for r1 and r2.
    assert join(*inputs, always, windows_of("1 tuple")).pairs == [(0, 0), (1, 0), (2, 0)]
    first = [("right", 0), ("left", 0), ("left", 1), ("left", 2)]
    assert join(*inputs, always, windows_of("1 tuple"), arrivals=first).pairs == [(0, 0), (1, 0), (2, 0)]
    last = [("left", 0), ("left", 1), ("left", 2), ("right", 0)]
    assert join(*inputs, always, windows_of("1 tuple"), arrivals=last).pairs == [(2, 0)]


def test_arrival_by_time_ties_left_first() -> None:
    found = pairs(([5, 5], [5]), windows_of(left="1 tuple"))
    assert found.pairs == [(1, 0)]


def test_late_tuples_are_dropped_and_take_no_position() -> None:
    arrivals = [("left", 0), ("right", 0), ("left", 1), ("left", 2), ("right", 1)]
    times = ([10, 6, 7], [10, 10])
    found = pairs(times, windows_of(left="3 tuples"), lateness=3, arrivals=arrivals)
    assert found == Result([(0, 0), (0, 1), (2, 0), (2, 1)], late=1, dropped=frozenset({(0, 1)}))
    nothing_late = pairs(times, windows_of("99 ns"), lateness=4, arrivals=arrivals)
    assert nothing_late.late == 0
    assert len(nothing_late.pairs) == 6


def test_the_watermark_waits_for_both_sides() -> None:
    arrivals = [("left", 0), ("left", 1), ("right", 0)]
    assert pairs(([100, 1], [1]), windows_of("5 ns"), lateness=0, arrivals=arrivals) == Result([(1, 0)])


def test_tuples_without_a_time_join_nothing() -> None:
    assert pairs(([None, 1], [1, None]), windows_of("5 ns")) == Result([(1, 0)], no_time=2)
    # They take no position either: with one they would push out the tuple at 1.
    found = pairs(([None, 1], [1]), windows_of(left="1 tuple", right="5 ns"))
    assert found == Result([(1, 0)], no_time=1)


def test_only_true_is_a_result() -> None:
    assert pairs(([1, 2], [1, 2]), windows_of("9 ns"), "l.x = r.x").pairs == [(0, 0), (1, 1)]
    assert pairs(([1], [1]), windows_of("9 ns"), "NULLIF(l.x, r.x) = 1").pairs == []


def test_three_streams() -> None:
    streams = [[{TIME: t} for t in times] for times in ([0, 3], [1, 4], [2, 9])]
    schema = pa.schema({"x": pa.int64()})
    always = bind(parse("TRUE"), scope_of(schema, schema))
    windows = [windows_of("3 ns").left] * 3
    found = join_many(streams, always, windows, times=[TIME] * 3)
    assert found.pairs == [(0, 0, 0), (1, 0, 0), (1, 1, 0)]
    counted = join_many(streams, always, [windows_of("1 tuple").left] * 3, times=[TIME] * 3)
    # Arrival: a0 b0 c0 a1 b1 c1; a combination needs every other member to be the newest of its stream.
    assert counted.pairs == [(0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)]


# Random cases, and DuckDB as a second opinion.


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_random_case_has_an_answer(case: Case) -> None:
    found = expect(case)
    assert len(set(found.pairs)) == len(found.pairs)
    assert (found.late, found.no_time > 0) == (0, found.no_time > 0 and case.windows.timed)


def test_random_cases_are_reproducible_and_often_match() -> None:
    assert make_case(3, 9, 9) == make_case(3, 9, 9)
    some = [make_case(seed, 15, 15) for seed in range(60)]
    assert sum(bool(expect(case).pairs) for case in some) > 20
    assert {str(bound(case).type) for case in some} == {"bool"}


def simple(rng: Random, names: list[str], depth: int) -> str:
    """Draw a numeric expression on which DuckDB agrees with us."""
    if depth == 0:
        return rng.choice([*names, str(rng.randint(-5, 5)).replace("-", "0 - ")])
    a, b = simple(rng, names, depth - 1), simple(rng, names, depth - 1)
    texts = [f"({a}) {op} ({b})" for op in "+-*"]
    texts += [f"({a}) % NULLIF({b}, 0)", f"ABS({a})", f"COALESCE({a}, {b})", f"LEAST({a}, {b})"]
    return rng.choice([*texts, f"CASE WHEN {a} < {b} THEN {a} ELSE {b} END"])


def portable_condition(rng: Random, names: list[str]) -> str:
    parts = [
        f"({simple(rng, names, rng.randint(0, 2))}) {rng.choice(('=', '<>', '<', '<=', '>', '>='))} "
        f"({simple(rng, names, rng.randint(0, 2))})"
        for _ in range(3)
    ]
    return f"({parts[0]} {rng.choice(('AND', 'OR'))} {parts[1]}) OR NOT ({parts[2]})"


@pytest.fixture(scope="module")
def duck() -> Any:
    with duckdb.connect() as connection:
        yield connection


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_duckdb_agrees(duck: Any, seed: int, floats: bool) -> None:
    rng = Random(seed)
    kind, scale = (pa.float64(), 4) if floats else (pa.int64(), 1)
    draw = [None, *range(-6, 12)]
    tables = [
        pa.table({n: pa.array([None if v is None else v / scale if floats else v for v in values], kind)})
        for n, values in zip("xa", (rng.choices(draw, k=8), rng.choices(draw, k=8)), strict=True)
    ]
    on = portable_condition(rng, ["x", "a"])
    case = Case(*tables, on, windows_of())
    numbered = [t.append_column("n", pa.array(range(8))) for t in tables]
    duck.register("l", numbered[0])
    duck.register("r", numbered[1])
    wanted = duck.execute(f"SELECT l.n, r.n FROM l, r WHERE {on} ORDER BY ALL").fetchall()
    assert expect(case).pairs == wanted, on
