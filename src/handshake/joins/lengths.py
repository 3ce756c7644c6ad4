"""Lengths of time that users give: texts, timedeltas of Python, NumPy and pandas, and `Time`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np

from handshake.errors import WindowError
from handshake.windows import Duration, Time

_NUMPY_UNITS = ("W", "D", "h", "m", "s", "ms", "us", "ns")
"""Units of a fixed length; months and years have none."""
Length = str | timedelta | np.timedelta64 | Duration | Time
"""The ways in which users may write a length of time."""


def length_of(given: Any, option: str) -> Duration:
    """Return the length of time that was given for an option: zero or more.

    >>> length_of(timedelta(minutes=1), "tolerance") == length_of("60 s", "tolerance")
    True
    """
    length = _length(given)
    if length is None:
        raise WindowError(
            f"{option} is a length of time such as '5 seconds', a timedelta or Time(…), not {given!r}"
        )
    if length.nanoseconds < 0:
        raise WindowError(f"{option} cannot be negative; '{given}' is")
    return length


def _length(given: Any) -> Duration | None:
    """Return a length of time; None for other values."""
    if hasattr(given, "to_timedelta64"):  # pandas counts nanoseconds, which a timedelta does not have
        given = given.to_timedelta64()
    match given:
        case Duration():
            return given
        case str():
            return Duration.parse(given)
        case Time() if given.left == given.right:
            return given.left
        case np.timedelta64():
            unit, count = np.datetime_data(given.dtype)
            if np.isnat(given) or unit not in _NUMPY_UNITS:
                return None
            return Duration.parse(f"{int(given.astype(np.int64)) * count} {unit}")
        case timedelta():
            return Duration(given // timedelta(microseconds=1) * 1000)
    return None
