"""Windows of streams: which rows can still join, which are late, and which have expired.

A window kind is one class, a subclass of `Window`. Every engine reads the same things from it: the stamps
that it needs, its `Rule` on them, the oldest stamp that can still join, and how many rows it holds at most.

A row gets its stamps on arrival (see docs/semantics.md): its `time`, its position in its `own` stream, and
how many rows of the `other` stream had arrived.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

from handshake.errors import WindowError
from handshake.schema import UNITS

TIME, OWN, OTHER = "time", "own", "other"
"""Names of the stamps."""

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
UNIT_WORDS = frozenset(_UNIT_OF)
"""The words for units of time, in lower case."""
_PIECE = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-zµ]+)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Duration:
    """An exact length of time in nanoseconds.

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


class Rule(NamedTuple):
    """The condition under which a row in a window joins a row of another stream.

    It holds if `asked` of the other row exceeds `held` of the row in the window by at most `reach`.
    """

    held: str
    """The stamp of the row in the window."""
    asked: str
    """The stamp of the other row."""
    reach: int

    def holds(self, held: Any, asked: Any) -> Any:
        """Apply the rule to stamps: integers, arrays of them, or signals of a circuit."""
        return asked - held <= self.reach

    def oldest(self, mark: int | None, seen: int | None) -> int | None:
        """Return the oldest `held` stamp that a row to come can still join; older rows have expired.

        Args:
            mark: The watermark: no row to come is older. None if there is none yet.
            seen: The least `other` stamp that a row to come can have.
        """
        least = mark if self.asked == TIME else seen
        return None if least is None else least - self.reach


@dataclass(frozen=True)
class Window(ABC):
    """The window of one stream. Each kind of window is a subclass."""

    size: int
    kind: ClassVar[str]
    held: ClassVar[str]
    asked: ClassVar[str]

    @property
    def timed(self) -> bool:
        """True if the window needs times."""
        return self.held == TIME

    @property
    def counted(self) -> bool:
        """True if the window needs positions of rows in their streams."""
        return self.held == OWN

    @property
    def capacity(self) -> int | None:
        """The most rows that the window holds, if that is known beforehand."""
        return None

    @abstractmethod
    def reach(self, unit: str) -> int:
        """Return how far apart, inclusive, the stamps of joining rows may be; times count in `unit`."""

    def rule(self, unit: str) -> Rule:
        """Return the rule of this window; times count in `unit`."""
        return Rule(self.held, self.asked, self.reach(unit))


