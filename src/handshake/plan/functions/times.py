"""Functions of dates and timestamps. They read the wall clock of the timestamp's zone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from handshake.plan.calendar import civil, days_of, instant, month_length, wall_clock
from handshake.plan.expr import Arithmetic, Call, Cast, Expr, Literal
from handshake.plan.functions.registry import (
    DAY,
    INT,
    MOMENT,
    NUMBER,
    TEXT,
    TIMESTAMP,
    WHOLE,
    Argument,
    Function,
    Rule,
    check,
    check_count,
    constant,
    plain,
    takes,
)
from handshake.plan.types import coerce, common, fail, parse_timestamp
from handshake.schema import (
    BOOL,
    DATE,
    FLOAT64,
    INT64,
    UNITS,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    Months,
    Null,
    Timestamp,
    Type,
    finest_unit,
)

DAY_LENGTH, HOUR, MINUTE, SECOND = UNITS["d"], 3600 * UNITS["s"], 60 * UNITS["s"], UNITS["s"]


def _wall_of(kind: Type) -> Callable[[int], int]:
    """Return a function from values of a type to nanoseconds on the wall clock."""
    if isinstance(kind, Date):
        return lambda days: days * DAY_LENGTH
    assert isinstance(kind, Timestamp)
    unit, zone = UNITS[kind.unit], kind.zone
    return lambda value: wall_clock(value * unit, zone)


# Fields.


def _field(name: str, of_wall: Callable[[int], int], timed: bool = False, gives: Type = INT) -> Function:
    """Return a function that computes a field from the wall clock."""

    def values(call: Call) -> Callable[[int], int]:
        wall = _wall_of(call.args[0].type)
        return lambda value: of_wall(wall(value))

    return Function(name, takes(TIMESTAMP if timed else MOMENT, gives=gives), values)


def _iso_week(wall: int) -> tuple[int, int]:
    """Return the year and the number of the ISO week."""
    days = wall // DAY_LENGTH
    thursday = days - _weekday(days) + 3
    year = civil(thursday)[0]
    return year, (thursday - days_of(year, 1, 1)) // 7 + 1


def _weekday(days: int) -> int:
    """Return 0 for Monday to 6 for Sunday."""
    return (days + 3) % 7


_FIELDS = (
    _field("year", lambda wall: civil(wall // DAY_LENGTH)[0]),
    _field("quarter", lambda wall: (civil(wall // DAY_LENGTH)[1] + 2) // 3),
    _field("month", lambda wall: civil(wall // DAY_LENGTH)[1]),
    _field("weekofyear", lambda wall: _iso_week(wall)[1]),
    _field("yearofweek", lambda wall: _iso_week(wall)[0]),
    _field("day", lambda wall: civil(wall // DAY_LENGTH)[2]),
    _field("dayofyear", lambda wall: wall // DAY_LENGTH - days_of(civil(wall // DAY_LENGTH)[0], 1, 1) + 1),
    _field("dayofweek", lambda wall: (_weekday(wall // DAY_LENGTH) + 1) % 7 + 1),
    _field("dayofweek_iso", lambda wall: _weekday(wall // DAY_LENGTH) + 1),
    _field("weekday", lambda wall: _weekday(wall // DAY_LENGTH)),
    _field("hour", lambda wall: wall // HOUR % 24, timed=True),
    _field("minute", lambda wall: wall // MINUTE % 60, timed=True),
    _field("second", lambda wall: wall // SECOND % 60, timed=True),
    _field("seconds", lambda wall: wall % MINUTE // 1000, timed=True, gives=Decimal(8, 6)),
)
FIELDS = {
    **dict.fromkeys(("year", "y", "years", "yr", "yrs"), "year"),
    "yearofweek": "yearofweek",
    **dict.fromkeys(("quarter", "qtr"), "quarter"),
    **dict.fromkeys(("month", "mon", "mons", "months"), "month"),
    **dict.fromkeys(("week", "w", "weeks"), "weekofyear"),
    **dict.fromkeys(("day", "d", "days"), "day"),
    **dict.fromkeys(("dayofweek", "dow"), "dayofweek"),
    **dict.fromkeys(("dayofweek_iso", "dow_iso"), "dayofweek_iso"),
    "doy": "dayofyear",
    **dict.fromkeys(("hour", "h", "hours", "hr", "hrs"), "hour"),
    **dict.fromkeys(("minute", "m", "min", "mins", "minutes"), "minute"),
    **dict.fromkeys(("second", "s", "sec", "seconds", "secs"), "seconds"),
}
"""The fields of EXTRACT and DATE_PART, and the functions that compute them."""


def _date_part(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 2, 2)
    name = str(constant(call, args[0], "the field")).lower()
    if name not in FIELDS:
        raise fail(f"{call.name}() knows {', '.join(sorted(set(FIELDS)))}, not {name}", call)
    found = next(field for field in _FIELDS if field.name == FIELDS[name])
    return found.bind(replace(call, name=found.name), args[1:])


# Truncation.


def _truncate_day(unit: str, days: int) -> int:
    """Return the first day of a year, quarter, month or week."""
    if unit == "week":
        return days - _weekday(days)
    year, month, _ = civil(days)
    length = {"year": 12, "quarter": 3, "month": 1}[unit]
    year, month = divmod((year * 12 + month - 1) // length * length, 12)
    return days_of(year, month + 1, 1)


_LONG = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    "quarter": "quarter",
    **dict.fromkeys(("month", "mm", "mon"), "month"),
    "week": "week",
}
_SHORT = {
    "hour": HOUR,
    "minute": MINUTE,
    "second": SECOND,
    "millisecond": UNITS["ms"],
    "microsecond": UNITS["us"],
}
_UNIT_TEXT = Argument("the name of a unit", TEXT.kinds, TEXT.to)


def _unit(call: Call, arg: Expr, known: tuple[str, ...]) -> str | None:
    """Return the unit that a constant names; NULL stays."""
    value = constant(call, check(call, arg, _UNIT_TEXT), "the unit")
    if value is not None and value.lower() not in known:
        raise fail(f"{call.name}() knows {', '.join(known)}, not {value.lower()}", call)
    return None if value is None else value.lower()


def _date_trunc(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 2, 2)
    _unit(call, args[0], (*_LONG, "day", "dd", *_SHORT))
    moment = check(call, args[1], MOMENT)
    if isinstance(moment.type, Date):
        moment = coerce(moment, Timestamp("us"))
    kind = Timestamp("us") if isinstance(moment.type, Null) else moment.type
    return replace(call, args=(coerce(args[0], TEXT.to or kind), moment), type=kind)


def _date_trunc_values(call: Call) -> Callable[[str, int], int]:
    kind = call.type
    assert isinstance(kind, Timestamp)
    per, zone = UNITS[kind.unit], kind.zone

    def truncate(unit: str, value: int) -> int:
        wall = wall_clock(value * per, zone)
        if (short := _SHORT.get(unit.lower())) is not None:
            return (value * per - wall % short) // per
        days = wall // DAY_LENGTH
        if unit.lower() not in ("day", "dd"):
            days = _truncate_day(_LONG[unit.lower()], days)
        return instant(days * DAY_LENGTH, zone) // per

    return truncate


def _trunc(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 2, 2)
    _unit(call, args[1], tuple(_LONG))
    return takes(DAY, TEXT, gives=DATE)(call, args)


# Days and months.

_MONTHS = Argument("months", (Int, Months))


def _add_days(sign: str) -> Rule:
    def bind(call: Call, args: tuple[Expr, ...]) -> Expr:
        check_count(call, args, 2, 2)
        day, count = check(call, args[0], DAY), check(call, args[1], WHOLE)
        if isinstance(day.type, Null) or isinstance(count.type, Null):
            return Literal(None, type=DATE, at=call.at)
        return Arithmetic(sign, day, count, type=DATE, at=call.at)

    return bind


def _days_between(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 2, 2)
    later, earlier = (check(call, arg, DAY) for arg in args)
    between = Arithmetic("-", later, earlier, type=Interval("d"), at=call.at)
    return Cast(between, type=INT64, at=call.at)


def _shift_months(days: int, months: int) -> int:
    """Add months; a day that the month lacks becomes its last day."""
    year, month, day = civil(days)
    year, month = divmod(year * 12 + month - 1 + months, 12)
    return days_of(year, month + 1, min(day, month_length(year, month + 1)))


def _add_months_to_moment(call: Call) -> Callable[[int, int], int | None]:
    """Return the values of `moment + INTERVAL n MONTHS`: the time of day stays."""
    kind = call.type
    if isinstance(kind, Date):
        return _shift_months
    assert isinstance(kind, Timestamp)
    per, zone = UNITS[kind.unit], kind.zone

    def add(value: int, months: int) -> int:
        days, rest = divmod(wall_clock(value * per, zone), DAY_LENGTH)
        return instant(_shift_months(days, months) * DAY_LENGTH + rest, zone) // per

    return add


def _last_day(days: int) -> int:
    year, month, _ = civil(days)
    return days_of(year, month, month_length(year, month))


_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def _next_day(days: int, name: str) -> int | None:
    """Return the next day of that name, which may be short: `mo`, `mon`, `monday`; None if there is none."""
    found = [n for n, word in enumerate(_WEEKDAYS) if name.strip().lower() in (word, word[:2], word[:3])]
    return days + (found[0] - _weekday(days) - 1) % 7 + 1 if found else None


def _months_between(call: Call) -> Callable[..., float]:
    """Return the values of MONTHS_BETWEEN: whole if the days agree or both are the last, else in 31sts."""
    walls = tuple(_wall_of(arg.type) for arg in call.args[:2])

    def between(a: int, b: int, rounded: bool = True) -> float:
        later, earlier = walls[0](a), walls[1](b)
        (x, y, d), (u, v, e) = civil(later // DAY_LENGTH), civil(earlier // DAY_LENGTH)
        months = (x - u) * 12 + y - v
        if d == e or (d == month_length(x, y) and e == month_length(u, v)):
            return float(months)
        seconds = (d - e) * 86_400 + later % DAY_LENGTH // SECOND - earlier % DAY_LENGTH // SECOND
        found = months + seconds / (31 * 86_400)
        return math.floor(found * 1e8 + 0.5) / 1e8 if rounded else found

    return between


_FLAG = Argument("TRUE or FALSE", (Bool,), BOOL)


# Units of time between timestamps. They follow the wall clock, as java.time does.

_MONTHS_OF = {"year": 12, "quarter": 3, "month": 1}
_DAYS_OF = {"week": 7, "day": 1, "dayofyear": 1}
_UNITS = (*_MONTHS_OF, *_DAYS_OF, *_SHORT)


def _as_timestamp(call: Call, arg: Expr) -> Expr:
    """Return a date, a timestamp or a constant text as a timestamp."""
    if isinstance(arg, Literal) and isinstance(arg.value, str):
        return parse_timestamp(arg.value, arg)
    moment = check(call, arg, MOMENT)
    return coerce(moment, Timestamp("us")) if isinstance(moment.type, (Date, Null)) else moment


def _bind_timestampdiff(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 3, 3)
    _unit(call, args[0], tuple(unit for unit in _UNITS if unit != "dayofyear"))
    moments = common(tuple(_as_timestamp(call, arg) for arg in args[1:]), call)
    return replace(call, args=(args[0], *moments), type=INT64)


def _timestampdiff_values(call: Call) -> Callable[[str, int, int], int]:
    wall = _wall_of(call.args[1].type)

    def between(unit: str, start: int, end: int) -> int:
        """Count the whole units from one wall clock to another, towards zero."""
        a, b, name = wall(start), wall(end), unit.lower()
        if name in _MONTHS_OF:
            return _toward_zero(_whole_months(a, b), _MONTHS_OF[name])
        return _toward_zero(b - a, _DAYS_OF[name] * DAY_LENGTH if name in _DAYS_OF else _SHORT[name])

    return between


def _toward_zero(value: int, by: int) -> int:
    return value // by if value >= 0 else -(-value // by)


def _whole_months(start: int, end: int) -> int:
    """Count whole months: a day is complete only at the time of day of `start`."""
    (first, since), (last, until) = divmod(start, DAY_LENGTH), divmod(end, DAY_LENGTH)
    if last > first and until < since:
        last -= 1
    elif last < first and until > since:
        last += 1
    (x, y, d), (u, v, e) = civil(first), civil(last)
    return _toward_zero(((u - x) * 12 + v - y) * 32 + e - d, 32)


def _bind_timestampadd(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Type the sum; its unit of counting is as fine as the unit that is added."""
    check_count(call, args, 3, 3)
    unit = _unit(call, args[0], _UNITS)
    count, moment = check(call, args[1], WHOLE), _as_timestamp(call, args[2])
    assert isinstance(moment.type, Timestamp)
    fine = {"millisecond": "ms", "microsecond": "us"}.get(unit or "", "s")
    kind = Timestamp(finest_unit(moment.type.unit, fine), moment.type.zone)
    return replace(call, args=(args[0], count, coerce(moment, kind)), type=kind)


