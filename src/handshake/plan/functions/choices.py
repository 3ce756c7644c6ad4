"""Functions that choose among their arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from handshake.plan.expr import And, Call, Case, Compare, Expr, IsNull, Literal, Not
from handshake.plan.functions.registry import NUMBER, Function, check, check_count, plain, wrong
from handshake.plan.types import common, fail
from handshake.schema import BOOL, INT64, NULL, Binary, Bool, Int, String


def _common(call: Call, args: tuple[Expr, ...]) -> Call:
    if not args:
        raise fail(f"{call.name}() needs at least one argument", call)
    args = common(args, call)
    kind = args[0].type
    return replace(call, args=args, type=INT64 if isinstance(kind, Int) else kind)


def _comparable(call: Call, args: tuple[Expr, ...]) -> Call:
    bound = _common(call, args)
    if isinstance(bound.type, (String, Binary, Bool)):
        raise wrong(call, bound.args[0], "numbers, dates or timestamps")
    return bound


def _nan_last(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value != value else (False, value)


def _pick(choose: Callable[[list[Any]], Any]) -> Callable[[Call], Callable[..., Any]]:
    """Return the values of a choice among the arguments that are not NULL."""

    def pick(*values: Any) -> Any:
        known = [value for value in values if value is not None]
        return choose(known) if known else None

    return plain(pick)


# Functions that binding replaces.


def _nvl2(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Bind `CASE WHEN a IS NOT NULL THEN b ELSE c END`."""
    check_count(call, args, 3, 3)
    known = Not(IsNull(args[0], type=BOOL), type=BOOL)
    return _choose(call, known, args[1], args[2])


def _choose(call: Call, condition: Expr, first: Expr, second: Expr) -> Expr:
    a, b = common((first, second), call)
    kind = INT64 if isinstance(a.type, Int) else a.type
    return Case((condition, a), b, type=kind, at=call.at)


def _zero_if_null(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 1, 1)
    return _common(replace(call, name="coalesce"), (*args, Literal(0, type=INT64)))


def _null_if_zero(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 1, 1)
    a, zero = common((check(call, args[0], NUMBER), Literal(0, type=INT64)), call)
    return _choose(call, Compare("=", a, zero, type=BOOL), Literal(None, type=NULL), args[0])


def _is_null(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 1, 1)
    missing = IsNull(args[0], type=BOOL, at=call.at)
    return missing if call.name == "isnull" else Not(missing, type=BOOL, at=call.at)


def _is_nan(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Bind `x IS NOT NULL AND x <> x`: only NaN differs from itself."""
    check_count(call, args, 1, 1)
    value = check(call, args[0], NUMBER)
    known = Not(IsNull(value, type=BOOL), type=BOOL)
    return And((known, Compare("<>", value, value, type=BOOL)), type=BOOL, at=call.at)


def _other_than_nan(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Bind `CASE WHEN a <> a THEN b ELSE a END`."""
    check_count(call, args, 2, 2)
    a, b = common(tuple(check(call, arg, NUMBER) for arg in args), call)
    return _choose(call, Compare("<>", a, a, type=BOOL), b, a)


FUNCTIONS = (
    Function("nvl2", _nvl2),
    Function("zeroifnull", _zero_if_null),
    Function("nullifzero", _null_if_zero),
    Function("isnull", _is_null),
    Function("isnotnull", _is_null),
    Function("isnan", _is_nan),
    Function("nanvl", _other_than_nan),
    Function("coalesce", _common, _pick(lambda known: known[0]), strict=False, compiled=True),
    Function("least", _comparable, _pick(partial(min, key=_nan_last)), strict=False, compiled=True),
    Function("greatest", _comparable, _pick(partial(max, key=_nan_last)), strict=False, compiled=True),
)
ALIASES = dict.fromkeys(("ifnull", "nvl"), "coalesce")
