"""SQL text to trees: every construct, and errors that point into the text."""

from __future__ import annotations

import contextlib
from datetime import date, datetime, time, timedelta
from decimal import Decimal as PyDecimal

import pytest

from handshake.errors import ExpressionError
from handshake.plan import parse
from handshake.plan.expr import (
    UNBOUND,
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Compare,
    IsNull,
    Literal,
    Name,
    Negate,
    Not,
    Or,
    Position,
    conjunction,
    conjuncts,
    show,
    sides,
    transform,
    walk,
)
from handshake.plan.functions.registry import spelled_names
from handshake.plan.parse import parse_type
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    NULL,
    STRING,
    Decimal,
    Int,
    Interval,
    TimeOfDay,
    Timestamp,
    Type,
)

SHOWN = [
    # Comparisons and logic.
    ("l.x = r.a", "l.x = r.a"),
    ("l.x == r.a", "l.x = r.a"),
    ("l.x <> r.a", "l.x <> r.a"),
    ("l.x != r.a", "l.x <> r.a"),
    ("l.x < r.a AND l.y >= r.b AND b", "(l.x < r.a) AND (l.y >= r.b) AND b"),
    ("a OR b OR c", "a OR b OR c"),
    ("a OR b AND c", "a OR (b AND c)"),
    ("(a OR b) AND c", "(a OR b) AND c"),
    ("NOT a", "NOT a"),
    ("l.x BETWEEN r.a - 10 AND r.a + 10", "(l.x >= (r.a - 10)) AND (l.x <= (r.a + 10))"),
    ("x NOT BETWEEN 1 AND 2", "NOT ((x >= 1) AND (x <= 2))"),
    ("x IN (1, 2, y)", "(x = 1) OR (x = 2) OR (x = y)"),
    ("x NOT IN (1, 2)", "NOT ((x = 1) OR (x = 2))"),
    ("x IS NULL", "x IS NULL"),
    ("x IS NOT NULL", "NOT (x IS NULL)"),
    ("b IS TRUE", "(NOT (b IS NULL)) AND (b = TRUE)"),
    ("b IS NOT FALSE", "NOT ((NOT (b IS NULL)) AND (b = FALSE))"),
    ("x <=> y", "((NOT (x IS NULL)) AND (NOT (y IS NULL)) AND (x = y)) OR ((x IS NULL) AND (y IS NULL))"),
    ("x IS NOT DISTINCT FROM NULL", show(parse("x <=> NULL"))),
    ("x IS DISTINCT FROM y", f"NOT ({show(parse('x <=> y'))})"),
    # Arithmetic.
    ("x + y * 2 - z", "(x + (y * 2)) - z"),
    ("x / y", "x / y"),
    ("x DIV y", "x div y"),
    ("x % y", "x % y"),
    ("MOD(x, y)", "x % y"),
    ("-x", "-x"),
    ("- -x", "--x"),
    # Choice.
    ("CASE WHEN a THEN 1 WHEN b THEN 2 ELSE 3 END", "CASE WHEN a THEN 1 WHEN b THEN 2 ELSE 3 END"),
    ("CASE WHEN a THEN 1 END", "CASE WHEN a THEN 1 ELSE NULL END"),
    ("CASE x WHEN 1 THEN 'a' ELSE 'b' END", "CASE WHEN x = 1 THEN 'a' ELSE 'b' END"),
    ("IF(a, 1, 2)", "CASE WHEN a THEN 1 ELSE 2 END"),
    ("NULLIF(x, 1)", "CASE WHEN x = 1 THEN NULL ELSE x END"),
    ("COALESCE(x, y, 1)", "COALESCE(x, y, 1)"),
    ("NVL(x, 1)", "COALESCE(x, 1)"),
    ("IFNULL(x, 1)", "COALESCE(x, 1)"),
    # Functions.
    ("ABS(x)", "ABS(x)"),
    ("SIGN(x)", "SIGN(x)"),
    ("FLOOR(x)", "FLOOR(x)"),
    ("CEIL(x)", "CEIL(x)"),
    ("CEILING(x)", "CEIL(x)"),
    ("ROUND(x)", "ROUND(x)"),
    ("SQRT(x)", "SQRT(x)"),
    ("EXP(x)", "EXP(x)"),
    ("LN(x)", "LN(x)"),
    ("LOG(x)", "LN(x)"),
    ("LOG(2, x)", "LN(x) / LN(2)"),
    ("POWER(x, 2)", "POWER(x, 2)"),
    ("POW(x, 2)", "POWER(x, 2)"),
    ("SIN(x)", "SIN(x)"),
    ("COS(x)", "COS(x)"),
    ("LEAST(x, y, 1)", "LEAST(x, y, 1)"),
    ("GREATEST(x, y)", "GREATEST(x, y)"),
    ("LOWER(s)", "LOWER(s)"),
    ("UPPER(s)", "UPPER(s)"),
    ("TRIM(s)", "TRIM(s)"),
    ("TRIM(LEADING FROM s)", "LTRIM(s)"),
    ("LTRIM(s)", "LTRIM(s)"),
    ("TRIM(BOTH 'x' FROM s)", "TRIM(s, 'x')"),
    ("t + INTERVAL 1 MONTH", "t + INTERVAL '1' MONTH"),
    ("t - INTERVAL '1 year 2 months'", "t - INTERVAL '14' MONTH"),
    ("INTERVAL '-1-2' YEAR TO MONTH", "INTERVAL '-14' MONTH"),
    ("l.s.a.b", "l.s.a.b"),
    ("l.xs[0].b[i]", "l.xs[0].b[i]"),
    ("EXTRACT(WEEK FROM x)", "WEEKOFYEAR(x)"),
    ("x & ~1 | y ^ 2", "BIT_OR(BIT_AND(x, BIT_NOT(1)), BIT_XOR(y, 2))"),
    ("x << 1 >> y << 2", "SHIFTLEFT(SHIFTRIGHT(SHIFTLEFT(x, 1), y), 2)"),
    ("RTRIM(s)", "RTRIM(s)"),
    ("LENGTH(s)", "LENGTH(s)"),
    ("CHAR_LENGTH(s)", "LENGTH(s)"),
    ("CONCAT(s, 'a', t)", "CONCAT(s, 'a', t)"),
    ("s || t", "CONCAT(s, t)"),
    ("s || t || 'a'", "CONCAT(s, t, 'a')"),
    ("SUBSTRING(s, 2)", "SUBSTRING(s, 2)"),
    ("SUBSTR(s, -2, 1)", "SUBSTRING(s, -2, 1)"),
    ("SUBSTRING(s FROM 2 FOR 3)", "SUBSTRING(s, 2, 3)"),
    ("SUBSTRING(s FOR 3)", "SUBSTRING(s, 1, 3)"),
    ("s LIKE 'a%'", "LIKE(s, 'a%')"),
    ("s NOT LIKE 'a%'", "NOT LIKE(s, 'a%')"),
    ("s ILIKE 'a%'", "ILIKE(s, 'a%')"),
    ("s NOT ILIKE 'a%'", "NOT ILIKE(s, 'a%')"),
    ("s LIKE '10!%' ESCAPE '!'", "LIKE(s, '10\\%')"),
    ("s LIKE '!!!_%' ESCAPE '!'", "LIKE(s, '\\!\\_%')"),
    ("s LIKE '\\\\%%' ESCAPE '%'", "LIKE(s, '\\\\\\%')"),
    ("s NOT ILIKE 'a\\\\_' ESCAPE '\\\\'", "NOT ILIKE(s, 'a\\_')"),
    ("s RLIKE 'a'", "REGEXP_LIKE(s, 'a')"),
    ("s NOT RLIKE 'a'", "NOT REGEXP_LIKE(s, 'a')"),
    ("REGEXP_LIKE(s, 'a')", "REGEXP_LIKE(s, 'a')"),
    ("STARTSWITH(s, 'a')", "STARTS_WITH(s, 'a')"),
    ("ENDSWITH(s, 'a')", "ENDS_WITH(s, 'a')"),
    ("CONTAINS(s, 'a')", "CONTAINS(s, 'a')"),
    ("YEAR(t)", "YEAR(t)"),
    ("MONTH(t)", "MONTH(t)"),
    ("DAY(t)", "DAY(t)"),
    ("HOUR(t)", "HOUR(t)"),
    ("MINUTE(t)", "MINUTE(t)"),
    ("SECOND(t)", "SECOND(t)"),
    ("EXTRACT(MONTH FROM t)", "MONTH(t)"),
    ("DAYOFMONTH(t)", "DAY(t)"),
    ("YEAR(TO_DATE(s))", "YEAR(CAST(s AS date))"),
    ("DATE(t)", "CAST(t AS date)"),
    ("CAST(x AS INT)", "CAST(x AS int32)"),
    ("x::DOUBLE", "CAST(x AS float64)"),
    ("TRY_CAST(x AS DATE)", "CAST(x AS date)"),
    ("SAFE_CAST(x AS INT)", "CAST(x AS int32)"),
    ("TIME '10:00:00'", "TIME '10:00:00'"),
    ("x BETWEEN ASYMMETRIC 1 AND 2", "(x >= 1) AND (x <= 2)"),
    ("s = 'it''s'", "s = 'it''s'"),
    ("x = INTERVAL 90 SECONDS", "x = INTERVAL '90' SECOND"),
    ("x = 0.50", "x = 0.50"),
    # Names.
    ("`l`.`a b` = 1", "l.a b = 1"),
    ("left.x = 1", "left.x = 1"),
    ("comment = set AND cache", "(comment = set) AND cache"),
    ("x -- why\n = 1", "x = 1"),
]


