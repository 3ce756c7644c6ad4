"""The functions of the language for the oracle: values as docs/semantics.md defines them, one at a time.

Each takes the typed call and the physical values of its arguments, none of which is NULL.
"""

from __future__ import annotations

import calendar
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_CEILING, ROUND_DOWN, ROUND_FLOOR, ROUND_HALF_EVEN, ROUND_HALF_UP
from decimal import Context as DecimalContext
from decimal import Decimal as PyDecimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

from handshake.plan.expr import Call
from handshake.schema import UNITS, Date, Decimal, Float, Int, Timestamp, Type

Values = Callable[..., Any]
_CYCLE = 146_097
_EPOCH = date(1970, 1, 1).toordinal()


# The calendar. Dates are (year, month, day); years beyond Python's are moved by whole cycles of 400 years.


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970."""
    cycles, rest = divmod(days, _CYCLE)
    day = date.fromordinal(_EPOCH + rest)
    return day.year + 400 * cycles, day.month, day.day


def _days(year: int, month: int, day: int) -> int:
    cycles = (year - 2000) // 400
    return date(year - 400 * cycles, month, day).toordinal() - _EPOCH + cycles * _CYCLE


def _length(year: int, month: int) -> int:
    return calendar.monthrange(2000 + year % 400, month)[1]


def zone_of(name: str) -> tzinfo:
    """Return a zone by name, or a fixed offset such as `+02:00`."""
    fixed = re.fullmatch(r"([+-])(\d\d):(\d\d)", name)
    if fixed is None:
        return ZoneInfo(name)
    return timezone(int(fixed[1] + "1") * timedelta(hours=int(fixed[2]), minutes=int(fixed[3])))


def wall_clock(value: int, kind: Type) -> tuple[int, int]:
    """Return the day, and the nanoseconds in it, that a wall clock shows."""
    if isinstance(kind, Date):
        return value, 0
    assert isinstance(kind, Timestamp)
    ns = value * UNITS[kind.unit]
    if kind.zone is not None:
        ns += _offset(ns, kind.zone, UTC)
    return divmod(ns, UNITS["d"])


def _offset(ns: int, zone: str, read: tzinfo) -> int:
    """Return the offset of a zone in nanoseconds; `ns` counts in UTC, or on the wall clock of the zone."""
    cycle, first = _CYCLE * UNITS["d"], (2 - _EPOCH) * UNITS["d"]
    # the last rules of a zone repeat every 400 years; before its first rule there is one offset
    near = ns % cycle + (cycle if ns % cycle < UNITS["d"] else 0) if ns // cycle > 19 else max(ns, first)
    moment = datetime(1970, 1, 1, tzinfo=read) + timedelta(microseconds=near // 1000)
    offset = (moment if read is not UTC else moment.astimezone(zone_of(zone))).utcoffset()
    assert offset is not None
    return offset // timedelta(microseconds=1) * 1000


def _global(days: int, ns: int, kind: Type) -> int:
    """Return the timestamp at which a wall clock shows this."""
    if isinstance(kind, Date):
        return days
    assert isinstance(kind, Timestamp)
    wall = days * UNITS["d"] + ns
    return (wall - (_offset(wall, kind.zone, zone_of(kind.zone)) if kind.zone else 0)) // UNITS[kind.unit]


def _field(of: Callable[[int, int], int]) -> Values:
    return lambda call, value: of(*wall_clock(value, call.args[0].type))


def _iso(days: int) -> tuple[int, int]:
    cycles, rest = divmod(days, _CYCLE)
    year, week, _ = date.fromordinal(_EPOCH + rest).isocalendar()
    return year + 400 * cycles, week


def _trunc(days: int, unit: str) -> int:
    year, month, _ = civil(days)
    match unit.lower()[:2]:
        case "ye" | "yy":
            return _days(year, 1, 1)
        case "qu":
            return _days(year, month - (month - 1) % 3, 1)
        case "mo" | "mm":
            return _days(year, month, 1)
        case "we":
            return days - (days + 3) % 7
    return days


def _date_trunc(call: Call, unit: str, value: int) -> int:
    short = {
        "hour": 3600 * 10**9,
        "minute": 60 * 10**9,
        "second": 10**9,
        "millisecond": 10**6,
        "microsecond": 1000,
    }
    days, ns = wall_clock(value, call.type)
    assert isinstance(call.type, Timestamp)
    if unit.lower() in short:
        per = UNITS[call.type.unit]
        return (value * per - ns % short[unit.lower()]) // per
    return _global(_trunc(days, unit), 0, call.type)


def _plus_months(days: int, months: int) -> int:
    year, month, day = civil(days)
    total = year * 12 + month - 1 + months
    return _days(total // 12, total % 12 + 1, min(day, _length(total // 12, total % 12 + 1)))


def _plus_interval(call: Call, value: int, months: int) -> int:
    days, ns = wall_clock(value, call.type)
    return _global(_plus_months(days, months), ns, call.type)


def _months_between(call: Call, a: int, b: int, rounded: bool = True) -> float:
    (days, ns), (other, more) = wall_clock(a, call.args[0].type), wall_clock(b, call.args[1].type)
    (x, y, z), (u, v, w) = civil(days), civil(other)
    months = 12 * (x - u) + y - v
    if z == w or (z == _length(x, y) and w == _length(u, v)):
        return float(months)
    exact = months + ((z - w) * 86_400 + ns // 10**9 - more // 10**9) / 2_678_400
    return math.floor(exact * 1e8 + 0.5) / 1e8 if rounded else exact


_FIXED = {"week": 604_800, "day": 86_400, "dayofyear": 86_400, "hour": 3600, "minute": 60, "second": 1}
_LONG = {"year": 12, "quarter": 3, "month": 1}


def _timestampdiff(call: Call, unit: str, a: int, b: int) -> int:
    """Count whole units between wall clocks; a month is whole if day and time of day have been reached."""
    (days, ns), (other, more) = wall_clock(a, call.args[1].type), wall_clock(b, call.args[2].type)
    unit = unit.lower()
    if unit not in _LONG:
        length = {"millisecond": Fraction(1, 1000), "microsecond": Fraction(1, 10**6)}.get(unit)
        seconds = (other - days) * 86_400 + Fraction(more - ns, 10**9)
        return math.trunc(seconds / (length or _FIXED[unit]))
    if other > days and more < ns:
        other -= 1
    if other < days and more > ns:
        other += 1
    (x, y, z), (u, v, w) = civil(days), civil(other)
    months = 12 * (u - x) + v - y
    if months > 0 and w < z:
        months -= 1
    if months < 0 and w > z:
        months += 1
    return math.trunc(Fraction(months, _LONG[unit]))


def _timestampadd(call: Call, unit: str, count: int, value: int) -> int:
    """Add months and days on the wall clock, with the same offset from UTC if it exists; others as time."""
    kind, unit = call.type, unit.lower()
    assert isinstance(kind, Timestamp)
    per = UNITS[kind.unit]
    if unit in ("hour", "minute", "second"):
        return value + count * _FIXED[unit] * 10**9 // per
    if unit in ("millisecond", "microsecond"):
        return value + count * (10**6 if unit == "millisecond" else 1000) // per
    days, ns = wall_clock(value, kind)
    moved = days + count * _FIXED.get(unit, 0) // 86_400
    if unit in _LONG:
        moved = _plus_months(days, count * _LONG[unit])
    same = value + (moved - days) * UNITS["d"] // per
    return same if wall_clock(same, kind) == (moved, ns) else _global(moved, ns, kind)


def _next_day(call: Call, days: int, name: str) -> int | None:
    names = [day.lower() for day in calendar.day_name]
    wanted = [n for n, day in enumerate(names) if name.strip().lower() in (day, day[:3], day[:2])]
    if not wanted:
        return None
    return next(day for day in range(days + 1, days + 8) if (day + 3) % 7 == wanted[0])


def _make_date(call: Call, year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - _EPOCH
    except (ValueError, OverflowError):
        return None


def _make_timestamp(
    call: Call, year: int, month: int, day: int, hour: int, minute: int, micros: int
) -> int | None:
    days = _make_date(call, year, month, day)
    if days is None or hour not in range(24) or minute not in range(60) or micros not in range(60_000_001):
        return None
    return days * 86_400_000_000 + hour * 3_600_000_000 + minute * 60_000_000 + micros


def _from_seconds(call: Call, value: Any) -> int | None:
    kind = call.args[0].type
    if isinstance(kind, Float):
        return int(value * 10**6) if abs(value) < 2**62 else None
    return math.floor(Fraction(value, 10 ** (kind.scale if isinstance(kind, Decimal) else 0)) * 10**6)


def _epoch(unit: str) -> Values:
    def count(call: Call, value: int) -> int:
        assert isinstance(call.args[0].type, Timestamp)
        return value * UNITS[call.args[0].type.unit] // UNITS[unit]

    return count


# Numbers.

_EXACT = DecimalContext(prec=2000, Emax=10**6, Emin=-(10**6))


def _digits(rounding: str) -> Values:
    def compute(call: Call, value: Any, digits: int) -> Any:
        kind = call.args[0].type
        if isinstance(kind, Float):
            if not math.isfinite(value):
                return value
            found = PyDecimal(repr(value)).quantize(PyDecimal(1).scaleb(-digits), rounding, _EXACT)
            return math.copysign(float(found), value)
        scale = kind.scale if isinstance(kind, Decimal) else 0
        if digits >= scale:
            return value
        exact = (
            PyDecimal(value).scaleb(-scale, _EXACT).quantize(PyDecimal(1).scaleb(-digits), rounding, _EXACT)
        )
        kept = call.type.scale if isinstance(call.type, Decimal) else 0
        return int(exact.scaleb(kept, _EXACT))

    return compute


def _real(function: Callable[..., float], poles: dict[float, float] | None = None) -> Values:
    def compute(call: Call, *values: float) -> float:
        if poles and values[0] in poles:
            return math.copysign(poles[values[0]], values[0]) if function in _SIGNED else poles[values[0]]
        try:
            return function(*values)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.copysign(math.inf, values[0]) if function is math.sinh else math.inf

    return compute


def _csc(x: float) -> float:
    return 1 / math.sin(x)


def _cot(x: float) -> float:
    return 1 / math.tan(x)


_SIGNED = (_csc, _cot)


def _cbrt(call: Call, x: float) -> float:
    if x == 0 or not math.isfinite(x):
        return x
    precise = DecimalContext(prec=60)
    guess = math.copysign(
        float(precise.power(abs(PyDecimal(x)), precise.divide(PyDecimal(1), PyDecimal(3)))), x
    )
    near = (guess, math.nextafter(guess, -math.inf), math.nextafter(guess, math.inf))
    return min(near, key=lambda r: abs(Fraction(r) ** 3 - Fraction(x)))


def _wrap(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def _shift(shift: Callable[[int, int, int], int]) -> Values:
    def compute(call: Call, x: int, count: int) -> int | None:
        kind = call.args[0].type
        assert isinstance(kind, Int)
        width = 32 if kind in (Int(8), Int(16), Int(32), Int(8, signed=False), Int(16, signed=False)) else 64
        return None if x != _wrap(x, 64) else _wrap(shift(x, count % width, width), width)

    return compute


# Texts.


def _pad(call: Call, text: str, length: int, fill: str = " ") -> str | None:
    if length > 1_000_000:
        return None
    extra = ""
    while fill and len(extra) < length - len(text):
        extra += fill[: length - len(text) - len(extra)]
    whole = extra + text if call.name == "lpad" and len(text) < length else text + extra
    return whole[: max(length, 0)]


def _repeat(text: str, times: int) -> str | None:
    if len(text) * times > 1_000_000:
        return None
    return "".join(text for _ in range(times)) if text else ""


def _locate(part: str, text: str, start: int = 1) -> int:
    if start < 1:
        return 0
    if not part:
        return 1
    return next((n + 1 for n in range(start - 1, len(text)) if text[n:].startswith(part)), 0)


def _split_part(call: Call, text: str, by: str, number: int) -> str | None:
    parts = text.split(by) if by else [text]
    if not number:
        return None
    ordered = parts if number > 0 else parts[::-1]
    return ordered[abs(number) - 1] if abs(number) <= len(parts) else ""


def _up_to(call: Call, text: str, by: str, count: int) -> str:
    if not by or not count:
        return ""
    parts = text.split(by)
    return by.join(parts[:count]) if count > 0 else by.join(parts[max(len(parts) + count, 0) :])


def _translate(call: Call, text: str, old: str, new: str) -> str:
    return "".join(c if (n := old.find(c)) < 0 else new[n : n + 1] for c in text)


def _extract(call: Call, text: str, pattern: str, group: int = 1) -> str:
    found = re.search(pattern, text)
    return (found.group(group) or "") if found else ""


def _overlay(call: Call, text: str, new: str, start: int, length: int = -1) -> str:
    def cut(first: int, count: int | None) -> str:
        begin = first - 1 if first > 0 else len(text) + first if first < 0 else 0
        end = len(text) if count is None else begin + max(count, 0)
        return text[max(begin, 0) : max(end, 0)]

    return cut(1, start - 1) + new + cut(start + (length if length >= 0 else len(new)), None)


def _capitalise(word: str) -> str:
    low, first = word.lower(), word[:1]
    return first.title() + low.removeprefix(first.lower()) if first else ""


def _hex(call: Call, value: Any) -> str | None:
    if isinstance(value, int):
        return f"{value & (2**64 - 1):X}" if -(2**63) <= value < 2**64 else None
    return "".join(f"{byte:02X}" for byte in (value.encode() if isinstance(value, str) else value))


def _plain(function: Callable[..., Any]) -> Values:
    return lambda call, *values: function(*values)


TYPED: dict[str, Values] = {
    "year": _field(lambda days, ns: civil(days)[0]),
    "month": _field(lambda days, ns: civil(days)[1]),
    "day": _field(lambda days, ns: civil(days)[2]),
    "hour": _field(lambda days, ns: ns // (3600 * 10**9)),
    "minute": _field(lambda days, ns: ns // (60 * 10**9) % 60),
    "second": _field(lambda days, ns: ns // 10**9 % 60),
    "quarter": _field(lambda days, ns: (civil(days)[1] - 1) // 3 + 1),
    "weekofyear": _field(lambda days, ns: _iso(days)[1]),
    "yearofweek": _field(lambda days, ns: _iso(days)[0]),
    "dayofyear": _field(lambda days, ns: days - _days(civil(days)[0], 1, 1) + 1),
    "dayofweek": _field(lambda days, ns: (days + 4) % 7 + 1),
    "dayofweek_iso": _field(lambda days, ns: (days + 3) % 7 + 1),
    "weekday": _field(lambda days, ns: (days + 3) % 7),
    "seconds": _field(lambda days, ns: ns % (60 * 10**9) // 1000),
    "date_trunc": _date_trunc,
    "trunc": _plain(_trunc),
    "add_months": _plain(_plus_months),
    "plus_months": _plus_interval,
    "last_day": _plain(lambda days: _days(*civil(days)[:2], _length(*civil(days)[:2]))),
    "next_day": _next_day,
    "months_between": _months_between,
    "make_date": _make_date,
    "make_timestamp": _make_timestamp,
    "unix_date": _plain(lambda days: days),
    "date_from_unix_date": _plain(lambda days: days),
    "timestampadd": _timestampadd,
    "timestampdiff": _timestampdiff,
    "timestamp_seconds": _from_seconds,
    "timestamp_millis": _plain(lambda value: value * 1000),
    "timestamp_micros": _plain(lambda value: value),
    "unix_seconds": _epoch("s"),
    "unix_millis": _epoch("ms"),
    "unix_micros": _epoch("us"),
    "floor_digits": _digits(ROUND_FLOOR),
    "ceil_digits": _digits(ROUND_CEILING),
    "round_digits": _digits(ROUND_HALF_UP),
    "bround_digits": _digits(ROUND_HALF_EVEN),
    "truncate_digits": _digits(ROUND_DOWN),
    **{
        name: _real(getattr(math, name)) for name in ("acos", "acosh", "asin", "asinh", "atan", "cosh", "tan")
    },
    **{
        name: _real(getattr(math, name))
        for name in ("sinh", "tanh", "degrees", "radians", "expm1", "atan2", "hypot")
    },
    "atanh": _real(math.atanh, {1.0: math.inf, -1.0: -math.inf}),
    "cbrt": _cbrt,
    "cot": _real(_cot, {0.0: math.inf}),
    "csc": _real(_csc, {0.0: math.inf}),
    "sec": _real(lambda x: 1 / math.cos(x)),
    "log10": _real(math.log10, {0.0: -math.inf}),
    "log1p": _real(math.log1p, {-1.0: -math.inf}),
    "log2": _real(lambda x: math.log(x) / math.log(2), {0.0: -math.inf}),
    "rint": _real(lambda x: math.copysign(float(round(x)), x) if math.isfinite(x) else x),
    "bit_and": _plain(lambda a, b: a & b),
    "bit_or": _plain(lambda a, b: a | b),
    "bit_xor": _plain(lambda a, b: a ^ b),
    "bit_not": _plain(lambda a: -a - 1),
    "bit_count": _plain(lambda x: f"{x & (2**64 - 1):b}".count("1") if -(2**63) <= x < 2**64 else None),
    "getbit": _plain(lambda x, n: x // 2**n % 2 if n in range(64) else None),
    "shiftleft": _shift(lambda x, count, width: x * 2**count),
    "shiftright": _shift(lambda x, count, width: x // 2**count),
    "shiftrightunsigned": _shift(lambda x, count, width: (x & (1 << width) - 1) // 2**count),
    "ascii": _plain(lambda text: ord(text[0]) if text else 0),
    "bit_length": _plain(lambda v: 8 * len(v if isinstance(v, bytes) else v.encode())),
    "octet_length": _plain(lambda v: len(v if isinstance(v, bytes) else v.encode())),
    "chr": _plain(lambda code: chr(code & 255) if code >= 0 else ""),
    "hex": _hex,
    "initcap": _plain(lambda text: " ".join(map(_capitalise, text.split(" ")))),
    "instr": _plain(lambda text, part: _locate(part, text)),
    "locate": _plain(_locate),
    "left": _plain(lambda text, n: text[:n] if n > 0 else ""),
    "right": _plain(lambda text, n: text[max(len(text) - n, 0) :] if n > 0 else ""),
    "lpad": _pad,
    "rpad": _pad,
    "overlay": _overlay,
    "regexp_extract": _extract,
    "regexp_replace": _plain(lambda text, p, new: re.sub(p, lambda m: re.sub(r"\$1", m[1] or "", new), text)),
    "repeat": _plain(_repeat),
    "space": _plain(lambda n: None if n > 1_000_000 else " " * max(n, 0)),
    "replace": _plain(lambda text, old, new="": new.join(text.split(old)) if old else text),
    "reverse": _plain(lambda text: "".join(reversed(text))),
    "split_part": _split_part,
    "substring_index": _up_to,
    "translate": _translate,
    "trim": _plain(lambda text, chars=" ": text.strip(chars) if chars else text),
    "ltrim": _plain(lambda text, chars=" ": text.lstrip(chars) if chars else text),
    "rtrim": _plain(lambda text, chars=" ": text.rstrip(chars) if chars else text),
}
