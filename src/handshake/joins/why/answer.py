"""Answers: the conditions of a join one by one, with their values."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal as OneOf

from handshake.html import card
from handshake.schema import UNITS

Outcome = OneOf["holds", "fails", "null", "unknown"]
_SIGNS = {"holds": "yes", "fails": "no", "null": "NULL", "unknown": "?"}
OUTCOMES: dict[bool | None, Outcome] = {True: "holds", False: "fails", None: "null"}
_HEADS = {
    True: "the rows join",
    False: "the rows do not join",
    None: "the rows join if what is marked ? holds",
}
_LONG = {"day": 86_400, "hour": 3_600, "minute": 60}
"""Seconds of the units of long times."""


@dataclass(frozen=True)
class Condition:
    """One condition of a join, for given rows."""

    what: str
    """A part of the predicate, a window, that a row is in time, or that no other row is a better match."""
    outcome: Outcome
    """`null` if it is NULL, as a comparison with NULL is; `unknown` if what is given does not tell."""
    detail: str
    """The values behind it."""

    def __str__(self) -> str:
        return f"{_SIGNS[self.outcome]:<5}{self.what}: {self.detail}"


@dataclass(frozen=True)
class Why:
    """Why rows join, or do not; printed, it has a line per condition."""

    conditions: tuple[Condition, ...]
    """All conditions: those of the predicate, of the windows, and of the watermark."""
    notes: tuple[str, ...] = ()
    """How long each row waits for matches, if a watermark is given, and what becomes of it without one."""
    title: str = ""
    """Which join of a query this is about; empty if there is only one."""

    @property
    def joined(self) -> bool | None:
        """True if the rows are a result, False if they are not, None if that is not known."""
        outcomes = {condition.outcome for condition in self.conditions}
        if outcomes & {"fails", "null"}:
            return False
        return None if "unknown" in outcomes else True

    @property
    def reasons(self) -> tuple[Condition, ...]:
        """The conditions that do not hold."""
        return tuple(condition for condition in self.conditions if condition.outcome != "holds")

    def _repr_html_(self) -> str:
        rows = [(_SIGNS[each.outcome], each.what, each.detail) for each in self.conditions]
        head = ("", "condition", "values")
        title = self._head[0].upper() + self._head[1:]
        return card(title, rows=(head, *rows), text="\n".join(self.notes))

    @property
    def _head(self) -> str:
        return f"{self.title}: {_HEADS[self.joined]}" if self.title else _HEADS[self.joined]

    def __str__(self) -> str:
        lines = (*map(str, self.conditions), *self.notes)
        return "\n".join((self._head, *(f"  {line}" for line in lines)))


def length(distance: int, unit: str) -> str:
    """Return a length of time as people write it.

    >>> [length(n, "ms") for n in (500, 4350, 90_000, 7_200_000)]
    ['500 ms', '4.35 seconds', '1 minute 30 seconds', '2 hours']
    """
    rest, parts = distance * UNITS[unit], []
    for name, size in _LONG.items():
        count, rest = divmod(rest, UNITS["s"] * size)
        if count:
            parts.append(f"{count} {name}{'s' * (count != 1)}")
    if rest and (parts or rest >= UNITS["s"]):
        parts.append(f"{_decimal(rest, UNITS['s'])} second{'s' * (rest != UNITS['s'])}")
    elif rest:
        short = next(short for short in ("ms", "us", "ns") if rest >= UNITS[short])
        parts.append(f"{_decimal(rest, UNITS[short])} {short}")
    return " ".join(parts) or "0 seconds"


def _decimal(nanoseconds: int, size: int) -> str:
    return f"{(Decimal(nanoseconds) / size).normalize():f}"
