"""Constants as exact SQL text, for messages and `explain`."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from typing import Any

from handshake.plan.calendar import zone_of
from handshake.schema import UNITS, Date, Decimal, Interval, Months, TimeOfDay, Timestamp, Type

_EPOCH = datetime(1970, 1, 1)
_LENGTHS = {
    "DAY": UNITS["d"],
    "HOUR": 3600 * UNITS["s"],
    "MINUTE": 60 * UNITS["s"],
    "SECOND": UNITS["s"],
    "MILLISECOND": UNITS["ms"],
    "MICROSECOND": UNITS["us"],
    "NANOSECOND": 1,
}


def literal_text(value: Any, kind: Type) -> str:
    """Return a constant as it is written in a predicate; `value` is scaled if `kind` has a scale or unit.

    >>> literal_text(50, Decimal(3, 2)), literal_text(10_000, Interval("ms"))
    ('0.50', "INTERVAL '10' SECOND")
    """
    if value is None:
        return "NULL"
    match kind:
        case Decimal(scale=scale):
            return _decimal(value, scale)
        case Date():
            return _date(value)
        case Timestamp(unit=unit, zone=zone):
            return _timestamp(value * UNITS[unit], zone)
        case Interval(unit=unit) if unit != "d":  # days are plain numbers
            return _interval(value * UNITS[unit])
        case TimeOfDay(unit=unit):
            return _time(value * UNITS[unit])
        case Months():
            return f"INTERVAL '{_whole(value)}' MONTH"
    return _python(value)


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


def _whole(value: int) -> str:
    # Python refuses to write very long numbers in base ten.
    return str(value) if value.bit_length() < 10_000 else hex(value)


def _decimal(value: int, scale: int) -> str:
    whole, rest = divmod(abs(value), 10**scale)
    digits = f".{rest:0{scale}}" if scale else ""
    return f"{'-' if value < 0 else ''}{_whole(whole)}{digits}"


def _date(days: int) -> str:
    try:
        return f"DATE '{date(1970, 1, 1) + timedelta(days=days)}'"
    except OverflowError:
        return f"(DATE '1970-01-01' + {_whole(days)})"


def _timestamp(nanoseconds: int, zone: str | None) -> str:
    seconds, rest = divmod(nanoseconds, UNITS["s"])
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
        if zone is not None:
            moment = moment.replace(tzinfo=UTC).astimezone(zone_of(zone))
    except (OverflowError, ValueError, KeyError):
        start = "1970-01-01 00:00:00" + ("" if zone is None else "+00:00")
        return f"(TIMESTAMP '{start}' + {_interval(nanoseconds)})"
    text = moment.isoformat(" ")
    return f"TIMESTAMP '{text[:19]}{_fraction(rest)}{text[19:]}'"


def _interval(nanoseconds: int) -> str:
    unit = next(name for name, length in _LENGTHS.items() if nanoseconds % length == 0)
    unit = unit if nanoseconds else "SECOND"
    return f"INTERVAL '{_whole(nanoseconds // _LENGTHS[unit])}' {unit}"


def _time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, UNITS["s"])
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"TIME '{clock}{_fraction(rest)}'"


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""