@pytest.mark.parametrize(("text", "shown"), SHOWN, ids=[text for text, _ in SHOWN])
def test_constructs(text: str, shown: str) -> None:
    assert show(parse(text)) == shown


LITERALS = [
    ("1", 1),
    ("9223372036854775808", 2**63),
    ("1.50", PyDecimal("1.50")),
    (".5", PyDecimal("0.5")),
    ("12345678901234567890123456789012345.678", PyDecimal("12345678901234567890123456789012345.678")),
    ("1e3", 1000.0),
    ("'a'", "a"),
    ("'it\\'s'", "it's"),
    ("'it''s'", "it's"),
    ("''''", "'"),
    ("''", ""),
    ("'a''''b'", "a''b"),
    ("'a\"\"b'", 'a""b'),
    ('"a""b"', 'a"b'),
    ('"it\'s"', "it's"),
    ('"its\'"', "its'"),
    ("'a\\\\'", "a\\"),
    ("'\\\\'''", "\\'"),
    ("'a\\tb'", "a\tb"),
    ('"a"', "a"),
    ("TRUE", True),
    ("NULL", None),
]


@pytest.mark.parametrize(("text", "value"), LITERALS)
def test_literals(text: str, value: object) -> None:
    literal = parse(text)
    assert isinstance(literal, Literal)
    assert literal.value == value
    assert type(literal.value) is type(value)


