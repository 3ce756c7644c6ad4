"""Windows: who joins, who is late, who has expired. Pure functions on stamps.

Every tuple carries two stamps, and the window rule becomes two comparisons on them
(see docs/semantics.md). For a left tuple r and a right tuple s:

    window of S:   s.first  >= r.first  - reach(S)
    window of R:   s.second <= r.second + reach(R)

where `first` and `second` are the timestamp under a time window, and under a tuple window
sequence numbers and counts of the other stream at arrival.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from typing import Literal as OneOf

from handshake.errors import WindowError
from handshake.schema import UNITS

__all__ = [
    "Duration",
    "Stamp",
    "Time",
    "Tuples",
    "Window",
    "Windows",
    "alternate",
    "expired_left",
    "expired_right",
    "is_late",
    "joins",
    "parse_window",
    "stamp",
    "watermark",
    "windows_of",
]

_WORDS = {
    "ns": ("ns", "nanosecond"),
    "us": ("us", "µs", "microsecond"),
    "ms": ("ms", "millisecond"),
    "s": ("s", "sec", "second"),
    "m": ("m", "min", "minute"),
    "h": ("h", "hr", "hour"),
    "d": ("d", "day"),
    "w": ("w", "week"),
}
_NANOSECONDS = {
    **{unit: Fraction(UNITS[unit]) for unit in ("ns", "us", "ms", "s", "d")},
    "m": Fraction(60 * 10**9),
    "h": Fraction(3600 * 10**9),
    "w": Fraction(7 * UNITS["d"]),
}
_UNIT_OF = {
    spelling: unit
    for unit, words in _WORDS.items()
    for word in words
    for spelling in ({word} if len(word) <= 2 else {word, word + "s"})
}
_PIECE = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """A length of time in nanoseconds, exact.

    >>> Duration.parse("1 minute 30 seconds").nanoseconds
    90000000000
    """

    nanoseconds: int

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read `15 minutes`, `900s`, `1h30m`, `1.5 seconds`."""
        total, at = Fraction(0), 0
        while at < len(text):
            piece = _PIECE.match(text, at)
            unit = _UNIT_OF.get(piece[2].lower()) if piece else None
            if piece is None or unit is None:
                raise _bad_duration(text)
            total += Fraction(piece[1]) * _NANOSECONDS[unit]
            at = piece.end()
        if not text.strip() or total.denominator != 1:
            raise _bad_duration(text)
        return cls(int(total))

    def __str__(self) -> str:
        for unit, name in (("d", "day"), ("h", "hour"), ("m", "minute"), ("s", "second"), ("ms", "ms")):
            count, rest = divmod(self.nanoseconds, int(_NANOSECONDS[unit]))
            if rest == 0 and self.nanoseconds:
                plural = "s" if count != 1 and name != "ms" else ""
                return f"{count} {name}{plural}"
        return f"{self.nanoseconds} ns"


def _bad_duration(text: str) -> WindowError:
    return WindowError(
        f"cannot read '{text}' as a length of time; write a number and a unit, "
        "such as '15 minutes', '900s' or '1h30m' (ns, us, ms, s, min, h, d)"
    )


@dataclass(frozen=True)
class Time:
    """A time window: a tuple stays for `size`. Give one size, or one for each side.

    >>> Time("15 minutes").left == Time(left="900s", right="15 min").right
    True
    """

    left: Duration | None
    right: Duration | None

    def __init__(
        self, size: str | Duration | None = None, *, left: str | Duration | None = None,
        right: str | Duration | None = None,
    ) -> None:  # fmt: skip
        object.__setattr__(self, "left", _duration(left if left is not None else size))
        object.__setattr__(self, "right", _duration(right if right is not None else size))
        if self.left is None and self.right is None:
            raise WindowError("Time() needs a size, such as Time('15 minutes')")


@dataclass(frozen=True)
class Tuples:
    """A tuple window: the last `size` tuples of a stream. Give one size, or one for each side.

    >>> Tuples(1000).left
    1000
    """

    left: int | None
    right: int | None

    def __init__(self, size: int | None = None, *, left: int | None = None, right: int | None = None) -> None:
        object.__setattr__(self, "left", _count(left if left is not None else size))
        object.__setattr__(self, "right", _count(right if right is not None else size))
        if self.left is None and self.right is None:
            raise WindowError("Tuples() needs a size, such as Tuples(1000)")


def _duration(size: str | Duration | None) -> Duration | None:
    duration = Duration.parse(size) if isinstance(size, str) else size
    if duration is not None and not isinstance(duration, Duration):
        raise WindowError(f"a time window takes a text such as '15 minutes', not {size!r}")
    if duration is not None and duration.nanoseconds <= 0:
        raise WindowError(f"a time window must be longer than zero; '{size}' is not")
    return duration


def _count(size: object) -> int | None:
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool):
        raise WindowError(f"a tuple window takes a whole number of tuples, not {size!r}")
    if size <= 0:
        raise WindowError(f"a tuple window must hold at least one tuple; {size} does not")
    return size


