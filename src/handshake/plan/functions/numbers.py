"""Functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from handshake.plan.casts import divide_half_away
from handshake.plan.expr import Call, Expr
from handshake.plan.functions.registry import NUMBER, REAL, Function, check, check_count, plain, takes, wrong
from handshake.plan.types import coerce
from handshake.schema import FLOAT32, FLOAT64, INT64, Decimal, Float, Int, Interval, Null, Type

__all__ = ["ALIASES", "FUNCTIONS"]


def _same_number(call: Call, args: tuple[Expr, ...]) -> Call:
    check_count(call, args, 1, 1)
    kind = args[0].type
    if not isinstance(kind, (Int, Decimal, Float, Interval, Null)):
        raise wrong(call, args[0], "a number")
    return replace(call, args=args, type=INT64 if isinstance(kind, Int) else kind)


def _sign(call: Call, args: tuple[Expr, ...]) -> Call:
    checked = _same_number(call, args)
    return checked if isinstance(args[0].type, Float) else replace(checked, type=INT64)


def _whole(call: Call, args: tuple[Expr, ...]) -> Call:
    checked = _same_number(call, args)
    return replace(checked, type=INT64) if isinstance(args[0].type, Decimal) else checked


def _sqrt(call: Call, args: tuple[Expr, ...]) -> Call:
    check_count(call, args, 1, 1)
    arg = check(call, args[0], NUMBER)
    kind = FLOAT32 if arg.type == FLOAT32 else FLOAT64
    return replace(call, args=(coerce(arg, kind),), type=kind)


# Values.


def sign_of(value: Any) -> Any:
    """Return -1, 0 or 1 in the type of the value; NaN and zeros stay."""
    if isinstance(value, float):
        return value if value == 0 or value != value else math.copysign(1.0, value)
    return (value > 0) - (value < 0)


def _to_whole(floor: Callable[[float], int], divide: Callable[[int, int], int]) -> Callable[[Call], Any]:
    """Return the values of FLOOR, CEIL or ROUND: `floor` for floats, `divide` for decimals."""

    def values(call: Call) -> Callable[[Any], Any]:
        kind: Type = call.args[0].type
        if isinstance(kind, Float):
            return lambda x: math.copysign(float(floor(x)), x) if math.isfinite(x) else x
        by = 10**kind.scale if isinstance(kind, Decimal) else 1
        return lambda x: divide(x, by)

    return values


def _round_float(x: float) -> int:
    return divide_half_away(*x.as_integer_ratio())


def guard(function: Callable[..., float]) -> Callable[..., float]:
    """Return a function of floats that gives NaN or infinity where Python raises."""

    def compute(*args: float) -> float:
        try:
            return function(*args)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return compute


def _ln(x: float) -> float:
    return -math.inf if x == 0 else math.nan if x < 0 else math.log(x)


def _power(a: float, b: float) -> float:
    odd = math.isfinite(b) and b % 2 == 1
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and odd else math.inf
    except ValueError:  # zero to a negative power, or a negative number to a broken one
        if a != 0:
            return math.nan
        return math.copysign(math.inf, a) if odd else math.inf


_UNARY = takes(REAL, gives=FLOAT64)

FUNCTIONS = (
    Function("abs", _same_number, plain(abs), compiled=True),
    Function("sign", _sign, plain(sign_of), compiled=True),
    Function("floor", _whole, _to_whole(math.floor, lambda x, by: x // by), compiled=True),
    Function("ceil", _whole, _to_whole(math.ceil, lambda x, by: -(-x // by)), compiled=True),
    Function("round", _whole, _to_whole(_round_float, divide_half_away), compiled=True),
    Function("sqrt", _sqrt, plain(guard(math.sqrt)), compiled=True),
    Function("exp", _UNARY, plain(guard(math.exp)), compiled=True),
    Function("ln", _UNARY, plain(_ln), compiled=True),
    Function("power", takes(REAL, REAL, gives=FLOAT64), plain(_power), compiled=True),
    Function("sin", _UNARY, plain(guard(math.sin)), compiled=True),
    Function("cos", _UNARY, plain(guard(math.cos)), compiled=True),
)
ALIASES = {"ceiling": "ceil", "signum": "sign", "pow": "power"}