INTERVALS = [
    ("INTERVAL 10 SECONDS", "us", 10_000_000),
    ("INTERVAL '1' DAY", "us", 86_400_000_000),
    ("INTERVAL '1 day'", "us", 86_400_000_000),
    ("INTERVAL 1.5 MINUTES", "us", 90_000_000),
    ("INTERVAL 3 NANOSECONDS", "ns", 3),
    ("INTERVAL 1 WEEK", "us", 7 * 86_400_000_000),
    ("INTERVAL -1 DAY", "us", -86_400_000_000),
    ("INTERVAL '1 day 2 hours'", "us", 26 * 3600 * 10**6),
    ("INTERVAL '1.5 minutes'", "us", 90_000_000),
    ("INTERVAL '+1 day'", "us", 86_400_000_000),
    ("INTERVAL '-2.5' SECONDS", "us", -2_500_000),
]


@pytest.mark.parametrize(("text", "unit", "value"), INTERVALS)
def test_intervals(text: str, unit: str, value: int) -> None:
    assert parse(text) == Literal(value, type=Interval(unit))


TYPES = [
    ("boolean", BOOL),
    ("tinyint", Int(8)),
    ("smallint", Int(16)),
    ("int", Int(32)),
    ("bigint", Int(64)),
    ("float", FLOAT32),
    ("double", FLOAT64),
    ("string", STRING),
    ("varchar(20)", STRING),
    ("binary", BINARY),
    ("date", DATE),
    ("time", TimeOfDay("us")),
    ("timestamp", Timestamp("us")),
    ("timestamp_ntz", Timestamp("us")),
    ("decimal", Decimal(10, 0)),
    ("decimal(5)", Decimal(5, 0)),
    ("decimal(38, 38)", Decimal(38, 38)),
]


