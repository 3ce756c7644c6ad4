"""Common types of expressions, and conversion of constants to them."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import Any

from handshake.errors import ExpressionError
from handshake.plan.calendar import instant, read_date, read_time, read_timestamp
from handshake.plan.casts import nearest_float, round_float32
from handshake.plan.expr import Cast, Expr, Literal, show
from handshake.schema import (
    BINARY,
    BOOL,
    DATE,
    FLOAT32,
    FLOAT64,
    INT64,
    NULL,
    STRING,
    UNITS,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    Months,
    Null,
    String,
    TimeOfDay,
    Timestamp,
    Type,
    finest_unit,
    scale_of,
)

_EPOCH = datetime(1970, 1, 1)
_PLAIN_TYPES = (
    (type(None), NULL), (bool, BOOL), (int, INT64), (float, FLOAT64), (str, STRING), (bytes, BINARY),
)  # fmt: skip
"""The types of Python's own values; True is a whole number, too, so bool comes first."""
_TOO_FINE = r"[.,]\d{6}\d*[1-9]"


def is_exact(kind: Type) -> bool:
    """Return whether values of this type are (scaled) whole numbers, on which arithmetic is exact."""
    return isinstance(kind, (Int, Decimal, Date, Timestamp, Interval, Months, TimeOfDay))


def fail(message: str, expr: Expr) -> ExpressionError:
    """Return an error that points at `expr`."""
    return ExpressionError(message, expr.at.line if expr.at else None, expr.at.column if expr.at else None)


