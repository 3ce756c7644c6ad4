"""The calendar: days, wall clocks of zones, and reading dates and times. Plain whole numbers."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from handshake.schema import UNITS

DAY = UNITS["d"]
"""Nanoseconds of a day."""

_EPOCH = datetime(1970, 1, 1)
_CYCLE = 146_097
"""Days of 400 years, after which the calendar repeats."""
_MICRO = timedelta(microseconds=1)
_FIRST, _LAST = ((d - date(1970, 1, 1)).days for d in (date(1, 1, 3), date(9999, 12, 29)))


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970-01-01, for any year.

    >>> civil(19_782), civil(-719_529)
    ((2024, 2, 29), (-1, 12, 31))
    """
    cycles, rest = divmod(days + 719_162, _CYCLE)
    day = date.fromordinal(rest + 1)
    return day.year + 400 * cycles, day.month, day.day


def days_of(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a day that exists."""
    cycles, near = divmod(year - 1, 400)
    return date(near + 1, month, day).toordinal() - 719_163 + cycles * _CYCLE


def month_length(year: int, month: int) -> int:
    """Return the number of days of a month."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 28 + leap if month == 2 else 30 + (month in (1, 3, 5, 7, 8, 10, 12))


# Zones.


def zone_of(name: str) -> tzinfo:
    """Return a zone by name, or a fixed offset such as `+02:00`."""
    return datetime.strptime(name, "%z").tzinfo or UTC if name[:1] in "+-" else ZoneInfo(name)


def wall_clock(nanoseconds: int, zone: str | None) -> int:
    """Return what a clock in a zone shows at an instant, as nanoseconds since 1970 on that clock."""
    if zone is None:
        return nanoseconds
    offset = _near(nanoseconds).replace(tzinfo=UTC).astimezone(zone_of(zone)).utcoffset()
    return nanoseconds + (offset or timedelta()) // _MICRO * 1000


def instant(wall: int, zone: str | None) -> int:
    """Return the instant at which a clock in a zone shows `wall`, the first one if there are two."""
    if zone is None:
        return wall
    offset = _near(wall).replace(tzinfo=zone_of(zone)).utcoffset()
    return wall - (offset or timedelta()) // _MICRO * 1000


def _near(nanoseconds: int) -> datetime:
    """Return a moment as Python's calendar can hold it; beyond its years, one whole cycles away."""
    days, rest = divmod(nanoseconds, DAY)
    if days > _LAST:
        days -= -(-(days - _LAST) // _CYCLE) * _CYCLE
    return _EPOCH + timedelta(days=max(days, _FIRST), microseconds=rest // 1000)


# Texts.

_DATE = r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
_CLOCK = r"([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?)?)?"
_ZONE = r" ?(?:(Z|UTC|GMT)|([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)"
_READ_DATE = re.compile(_DATE + r"(?:[ T].*)?)?)?", re.DOTALL)
_READ_TIMESTAMP = re.compile(_DATE + rf"(?:[ T]{_CLOCK}(?:{_ZONE})?)?)?)?")
_READ_TIME = re.compile(_CLOCK)


def read_date(text: str) -> int | None:
    """Return the days since 1970-01-01 of a text: a year, a month or a day. A time after it is left aside."""
    found = _READ_DATE.fullmatch(text.strip())
    return None if found is None else _read_day(found[1], found[2], found[3])


def _read_day(year: str, month: str | None, day: str | None) -> int | None:
    y, m, d = int(year), int(month or 1), int(day or 1)
    if y < 1 or not 1 <= m <= 12 or not 1 <= d <= month_length(y, m):
        return None
    return days_of(y, m, d)


def read_time(text: str) -> int | None:
    """Return the microseconds since midnight of a time of day; finer digits are cut off."""
    found = _READ_TIME.fullmatch(text.strip())
    return None if found is None or found[2] is None else _read_clock(*found.groups())


def _read_clock(hour: str | None, minute: str | None, second: str | None, part: str | None) -> int | None:
    h, m, s = (int(digits or 0) for digits in (hour, minute, second))
    if h > 23 or m > 59 or s > 59:
        return None
    return ((h * 60 + m) * 60 + s) * 10**6 + int(f"{part or '':0<6.6}")


def read_timestamp(text: str) -> tuple[int, bool] | None:
    """Return microseconds since 1970 and whether the text has an offset: then they count in UTC.

    >>> read_timestamp("2024-02-29 12:00:00.5"), read_timestamp("1970-01-01T01:00+01:00")
    ((1709208000500000, False), (0, True))
    """
    found = _READ_TIMESTAMP.fullmatch(text.strip())
    if found is None:
        return None
    days, clock = _read_day(found[1], found[2], found[3]), _read_clock(*found.groups()[3:7])
    utc, sign, *offset = found.groups()[7:]
    if days is None or clock is None:
        return None
    hours, minutes, seconds = (int(digits or 0) for digits in offset)
    if minutes > 59 or seconds > 59 or (east := (hours * 60 + minutes) * 60 + seconds) > 18 * 3600:
        return None
    micros = days * DAY // 1000 + clock - (-east if sign == "-" else east) * 10**6
    return micros, utc is not None or sign is not None