def _timestampadd_values(call: Call) -> Callable[[str, int, int], int | None]:
    kind = call.type
    assert isinstance(kind, Timestamp)
    per, zone = UNITS[kind.unit], kind.zone

    def add(unit: str, count: int, value: int) -> int | None:
        name = unit.lower()
        if name in _SHORT:
            return value + count * _SHORT[name] // per
        wall = wall_clock(value * per, zone)
        days, rest = divmod(wall, DAY_LENGTH)
        if name in _DAYS_OF:
            days += count * _DAYS_OF[name]
        else:
            days = _shift_months(days, count * _MONTHS_OF[name])
        return _instant_near(days * DAY_LENGTH + rest, wall - value * per, zone) // per

    return add


def _instant_near(wall: int, offset: int, zone: str | None) -> int:
    """Return the instant of a wall clock; of two, the one with this offset from UTC."""
    same = wall - offset
    return same if wall_clock(same, zone) == wall else instant(wall, zone)


# Dates and timestamps from numbers, and back.


def _make_date(year: int, month: int, day: int) -> int | None:
    if not 1 <= year <= 9999 or not 1 <= month <= 12 or not 1 <= day <= month_length(year, month):
        return None
    return days_of(year, month, day)


def _make_timestamp(year: int, month: int, day: int, hour: int, minute: int, micros: int) -> int | None:
    """Return microseconds; 60 seconds without a fraction are the next minute."""
    days = _make_date(year, month, day)
    whole = 0 <= hour < 24 and 0 <= minute < 60 and (0 <= micros < 60 * 10**6 or micros == 60 * 10**6)
    if days is None or not whole:
        return None
    return ((days * 24 + hour) * 60 + minute) * 60 * 10**6 + micros


