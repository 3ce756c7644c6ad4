"""Casts of single values. Constants and columns are cast by the same rules.

Values are physical: dates, timestamps, intervals and decimals are whole numbers in the unit or scale of their
type. A value that cannot be cast becomes None, which is NULL.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import Any

from handshake.plan.calendar import read_date, read_time, read_timestamp, wall_clock
from handshake.plan.literals import to_text
from handshake.plan.ranges import scale_factor, type_range
from handshake.schema import (
    UNITS,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    String,
    TimeOfDay,
    Timestamp,
    Type,
)


def cast_value(value: Any, source: Type, target: Type) -> Any:
    """Return a physical value in another type, or None if it has no value there."""
    if value is None:
        return None
    if isinstance(target, String):
        return to_text(value, source)
    if isinstance(source, String):
        return _READERS[type(target)](value.strip(), target)
    if isinstance(target, Float):
        return _to_float(value, source, target)
    if isinstance(source, Float):
        return _from_float(value, target)
    return _rescale(value, source, target)


def _rescale(value: int, source: Type, target: Type) -> int | None:
    """Convert between exact types; only whole numbers and decimals have bounds."""
    if isinstance(source, Bool):
        return int(value)
    if isinstance(source, Timestamp) and isinstance(target, Date):
        return wall_clock(value * UNITS[source.unit], source.zone) // UNITS["d"]
    up, down = scale_factor(source, target)
    floored = isinstance(target, (Date, Timestamp))
    scaled = value * up // down if floored else divide_half_away(value * up, down)
    return scaled if fits_type(scaled, target) else None


def fits_type(value: int, kind: Type) -> bool:
    """Return whether a whole number fits an integer or a decimal with a precision."""
    if not isinstance(kind, Int) and not (isinstance(kind, Decimal) and kind.precision):
        return True
    low, high = type_range(kind, False)
    return low <= value <= high


def divide_half_away(value: int, by: int) -> int:
    """Divide and round half away from zero.

    >>> divide_half_away(5, 2), divide_half_away(-5, 2)
    (3, -3)
    """
    whole = (2 * abs(value) + by) // (2 * by)
    return whole if value >= 0 else -whole


# Floats.


def round_float32(value: float) -> float:
    """Round to the nearest float32."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def nearest_float(number: Fraction | int) -> float:
    """Return the float64 nearest to an exact number."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _to_float(value: Any, source: Type, target: Float) -> float:
    if isinstance(source, Decimal):
        value = Fraction(value, 10**source.scale)
    wide = value if isinstance(value, float) else nearest_float(value)
    return round_float32(wide) if target.bits == 32 else wide


def _from_float(value: float, target: Type) -> int | None:
    if not math.isfinite(value):
        return None
    if isinstance(target, Decimal):
        scaled = Fraction(repr(value)) * 10**target.scale  # the shortest text, as in Spark
        whole = divide_half_away(*scaled.as_integer_ratio())
    else:
        whole = math.trunc(value)
    return whole if fits_type(whole, target) else None


# From text: SQL's forms of numbers. Python's own parsers accept more, such as 1_000.

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SPECIAL = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_LONGEST = 4000
"""Python refuses to read much longer whole numbers."""
_TRUTHS = {
    **dict.fromkeys(("t", "true", "y", "yes", "1"), True),
    **dict.fromkeys(("f", "false", "n", "no", "0"), False),
}


def _read_int(text: str, target: Int) -> int | None:
    if not _WHOLE.fullmatch(text) or len(text) > _LONGEST:
        return None
    return int(text) if fits_type(int(text), target) else None


def _read_float(text: str, target: Float) -> float | None:
    if not _NUMBER.fullmatch(text) and not _SPECIAL.fullmatch(text):
        return None
    return round_float32(float(text)) if target.bits == 32 else float(text)


def _read_decimal(text: str, target: Decimal) -> int | None:
    """Round half away from zero to the target's scale."""
    if not _NUMBER.fullmatch(text) or len(text) > _LONGEST:
        return None
    try:
        sign, digits, exponent = PyDecimal(text).as_tuple()
    except ArithmeticError:  # an exponent of more than 18 digits
        return None
    whole, shift = int("".join(map(str, digits))), int(exponent) + target.scale
    if whole and len(digits) + shift > 80:
        return None  # far too large to write out
    if not whole or len(digits) + shift < 0:
        return 0
    scaled = whole * 10**shift if shift >= 0 else divide_half_away(whole, 10**-shift)
    return (-scaled if sign else scaled) if fits_type(scaled, target) else None


def _read_timestamp(text: str, target: Timestamp) -> int | None:
    found = read_timestamp(text)
    return None if found is None else found[0] * UNITS["us"] // UNITS[target.unit]


def _read_time(text: str, target: TimeOfDay) -> int | None:
    found = read_time(text)
    return None if found is None else found * UNITS["us"] // UNITS[target.unit]


_READERS: dict[type[Type], Callable[[str, Any], Any]] = {
    Int: _read_int,
    Float: _read_float,
    Decimal: _read_decimal,
    Bool: lambda text, _: _TRUTHS.get(text.lower()),
    Date: lambda text, _: read_date(text),
    Timestamp: _read_timestamp,
    TimeOfDay: _read_time,
    Interval: lambda text, _: None,
}
