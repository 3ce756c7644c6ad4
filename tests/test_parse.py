"""SQL text to trees: every construct, and errors that point into the text."""

from __future__ import annotations

from decimal import Decimal as PyDecimal

import pytest

from handshake.errors import ExpressionError
from handshake.plan import parse
from handshake.plan.expr import (
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
from handshake.plan.parse import parse_type
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    STRING,
    Decimal,
    Int,
    Interval,
    Timestamp,
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
    ("RTRIM(s)", "RTRIM(s)"),
    ("LENGTH(s)", "LENGTH(s)"),
    ("CHAR_LENGTH(s)", "LENGTH(s)"),
    ("CONCAT(s, 'a', t)", "CONCAT(s, 'a', t)"),
    ("s || t", "CONCAT(s, t)"),
    ("SUBSTRING(s, 2)", "SUBSTRING(s, 2)"),
    ("SUBSTR(s, -2, 1)", "SUBSTRING(s, -2, 1)"),
    ("s LIKE 'a%'", "LIKE(s, 'a%')"),
    ("s NOT LIKE 'a%'", "NOT LIKE(s, 'a%')"),
    ("s ILIKE 'a%'", "ILIKE(s, 'a%')"),
    ("s NOT ILIKE 'a%'", "NOT ILIKE(s, 'a%')"),
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
    ("DATE(t)", "CAST(t AS date)"),
    ("CAST(x AS INT)", "CAST(x AS int32)"),
    ("x::DOUBLE", "CAST(x AS float64)"),
    ("TRY_CAST(x AS DATE)", "CAST(x AS date)"),
    # Names.
    ("`l`.`a b` = 1", "l.a b = 1"),
    ("left.x = 1", "left.x = 1"),
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


ERRORS = [
    ("", "the predicate is empty; write a condition such as 'l.x < r.a'", None),
    (" \n ", "the predicate is empty; write a condition such as 'l.x < r.a'", None),
    ("l.x <", "cannot read the predicate near '<': an operand is missing", (1, 5)),
    ("l.x = 1 AND", "cannot read the predicate near 'AND': an operand is missing", (1, 11)),
    ("(l.x < r.a", "cannot read the predicate near 'a': Expecting )", (1, 10)),
    ("FOO(x) = 1", "'FOO(x)' has no meaning in a predicate here", (1, 1)),
    ("x = 1 AND\n TAN(y) = 1", "'TAN(y)' has no meaning in a predicate here", (2, 2)),
    ("SELECT x", "'SELECT x' has no meaning in a predicate here", (1, 8)),
    ("x & 1 = 1", "'x & 1' has no meaning in a predicate here", (1, 1)),
    ("x LIKE 'a' ESCAPE '!'", "\"x LIKE 'a' ESCAPE '!'\" has no meaning in a predicate here", (1, 1)),
    ("x IN (SELECT 1)", "IN takes a list of values, such as l.x IN (1, 2, 3)", (1, 1)),
    ("x IN ()", "IN takes a list of values, such as l.x IN (1, 2, 3)", (1, 1)),
    (
        "x BETWEEN SYMMETRIC 2 AND 1",
        "BETWEEN SYMMETRIC is not known; write BETWEEN LEAST(…) AND GREATEST(…)",
        (1, 1),
    ),
    ("ROUND(x, 2) = 1", "round takes one argument here", (1, 1)),
    ("TRIM('a' FROM x) = 1", "TRIM takes one argument here", (1, 6)),
    ("EXTRACT(WEEK FROM x) = 1", "EXTRACT knows year, month, day, hour, minute, second, not week", (1, 19)),
    ("t + INTERVAL x DAYS > t", "an interval is a constant, such as INTERVAL 10 SECONDS", (1, 14)),
    ("t + INTERVAL 1 MONTH > t", "months and years have no fixed length; write the interval in days", None),
    (
        "CAST(x AS DECIMAL(50, 2)) = 1",
        "decimal(50, 2) is not a type; precision goes up to 38",
        (1, 6),
    ),
    ("CAST(x AS ARRAY<INT>) = 1", "type ARRAY<INT> is not one a predicate can use", (1, 6)),
]


@pytest.mark.parametrize(("text", "message", "at"), ERRORS, ids=[text for text, *_ in ERRORS])
def test_errors(text: str, message: str, at: tuple[int, int] | None) -> None:
    with pytest.raises(ExpressionError) as error:
        parse(text)
    where = f" (line {at[0]}, column {at[1]})" if at else ""
    assert str(error.value) == message + where
    assert (error.value.line, error.value.column) == (at or (None, None))


def test_an_unknown_type_name() -> None:
    with pytest.raises(ExpressionError, match="unknown type 'struct<a:int>'"):
        parse_type("struct<a:int>")


def test_a_predicate_nested_too_deeply() -> None:
    with pytest.raises(ExpressionError, match="the predicate is nested too deeply"):
        parse("(" * 5000 + "x" + ")" * 5000)


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
