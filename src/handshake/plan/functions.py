"""The functions of the language and the types of their results."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from handshake.errors import suggest
from handshake.plan.expr import Call, Expr, Literal, show
from handshake.plan.types import coerce, common, fail
from handshake.schema import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT64,
    STRING,
    Binary,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    Null,
    String,
    Timestamp,
    Type,
)

__all__ = ["COMPILED", "NAMES", "STRICT", "bind_call", "no_function"]

COMPILED = frozenset(
    (
        *("abs", "sign", "floor", "ceil", "round", "sqrt", "exp", "ln", "power", "sin", "cos"),
        *("least", "greatest", "coalesce"),
    )
)
"""Functions that kernels compile; the others are computed on Arrow batches."""

NAMES = (
    *(
        "abs",
        "ceil",
        "char_length",
        "coalesce",
        "concat",
        "contains",
        "cos",
        "date",
        "day",
        "endswith",
        "exp",
    ),
    *(
        "floor",
        "greatest",
        "hour",
        "if",
        "ifnull",
        "least",
        "length",
        "ln",
        "log",
        "lower",
        "ltrim",
        "minute",
    ),
    *("mod", "month", "nullif", "nvl", "power", "regexp_like", "round", "rtrim", "second", "sign", "sin"),
    *("sqrt", "startswith", "substring", "trim", "upper", "year"),
)
"""Functions as they are written in SQL."""

_Rule = Callable[[Call, tuple[Expr, ...]], Call]


def bind_call(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Check the arguments of a function and type its result."""
    if call.name not in _RULES:
        raise fail(no_function(call.name), call)
    return _RULES[call.name](call, args)


def no_function(name: str) -> str:
    """Return the error message for an unknown function."""
    return f"no function {name}(); known are {', '.join(NAMES)}{suggest(name, NAMES)}"


def _with_type(call: Call, args: tuple[Expr, ...], kind: Type) -> Call:
    return replace(call, args=args, type=kind)


def _want(call: Call, args: tuple[Expr, ...], count: int) -> None:
    if len(args) != count:
        raise fail(f"{call.name}() takes {count} argument{'s' if count > 1 else ''}, not {len(args)}", call)


def _wrong(call: Call, arg: Expr, wanted: str) -> Exception:
    return fail(f"{call.name}() takes {wanted}, but {show(arg)} is {arg.type}", call)


def _same_number(call: Call, args: tuple[Expr, ...]) -> Call:
    _want(call, args, 1)
    kind = args[0].type
    if not isinstance(kind, (Int, Decimal, Float, Interval, Null)):
        raise _wrong(call, args[0], "a number")
    return _with_type(call, args, INT64 if isinstance(kind, Int) else kind)


def _sign(call: Call, args: tuple[Expr, ...]) -> Call:
    checked = _same_number(call, args)
    return checked if isinstance(args[0].type, Float) else replace(checked, type=INT64)


def _whole(call: Call, args: tuple[Expr, ...]) -> Call:
    checked = _same_number(call, args)
    return replace(checked, type=INT64) if isinstance(args[0].type, Decimal) else checked


def _real(count: int) -> _Rule:
    def rule(call: Call, args: tuple[Expr, ...]) -> Call:
        _want(call, args, count)
        for arg in args:
            if not isinstance(arg.type, (Int, Decimal, Float, Null)):
                raise _wrong(call, arg, "a number")
        narrow = call.name == "sqrt" and args[0].type == FLOAT32
        kind = FLOAT32 if narrow else FLOAT64
        return _with_type(call, tuple(coerce(arg, kind) for arg in args), kind)

    return rule


def _common(call: Call, args: tuple[Expr, ...]) -> Call:
    if not args:
        raise fail(f"{call.name}() needs at least one argument", call)
    args = common(args, call)
    kind = args[0].type
    return _with_type(call, args, INT64 if isinstance(kind, Int) else kind)


def _comparable(call: Call, args: tuple[Expr, ...]) -> Call:
    bound = _common(call, args)
    if isinstance(bound.type, (String, Binary, Bool)):
        raise _wrong(call, bound.args[0], "numbers, dates or timestamps")
    return bound


def _texts(low: int, high: int, kind: Type) -> _Rule:
    def rule(call: Call, args: tuple[Expr, ...]) -> Call:
        if not low <= len(args) <= high:
            many = str(low) if low == high else f"{low} to {high}"
            raise fail(f"{call.name}() takes {many} argument{'s' if high > 1 else ''}, not {len(args)}", call)
        for arg in args:
            if not isinstance(arg.type, (String, Null)):
                raise _wrong(call, arg, "text")
        return _with_type(call, tuple(coerce(arg, STRING) for arg in args), kind)

    return rule


def _substring(call: Call, args: tuple[Expr, ...]) -> Call:
    text = args[:1]
    if not 2 <= len(args) <= 3 or not all(isinstance(a.type, (Int, Null)) for a in args[1:]):
        raise fail("substring() takes a text, a first position and optionally a length", call)
    return replace(_texts(1, 1, STRING)(call, text), args=args)


def _field(call: Call, args: tuple[Expr, ...]) -> Call:
    _want(call, args, 1)
    if not isinstance(args[0].type, (Date, Timestamp, Null)):
        raise _wrong(call, args[0], "a date or timestamp")
    if isinstance(args[0].type, Date) and call.name in ("hour", "minute", "second"):
        raise _wrong(call, args[0], "a timestamp")
    return _with_type(call, args, INT64)


def _regexp(call: Call, args: tuple[Expr, ...]) -> Call:
    """Check a constant pattern before any row is read."""
    bound = _texts(2, 2, BOOL)(call, args)
    pattern = bound.args[1]
    if isinstance(pattern, Literal) and pattern.value is not None:
        try:
            re.compile(pattern.value)
        except re.error as error:
            raise fail(f"'{pattern.value}' is not a regular expression: {error}", call) from None
    return bound


_RULES: dict[str, _Rule] = {
    "regexp_like": _regexp,
    "abs": _same_number,
    "sign": _sign,
    **dict.fromkeys(("floor", "ceil", "round"), _whole),
    **dict.fromkeys(("sqrt", "exp", "ln", "sin", "cos"), _real(1)),
    "power": _real(2),
    "coalesce": _common,
    **dict.fromkeys(("least", "greatest"), _comparable),
    **dict.fromkeys(("lower", "upper", "trim", "ltrim", "rtrim"), _texts(1, 1, STRING)),
    "length": _texts(1, 1, INT64),
    "concat": _texts(1, 99, STRING),
    "substring": _substring,
    **dict.fromkeys(("like", "ilike", "starts_with", "ends_with", "contains"), _texts(2, 2, BOOL)),
    **dict.fromkeys(("year", "month", "day", "hour", "minute", "second"), _field),
}

STRICT = frozenset(_RULES) - {"coalesce", "least", "greatest"}
"""Functions that are NULL as soon as one argument is."""