@dataclass(frozen=True)
class TimeWindow(Window):
    """The rows of the last `size` nanoseconds."""

    kind = "time"
    held = asked = TIME

    def __str__(self) -> str:
        return str(Duration(self.size))

    def reach(self, unit: str) -> int:
        """Return ceil(size) - 1: a time window is open at its far end (`t_s - t_r < size`)."""
        return -(-self.size // UNITS[unit]) - 1


@dataclass(frozen=True)
class TupleWindow(Window):
    """The last `size` rows."""

    kind = "tuples"
    held, asked = OWN, OTHER

    def __str__(self) -> str:
        return f"{self.size} tuples"

    @property
    def capacity(self) -> int:
        """The number of rows, which is fixed."""
        return self.size

    def reach(self, unit: str) -> int:
        """Return the size."""
        return self.size


@dataclass(frozen=True)
class NowWindow(TimeWindow):
    """No window of its own, by time: a row joins rows of others that are not later, and is not kept."""

    size: int = 1

    def __str__(self) -> str:
        return "now"


@dataclass(frozen=True)
class NowTuples(TupleWindow):
    """No window of its own, by arrival: a row joins rows that have arrived before it, and is not kept."""

    size: int = 0

    def __str__(self) -> str:
        return "now"


def settle_now(windows: Iterable[Window | None]) -> tuple[Window | None, ...]:
    """Return the windows of a join; NOW goes by arrival if the others count rows, else by time.

    >>> settle_now([NowWindow(), TupleWindow(9)])
    (NowTuples(size=0), TupleWindow(size=9))
    """
    each = tuple(windows)
    others = [w for w in each if w is not None and not isinstance(w, NowWindow)]
    by_arrival = any(w.counted for w in others) and not any(w.timed for w in others)
    return tuple(NowTuples() if by_arrival and isinstance(w, NowWindow) else w for w in each)


@dataclass(frozen=True, init=False)
class Windows:
    """The windows of the streams of a join, in order; None stands for rows that never expire."""

    each: tuple[Window | None, ...]

    def __init__(self, *each: Window | None) -> None:
        object.__setattr__(self, "each", each)

    def __iter__(self) -> Iterator[Window | None]:
        return iter(self.each)

    def __getitem__(self, stream: int) -> Window | None:
        return self.each[stream]

    @property
    def left(self) -> Window | None:
        """The window of the first of two streams."""
        return self.each[0]

    @property
    def right(self) -> Window | None:
        """The window of the second of two streams."""
        return self.each[1]

    @property
    def timed(self) -> bool:
        """True if the streams need time columns."""
        return any(window is not None and window.timed for window in self.each)

    @property
    def counted(self) -> bool:
        """True if rows must be stamped with positions."""
        return any(window is not None and window.counted for window in self.each)

    def rules(self, unit: str) -> tuple[Rule | None, ...]:
        """Return the rule of each window; times count in `unit`."""
        return tuple(None if window is None else window.rule(unit) for window in self.each)

    @property
    def unbounded(self) -> bool:
        """True if no stream has a window."""
        return all(window is None for window in self.each)

    def __str__(self) -> str:
        if self.left == self.right:
            return str(self.left) if self.left else "none"
        return f"left {self.left or 'unbounded'}, right {self.right or 'unbounded'}"


@dataclass(frozen=True)
class Time:
    """Time windows of a join: a row stays for `size`. Give one size, or one for each side.

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

    def windows(self) -> Windows:
        """Return the windows of both sides."""
        return Windows(*(None if s is None else TimeWindow(s.nanoseconds) for s in (self.left, self.right)))


@dataclass(frozen=True)
class Tuples:
    """Tuple windows of a join: the last `size` rows of a stream. Give one size, or one for each side.

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

    def windows(self) -> Windows:
        """Return the windows of both sides."""
        return Windows(*(None if size is None else TupleWindow(size) for size in (self.left, self.right)))


Spec = str | Time | Tuples | Window | None
"""The ways in which users may write a window."""


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


@lru_cache(maxsize=256)
def parse_window(spec: str) -> Window:
    """Read a window: a length of time, a number of tuples such as `1000 tuples`, or `now`.

    >>> parse_window("1000 tuples")
    TupleWindow(size=1000)
    """
    if spec.strip().lower() == "now":
        return NowWindow()
    counted = re.fullmatch(r"\s*([+-]?\d[\d_]*)\s*(?:tuples?|rows?)\s*", spec, re.IGNORECASE)
    if not counted and re.fullmatch(r"\s*[+-]?\d[\d_]*\s*", spec):
        raise WindowError(f"window '{spec}' has no unit; write '{spec} seconds' or '{spec} tuples'")
    window = (Tuples(int(counted[1])) if counted else Time(spec)).windows().left
    assert window is not None
    return window


def windows_of(window: Spec = None, left: Spec = None, right: Spec = None) -> Windows:
    """Combine a window for both sides with windows for one side, which win.

    >>> windows_of("1 minute", right="10 tuples")
    Windows(each=(TimeWindow(size=60000000000), TupleWindow(size=10)))
    >>> windows_of("now", right="10 tuples")
    Windows(each=(NowTuples(size=0), TupleWindow(size=10)))
    """
    given = (left if left is not None else window, right if right is not None else window)
    return Windows(*settle_now(_window(spec, side) for side, spec in enumerate(given)))


def _window(spec: Spec, side: int) -> Window | None:
    if spec is None or isinstance(spec, Window):
        return spec
    if isinstance(spec, str):
        return parse_window(spec)
    if not isinstance(spec, (Time, Tuples)):
        raise WindowError(f"a window is Time(…), Tuples(…), a text or None, not {spec!r}")
    return spec.windows()[side]


def watermark(newest: Sequence[int | None], lateness: int) -> int | None:
    """Return the time of which no older row is accepted any more, or None before every stream has a row.

    Args:
        newest: The newest time of each stream.
        lateness: How far a row may be behind the slowest stream.
    """
    oldest: int | None = None
    for time in newest:
        if time is None:
            return None
        if oldest is None or time < oldest:
            oldest = time
    return None if oldest is None else oldest - lateness


def is_late(time: Any, mark: Any) -> Any:
    """Return whether the watermark has passed a time: of integers, arrays, or signals of a circuit."""
    return time < mark
