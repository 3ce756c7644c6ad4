"""Values as text: as casts give them, and as constants in messages and `explain`."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from typing import Any

from handshake.plan.calendar import DAY, civil, wall_clock
from handshake.schema import UNITS, Bool, Date, Decimal, Int, Interval, Months, TimeOfDay, Timestamp, Type

_LENGTHS = {
    "DAY": DAY,
    "HOUR": 3600 * UNITS["s"],
    "MINUTE": 60 * UNITS["s"],
    "SECOND": UNITS["s"],
    "MILLISECOND": UNITS["ms"],
    "MICROSECOND": UNITS["us"],
    "NANOSECOND": 1,
}


def to_text(value: Any, kind: Type) -> str:
    """Return a physical value as text.

    >>> to_text(150, Decimal(3, 2)), to_text(1_500, Timestamp("ms"))
    ('1.50', '1970-01-01 00:00:01.5')
    """
    match kind:
        case Bool():
            return "true" if value else "false"
        case Int():
            return _whole(value)
        case Decimal(scale=scale):
            whole, rest = divmod(abs(value), 10**scale)
            return f"{'-' if value < 0 else ''}{_whole(whole)}" + (f".{rest:0{scale}}" if scale else "")
        case Date():
            year, month, day = civil(value)
            sign = "+" if year > 9999 else "-" if year < 0 else ""
            return f"{sign}{_whole(abs(year)):0>4}-{month:02}-{day:02}"
        case Timestamp(unit=unit, zone=zone):
            nanoseconds = value * UNITS[unit]
            wall = wall_clock(nanoseconds, zone)
            offset = "" if zone is None else _offset((wall - nanoseconds) // UNITS["s"])
            return f"{to_text(wall // DAY, Date())} {_clock(wall % DAY)}{offset}"
        case TimeOfDay(unit=unit):
            return _clock(value * UNITS[unit])
    return str(value)


def _whole(value: int) -> str:
    """Return the digits of a whole number; Python itself refuses to write very long ones."""
    return str(value) if value.bit_length() < 10_000 else f"{PyDecimal(value):f}"


def _clock(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, UNITS["s"])
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{fraction}"


def _offset(east: int) -> str:
    """Return an offset from UTC in seconds as text."""
    seconds = abs(east)
    text = f"{'-' if east < 0 else '+'}{seconds // 3600:02}:{seconds // 60 % 60:02}"
    return f"{text}:{seconds % 60:02}" if seconds % 60 else text


def literal_text(value: Any, kind: Type) -> str:
    """Return a constant as it is written in a predicate; `value` is scaled if `kind` has a scale or unit.

    >>> literal_text(50, Decimal(3, 2)), literal_text(10_000, Interval("ms"))
    ('0.50', "INTERVAL '10' SECOND")
    """
    if value is None:
        return "NULL"
    match kind:
        case Decimal():
            return to_text(value, kind)
        case Date():
            text = to_text(value, kind)
            return f"DATE '{text}'" if _is_readable(text) else f"(DATE '1970-01-01' + {_whole(value)})"
        case Timestamp():
            return _timestamp(value, kind)
        case Interval(unit=unit) if unit != "d":  # days are plain numbers
            return _interval(value * UNITS[unit])
        case TimeOfDay():
            return f"TIME '{to_text(value, kind)}'"
        case Months():
            return f"INTERVAL '{_whole(value)}' MONTH"
    return _python(value)


def _is_readable(text: str) -> bool:
    """Return whether the year of a date or a timestamp is one that texts may have: 0001 to 9999."""
    return text[4] == "-" and text[:4] != "0000"


def _timestamp(value: int, kind: Timestamp) -> str:
    try:
        text = to_text(value, kind)
    except (ValueError, KeyError, OSError):  # a zone that is not known here
        text = "0000-"
    if _is_readable(text):
        return f"TIMESTAMP '{text}'"
    start = "1970-01-01 00:00:00" + ("" if kind.zone is None else "+00:00")
    return f"(TIMESTAMP '{start}' + {_interval(value * UNITS[kind.unit])})"


def _interval(nanoseconds: int) -> str:
    unit = next(name for name, length in _LENGTHS.items() if nanoseconds % length == 0)
    unit = unit if nanoseconds else "SECOND"
    return f"INTERVAL '{_whole(nanoseconds // _LENGTHS[unit])}' {unit}"


def _python(value: Any) -> str:
    """Return the text of a value that is not scaled or has no type yet."""
    match value:
        case bool():
            return str(value).upper()
        case str():
            return "'" + value.replace("'", "''") + "'"
        case bytes():
            return f"X'{value.hex().upper()}'"
        case int():
            return _whole(value)
        case float():
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), repr(value))
        case PyDecimal():
            return format(value, "f") if value.is_finite() and abs(value.adjusted()) < 100 else str(value)
        case datetime():
            return f"TIMESTAMP '{value.isoformat(' ')}'"
        case date():
            return f"DATE '{value}'"
        case time():
            return f"TIME '{value}'"
        case timedelta():
            return _interval(value // timedelta(microseconds=1) * UNITS["us"])
    return str(value)
