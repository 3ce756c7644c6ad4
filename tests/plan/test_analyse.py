"""Analysis of predicates: it finds the usual spellings, and never excludes a match."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from handshake.plan import Analysis, Bound, Equality, analyse, bind, call, left, parse, right
from handshake.plan.analyse import describe
from handshake.plan.expr import show, sides
from handshake.testing.oracle import evaluate, rows
from strategies import Case, bound, cases, scope_of

LEFT = pa.schema(
    {
        "x": pa.int32(),
        "y": pa.float32(),
        "d": pa.float64(),
        "n": pa.decimal128(10, 2),
        "t": pa.timestamp("us"),
        "day": pa.date32(),
        "s": pa.string(),
        "p": pa.bool_(),
    }
)
RIGHT = pa.schema(
    {
        "a": pa.int16(),
        "b": pa.float32(),
        "e": pa.float64(),
        "m": pa.decimal128(12, 4),
        "u": pa.timestamp("us"),
        "eve": pa.date32(),
        "z": pa.string(),
        "q": pa.bool_(),
    }
)
SCOPE = scope_of(LEFT, RIGHT)


def analyse_text(text: str) -> Analysis:
    return analyse(bind(parse(text), SCOPE))


def show_bounds(bounds: Sequence[Bound]) -> list[str]:
    return [f"{show(b.left)} {b.op} {show(b.right)} + {b.offset + 0}" for b in bounds]


TEN = ["l.x >= r.a + -10", "l.x <= r.a + 10"]
BANDS = [
    ("x BETWEEN a - 10 AND a + 10", TEN),
    ("a BETWEEN x - 10 AND x + 10", TEN[::-1]),
    ("x >= a - 10 AND x <= a + 10", TEN),
    ("a - 10 <= x AND a + 10 >= x", TEN),
    ("ABS(x - a) <= 10", TEN[::-1]),
    ("ABS(a - x) <= 10", TEN),
    ("10 >= ABS(x - a)", TEN[::-1]),
    ("x - a BETWEEN -10 AND 10", TEN),
    ("x - a <= 10 AND a - x <= 10", TEN[::-1]),
    ("x - a - 10 <= 0 AND 0 <= 10 + x - a", TEN[::-1]),
    ("NOT (x < a - 10) AND NOT (x > a + 10)", TEN),
    ("x + 5 >= a - 5 AND x - 5 <= a + 5", TEN),
    ("-x <= 10 - a AND -x >= -(a + 10)", TEN),
    ("ABS(x - a) < 10", ["l.x < r.a + 10", "l.x > r.a + -10"]),
    ("x < a", ["l.x < r.a + 0"]),
    ("a > x", ["l.x < r.a + 0"]),
    ("x + 1 > a", ["l.x > r.a + -1"]),
    ("2 * x + 1 <= 3 * a", ["2 * l.x <= 3 * r.a + -1"]),
    ("x * x < a + x", ["(l.x * l.x) - l.x < r.a + 0"]),
    ("t BETWEEN u - INTERVAL 5 SECONDS AND u", ["l.t >= r.u + -5000000", "l.t <= r.u + 0"]),
    ("ABS(t - u) <= INTERVAL 5 SECONDS", ["l.t <= r.u + 5000000", "l.t >= r.u + -5000000"]),
    ("day BETWEEN eve - 3 AND eve", ["l.day >= r.eve + -3", "l.day <= r.eve + 0"]),
    ("day - eve <= 3", ["l.day <= r.eve + 3"]),
    ("ABS(day - eve) < 3", ["l.day < r.eve + 3", "l.day > r.eve + -3"]),
    (
        "n BETWEEN m - 0.5 AND m + 0.5",
        [
            "CAST(l.n AS decimal(0, 4)) >= CAST(r.m AS decimal(0, 4)) + -5000",
            "CAST(l.n AS decimal(0, 4)) <= CAST(r.m AS decimal(0, 4)) + 5000",
        ],
    ),
    ("y BETWEEN b - 10 AND b + 10", ["l.y >= r.b + -10.0", "l.y <= r.b + 10.0"]),
    ("ABS(y - b) <= 10", ["l.y <= r.b + 10.0", "l.y >= r.b + -10.0"]),
    ("y - b < 0.5", ["l.y < r.b + 0.5"]),
    ("0.5 > y - b", ["l.y < r.b + 0.5"]),
    ("ABS(y - b) <= 0.1", ["l.y <= r.b + 0.09999999403953552", "l.y >= r.b + -0.09999999403953552"]),
    ("0.1 > ABS(y - b)", ["l.y < r.b + 0.10000000149011612", "l.y > r.b + -0.10000000149011612"]),
    ("y - b >= -0.1", ["l.y >= r.b + -0.09999999403953552"]),
    ("y - b > -0.1", ["l.y > r.b + -0.10000000149011612"]),
    ("y - b <= 1e-60", ["l.y <= r.b + 0.0"]),
    ("y - b >= 1e-60", ["l.y >= r.b + 1.401298464324817e-45"]),
    ("e >= d", ["l.d <= r.e + 0.0"]),
    ("d + 1 > e - 1", ["l.d > r.e + -2.0"]),
    ("SQRT(d) < ABS(e)", ["SQRT(l.d) < ABS(r.e) + 0.0"]),
]


@pytest.mark.parametrize(("text", "wanted"), BANDS, ids=[text for text, _ in BANDS])
def test_bounds(text: str, wanted: list[str]) -> None:
    found = analyse_text(text)
    assert show_bounds(found.bounds) == wanted
    assert found.residual == ()


def test_the_benchmark_of_the_field_has_two_bands() -> None:
    found = analyse_text("x BETWEEN a - 10 AND a + 10 AND y BETWEEN b - 10 AND b + 10")
    assert [len(band) for band in found.bands] == [2, 2]
    assert [show(band[0].left) for band in found.bands] == ["l.x", "l.y"]


def test_two_sided_bands_come_first() -> None:
    found = analyse_text("x < a AND d BETWEEN e AND e + 1")
    assert [len(band) for band in found.bands] == [2, 1]


def test_whole_numbers_are_exact_and_moved_float_constants_are_not() -> None:
    assert analyse_text("x < a + 1").bounds[0].rounding == 0
    assert analyse_text("d < e").bounds[0].rounding == 0
    moved = analyse_text("d + 2 < e - 1").bounds[0]
    assert (moved.rounding, moved.magnitude) == (2.0**-53, 3.0)
    assert analyse_text("y - b < 1").bounds[0].rounding == 2.0**-24


EQUALITIES = [
    ("x = a", "l.x = r.a"),
    ("a = x", "l.x = r.a"),
    ("x + 1 = a * 2", "l.x + 1 = r.a * 2"),
    ("x - a = 3", "l.x = r.a + 3"),
    ("x - a = 0", "l.x = r.a"),
    ("s = z", "l.s = r.z"),
    ("LOWER(s) = z", "LOWER(l.s) = r.z"),
    ("p = q", "l.p = r.q"),
    ("d = e", "l.d = r.e"),
    ("x = e", "CAST(l.x AS float64) = r.e"),
    ("day - eve = 1", "l.day = r.eve + 1"),
    ("YEAR(t) = YEAR(u)", "YEAR(l.t) = YEAR(r.u)"),
]


@pytest.mark.parametrize(("text", "wanted"), EQUALITIES, ids=[text for text, _ in EQUALITIES])
def test_equalities(text: str, wanted: str) -> None:
    found = analyse_text(text)
    assert [show_equality(e) for e in found.equalities] == [wanted]
    assert (found.bounds, found.residual) == ((), ())


def show_equality(equality: Equality) -> str:
    return f"{show(equality.left)} = {show(equality.right)}"


RESIDUAL = [
    "x <> a",
    "x = a OR d < e",
    "s LIKE z",
    "x * a < 10",
    "d - e = 1",
    "d * 2 < e + d",
    "s < z",
    "x % a = 0",
    "CASE WHEN p THEN x ELSE a END = 1",
    "ABS(x - a) >= 10",
    "COALESCE(x, a) < 3",
]


@pytest.mark.parametrize("text", RESIDUAL)
def test_the_rest_is_checked_on_candidates(text: str) -> None:
    found = analyse_text(text)
    assert len(found.residual) == 1
    assert (found.equalities, found.bounds, found.left_only, found.right_only) == ((), (), (), ())


def test_conditions_on_one_side_are_filters() -> None:
    found = analyse_text("x > 3 AND p AND (a < 5 OR q) AND x < a AND x BETWEEN 1 AND 9")
    assert [show(part) for part in found.left_only] == ["l.x > 3", "l.p", "l.x >= 1", "l.x <= 9"]
    assert [show(part) for part in found.right_only] == ["(r.a < 5) OR r.q"]
    assert len(found.bounds) == 1


def test_predicates_that_never_hold() -> None:
    assert analyse_text("1 = 2").never
    assert analyse_text("x = a AND NULL IS NOT NULL").never
    assert analyse_text("NULL").never
    assert not analyse_text("TRUE").never
    assert not analyse_text("x = a").never


def test_python_callables_are_asked_about_candidates_only() -> None:
    near = call(lambda x: x, left.x, returns="bigint") == call(lambda a: a, right.a, returns="bigint")
    found = analyse(bind(near.expr, SCOPE))
    assert found.equalities == ()
    assert len(found.residual) == 1


def test_description() -> None:
    text = "x = a AND ABS(y - b) <= 10 AND d < e AND x > 3 AND q AND s LIKE z"
    assert list(describe(analyse_text(text))) == [
        "equality    l.x = r.a",
        "band        l.y <= r.b + 10.0",
        "band        l.y >= r.b - 10.0",
        "inequality  l.d < r.e",
        "left only   l.x > 3",
        "right only  r.q",
        "residual    LIKE(l.s, r.z)",
    ]


# No match is excluded.


def admits(bound: Bound, pair: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a bound, with the slack that its rounding asks for, lets a pair through."""
    a, b = evaluate(bound.left, pair), evaluate(bound.right, pair)
    if a is None or b is None or a != a or b != b:
        return False
    if math.inf in (a, b) or -math.inf in (a, b):
        return holds(bound.op, a, b + bound.offset)
    slack = Fraction(bound.rounding) * (abs(Fraction(a)) + abs(Fraction(b)) + 2 * Fraction(bound.magnitude))
    edge = Fraction(b) + Fraction(bound.offset)
    return holds(bound.op, Fraction(a), edge - slack if bound.is_lower else edge + slack)


