"""The builder makes the trees that SQL text makes."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal as PyDecimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from handshake.errors import ExpressionError
from handshake.plan import Expression, bind, call, col, left, lit, parse, right, sql
from handshake.plan.expr import Udf
from handshake.testing.oracle import evaluate
from strategies import Case, cases, scope_of

LEFT = pa.schema(
    {
        "x": pa.int32(),
        "y": pa.float64(),
        "s": pa.string(),
        "t": pa.timestamp("us"),
        "day": pa.date32(),
        "p q": pa.int8(),
    }
)
RIGHT = pa.schema({"a": pa.int32(), "b": pa.float64(), "z": pa.string(), "u": pa.timestamp("us")})
SCOPE = scope_of(LEFT, RIGHT)

SAME: list[tuple[Expression, str]] = [
    (left.x == right.a, "l.x = r.a"),
    (left.x != right.a, "l.x <> r.a"),
    (left.x < right.a, "l.x < r.a"),
    (left.x <= 3, "l.x <= 3"),
    (left.x > right.a, "l.x > r.a"),
    (3 >= right.a, "r.a <= 3"),  # noqa: SIM300
    (left.x + 1 == right.a - 1, "l.x + 1 = r.a - 1"),
    (1 + left.x == 1 - right.a, "1 + l.x = 1 - r.a"),
    (left.x * 2 == 2 * right.a, "l.x * 2 = 2 * r.a"),
    (left.y / 2 == 2 / right.b, "l.y / 2 = 2 / r.b"),
    (left.x % 2 == 1, "l.x % 2 = 1"),
    (7 % left.x == 1, "7 % l.x = 1"),
    (-left.x == right.a, "-l.x = r.a"),
    (abs(left.x - right.a) <= 10, "ABS(l.x - r.a) <= 10"),
    (left.x.between(right.a - 10, right.a + 10), "l.x BETWEEN r.a - 10 AND r.a + 10"),
    ((left.x < 1) & (left.y < 2) & (right.a < 3), "l.x < 1 AND l.y < 2 AND r.a < 3"),
    ((left.x < 1) | (left.y < 2) | (right.a < 3), "l.x < 1 OR l.y < 2 OR r.a < 3"),
    ((left.x < 1) & ((left.y < 2) | (right.a < 3)), "l.x < 1 AND (l.y < 2 OR r.a < 3)"),
    (~(left.y < 1), "NOT (l.y < 1)"),
    (left.x.isin(1, 2, right.a), "l.x IN (1, 2, r.a)"),
    (left.x.is_null(), "l.x IS NULL"),
    (left.x.is_not_null(), "l.x IS NOT NULL"),
    (left.x.cast("double") == 1, "CAST(l.x AS DOUBLE) = 1"),
    (left.x.cast("decimal(10, 2)") == right.a, "CAST(l.x AS DECIMAL(10, 2)) = r.a"),
    (left.s.like("a%"), "l.s LIKE 'a%'"),
    (~left.s.like("a%"), "l.s NOT LIKE 'a%'"),
    (left["p q"] == 1, "l.`p q` = 1"),
    (col("l.x") == col("a"), "l.x = a"),
    (left.y < PyDecimal("0.5"), "l.y < 0.5"),
    (left.y < 5e-1, "l.y < 5e-1"),
    (left.s == "a", "l.s = 'a'"),
    (left.x == None, "l.x = NULL"),  # noqa: E711
    (left.day == date(2024, 2, 29), "l.day = DATE '2024-02-29'"),
    (left.t < right.u + timedelta(seconds=5), "l.t < r.u + INTERVAL 5 SECONDS"),
    (lit(True) & (left.x == 1), "TRUE AND l.x = 1"),
    (sql("l.x = r.a") & (left.y < right.b), "l.x = r.a AND l.y < r.b"),
    (sql("ABS(l.x)") < 5, "ABS(l.x) < 5"),
]


@pytest.mark.parametrize(("built", "text"), SAME, ids=[text for _, text in SAME])
def test_the_builder_makes_the_trees_of_sql(built: Expression, text: str) -> None:
    assert bind(built.expr, SCOPE) == bind(parse(text), SCOPE)


def test_is_in_nothing_is_false() -> None:
    assert bind(left.x.isin().expr, SCOPE) == bind(parse("FALSE"), SCOPE)


def test_expressions_show_themselves() -> None:
    assert repr((left.x + 1 < right.a) & left.s.like("a%")) == "<((l.x + 1) < r.a) AND LIKE(l.s, 'a%')>"


def test_expressions_have_no_truth_value() -> None:
    with pytest.raises(ExpressionError) as error:
        bool(left.x == right.a)
    assert str(error.value) == "an expression has no truth value; use & | ~ instead of and, or, not"
    with pytest.raises(ExpressionError):
        _ = left.x < right.a < 5
    with pytest.raises(TypeError):
        hash(left.x)


def test_sides_are_no_trap_for_python_protocols() -> None:
    with pytest.raises(AttributeError):
        left.__deepcopy__
    assert left["__x"].expr == col("l.__x").expr


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ExpressionError, match="unknown type 'nonsense'"):
        left.x.cast("nonsense")


# Python callables.


def value(built: Expression, l: dict[str, Any], r: dict[str, Any]) -> Any:  # noqa: E741
    return evaluate(bind(built.expr, SCOPE), (l, r))


def test_callables_see_none_for_null() -> None:
    near = call(lambda x, a: None if x is None or a is None else abs(x - a) < 2, left.x, right.a)
    assert value(near, {"x": 1}, {"a": 2}) is True
    assert value(near, {"x": 1}, {"a": 3}) is False
    assert value(near, {"x": None}, {"a": 3}) is None


def test_callables_may_return_other_types() -> None:
    double = call(lambda x: 2 * x, left.x, returns="bigint")
    assert isinstance(double.expr, Udf)
    assert value(double + 1 == right.a, {"x": 2}, {"a": 5}) is True
    assert value(call(lambda s: s.upper(), left.s, returns="string") == "A", {"s": "a"}, {}) is True


def test_callables_take_constants_and_built_expressions() -> None:
    assert value(call(lambda x, k: x == k, left.x + 1, 4), {"x": 3}, {}) is True


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(max_rows=1))
def test_sql_may_be_mixed_in_anywhere(case: Case) -> None:
    scope = scope_of(case.left.schema, case.right.schema)
    assert bind((sql(case.on) & lit(True)).expr, scope) == bind(parse(case.on), scope)
    assert bind((~~sql(case.on)).expr, scope) == bind(parse(case.on), scope)
