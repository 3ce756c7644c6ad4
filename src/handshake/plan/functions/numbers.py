"""Functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from handshake.plan.casts import divide_half_away, nearest_float
from handshake.plan.expr import Arithmetic, Call, Case, Compare, Expr, Literal, show
from handshake.plan.functions.registry import (
    INT,
    NUMBER,
    REAL,
    WHOLE,
    Function,
    Rule,
    check,
    check_count,
    constant,
    plain,
    takes,
    wrong,
)
from handshake.plan.types import coerce, common, fail
from handshake.schema import BOOL, FLOAT32, FLOAT64, INT64, Decimal, Float, Int, Interval, Null, Type


def _same_number(call: Call, args: tuple[Expr, ...]) -> Call:
    check_count(call, args, 1, 1)
    kind = args[0].type
    if not isinstance(kind, (Int, Decimal, Float, Interval, Null)):
        raise wrong(call, args[0], "a number")
    return replace(call, args=args, type=INT64 if isinstance(kind, Int) else kind)


def _sign(call: Call, args: tuple[Expr, ...]) -> Call:
    checked = _same_number(call, args)
    return checked if isinstance(args[0].type, Float) else replace(checked, type=INT64)


def _whole(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Bind FLOOR, CEIL or ROUND; with a number of digits it is another function."""
    if len(args) > 1:
        return _digits(call, args)
    checked = _same_number(call, args)
    return replace(checked, type=INT64) if isinstance(args[0].type, Decimal) else checked