@dataclass(frozen=True)
class Window:
    """The window of one stream: `time` in nanoseconds, or a number of tuples."""

    kind: OneOf["time", "tuples"]
    size: int

    def __str__(self) -> str:
        return str(Duration(self.size)) if self.kind == "time" else f"{self.size} tuples"

    def reach(self, unit: str) -> int:
        """How far, inclusive, the stamps of two joining tuples may be apart (in `unit` for time).

        A time window is strict (`t_s - t_r < T`), so with whole units its reach is ceil(T) - 1.
        """
        return -(-self.size // UNITS[unit]) - 1 if self.kind == "time" else self.size


@dataclass(frozen=True)
class Windows:
    """The windows of both streams; None stands for a side that is never expired."""

    left: Window | None
    right: Window | None

    @property
    def timed(self) -> bool:
        """Whether a time column is needed."""
        return any(w is not None and w.kind == "time" for w in (self.left, self.right))

    @property
    def counted(self) -> bool:
        """Whether tuples must be stamped with arrival positions."""
        return any(w is not None and w.kind == "tuples" for w in (self.left, self.right))

    def __str__(self) -> str:
        if self.left == self.right:
            return str(self.left) if self.left else "none"
        return f"left {self.left or 'unbounded'}, right {self.right or 'unbounded'}"


def parse_window(spec: str) -> Window:
    """Read a window specification: a duration, or a count such as `1000 tuples`.

    >>> parse_window("1000 tuples")
    Window(kind='tuples', size=1000)
    """
    counted = re.fullmatch(r"\s*([+-]?\d[\d_]*)\s*(?:tuples?|rows?)\s*", spec, re.IGNORECASE)
    if counted:
        size = _count(int(counted[1]))
        assert size is not None
        return Window("tuples", size)
    if re.fullmatch(r"\s*[+-]?\d[\d_]*\s*", spec):
        raise WindowError(f"window '{spec}' has no unit; write '{spec} seconds' or '{spec} tuples'")
    duration = _duration(spec)
    assert duration is not None
    return Window("time", duration.nanoseconds)


Spec = str | Time | Tuples | Window | None


def windows_of(window: Spec = None, left: Spec = None, right: Spec = None) -> Windows:
    """Combine one specification for both sides with those for a single side, which win."""
    return Windows(
        _one_side(left if left is not None else window, "left"),
        _one_side(right if right is not None else window, "right"),
    )


def _one_side(spec: Spec, side: OneOf["left", "right"]) -> Window | None:
    if spec is None or isinstance(spec, Window):
        return spec
    if isinstance(spec, str):
        return parse_window(spec)
    if not isinstance(spec, (Time, Tuples)):
        raise WindowError(f"a window is Time(…), Tuples(…), a text or None, not {spec!r}")
    size = getattr(spec, side)
    if size is None:
        return None
    return Window("time", size.nanoseconds) if isinstance(spec, Time) else Window("tuples", size)


@dataclass(frozen=True)
class Stamp:
    """What the driver writes on a tuple at arrival."""

    time: int
    own: int
    """How many tuples of its own stream arrived before it."""
    other: int
    """How many tuples of the other stream arrived before it."""


def alternate(left: int, right: int) -> Iterator[tuple[str, int]]:
    """Arrival order without a time column: left and right take turns, left first.

    >>> list(alternate(1, 2))
    [('left', 0), ('right', 0), ('right', 1)]
    """
    for i, j in zip_longest(range(left), range(right)):
        if i is not None:
            yield ("left", i)
        if j is not None:
            yield ("right", j)


def stamp(arrivals: Iterable[tuple[str, int]]) -> Iterator[tuple[str, Stamp]]:
    """The stamping step: turns (side, time) in arrival order into stamped tuples."""
    seen = {"left": 0, "right": 0}
    for side, time in arrivals:
        other = "right" if side == "left" else "left"
        yield side, Stamp(time, seen[side], seen[other])
        seen[side] += 1


def joins(r: Stamp, s: Stamp, windows: Windows, unit: str = "ns") -> bool:
    """Whether left tuple `r` and right tuple `s` are in each other's windows."""
    held_s = windows.right is None or _first(s, windows.right) >= _asks_first(r, windows.right) - (
        windows.right.reach(unit)
    )
    held_r = windows.left is None or _asks_second(s, windows.left) <= _second(r, windows.left) + (
        windows.left.reach(unit)
    )
    return held_s and held_r


def _first(s: Stamp, window: Window) -> int:
    return s.time if window.kind == "time" else s.own


def _asks_first(r: Stamp, window: Window) -> int:
    return r.time if window.kind == "time" else r.other


def _second(r: Stamp, window: Window) -> int:
    return r.time if window.kind == "time" else r.own


def _asks_second(s: Stamp, window: Window) -> int:
    return s.time if window.kind == "time" else s.other


def watermark(newest_left: int | None, newest_right: int | None, lateness: int) -> int | None:
    """No tuple older than this is accepted any more: the slower stream's newest time less `lateness`."""
    if newest_left is None or newest_right is None:
        return None
    return min(newest_left, newest_right) - lateness


def is_late(time: int, mark: int | None) -> bool:
    """Whether a tuple arrives after the watermark has passed it."""
    return mark is not None and time < mark


def expired_right(s: Stamp, window: Window, progress: int, unit: str = "ns") -> bool:
    """Whether no later left tuple can join `s`; `progress` bounds the `first` stamp of those to come."""
    return _first(s, window) < progress - window.reach(unit)


def expired_left(r: Stamp, window: Window, progress: int, unit: str = "ns") -> bool:
    """Whether no later right tuple can join `r`; `progress` bounds the `second` stamp of those to come."""
    return _second(r, window) < progress - window.reach(unit)