def literal_of(value: Any, expr: Expr) -> Literal:
    """Give a Python constant its type."""
    for python, kind in _PLAIN_TYPES:
        if isinstance(value, python):
            return Literal(value, type=kind, at=expr.at)
    match value:
        case PyDecimal():
            return _decimal_literal(value, expr)
        case datetime():
            return timestamp_literal(value, expr)
        case date():
            return Literal((value - date(1970, 1, 1)).days, type=DATE, at=expr.at)
        case timedelta():
            return Literal(value // timedelta(microseconds=1), type=Interval("us"), at=expr.at)
        case time():
            return _time_literal(value, expr)
    raise fail(f"{value!r} ({type(value).__name__}) cannot be a constant in a predicate", expr)


def _decimal_literal(value: PyDecimal, expr: Expr) -> Literal:
    if not value.is_finite():
        return Literal(float(value), type=FLOAT64, at=expr.at)
    scale = max(0, -int(value.as_tuple().exponent))
    digits = int(Fraction(value) * 10**scale)  # not scaleb, which rounds to the context's precision
    return Literal(digits, type=Decimal(max(len(str(abs(digits))), scale, 1), scale), at=expr.at)


def _time_literal(value: time, expr: Expr) -> Literal:
    if value.tzinfo is not None:
        raise fail(f"'{value}' has an offset, which a time of day cannot have", expr)
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
    return Literal(micros, type=TimeOfDay("us"), at=expr.at)


def timestamp_literal(value: datetime, expr: Expr) -> Literal:
    """Return a datetime in microseconds: an instant if it has a zone, else a wall-clock reading."""
    offset = value.utcoffset()
    since = value.replace(tzinfo=None) - _EPOCH - (offset or timedelta())
    zone = None if offset is None else "UTC"
    return Literal(since // timedelta(microseconds=1), type=Timestamp("us", zone), at=expr.at)


def unify(a: Expr, b: Expr) -> Type | None:
    """Return the type in which two expressions can be compared, or None."""
    if isinstance(a.type, Null) or isinstance(b.type, Null):
        return b.type if isinstance(a.type, Null) else a.type
    if isinstance(a.type, Float) or isinstance(b.type, Float):
        return _unify_float(a, b)
    if isinstance(a, Literal) and isinstance(a.type, String) and not isinstance(b.type, String):
        return _unify_text(a, b.type)
    if isinstance(b, Literal) and isinstance(b.type, String) and not isinstance(a.type, String):
        return _unify_text(b, a.type)
    return _unify_types(a, b)


def _unify_text(text: Literal, kind: Type) -> Type | None:
    """Return the type of a text that is compared with a date or time; a finer text is not rounded."""
    if text.value is None or isinstance(kind, Date):
        return kind if isinstance(kind, (Date, Timestamp, TimeOfDay)) else None
    match kind:
        case Timestamp(unit=unit, zone=zone):
            rest = parse_timestamp(text.value, text).value * UNITS["us"] % UNITS[unit]
            return Timestamp("us", zone) if rest else kind
        case TimeOfDay(unit=unit):
            rest = parse_time(text.value, text).value * UNITS["us"] % UNITS[unit]
            return TimeOfDay("us") if rest else kind
    return None


def _unify_float(a: Expr, b: Expr) -> Type | None:
    if not all(isinstance(e.type, (Float, Int, Decimal)) for e in (a, b)):
        return None
    narrow = all(e.type == FLOAT32 or _fits_float32(e) for e in (a, b))
    return FLOAT32 if narrow else FLOAT64


def _fits_float32(expr: Expr) -> bool:
    """Return whether float32 holds a constant exactly, so that it does not widen a float32 column."""
    if not isinstance(expr, Literal):
        return False
    return expr.value is None or round_float32(nearest_float(_number(expr))) == _number(expr)


def _number(expr: Literal) -> Any:
    return Fraction(expr.value, 10**expr.type.scale) if isinstance(expr.type, Decimal) else expr.value


def _unify_types(a: Expr, b: Expr) -> Type | None:
    match a.type, b.type:
        case Int(), Int():
            return a.type if a.type == b.type else INT64
        case (Int() | Decimal(), Int() | Decimal()):
            return Decimal(0, max(scale_of(a.type), scale_of(b.type)))
        case (Date(), Timestamp(zone=None) as other) | (Timestamp(zone=None) as other, Date()):
            return other
        case Timestamp() as x, Timestamp() as y:
            return _unify_timestamps(a, b, x, y)
        case Interval(unit=x), Interval(unit=y):
            return Interval(finest_unit(x, y))
        case (Interval(unit="d") as days, Int()) | (Int(), Interval(unit="d") as days):
            return days
        case TimeOfDay(unit=x), TimeOfDay(unit=y):
            return TimeOfDay(finest_unit(x, y))
    return a.type if a.type == b.type else None


def _unify_timestamps(a: Expr, b: Expr, x: Timestamp, y: Timestamp) -> Type | None:
    unit = finest_unit(x.unit, y.unit)
    if (x.zone is None) == (y.zone is None):
        return Timestamp(unit, x.zone)
    constant, zone = (a, y.zone) if x.zone is None else (b, x.zone)
    return Timestamp(unit, zone) if isinstance(constant, Literal) else None


def common(exprs: tuple[Expr, ...], expr: Expr) -> tuple[Expr, ...]:
    """Bring several expressions to one type, or fail at `expr`."""
    first = exprs[0]
    for other in exprs[1:]:
        kind = unify(first, other)
        if kind is None:
            what = f"{_describe(first)} and {_describe(other)} have no common type"
            raise fail(f"{what}; {remedy(first, other, 'cast one')}", expr)
        first = coerce(first, kind) if kind != first.type else first
    return tuple(coerce(e, first.type) for e in exprs)


def remedy(a: Expr, b: Expr, usual: str) -> str:
    """Return how two expressions without a common type become comparable: mostly the `usual` way."""
    for expr in (a, b):
        constant = isinstance(expr, Cast) and isinstance(expr.arg, Literal)
        if constant and all(isinstance(e.type, Timestamp) for e in (a, b)):
            return f"an instant is written TIMESTAMP {show(expr.children[0])}"
    return usual


def _describe(expr: Expr) -> str:
    return f"{show(expr)} ({expr.type})"


def coerce(expr: Expr, kind: Type) -> Expr:
    """Convert an expression to another type; constants are converted at once."""
    if expr.type == kind or (isinstance(kind, Int) and isinstance(expr.type, Int)):
        return expr
    if isinstance(expr, Literal):
        return _coerce_literal(expr, kind)
    return Cast(expr, type=kind, at=expr.at)


def _coerce_literal(expr: Literal, kind: Type) -> Expr:
    value = expr.value
    if value is None:
        return Literal(None, type=kind, at=expr.at)
    match expr.type, kind:
        case (Int() | Decimal() | Float(), Float(bits=bits)):
            number = nearest_float(_number(expr))
            return Literal(round_float32(number) if bits == 32 else number, type=kind, at=expr.at)
        case (Int() | Decimal(), Decimal(scale=scale)):
            return Literal(value * 10 ** (scale - scale_of(expr.type)), type=kind, at=expr.at)
        case (Interval(unit=x), Interval(unit=y)) | (TimeOfDay(unit=x), TimeOfDay(unit=y)):
            return _rescale(expr, x, y, kind)
        case Int(), Interval(unit="d"):
            return Literal(value, type=kind, at=expr.at)
        case String(), Date():
            return Literal(parse_date(value, expr), type=kind, at=expr.at)
        case String(), Timestamp():
            return _coerce_literal(parse_timestamp(value, expr), kind)
        case String(), TimeOfDay():
            return _coerce_literal(parse_time(value, expr), kind)
        case Date(), Timestamp(unit=y):
            return _rescale(expr, "d", y, kind)
        case Timestamp(unit=x, zone=None), Timestamp(unit=y, zone=str() as zone):
            return _rescale(_in_zone(expr, x, zone), x, y, kind)
        case Timestamp(unit=x), Timestamp(unit=y):
            return _rescale(expr, x, y, kind)
    return Cast(expr, type=kind, at=expr.at)


def _rescale(expr: Literal, x: str, y: str, kind: Type) -> Expr:
    scaled, rest = divmod(expr.value * UNITS[x], UNITS[y])
    return Cast(expr, type=kind, at=expr.at) if rest else Literal(scaled, type=kind, at=expr.at)


def _in_zone(expr: Literal, unit: str, zone: str) -> Literal:
    """Read a wall-clock constant in the zone of the column that it meets."""
    try:
        moment = instant(expr.value * UNITS[unit], zone)
    except (KeyError, ValueError, OSError):
        raise fail(f"time zone '{zone}' is not known here", expr) from None
    return Literal(moment // UNITS[unit], type=expr.type, at=expr.at)


def parse_date(text: str, expr: Expr) -> int:
    """Return the days since 1970 of a constant date."""
    days = read_date(text)
    if days is None:
        raise fail(f"'{text}' is not a date; write it as '2024-12-31'", expr)
    return days


def parse_timestamp(text: str, expr: Expr) -> Literal:
    """Return a constant in microseconds: an instant if it has an offset, else a wall-clock reading."""
    if re.search(_TOO_FINE, text):
        raise fail(f"'{text}' is finer than a microsecond, which a constant cannot be", expr)
    found = read_timestamp(text)
    if found is None:
        raise fail(f"'{text}' is not a timestamp; write it as '2024-12-31 23:59:59'", expr)
    micros, is_instant = found
    return Literal(micros, type=Timestamp("us", "UTC" if is_instant else None), at=expr.at)


def parse_time(text: str, expr: Expr) -> Literal:
    """Return a constant time of day in microseconds."""
    if re.search(_TOO_FINE, text):
        raise fail(f"'{text}' is finer than a microsecond, which a constant cannot be", expr)
    if re.search(r":.*([+-][0-9]|Z)", text):
        raise fail(f"'{text}' has an offset, which a time of day cannot have", expr)
    micros = read_time(text)
    if micros is None:
        raise fail(f"'{text}' is not a time of day; write it as '23:59:59'", expr)
    return Literal(micros, type=TimeOfDay("us"), at=expr.at)


def is_boolean(kind: Type) -> bool:
    """Return whether an expression of this type can be a condition."""
    return isinstance(kind, (Bool, Null))
