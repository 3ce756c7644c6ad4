"""Names to columns, types, constants that take on the type they meet, folding; and the errors' texts."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from handshake.errors import ExpressionError, SchemaError, suggest
from handshake.plan import Scope, bind, lit, parse
from handshake.plan.expr import Cast, Column, Compare, Expr, IsNull, Literal, Udf, show, walk
from handshake.plan.fold import fold
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    INT64,
    NULL,
    STRING,
    Decimal,
    Int,
    Interval,
    Opaque,
    Schema,
    TimeOfDay,
    Timestamp,
    type_from_arrow,
)
from handshake.testing.oracle import evaluate
from strategies import Case, bound, cases, rows, scope_of

LEFT = pa.schema(
    {
        "x": pa.int32(),
        "u": pa.uint64(),
        "f": pa.float32(),
        "d": pa.float64(),
        "n": pa.decimal128(10, 2),
        "day": pa.date32(),
        "ts": pa.timestamp("us"),
        "ms": pa.timestamp("ms"),
        "tz": pa.timestamp("ms", "Europe/Berlin"),
        "off": pa.timestamp("s", "+02:00"),
        "du": pa.duration("ms"),
        "clock": pa.time64("us"),
        "s": pa.string(),
        "raw": pa.binary(),
        "b": pa.bool_(),
        "many": pa.list_(pa.int8()),
    }
)
RIGHT = pa.schema({"x": pa.int64(), "Price": pa.float64(), "when": pa.timestamp("ns", "UTC")})
SCOPE = scope_of(LEFT, RIGHT)


def bind_text(text: str) -> Expr:
    return bind(parse(text), SCOPE)


def type_of(text: str) -> Any:
    tested = bind_text(f"({text}) IS NULL")
    assert isinstance(tested, IsNull)
    return tested.arg.type


def constant(text: str) -> Literal:
    """Return the constant on the right of a comparison."""
    compare = bind_text(text)
    assert isinstance(compare, Compare)
    assert isinstance(compare.right, Literal)
    return compare.right


# Names.


@pytest.mark.parametrize(
    ("text", "side", "name"),
    [
        ("l.b", 0, "b"),
        ("left.b", 0, "b"),
        ("L.b", 0, "b"),
        ("b", 0, "b"),
        ("B", 0, "b"),
        ("price IS NULL", 1, "Price"),
        ("r.PRICE IS NULL", 1, "Price"),
        ("`right`.`Price` IS NULL", 1, "Price"),
    ],
)
def test_names(text: str, side: int, name: str) -> None:
    column = next(node for node in walk(bind_text(text)) if isinstance(node, Column))
    assert (column.side, column.name) == (side, name)


def test_aliases() -> None:
    left, right = (Schema.from_arrow(s, side) for s, side in ((LEFT, "left"), (RIGHT, "right")))
    scope = Scope.of(left, right, ("trades", "quotes"))
    assert show(bind(parse("trades.x = quotes.x AND l.b"), scope)) == "(l.x = r.x) AND l.b"


def test_exact_names_win_over_folded_ones() -> None:
    schema = Schema.from_arrow(pa.schema({"a": pa.int8(), "A": pa.int16()}), "left")
    assert schema.get("A").type == Int(16)
    assert schema.get("a").type == Int(8)
    either = Schema.from_arrow(pa.schema({"aB": pa.int8(), "Ab": pa.int16()}), "left")
    assert either.find("ab") is None


TOO_FINE = "is finer than a microsecond, which a constant cannot be"
ERRORS = [
    ("l.prize = 1", "no column 'prize' in the left input ({left})", 1),
    ("r.pric = 1", "no column 'pric' in the right input (x, Price, when); did you mean 'Price'?", 1),
    ("x = 1", "column 'x' is in both inputs; write l. or r. before it", 1),
    ("prices = 1", "no column 'prices'; did you mean 'Price'?", 1),
    ("zzz = 1", "no column 'zzz'", 1),
    ("rigth.x = 1", "no input 'rigth' (l, r, left, right); did you mean 'right'?", 1),
    ("l.a.b.c = 1", "no column 'a' in the left input ({left})", 1),
    ("l.x.b = 1", "l.x is int32 and has no fields", 1),
    (
        "l.many = r.x",
        "l.many is list<{item}: int8>; name a field of a struct, as in s.name, "
        "an element of a list, as in s[0], or a key of a map, as in s['key']",
        1,
    ),
    ("l.many.f = r.x", "l.many is list<{item}: int8> and has no fields", 1),
    ("l.many[0.5] = r.x", "the number of an element is a whole number, but 0.5 is decimal(1, 1)", 1),
    (
        "INTERVAL 1 MONTH < INTERVAL 30 DAYS",
        "cannot compare INTERVAL '1' MONTH (months) with INTERVAL '30' DAY (interval[us]); cast one of them",
        1,
    ),
    ("l.x", "the predicate must be true or false, but l.x is int32; compare it with something", 1),
    ("l.x AND l.b", "a condition is needed here, but l.x is int32", 1),
    ("NOT l.s", "a condition is needed here, but l.s is string", 5),
    ("l.s < 1", "cannot compare l.s (string) with 1 (int64); cast one of them", 1),
    ("l.b = l.x", "cannot compare l.b (bool) with l.x (int32); cast one of them", 1),
    (
        "l.ts = l.tz",
        "cannot compare l.ts (timestamp[us]) with l.tz (timestamp[ms, Europe/Berlin]); cast one of them",
        1,
    ),
    (
        "CAST('1970-01-01 00:00Z' AS TIMESTAMP) + INTERVAL 1 DAY < l.tz",
        "cannot compare CAST('1970-01-01 00:00Z' AS timestamp[us]) + INTERVAL '1' DAY (timestamp[us]) "
        "with l.tz (timestamp[ms, Europe/Berlin]); cast one of them",
        6,
    ),
    (
        "COALESCE(l.tz, CAST('1970-01-01 00:00Z' AS TIMESTAMP)) IS NULL",
        "l.tz (timestamp[ms, Europe/Berlin]) and CAST('1970-01-01 00:00Z' AS timestamp[us]) (timestamp[us]) "
        "have no common type; an instant is written TIMESTAMP '1970-01-01 00:00Z'",
        1,
    ),
    ("l.day < 'soon'", "'soon' is not a date; write it as '2024-12-31'", 9),
    ("l.ts < 'soon'", "'soon' is not a timestamp; write it as '2024-12-31 23:59:59'", 8),
    ("r.when < '1970-01-01 00:00:00.1234567'", f"'1970-01-01 00:00:00.1234567' {TOO_FINE}", 10),
    ("l.clock < 'noon'", "'noon' is not a time of day; write it as '23:59:59'", 11),
    (
        "l.clock < TIME '10:00:00+02:00'",
        "'10:00:00+02:00' has an offset, which a time of day cannot have",
        16,
    ),
    ("l.clock < TIME '10:00:00.1234567'", f"'10:00:00.1234567' {TOO_FINE}", 16),
    ("CAST(l.s AS TIME) = l.clock", "cannot cast l.s (string) to time[us]", 6),
    (
        "INTERVAL 1 HOUR - 1 > l.du",
        "cannot compute INTERVAL '1' HOUR (interval[us]) - 1 (int64)",
        1,
    ),
    ("l.s = 0.5", "cannot compare l.s (string) with 0.5 (decimal(1, 1)); cast one of them", 1),
    ("-l.s = 'a'", "cannot negate l.s (string)", 2),
    ("l.s + 'a' = 'b'", "cannot compute l.s (string) + 'a' (string); use || to join texts", 1),
    ("l.d DIV 2 = 1", "cannot compute l.d (float64) div 2 (int64)", 1),
    ("l.ts * 2 > l.ts", "cannot compute l.ts (timestamp[us]) * 2 (int64)", 1),
    ("CAST(l.raw AS INT) = 1", "cannot cast l.raw (binary) to int32", 6),
    ("CAST(l.b AS DATE) = l.day", "cannot cast l.b (bool) to date", 6),
    ("COALESCE(l.s, 1) = 'a'", "l.s (string) and 1 (int64) have no common type; cast one", 1),
    ("CASE WHEN l.b THEN 1 ELSE 'a' END = 1", "1 (int64) and 'a' (string) have no common type; cast one", 11),
    ("LEAST(l.raw, l.raw) = l.raw", "least() takes numbers, dates or timestamps, but l.raw is binary", 1),
    ("GREATEST(l.b, l.b)", "greatest() takes numbers, dates or timestamps, but l.b is bool", 1),
    ("LEAST(l.s, 'a') = 'a'", "least() takes numbers, dates or timestamps, but l.s is string", 1),
    ("ABS(l.s) = 1", "abs() takes a number, but l.s is string", 1),
    ("SQRT(l.day) = 1", "sqrt() takes a number, but l.day is date", 1),
    ("LOWER(l.x) = 'a'", "lower() takes text, but l.x is int32", 1),
    ("l.x LIKE 'a'", "like() takes text, but l.x is int32", 1),
    ("SUBSTRING(l.s, 'a') = 'a'", "substring() takes a text, a first position and optionally a length", 11),
    ("YEAR(l.x) = 1", "year() takes a date or timestamp, but l.x is int32", 1),
    ("HOUR(l.day) = 1", "hour() takes a timestamp, but l.day is date", 1),
]


@pytest.mark.parametrize(("text", "message", "column"), ERRORS, ids=[text for text, *_ in ERRORS])
def test_errors(text: str, message: str, column: int) -> None:
    with pytest.raises(ExpressionError) as error:
        bind_text(text)
    item = LEFT.field("many").type.value_field.name
    wanted = message.replace("{left}", ", ".join(LEFT.names)).replace("{item}", item)
    assert str(error.value) == f"{wanted} (line 1, column {column})"


def test_errors_name_the_line() -> None:
    with pytest.raises(ExpressionError) as error:
        bind_text("l.b\n  AND l.prise = 1")
    assert (error.value.line, error.value.column) == (2, 7)


def test_an_unknown_zone() -> None:
    scope = scope_of(pa.schema({"t": pa.timestamp("us", "Mars/Olympus")}), RIGHT)
    with pytest.raises(ExpressionError, match="time zone 'Mars/Olympus' is not known here"):
        bind(parse("t > '2024-01-01'"), scope)


def test_long_chains_and_deep_trees() -> None:
    chain = " AND ".join(f"l.x <> {n}" for n in range(5000))
    assert len(bind_text(chain).children) == 5000
    deep = lit(1)
    for _ in range(5000):
        deep = deep + 1
    with pytest.raises(ExpressionError, match="nested too deeply: 5002 levels, 100 are allowed"):
        bind((deep > 1).expr, SCOPE)
    assert bind_text("l.x + " * 97 + "1 > 0").type == BOOL


def test_constants_of_a_strange_type() -> None:
    with pytest.raises(ExpressionError, match=r"object object at .* cannot be a constant in a predicate"):
        bind((lit(object()) == 1).expr, SCOPE)


def test_doubled_columns_are_refused() -> None:
    twice = pa.schema([("x", pa.int8()), ("y", pa.int8()), ("x", pa.int8())])
    with pytest.raises(SchemaError) as error:
        Schema.from_arrow(twice, "left")
    assert str(error.value) == (
        "the left input has more than one column named 'x' (x, y, x); rename one of them"
    )


def test_missing_columns_are_suggested() -> None:
    schema = Schema.from_arrow(RIGHT, "right")
    with pytest.raises(SchemaError) as error:
        schema.get("prise")
    assert str(error.value) == (
        "no column 'prise' in the right input (x, Price, when); did you mean 'Price'?"
    )
    assert suggest("qq", ["price"]) == ""
    assert [field.name for field in schema] == ["x", "Price", "when"]


# Types.

ARROW = [
    (pa.bool_(), BOOL),
    (pa.null(), NULL),
    (pa.uint16(), Int(16, signed=False)),
    (pa.float16(), FLOAT32),
    (pa.decimal256(38, 4), Decimal(38, 4)),
    (pa.decimal256(50, 4), Opaque("decimal256(50, 4)")),
    (pa.decimal128(5, -2), Opaque("decimal128(5, -2)")),
    (pa.date64(), DATE),
    (pa.timestamp("ns", "UTC"), Timestamp("ns", "UTC")),
    (pa.duration("s"), Interval("s")),
    (pa.time32("ms"), TimeOfDay("ms")),
    (pa.large_string(), STRING),
    (pa.string_view(), STRING),
    (pa.dictionary(pa.int8(), pa.string()), STRING),
    (pa.binary(4), BINARY),
    (pa.large_binary(), BINARY),
    (pa.struct({"a": pa.int8()}), Opaque("struct<a: int8>")),
]


@pytest.mark.parametrize(("arrow", "kind"), ARROW, ids=lambda x: str(x))
def test_arrow_types(arrow: pa.DataType, kind: Any) -> None:
    assert type_from_arrow(arrow) == kind


RESULTS = [
    ("l.x + 1", INT64),
    ("l.x / 2", FLOAT64),
    ("l.x DIV 2", INT64),
    ("-l.x", INT64),
    ("-l.n", Decimal(0, 2)),
    ("l.f + 1", FLOAT32),
    ("l.f + 0.5", FLOAT32),
    ("l.f + 0.1", FLOAT64),
    ("l.f + 16777217", FLOAT64),
    ("l.f + l.x", FLOAT64),
    ("l.f + l.d", FLOAT64),
    ("l.f * l.f", FLOAT32),
    ("l.n + 1", Decimal(0, 2)),
    ("l.n + 0.001", Decimal(0, 3)),
    ("l.n * l.n", Decimal(0, 4)),
    ("l.n + l.d", FLOAT64),
    ("l.day - l.day", Interval("d")),
    ("l.day + 1", DATE),
    ("3 + l.day", DATE),
    ("l.day + (l.day - l.day)", DATE),
    ("l.day + INTERVAL 1 DAY * 2", DATE),
    ("(l.day - l.day) + 1", Interval("d")),
    ("(l.day - l.day) - l.x", Interval("d")),
    ("1 + (l.day - l.day)", Interval("d")),
    ("l.f + (0.25 + 0.25)", FLOAT32),
    ("COALESCE(l.clock, TIME '10:00:00')", TimeOfDay("us")),
    ("l.day + INTERVAL 2 DAYS", DATE),
    ("l.day + INTERVAL 1 HOUR", Timestamp("us")),
    ("INTERVAL 1 DAY + l.day", DATE),
    ("l.ts - l.ms", Interval("us")),
    ("l.ms + INTERVAL 1 SECOND", Timestamp("ms")),
    ("l.ms + INTERVAL 1 MICROSECOND", Timestamp("us")),
    ("l.tz - INTERVAL 1 SECOND", Timestamp("ms", "Europe/Berlin")),
    ("l.tz - r.when", Interval("ns")),
    ("l.ts - l.day", Interval("us")),
    ("l.du + INTERVAL 1 MICROSECOND", Interval("us")),
    ("2 * l.du", Interval("ms")),
    ("ABS(l.n)", Decimal(10, 2)),
    ("ABS(l.x)", INT64),
    ("SIGN(l.n)", INT64),
    ("SIGN(l.f)", FLOAT32),
    ("FLOOR(l.n)", INT64),
    ("FLOOR(l.d)", FLOAT64),
    ("SQRT(l.f)", FLOAT32),
    ("SQRT(l.x)", FLOAT64),
    ("POWER(l.f, 2)", FLOAT64),
    ("COALESCE(l.x, l.u)", INT64),
    ("COALESCE(NULL, l.s)", STRING),
    ("LEAST(l.x, l.n)", Decimal(0, 2)),
    ("GREATEST(l.day, l.ts)", Timestamp("us")),
    ("CASE WHEN l.b THEN l.x ELSE 0.5 END", Decimal(0, 1)),
    ("CASE WHEN l.b THEN l.s END", STRING),
    ("LENGTH(l.s)", INT64),
    ("l.s || 'a'", STRING),
    ("YEAR(l.day)", Int(32)),
    ("l.s LIKE 'a'", BOOL),
    ("CAST(l.x AS FLOAT)", FLOAT32),
    ("CAST(r.when AS TIMESTAMP)", Timestamp("us", "UTC")),
    ("CAST(l.x AS INT)", Int(32)),
    ("NULLIF(l.x, 0)", INT64),
]


@pytest.mark.parametrize(("text", "kind"), RESULTS, ids=[text for text, _ in RESULTS])
def test_result_types(text: str, kind: Any) -> None:
    assert type_of(text) == kind


BERLIN = "timestamp[ns, Europe/Berlin]"
COMPARED = [
    ("l.x = r.x", "l.x = r.x"),
    ("l.u = l.x", "l.u = l.x"),
    ("l.f = l.x", "CAST(l.f AS float64) = CAST(l.x AS float64)"),
    ("l.f < 0.5", "l.f < 0.5"),
    ("l.n = l.x", "CAST(l.n AS decimal(0, 2)) = CAST(l.x AS decimal(0, 2))"),
    ("l.n = l.d", "CAST(l.n AS float64) = l.d"),
    ("l.ts = l.ms", "l.ts = CAST(l.ms AS timestamp[us])"),
    ("l.tz = r.when", f"CAST(l.tz AS {BERLIN}) = CAST(r.when AS {BERLIN})"),
    ("l.day = l.ts", "CAST(l.day AS timestamp[us]) = l.ts"),
    ("l.du < INTERVAL 1 SECOND", "CAST(l.du AS interval[us]) < INTERVAL '1' SECOND"),
    ("l.n < 0.5", "CAST(l.n AS decimal(0, 2)) < 0.50"),
    ("l.day < '2024-01-01'", "l.day < DATE '2024-01-01'"),
    ("l.ts < '2024-01-01 10:00:00'", "l.ts < TIMESTAMP '2024-01-01 10:00:00'"),
    ("l.tz < '2024-01-01 10:00:00'", "l.tz < TIMESTAMP '2024-01-01 10:00:00+01:00'"),
    ("l.s = 'it''s'", "l.s = 'it''s'"),
    ("l.day - l.day < 3", "(l.day - l.day) < 3"),
    ("l.x IS NOT NULL", "NOT (l.x IS NULL)"),
    ("CAST(l.x AS INT) = 1", "l.x = 1"),
    ("CAST(l.x + 1 AS BIGINT) = 1", "CAST(l.x + 1 AS int64) = 1"),
]


@pytest.mark.parametrize(("text", "shown"), COMPARED, ids=[text for text, _ in COMPARED])
def test_operands_are_brought_to_one_type(text: str, shown: str) -> None:
    assert show(bind_text(text)) == shown


CONSTANTS = [
    ("l.f = 0.5", 0.5, FLOAT32),
    ("l.d = 1", 1.0, FLOAT64),
    ("l.n = 1.5", 150, Decimal(0, 2)),
    ("l.n = 12345678901234567890123456789012345.67", 1234567890123456789012345678901234567, Decimal(0, 2)),
    ("l.d < 1" + "0" * 400, float("inf"), FLOAT64),
    ("l.day = '1970-01-03'", 2, DATE),
    ("l.day = DATE '1970-01-03'", 2, DATE),
    ("l.ts = '1970-01-01 00:00:01'", 10**6, Timestamp("us")),
    ("l.ts = DATE '1970-01-02'", 86_400 * 10**6, Timestamp("us")),
    ("l.tz = '1970-01-01 01:00:00'", 0, Timestamp("ms", "Europe/Berlin")),
    ("l.tz = '1970-01-01 01:00:00.0005'", 500, Timestamp("us", "Europe/Berlin")),
    ("l.off = '1970-01-01 02:00:00'", 0, Timestamp("s", "+02:00")),
    ("l.off = '1970-01-01T00:00:01Z'", 1, Timestamp("s", "+02:00")),
    ("l.off < '1970-01-01 02:00:00.5'", 500_000, Timestamp("us", "+02:00")),
    ("l.tz < '0001-01-01 00:00:00'", -62_135_596_800_000 - 3_208_000, Timestamp("ms", "Europe/Berlin")),
    ("l.ts = TIMESTAMP '9999-12-31 23:59:59'", 253_402_300_799 * 10**6, Timestamp("us")),
    ("l.off < '9999-12-31T23:59:59-05:00'", 253_402_300_799 + 5 * 3600, Timestamp("s", "+02:00")),
    ("l.ts = CAST('1970-01-01 02:00:01+02:00' AS TIMESTAMP)", 10**6, Timestamp("us")),
    ("l.ts = CAST(' 1970-01-01T00:00:00Z' AS TIMESTAMP) + INTERVAL 1 DAY", 86_400 * 10**6, Timestamp("us")),
    ("l.s = CAST(CAST('1970-01-01 00:00Z' AS TIMESTAMP) AS STRING)", "1970-01-01 00:00:00", STRING),
    ("r.when = TIMESTAMP '1970-01-01 00:00:01'", 10**9, Timestamp("ns", "UTC")),
    ("l.day - l.day = 3", 3, Interval("d")),
    ("l.day - l.day = 3 - 1", 2, Interval("d")),
    ("l.tz > TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1 HOUR", 0, Timestamp("us", "Europe/Berlin")),
    (
        "l.tz > TIMESTAMP '1970-07-01 00:00:00' - INTERVAL 181 DAYS",
        -3_600_000_000,
        Timestamp("us", "Europe/Berlin"),
    ),
    ("l.tz > CAST(DATE '1970-01-01' + 1 AS TIMESTAMP)", 82_800_000_000, Timestamp("us", "Europe/Berlin")),
    (
        "l.tz < TIMESTAMP '9999-12-31 00:00:00' + INTERVAL 3652425 DAYS",
        (253_402_214_400 + 3_652_425 * 86_400 - 3600) * 10**6,
        Timestamp("us", "Europe/Berlin"),
    ),
    (
        "l.tz < TIMESTAMP '0001-01-01 00:00:00' - INTERVAL 100000000000 DAYS",
        (-62_135_596_800 - 3_208 - 10**11 * 86_400) * 10**6,
        Timestamp("us", "Europe/Berlin"),
    ),
    ("l.clock > TIME '10:00:00'", 36_000 * 10**6, TimeOfDay("us")),
    ("l.clock > '10:00:00.5'", 36_000_500_000, TimeOfDay("us")),
    ("l.ts > l.ts + NULL", None, Timestamp("us")),
    ("l.ts > NULL - l.ts", None, Timestamp("us")),
    ("l.ts > CAST(NULL AS TIMESTAMP) + INTERVAL 1 DAY", None, Timestamp("us")),
    ("l.day > DATE '2024-01-01' + INTERVAL 1 DAY * NULL", None, DATE),
    ("l.x = YEAR(NULL)", None, Int(32)),
    ("l.x = ABS(NULL) + 1", None, INT64),
    ("l.s = SUBSTRING(l.s, NULL)", None, STRING),
    ("l.s = COALESCE(NULL, NULL)", None, STRING),
    ("l.n = CASE WHEN l.b THEN NULL END", None, Decimal(10, 2)),
    ("l.x = 1 + 2 * 3 - -4", 11, INT64),
    ("l.x = -7 DIV 2", -3, INT64),
    ("l.x = -7 % 2", -1, INT64),
    ("l.x = 1 % 0", None, INT64),
    ("l.f = NULL + 1", None, FLOAT32),
    ("l.s = NULL", None, STRING),
]


@pytest.mark.parametrize(("text", "value", "kind"), CONSTANTS, ids=[text[:40] for text, *_ in CONSTANTS])
def test_constants_take_on_the_type_they_meet(text: str, value: Any, kind: Any) -> None:
    found = constant(text)
    assert (found.value, found.type) == (value, kind)
    assert type(found.value) is type(value)


PYTHON = [
    (None, None, NULL),
    (True, True, BOOL),
    (3, 3, INT64),
    (1.5, 1.5, FLOAT64),
    ("a", "a", STRING),
    (b"a", b"a", BINARY),
    (PyDecimal("1.50"), 150, Decimal(3, 2)),
    (PyDecimal("1e3"), 1000, Decimal(4, 0)),
    (PyDecimal("0.001"), 1, Decimal(3, 3)),
    (date(1970, 1, 2), 1, DATE),
    (datetime(1970, 1, 1, 0, 0, 1), 10**6, Timestamp("us")),
    (datetime(1970, 1, 1, tzinfo=UTC), 0, Timestamp("us", "UTC")),
    (timedelta(seconds=-1), -(10**6), Interval("us")),
    (time(0, 0, 1, 5), 1_000_005, TimeOfDay("us")),
]


@pytest.mark.parametrize(("given", "value", "kind"), PYTHON, ids=[repr(g) for g, *_ in PYTHON])
def test_python_constants(given: Any, value: Any, kind: Any) -> None:
    seen = Udf((Literal(given),), lambda _: True, type=BOOL)
    (literal,) = bind(seen, SCOPE).children
    assert literal == Literal(value, type=kind)


# Folding.

FOLDED = [
    ("1 = 1", "TRUE"),
    ("1 > 2 OR l.b", "l.b"),
    ("1 < 2 AND l.b", "l.b"),
    ("FALSE AND l.b", "FALSE"),
    ("TRUE OR l.b", "TRUE"),
    ("NULL AND l.b", "NULL AND l.b"),
    ("NULL = 1", "NULL"),
    ("NOT NULL", "NULL"),
    ("NULL IS NULL", "TRUE"),
    ("NOT NOT l.b", "l.b"),
    ("NOT l.x < 1", "l.x >= 1"),
    ("NOT l.x <> 1", "l.x = 1"),
    ("NOT l.d < 1", "NOT (l.d < 1.0)"),
    ("(l.b AND (l.x = 1 AND r.x = 2))", "l.b AND (l.x = 1) AND (r.x = 2)"),
    ("'a' < 'b'", "TRUE"),
    ("1e0 / 0 IS NULL", "TRUE"),
    ("NULL", "NULL"),
]


@pytest.mark.parametrize(("text", "shown"), FOLDED, ids=[text for text, _ in FOLDED])
def test_folding(text: str, shown: str) -> None:
    assert show(bind_text(text)) == shown


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(max_rows=4))
def test_binding_is_typed_through_and_folding_is_done(case: Case) -> None:
    tree = bound(case)
    assert tree.type == BOOL
    assert all(type(node.type).__name__ != "Unbound" for node in walk(tree))
    assert fold(tree) == tree
    for row in zip(rows(case.left), rows(case.right), strict=False):
        assert evaluate(tree, row) in (True, False, None)


def test_casts_keep_their_place() -> None:
    cast = next(node for node in walk(bind_text("l.b AND\n l.n = l.x")) if isinstance(node, Cast))
    assert cast.at is not None
    assert cast.at.line == 2