def holds(op: str, a: Any, b: Any) -> bool:
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]


def agrees(equality: Equality, pair: Sequence[Mapping[str, Any]]) -> bool:
    a, b = evaluate(equality.left, pair), evaluate(equality.right, pair)
    return a is not None and b is not None and a == b


LARGEST = 1.7976931348623157e308
OVERFLOWS = [
    ("d + 1e308 <= e + 1e308", LARGEST, 0.9e308),
    ("d + 1e308 >= e", LARGEST, math.inf),
    ("d - 1e300 <= e", -LARGEST, -math.inf),
]


@pytest.mark.parametrize(("text", "d", "e"), OVERFLOWS)
def test_sums_that_overflow_exclude_nothing(text: str, d: float, e: float) -> None:
    found = analyse_text(text)
    pair = ({"d": d}, {"e": e})
    assert evaluate(found.predicate, pair) is True
    assert all(admits(b, pair) for b in found.bounds)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(max_rows=20, max_depth=2))
def test_no_match_is_excluded(case: Case) -> None:
    predicate = bound(case)
    found = analyse(predicate)
    others = (*found.left_only, *found.right_only, *found.residual)
    for pair in ((r, s) for r in rows(case.left) for s in rows(case.right)):
        if evaluate(predicate, pair) is True:
            assert not found.never
            assert all(agrees(equality, pair) for equality in found.equalities), case.on
            assert all(admits(b, pair) for b in found.bounds), case.on
            assert all(evaluate(part, pair) is True for part in others), case.on


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(max_rows=1))
def test_every_part_reads_the_sides_it_says(case: Case) -> None:
    found = analyse(bound(case))
    for part in (*found.equalities, *found.bounds):
        assert (sides(part.left), sides(part.right)) == ({0}, {1})
    assert all(sides(part) == {0} for part in found.left_only)
    assert all(sides(part) == {1} for part in found.right_only)
    assert all(sides(part) in ({0, 1}, set()) for part in found.residual)
