"""Functions of dates and timestamps."""

from __future__ import annotations

from collections.abc import Callable

from handshake.plan.calendar import civil, wall_clock
from handshake.plan.expr import Call
from handshake.plan.functions.registry import MOMENT, TIMESTAMP, Function, takes
from handshake.schema import UNITS, Date, Int, Timestamp, Type

__all__ = ["ALIASES", "FUNCTIONS"]

INT = Int(32)
DAY = UNITS["d"]


def wall_of(kind: Type) -> Callable[[int], int]:
    """Return a function from values of a type to nanoseconds on the wall clock."""
    if isinstance(kind, Date):
        return lambda days: days * DAY
    assert isinstance(kind, Timestamp)
    unit, zone = UNITS[kind.unit], kind.zone
    return lambda value: wall_clock(value * unit, zone)


def _field(name: str, of_wall: Callable[[int], int], timed: bool = False) -> Function:
    """Return a function that computes a field from the wall clock."""

    def values(call: Call) -> Callable[[int], int]:
        wall = wall_of(call.args[0].type)
        return lambda value: of_wall(wall(value))

    return Function(name, takes(TIMESTAMP if timed else MOMENT, gives=INT), values)


FUNCTIONS = (
    _field("year", lambda wall: civil(wall // DAY)[0]),
    _field("month", lambda wall: civil(wall // DAY)[1]),
    _field("day", lambda wall: civil(wall // DAY)[2]),
    _field("hour", lambda wall: wall // (3600 * UNITS["s"]) % 24, timed=True),
    _field("minute", lambda wall: wall // (60 * UNITS["s"]) % 60, timed=True),
    _field("second", lambda wall: wall // UNITS["s"] % 60, timed=True),
)
ALIASES = {"dayofmonth": "day"}