def _bind_make_timestamp(call: Call, args: tuple[Expr, ...]) -> Expr:
    check_count(call, args, 6, 6)
    *wholes, seconds = args
    exact = Cast(check(call, seconds, NUMBER), type=Decimal(16, 6), at=seconds.at)
    bound = tuple(check(call, arg, WHOLE) for arg in wholes)
    return replace(call, args=(*bound, exact), type=Timestamp("us"))


def _from_epoch(unit: str) -> Function:
    """Return a function from a number of units since 1970 to a timestamp without a zone."""
    per = UNITS[unit] // 1000

    def values(call: Call) -> Callable[[Any], int | None]:
        kind = call.args[0].type
        if isinstance(kind, Float):
            return lambda x: int(x * per) if abs(x) < 2**62 else None
        scale = kind.scale if isinstance(kind, Decimal) else 0
        return lambda x: x * per // 10**scale

    number = NUMBER if unit == "s" else WHOLE
    name = {"s": "timestamp_seconds", "ms": "timestamp_millis", "us": "timestamp_micros"}[unit]
    return Function(name, takes(number, gives=Timestamp("us")), values)


def _to_epoch(unit: str) -> Function:
    """Return a function from a timestamp to a number of units since 1970, in UTC if it has a zone."""

    def values(call: Call) -> Callable[[int], int]:
        kind = call.args[0].type
        assert isinstance(kind, Timestamp)
        per = UNITS[kind.unit]
        return lambda value: value * per // UNITS[unit]

    name = {"s": "unix_seconds", "ms": "unix_millis", "us": "unix_micros"}[unit]
    return Function(name, takes(TIMESTAMP, gives=INT64), values)