@pytest.mark.parametrize(("text", "kind"), TYPES, ids=[text for text, _ in TYPES])
def test_types(text: str, kind: object) -> None:
    assert parse_type(text) == kind
    assert parse(f"CAST(x AS {text})") == Cast(Name(("x",)), type=kind)


def test_positions_count_lines_and_columns_from_one() -> None:
    tree = parse("l.x = 1\n  AND r.abc < 2")
    assert isinstance(tree, And)
    assert tree.args[0].at == Position(1, 1)
    assert tree.args[1].at == Position(2, 7)


def test_positions_do_not_make_trees_differ() -> None:
    assert parse("x   =   1") == parse("x = 1")


MANY = "is computed from many rows; a predicate sees one pair of rows at a time"
FORMAT = "a format has no meaning here; dates and times are read and written as '2024-12-31 23:59:59'"
MIXED = (
    "'1 month 2 days' is neither whole months and years nor a fixed length; write two intervals, such as "
    "INTERVAL 1 MONTH and INTERVAL 2 DAYS"
)
IN_LIST = "IN takes a list of values, such as l.x IN (1, 2, 3)"
LENGTH = (
    "cannot read '{}' as a length of time; write a number and a unit, such as "
    "'15 minutes', '900s' or '1h30m' (ns, us, ms, s, min, h, d)"
)
CONSTANT = "an interval is a constant, such as INTERVAL 10 SECONDS"
ERRORS = [
    ("", "the predicate is empty; write a condition such as 'l.x < r.a'", None),
    (" \n ", "the predicate is empty; write a condition such as 'l.x < r.a'", None),
    ("l.x <", "cannot read the predicate near '<': an operand is missing", (1, 5)),
    ("l.x = 1 AND", "cannot read the predicate near 'AND': an operand is missing", (1, 11)),
    ("(l.x < r.a", "cannot read the predicate near 'a': Expecting )", (1, 10)),
    ("s = 'abc", "cannot read the predicate: a ' is never closed", (1, 5)),
    ("FLOR(x) = 1", "no function FLOR(); did you mean 'floor'?", (1, 1)),
    ("x = 1 AND\n QQQQ(y) = 1", "no function QQQQ(); docs/semantics.md lists the functions", (2, 2)),
    ("x = MAP(y)", "cannot read the predicate: list index out of range", None),
    ("DATE(x, 'a') = y", "DATE() takes 1 argument, not 2", (1, 1)),
    ("MOD(x, y, z) = y", "MOD() takes 2 arguments, not 3", (1, 1)),
    ("x > 1 AND\n SUM(y) > 1", f"SUM() {MANY}", (2, 2)),
    ("COUNT(*) > 1", f"COUNT() {MANY}", (1, 1)),
    ("ABS(x) OVER (PARTITION BY y) = 1", f"'ABS(x) OVER (PARTITION BY y)' {MANY}", (1, 1)),
    ("COALESCE(x, y) IGNORE NULLS = 1", f"'COALESCE(x, y) IGNORE NULLS' {MANY}", (1, 1)),
    ("GREATEST(x, y) FILTER (WHERE a) = 1", f"'GREATEST(x, y) FILTER(WHERE a)' {MANY}", (1, 1)),
    (
        "SELECT x",
        "cannot read the predicate near 'SELECT': Invalid expression / Unexpected token",
        (1, 6),
    ),
    ("x = (SELECT y)", "'(SELECT y)' is a query, which a predicate cannot hold", (1, 13)),
    ("EXISTS (SELECT y)", "'EXISTS(SELECT y)' is a query, which a predicate cannot hold", (1, 16)),
    ("x = 1; y = 2", "'x = 1; y = 2' has no meaning in a predicate here", (1, 1)),
    ("l.* = 1", "'l.*' is not a column", (1, 1)),
    ("x = ANY(y)", "'ANY(y)' has no meaning in a predicate here", (1, 9)),
    ("x LIKE ANY ('a', 'b')", "\"ANY ('a', 'b')\" has no meaning in a predicate here", (1, 13)),
    ("x COLLATE utf8 = 'a'", "'x COLLATE utf8' has no meaning in a predicate here", (1, 1)),
    ("ABS(DISTINCT x) = 1", "'DISTINCT x' has no meaning in a predicate here", (1, 14)),
    ("REGEXP_LIKE(x, 'a', 'i')", "\"x RLIKE 'a'\": flag has no meaning here", (1, 1)),
    ("x = :p", "':p' has no meaning in a predicate here", (1, 1)),
    ("x LIKE 'a' ESCAPE '!!'", "ESCAPE takes one character, not '!!'", (1, 1)),
    ("x LIKE 'a!' ESCAPE '!'", "'a!' ends in its escape character", (1, 1)),
    ("x LIKE y ESCAPE '!'", "LIKE … ESCAPE takes constants, such as LIKE '10!%' ESCAPE '!'", (1, 1)),
    ("x IN (SELECT 1)", IN_LIST, (1, 1)),
    ("x IN ()", IN_LIST, (1, 1)),
    ("x IN y", IN_LIST, (1, 1)),
    ("x IN UNNEST(y)", IN_LIST, (1, 1)),
    (
        "x BETWEEN SYMMETRIC 2 AND 1",
        "BETWEEN SYMMETRIC is not known; write BETWEEN LEAST(…) AND GREATEST(…)",
        (1, 1),
    ),
    ("INITCAP(x, y) = 1", "initcap() takes 1 argument, not 2", (1, 9)),
    ("t + INTERVAL x DAYS > t", CONSTANT, (1, 5)),
    ("t + INTERVAL '90' MINUTE TO SECOND > t", CONSTANT, (1, 5)),
    ("t > t AND\n t - INTERVAL '1 month 2 days' > t", MIXED, (2, 6)),
    ("xs[1, 2] = 1", "'xs[1, 2]' has no meaning in a predicate here", (1, 1)),
    ("STRUCT(x).x = 1", "'STRUCT(x AS x).x' is not a column", (1, 1)),
    ("t + INTERVAL '1,5 days' > t", LENGTH.format("1,5 days"), (1, 5)),
    ("t > t - INTERVAL 1 DAY '- 2 hours'", LENGTH.format("- 2 hours"), (1, 24)),
    ("CAST(x AS DATE FORMAT 'yyyy') = y", FORMAT, (1, 6)),
    ("CAST(x AS TIMESTAMP FORMAT 'yyyy') = y", FORMAT, (1, 6)),
    ("CAST(x AS STRING FORMAT 'yyyy') = y", FORMAT, (1, 6)),
    ("TO_DATE(x, 'yyyy') = y", FORMAT, (1, 1)),
    ("YEAR(TO_DATE(x, 'yyyy')) = y", FORMAT, (1, 6)),
    ("x = 1" + "0" * 1000, "a number has 1001 digits; 1000 are allowed", (1, 5)),
    ("CAST(x AS TIMESTAMP(3)) = y", "type timestamp[us] takes no size here", (1, 6)),
    ("CAST(x AS DECIMAL(a)) = 1", "DECIMAL(A) is not a type; write DECIMAL(precision, scale)", (1, 6)),
    (
        "CAST(x AS DECIMAL(50, 2)) = 1",
        "decimal(50, 2) is not a type; precision goes up to 38",
        (1, 6),
    ),
    ("CAST(x AS ARRAY<INT>) = 1", "type ARRAY<INT> is not one a predicate can use", (1, 6)),
]