def _digits(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Bind a rounding to a constant number of digits after the point, or before it if negative."""
    call = replace(call, name=call.name.removesuffix("_digits"))  # a call that is bound already
    check_count(call, args, 1, 2)
    number = check(call, args[0], NUMBER)
    digits = constant(call, args[1], "the number of digits") if len(args) > 1 else 0
    if digits is None or isinstance(number.type, Null):
        return Literal(None, type=number.type, at=call.at)
    if not isinstance(digits, int) or abs(digits) > _MOST_DIGITS:
        most = f"-{_MOST_DIGITS} to {_MOST_DIGITS}"
        raise fail(f"{call.name}() takes {most} digits, not {show(args[1])}", call)
    kind = number.type
    if isinstance(kind, Decimal):
        kept = min(kind.scale, max(digits, 0))
        whole = max((kind.precision or 38) - kind.scale, -digits) + 1
        kind = Decimal(min(whole + kept, 38), kept)
    elif isinstance(kind, Int):
        kind = INT64
    bound = (number, Literal(digits, type=INT64))
    return replace(call, name=f"{call.name}_digits", args=bound, type=kind)


_MOST_DIGITS = 38


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


def _logarithm(log: Callable[[float], float]) -> Callable[[float], float]:
    """Return a logarithm that is -Infinity at zero, and NaN below it."""
    return lambda x: -math.inf if x == 0 else math.nan if x < 0 else log(x)


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


def _to_digits(divide: Callable[[int, int], int]) -> Callable[[Call], Any]:
    """Return the values of a rounding to digits. Floats are rounded as their shortest text shows them."""

    def values(call: Call) -> Callable[[Any, int], Any]:
        kind = call.args[0].type
        if isinstance(kind, Float):
            return lambda x, digits: _float_to_digits(x, digits, divide)
        held = kind.scale if isinstance(kind, Decimal) else 0
        kept = call.type.scale if isinstance(call.type, Decimal) else 0

        def round_whole(x: int, digits: int) -> int:
            if digits >= held:
                return x
            by = int(10 ** (held - digits))
            return divide(x, by) * by // int(10 ** (held - kept))

        return round_whole

    return values


def _float_to_digits(x: float, digits: int, divide: Callable[[int, int], int]) -> float:
    if not math.isfinite(x):
        return x
    exact = Fraction(repr(x)) * Fraction(10) ** digits
    whole = divide(exact.numerator, exact.denominator)
    return math.copysign(nearest_float(Fraction(whole) / Fraction(10) ** digits), x)


# Bits. Numbers are in two's complement of any length.


def _shift(shift: Callable[[int, int, int], int]) -> Callable[[Call], Any]:
    """Return the values of a shift in 32 or 64 bits; the count is taken modulo that number."""

    def values(call: Call) -> Callable[[int, int], int | None]:
        kind = call.args[0].type
        width = 32 if isinstance(kind, Int) and kind.bits <= 32 and kind != Int(32, signed=False) else 64

        def compute(x: int, count: int) -> int | None:
            if not -(2**63) <= x < 2**63:
                return None
            half = 1 << (width - 1)
            return (shift(x, count % width, width) + half) % (2 * half) - half

        return compute

    return values


def _bit_count(x: int) -> int | None:
    return (x % 2**64).bit_count() if -(2**63) <= x < 2**64 else None


def _bit_at(x: int, place: int) -> int | None:
    return x >> place & 1 if 0 <= place < 64 else None


# Replacements.


def _positive_remainder(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Bind PMOD: `CASE WHEN a % n < 0 THEN (a % n + n) % n ELSE a % n END`."""
    check_count(call, args, 2, 2)
    a, n = common(tuple(check(call, arg, NUMBER) for arg in args), call)
    kind = a.type
    if isinstance(kind, Null):
        return Literal(None, type=kind, at=call.at)
    if not isinstance(kind, Float):
        kind = Decimal(0, kind.scale) if isinstance(kind, Decimal) else INT64
    rest = Arithmetic("%", a, n, type=kind, at=call.at)
    zero = coerce(Literal(0, type=INT64), kind)
    wrapped = Arithmetic("%", Arithmetic("+", rest, n, type=kind), n, type=kind)
    return Case((Compare("<", rest, zero, type=BOOL), wrapped), rest, type=kind, at=call.at)


def _constant(value: float) -> Rule:
    def bind(call: Call, args: tuple[Expr, ...]) -> Expr:
        check_count(call, args, 0, 0)
        return Literal(value, type=FLOAT64, at=call.at)

    return bind


def _cotangent(x: float) -> float:
    tangent = math.tan(x)
    return math.copysign(math.inf, x) if tangent == 0 else 1 / tangent


def _cube_root(x: float) -> float:
    """Return the float whose cube is nearest; the library's may be its neighbour."""
    root = math.cbrt(x)
    if not math.isfinite(root) or root == 0:
        return root
    near = (root, math.nextafter(root, -math.inf), math.nextafter(root, math.inf))
    return min(near, key=lambda r: abs(Fraction(r) ** 3 - Fraction(x)))


_UNARY, _BINARY = takes(REAL, gives=FLOAT64), takes(REAL, REAL, gives=FLOAT64)
_BITS = takes(WHOLE, WHOLE, gives=INT64)
_ROUNDINGS: dict[str, Callable[[int, int], int]] = {
    "floor": lambda x, by: x // by,
    "ceil": lambda x, by: -(-x // by),
    "round": divide_half_away,
    "bround": lambda x, by: round(Fraction(x, by)),
    "truncate": lambda x, by: abs(x) // by * (1 if x >= 0 else -1),
}
_REAL: dict[str, Callable[[float], float]] = {
    "acos": guard(math.acos),
    "acosh": guard(math.acosh),
    "asin": guard(math.asin),
    "asinh": math.asinh,
    "atan": math.atan,
    "atanh": lambda x: math.copysign(math.inf, x) if abs(x) == 1 else guard(math.atanh)(x),
    "cbrt": _cube_root,
    "cosh": guard(math.cosh),
    "cot": guard(_cotangent),
    "csc": guard(lambda x: math.copysign(math.inf, x) if x == 0 else 1 / math.sin(x)),
    "degrees": math.degrees,
    "expm1": guard(math.expm1),
    "log10": _logarithm(math.log10),
    "log1p": lambda x: -math.inf if x == -1 else guard(math.log1p)(x),
    "log2": _logarithm(lambda x: math.log(x) / math.log(2.0)),
    "radians": math.radians,
    "rint": lambda x: math.copysign(float(round(x)), x) if math.isfinite(x) else x,
    "sec": guard(lambda x: 1 / math.cos(x)),
    "sinh": lambda x: math.copysign(guard(math.sinh)(abs(x)), x),
    "tan": guard(math.tan),
    "tanh": math.tanh,
}

FUNCTIONS = (
    Function("abs", _same_number, plain(abs), compiled=True),
    Function("sign", _sign, plain(sign_of), compiled=True),
    Function("floor", _whole, _to_whole(math.floor, _ROUNDINGS["floor"]), compiled=True),
    Function("ceil", _whole, _to_whole(math.ceil, _ROUNDINGS["ceil"]), compiled=True),
    Function("round", _whole, _to_whole(_round_float, _ROUNDINGS["round"]), compiled=True),
    Function("sqrt", _sqrt, plain(guard(math.sqrt)), compiled=True),
    Function("exp", _UNARY, plain(guard(math.exp)), compiled=True),
    Function("ln", _UNARY, plain(_logarithm(math.log)), compiled=True),
    Function("power", _BINARY, plain(_power), compiled=True),
    Function("sin", _UNARY, plain(guard(math.sin)), compiled=True),
    Function("cos", _UNARY, plain(guard(math.cos)), compiled=True),
    *(Function(name, _UNARY, plain(function)) for name, function in _REAL.items()),
    Function("atan2", _BINARY, plain(math.atan2)),
    Function("hypot", _BINARY, plain(math.hypot)),
    Function("pi", _constant(math.pi)),
    Function("e", _constant(math.e)),
    *(
        Function(f"{name}_digits", _digits, _to_digits(divide), spelled=False)
        for name, divide in _ROUNDINGS.items()
    ),
    *(Function(name, _digits) for name in ("bround", "truncate")),
    Function("pmod", _positive_remainder),
    Function("bit_and", _BITS, plain(lambda a, b: a & b), compiled=True, spelled=False),
    Function("bit_or", _BITS, plain(lambda a, b: a | b), compiled=True, spelled=False),
    Function("bit_xor", _BITS, plain(lambda a, b: a ^ b), compiled=True, spelled=False),
    Function("bit_not", takes(WHOLE, gives=INT64), plain(lambda a: ~a), compiled=True, spelled=False),
    Function("bit_count", takes(WHOLE, gives=INT), plain(_bit_count)),
    Function("getbit", takes(WHOLE, WHOLE, gives=INT), plain(_bit_at)),
    Function("shiftleft", _BITS, _shift(lambda x, count, width: x << count)),
    Function("shiftright", _BITS, _shift(lambda x, count, width: x >> count)),
    Function("shiftrightunsigned", _BITS, _shift(lambda x, count, width: x % (1 << width) >> count)),
)
ALIASES = {"bit_get": "getbit", "ceiling": "ceil", "pow": "power", "signum": "sign"}