FUNCTIONS = (
    *_FIELDS,
    Function("date_part", _date_part),
    Function("date_trunc", _date_trunc, _date_trunc_values),
    Function("trunc", _trunc, plain(lambda days, unit: _truncate_day(_LONG[unit.lower()], days))),
    Function("date_add", _add_days("+")),
    Function("date_sub", _add_days("-")),
    Function("datediff", _days_between),
    Function("add_months", takes(DAY, WHOLE, gives=DATE), plain(_shift_months)),
    Function(
        "plus_months",
        takes(MOMENT, _MONTHS, gives=lambda args: args[0].type),
        _add_months_to_moment,
        spelled=False,
    ),
    Function("timestampadd", _bind_timestampadd, _timestampadd_values),
    Function("timestampdiff", _bind_timestampdiff, _timestampdiff_values),
    Function("last_day", takes(DAY, gives=DATE), plain(_last_day)),
    Function("next_day", takes(DAY, TEXT, gives=DATE), plain(_next_day)),
    Function("months_between", takes(MOMENT, MOMENT, _FLAG, gives=FLOAT64, optional=1), _months_between),
    Function("make_date", takes(WHOLE, WHOLE, WHOLE, gives=DATE), plain(_make_date)),
    Function("make_timestamp", _bind_make_timestamp, plain(_make_timestamp)),
    Function("unix_date", takes(DAY, gives=INT), plain(lambda days: days)),
    Function("date_from_unix_date", takes(WHOLE, gives=DATE), plain(lambda days: days)),
    *(_from_epoch(unit) for unit in ("s", "ms", "us")),
    *(_to_epoch(unit) for unit in ("s", "ms", "us")),
)
ALIASES = {
    "dayofmonth": "day",
    "date_diff": "datediff",
    "dateadd": "date_add",
    "datepart": "date_part",
    "make_timestamp_ntz": "make_timestamp",
}