@pytest.mark.parametrize(("text", "message", "at"), ERRORS, ids=[text[:50] for text, *_ in ERRORS])
def test_errors(text: str, message: str, at: tuple[int, int] | None) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    where = f" (line {at[0]}, column {at[1]})" if at else ""
    assert str(error.value) == message + where
    assert (error.value.line, error.value.column) == (at or (None, None))


def test_an_unknown_type_name() -> None:
    with pytest.raises(ExpressionError, match="unknown type 'struct<a:int>'"):
        parse_type("struct<a:int>")


@pytest.mark.parametrize("name", spelled_names())
def test_functions_that_errors_name_are_known(name: str) -> None:
    for args in ("x AS int", "year FROM x", *(", ".join("xyzuvw"[:count]) for count in range(7))):
        with contextlib.suppress(ExpressionError):
            parse(f"{name}({args})")
            return
    pytest.fail(f"{name} is not known")


DEEP = {
    "parentheses": "(" * 3000 + "x" + ")" * 3000,
    "many parentheses": "(" * 100_000 + "x" + ")" * 100_000,
    "open parentheses": "(" * 3000,
    "sums": " + ".join(["x"] * 5000) + " > 1",
    "fewer sums": " + ".join(["x"] * 150) + " > 1",
    "negations": "NOT " * 3000 + "x",
    "minuses": "- " * 3000 + "x = 1",
    "calls": "ABS(" * 3000 + "x" + ")" * 3000 + " = 1",
    "comparisons": " = ".join(["x"] * 3000),
    "casts": "x" + "::INT" * 3000 + " = 1",
    "cases": "CASE WHEN x THEN " * 500 + "1" + " END" * 500 + " = 1",
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_predicate_nested_too_deeply(text: str) -> None:
    with pytest.raises(ExpressionError, match="the predicate is nested too deeply"):
        parse(text)


def test_a_tree_that_is_too_large_when_written_out() -> None:
    text = "x"
    for _ in range(20):
        text = f"NULLIF({text}, y)"
    with pytest.raises(ExpressionError, match="the predicate is too large: 500000 operations are allowed"):
        parse(f"{text} = 1")


@pytest.mark.parametrize("word", ["AND", "OR"])
def test_long_chains_are_flat(word: str) -> None:
    tree = parse(f" {word} ".join(f"l.x <> {n}" for n in range(5000)))
    assert len(tree.children) == 5000
    assert tree.children[4999].at == Position(1, sum(len(f"l.x <> {n} {word} ") for n in range(4999)) + 1)


# Constants as text.

TEXTS = [
    (None, NULL, "NULL"),
    (True, BOOL, "TRUE"),
    (-3, Int(8), "-3"),
    (5, Decimal(1, 1), "0.5"),
    (-5, Decimal(0, 2), "-0.05"),
    (1250, Decimal(10, 2), "12.50"),
    (7, Decimal(10, 0), "7"),
    (0.1, FLOAT64, "0.1"),
    (1e300, FLOAT64, "1e+300"),
    (float("-inf"), FLOAT64, "-Infinity"),
    (float("nan"), FLOAT32, "NaN"),
    ("it's", STRING, "'it''s'"),
    (b"\x01\xff", BINARY, "X'01FF'"),
    (0, DATE, "DATE '1970-01-01'"),
    (19723, DATE, "DATE '2024-01-01'"),
    (10**9, DATE, "(DATE '1970-01-01' + 1000000000)"),
    (1_704_067_200, Timestamp("s"), "TIMESTAMP '2024-01-01 00:00:00'"),
    (-1, Timestamp("ns"), "TIMESTAMP '1969-12-31 23:59:59.999999999'"),
    (1_500, Timestamp("ms", "Europe/Berlin"), "TIMESTAMP '1970-01-01 01:00:01.5+01:00'"),
    (0, Timestamp("us", "+02:00"), "TIMESTAMP '1970-01-01 02:00:00+02:00'"),
    (10**15 + 1, Timestamp("s"), "(TIMESTAMP '1970-01-01 00:00:00' + INTERVAL '1000000000000001' SECOND)"),
    (10_000, Interval("ms"), "INTERVAL '10' SECOND"),
    (-86_400, Interval("s"), "INTERVAL '-1' DAY"),
    (0, Interval("us"), "INTERVAL '0' SECOND"),
    (1, Interval("ns"), "INTERVAL '1' NANOSECOND"),
    (3, Interval("d"), "3"),
    (36_000_500, TimeOfDay("ms"), "TIME '10:00:00.5'"),
    (PyDecimal("0.0000001"), UNBOUND, "0.0000001"),
    (date(2024, 1, 1), UNBOUND, "DATE '2024-01-01'"),
    (datetime(2024, 1, 1, 2), UNBOUND, "TIMESTAMP '2024-01-01 02:00:00'"),
    (time(1, 2), UNBOUND, "TIME '01:02:00'"),
    (timedelta(hours=1), UNBOUND, "INTERVAL '1' HOUR"),
    (1 << 20_000, Int(64), f"{PyDecimal(1 << 20_000):f}"),
]


@pytest.mark.parametrize(("value", "kind", "text"), TEXTS, ids=[text[:40] for *_, text in TEXTS])
def test_constants_are_shown_as_sql(value: object, kind: Type, text: str) -> None:
    assert show(Literal(value, type=kind)) == text


# Walking trees.


def test_walk_goes_parents_first() -> None:
    tree = parse("a = -1 AND NOT b IS NULL OR ABS(c) IN (1)")
    kinds = [type(node) for node in walk(tree)]
    assert kinds[:2] == [Or, And]
    assert kinds.count(Compare) == 2
    assert {Negate, Not, IsNull, Call, Name, Literal} <= set(kinds)


def test_transform_rebuilds_bottom_up() -> None:
    tree = parse("CASE WHEN a THEN x + 1 ELSE CAST(y AS INT) END")
    renamed = transform(tree, lambda e: Name(("z",)) if isinstance(e, Name) else e)
    assert show(renamed) == "CASE WHEN z THEN z + 1 ELSE CAST(z AS int32) END"
    assert transform(tree, lambda e: e) == tree
    assert isinstance(tree, Case)
    assert len(list(tree.pairs)) == 1


def test_conjuncts_however_nested() -> None:
    tree = And((parse("a"), And((parse("b"), parse("c OR d")))))
    assert [show(part) for part in conjuncts(tree)] == ["a", "b", "c OR d"]
    assert conjunction(()) == Literal(True, type=BOOL)
    assert conjunction((parse("a"),)) == parse("a")
    assert conjuncts(conjunction(conjuncts(tree))) == conjuncts(tree)


def test_sides_of_an_unbound_tree_are_unknown() -> None:
    assert sides(Arithmetic("+", parse("x"), parse("1"))) == frozenset()
