"""Values for the oracle: from Arrow and Python to physical ones, casts, and the functions of the language.

Dates, timestamps, intervals, times of day and decimals are whole numbers in the unit or scale of their type.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal as PyDecimal
from decimal import InvalidOperation
from fractions import Fraction
from typing import Any

import pyarrow as pa

from handshake.schema import (
    FLOAT32,
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
    type_from_arrow,
)
from handshake.testing.oracle_functions import civil, wall_clock, zone_of

TIME = "@time"
"""The key under which `rows` puts a row's time in nanoseconds."""

_EPOCH = datetime(1970, 1, 1)
_DAY = UNITS["d"]
_MICRO = timedelta(microseconds=1)


# Rows: from Arrow and Python values to physical ones, and back.


def rows(table: pa.Table, time: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table with physical values; `time` names the column that becomes `TIME`."""
    columns = {name: _column(table.column(name)) for name in table.column_names}
    if time is not None:
        unit = _unit_of_times(type_from_arrow(table.schema.field(time).type))
        known = [None if value != value else value for value in columns[time]]  # NaN is no time
        columns[TIME] = [None if value is None else round(value * unit) for value in known]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _unit_of_times(kind: Type) -> int:
    """Return how long one unit of a time column lasts; numbers are seconds."""
    if isinstance(kind, Date):
        return _DAY
    if isinstance(kind, Decimal):
        return UNITS["s"] // 10**kind.scale
    return UNITS[kind.unit] if isinstance(kind, Timestamp) else UNITS["s"]


def _column(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_list(column.type):
        return [_column(pa.chunked_array([each.values])) if each.is_valid else None for each in column]
    kind = type_from_arrow(column.type)
    if isinstance(kind, (Date, Timestamp, Interval, TimeOfDay)):
        bits = 32 if isinstance(kind, Date) or pa.types.is_time32(column.type) else 64
        column = column.cast(pa.date32()) if isinstance(kind, Date) else column
        return column.cast(getattr(pa, f"int{bits}")()).to_pylist()
    return [physical(value, kind) for value in column.to_pylist()]


def physical(value: Any, kind: Type) -> Any:
    """Return a Python value as a value of `kind`; whole numbers stand for themselves in temporal types."""
    if value is None:
        return None
    if isinstance(kind, Decimal):
        return _half_away(Fraction(value) * 10**kind.scale)
    if isinstance(kind, (Date, Timestamp, Interval, TimeOfDay)) and not isinstance(value, int):
        return _nanoseconds(value) // (_DAY if isinstance(kind, Date) else UNITS[kind.unit])
    if isinstance(kind, Float):
        return fit(float(value), kind)
    return {Bool: bool, Int: int}.get(type(kind), lambda same: same)(value)


def _nanoseconds(value: Any) -> int:
    """Return the nanoseconds since 1970, since midnight, or in all."""
    if hasattr(value, "nanosecond") or hasattr(value, "nanoseconds"):
        return value.value  # pandas counts nanoseconds (of the instant, where there is a zone)
    if isinstance(value, time):
        value = datetime.combine(date(1970, 1, 1), value)
    if isinstance(value, datetime):
        if value.tzinfo is not None:
            value = value.astimezone(UTC).replace(tzinfo=None)
        value = value - _EPOCH
    elif isinstance(value, date):
        value = value - date(1970, 1, 1)
    return value // _MICRO * 1000


def logical(value: Any, kind: Type) -> Any:
    """Return what a Python callable gets for a physical value."""
    if value is None:
        return None
    match kind:
        case Decimal():
            return PyDecimal((int(value < 0), tuple(map(int, str(abs(value)))), -kind.scale))
        case Date():
            return date(1970, 1, 1) + timedelta(days=value)
        case Interval():
            return timedelta(microseconds=value * UNITS[kind.unit] // 1000)
        case TimeOfDay():
            return (_EPOCH + timedelta(microseconds=value * UNITS[kind.unit] // 1000)).time()
        case Timestamp():
            moment = _EPOCH + timedelta(microseconds=value * UNITS[kind.unit] // 1000)
            return moment.replace(tzinfo=UTC).astimezone(zone_of(kind.zone)) if kind.zone else moment
    return value


# Numbers.


def _half_away(number: Fraction) -> int:
    """Return the nearest whole number, halves away from zero."""
    whole = math.floor(abs(number) + Fraction(1, 2))
    return whole if number >= 0 else -whole


def _float32(value: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def fit(value: Any, kind: Type) -> Any:
    """Return a float result in its own width; every other value as it is."""
    return _float32(value) if kind == FLOAT32 else value


def _fraction(value: Any, kind: Type) -> Fraction:
    return Fraction(value, 10**kind.scale) if isinstance(kind, Decimal) else Fraction(value)


def _nearest(number: Fraction, kind: Float) -> float:
    try:
        wide = float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
    if kind.bits == 64 or number == Fraction(wide):
        return fit(wide, kind)
    # Rounding to 64 bits and then to 32 could round a near half twice: choose between the neighbours.
    low, high = (_float32(math.nextafter(wide, side)) for side in (-math.inf, math.inf))
    if math.isinf(low) or math.isinf(high):
        return _float32(wide)
    return min((low, high), key=lambda near: abs(Fraction(near) - number))


# Casts: the target type chooses the function; what does not fit is NULL.


def cast(value: Any, source: Type, target: Type) -> Any:
    """Return `CAST(value AS target)`."""
    if value is None:
        return None
    if isinstance(source, String):
        value = value.strip()
    return _CASTS[type(target)](value, source, target)


def _to_int(value: Any, source: Type, target: Int) -> int | None:
    if isinstance(source, String):
        whole = _parse(int, value)
    elif isinstance(source, Float):
        whole = math.trunc(value) if math.isfinite(value) else None
    else:
        whole = _half_away(_fraction(value, source))
    low, bits = (-(2 ** (target.bits - 1)), target.bits - 1) if target.signed else (0, target.bits)
    return whole if whole is not None and low <= whole < 2**bits else None


def _to_decimal(value: Any, source: Type, target: Decimal) -> int | None:
    number = _parse(PyDecimal, value) if isinstance(source, String) else value
    if number is None or (isinstance(number, (float, PyDecimal)) and not math.isfinite(number)):
        return None
    exact = Fraction(repr(number)) if isinstance(number, float) else _fraction(number, source)
    digits = _half_away(exact * 10**target.scale)
    fits = target.precision == 0 or abs(digits) < 10**target.precision
    return digits if fits else None


def _to_float(value: Any, source: Type, target: Float) -> float | None:
    if isinstance(source, String):
        value = _parse(float, value)
        return None if value is None else fit(value, target)
    return fit(value, target) if isinstance(source, Float) else _nearest(_fraction(value, source), target)


def _to_bool(value: Any, source: Type, target: Bool) -> bool | None:
    words = {True: ("t", "true", "y", "yes", "1"), False: ("f", "false", "n", "no", "0")}
    return next((truth for truth, texts in words.items() if value.lower() in texts), None)


def _to_date(value: Any, source: Type, target: Date) -> int | None:
    if isinstance(source, String):
        return _read_day(re.split("[ T]", value)[0])
    return wall_clock(value, source)[0]


def _to_unit(value: Any, source: Any, target: Timestamp | Interval | TimeOfDay) -> int | None:
    """Convert to another unit; a coarser one rounds down."""
    if isinstance(source, String):
        return _read_moment(value, target)
    unit = "d" if isinstance(source, (Date, Int)) else source.unit
    return value * UNITS[unit] // UNITS[target.unit]


def _read_day(text: str) -> int | None:
    """Return a year, a month or a day as text: days since 1970."""
    parts = text.split("-")
    widths = [range(4, 5), range(1, 3), range(1, 3)]
    digits = all(part.isascii() and part.isdigit() for part in parts)
    if not digits or len(parts) > 3 or any(len(p) not in w for p, w in zip(parts, widths, strict=False)):
        return None
    try:
        return physical(date(*map(int, parts + ["1"] * (3 - len(parts)))), Date())
    except ValueError:
        return None


def _read_moment(text: str, target: Timestamp | Interval | TimeOfDay) -> int | None:
    """Return a day, and optionally a time and an offset as text; without an offset it is the wall clock."""
    found = re.fullmatch(
        r"([^ T]*)(?:[ T]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?)?"
        r"( ?(?:Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2}(?::?[0-9]{2})?)?))?)?",
        text,
    )
    days = None if found is None else _read_day(found[1])
    if found is None or days is None or (found[2] is not None and found[1].count("-") < 2):
        return None
    hour, minute, second = (int(found[n] or 0) for n in (2, 3, 4))
    zone = re.sub("[ :]", "", found[6] or "")
    hours, minutes, seconds = (
        (int(zone[n : n + 2] or 0) for n in (1, 3, 5)) if zone[:1] in ("+", "-") else (0, 0, 0)
    )
    east = (hours * 60 + minutes) * 60 + seconds
    if hour > 23 or minute > 59 or second > 59 or minutes > 59 or seconds > 59 or east > 18 * 3600:
        return None
    micros = ((hour * 60 + minute) * 60 + second) * 10**6 + int((found[5] or "")[:6].ljust(6, "0"))
    micros += days * 86_400 * 10**6 - (-east if zone[:1] == "-" else east) * 10**6
    return micros * 1000 // UNITS[target.unit]


def _moment_text(value: int, source: Date | Timestamp) -> str:
    """Return a date or timestamp as text."""
    days, ns = wall_clock(value, source)
    if isinstance(source, Date):
        year, month, day = civil(days)
        sign = "-" if year < 0 else "+" if year > 9999 else ""
        return f"{sign}{abs(year):04}-{month:02}-{day:02}"
    seconds, rest = divmod(ns, 10**9)
    text = f"{_moment_text(days, Date())} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    text += f".{rest:09}".rstrip("0").rstrip(".") if rest else ""
    if source.zone is None:
        return text
    east = (days * _DAY + ns - value * UNITS[source.unit]) // 10**9
    hours, minutes, odd = abs(east) // 3600, abs(east) // 60 % 60, abs(east) % 60
    return f"{text}{'-' if east < 0 else '+'}{hours:02}:{minutes:02}" + (f":{odd:02}" if odd else "")


def _to_string(value: Any, source: Type, target: String) -> str:
    match source:
        case Bool():
            return str(value).lower()
        case Decimal(scale=scale) if scale:
            whole, rest = divmod(abs(value), 10**scale)
            return f"{'-' if value < 0 else ''}{whole}.{rest:0{scale}}"
        case Date() | Timestamp():
            return _moment_text(value, source)
    return str(value)


def _parse(read: Callable[[str], Any], text: str) -> Any:
    if not text.isascii() or "_" in text:
        return None  # Python reads more than SQL does
    try:
        return read(text)
    except (ValueError, InvalidOperation):
        return None


_CASTS: dict[type[Type], Callable[..., Any]] = {
    Int: _to_int,
    Decimal: _to_decimal,
    Float: _to_float,
    Bool: _to_bool,
    Date: _to_date,
    Timestamp: _to_unit,
    Interval: _to_unit,
    TimeOfDay: _to_unit,
    String: _to_string,
}


# Functions.


def _like(text: str, pattern: str, flags: int = 0) -> bool:
    pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    regex = "".join(wild.get(p) or re.escape(p[-1]) for p in pieces)
    return re.fullmatch(regex, text, flags | re.DOTALL) is not None


def _substring(text: str, first: int, length: int | None = None) -> str:
    start = first - 1 if first > 0 else len(text) + first if first < 0 else 0
    end = len(text) if length is None else start + length
    return text[max(start, 0) : max(end, 0)]


def _whole(to_whole: Callable[[Fraction], int]) -> Callable[..., Any]:
    def apply(kind: Type, value: Any) -> Any:
        if not isinstance(kind, Float):
            return to_whole(_fraction(value, kind))
        return math.copysign(to_whole(Fraction(value)), value) if math.isfinite(value) else value

    return apply


def _sign(kind: Type, value: Any) -> Any:
    if value != value:
        return value
    sign = (value > 0) - (value < 0)
    return math.copysign(sign, value) if isinstance(kind, Float) else sign


def _power(a: float, b: float) -> float:
    """Return a power by the rules of IEEE 754 for zeros, infinities and NaN."""
    if a == 1 or b == 0:
        return 1.0
    size, whole = abs(a), math.isinf(b) or b == math.floor(b) if b == b else False
    if math.isnan(size + abs(b)) or (a < 0 and not whole and math.isfinite(a)):
        return math.nan
    sign = -1.0 if math.copysign(1.0, a) < 0 and whole and math.isfinite(b) and int(b) % 2 else 1.0
    if math.isinf(b) and size == 1:
        return 1.0
    if math.isinf(b):
        return math.inf if (size > 1) == (b > 0) else 0.0
    if size == 0 or math.isinf(size):
        return sign * (math.inf if (size == 0) == (b < 0) else 0.0)
    try:
        return float(sign * size**b)
    except OverflowError:
        return sign * math.inf


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _ln(x: float) -> float:
    return -math.inf if x == 0 else math.nan if x < 0 else math.log(x)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda kind, *values: function(*values)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": _plain(abs),
    "sign": _sign,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "round": _whole(_half_away),
    "sqrt": _plain(lambda x: math.nan if x < 0 else math.sqrt(x)),
    "exp": _plain(_exp),
    "ln": _plain(_ln),
    "power": _plain(_power),
    "sin": _plain(lambda x: math.nan if math.isinf(x) else math.sin(x)),
    "cos": _plain(lambda x: math.nan if math.isinf(x) else math.cos(x)),
    "lower": _plain(str.lower),
    "upper": _plain(str.upper),
    "length": _plain(len),
    "concat": _plain(lambda *texts: "".join(texts)),
    "substring": _plain(_substring),
    "like": _plain(_like),
    "ilike": _plain(lambda text, pattern: _like(text, pattern, re.IGNORECASE)),
    "regexp_like": _plain(lambda text, pattern: re.search(pattern, text) is not None),
    "starts_with": _plain(str.startswith),
    "ends_with": _plain(str.endswith),
    "contains": _plain(lambda text, part: part in text),
}


def _nan_last(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value != value else (False, value)


SKIP_NULL: dict[str, Callable[[list[Any]], Any]] = {
    "coalesce": lambda values: values[0],
    "least": lambda values: min(values, key=_nan_last),
    "greatest": lambda values: max(values, key=_nan_last),
}
