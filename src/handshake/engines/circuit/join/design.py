"""The design of a join circuit as a value: cores, windows, buffers, and the variant of each."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar

from handshake.engines.circuit.join.segment import BLOCK_RAM_FROM
from handshake.errors import UnsupportedError

CORES = 4
"""The number of join cores by default."""
WINDOWS = ("registers", "memory")
MOST_TUPLES, MOST_CORES, MOST_RESULTS = 1 << 20, 1024, 4096
"""Limits: larger circuits would neither fit a chip nor be simulated in reasonable time."""


@dataclass(frozen=True)
class Design:
    """A handshake join of tuple windows: `left` and `right` tuples over `cores` join cores.

    >>> Design(4, 10, 8).segments
    ((3, 2), (3, 2), (2, 2), (2, 2))
    """

    cores: int
    left: int
    """Tuples in the window of R."""
    right: int
    """Tuples in the window of S."""
    buffer: int = 8
    """Results that a core's output buffer holds."""
    merger_buffer: int = 4
    """Results that a merger's output buffer holds."""
    windows: str = "memory"
    """Segments in shift registers, as the papers have them, or in distributed or block RAM."""
    pipeline: int | None = None
    """Registers between a segment and the output buffer: 0 to `most_stages`; None: most."""
    margin: int | None = None
    """Free places at which a core's buffer calls itself full; None: as many as are needed to lose nothing."""
    reach: int = 16
    """Cores that a wire may pass by without a register."""
    block_ram_from: int = BLOCK_RAM_FROM
    """Tuples from which a segment in memory is block RAM."""
    most_stages: ClassVar[int] = 4
    """Registers that a comparison may have."""

    def __post_init__(self) -> None:
        _whole("cores", self.cores, 1)
        for name in ("left", "right"):
            _whole(f"the {name} window", getattr(self, name), self.cores, "; every core holds a tuple of it")
            at_most(f"tuples in the {name} window", getattr(self, name), MOST_TUPLES)
        at_most("join cores", self.cores, MOST_CORES)
        at_most("results in a core's buffer", self.buffer, MOST_RESULTS)
        _whole("a merger's buffer", self.merger_buffer, 3)
        _whole("a core's buffer", self.buffer, 3)
        _whole("pipeline", self.stages, 0)
        _whole("reach", self.reach, 1)
        check_choice("windows", self.windows, WINDOWS)
        if self.stages > self.most_stages:
            raise UnsupportedError(
                f"a comparison has up to {self.most_stages} pipeline stages; {self.stages} were asked for"
            )
        if self.margin is None and self.buffer <= self.needed_margin:
            raise UnsupportedError(
                f"a core's buffer of {self.buffer} results is too small: {self.needed_margin} may be on "
                f"their way when it fills up; give it at least {self.needed_margin + 1}"
            )

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """Tuples of R and of S that each core holds; lengths differ by one at most."""
        lengths = [[w // self.cores + (i < w % self.cores) for i in range(self.cores)] for w in self._both]
        # S enters at the last core, so its longer segments are there.
        return tuple(zip(lengths[0], reversed(lengths[1]), strict=True))

    @property
    def _both(self) -> tuple[int, int]:
        return self.left, self.right

    @property
    def stages(self) -> int:
        """Registers between a segment and the output buffer."""
        return self.most_stages if self.pipeline is None else self.pipeline

    def scans(self, index: int) -> tuple[int, int]:
        """Return the cycles in which a core scans its segments of R and of S."""
        return self.segments[index]

    @property
    def needed_margin(self) -> int:
        """Results that may still come when a buffer says that it is full."""
        return self.stages + 1  # a register is between the buffer and the core's state machine

    @property
    def core_margin(self) -> int:
        """Free places at which a core's buffer calls itself full."""
        return self.needed_margin if self.margin is None else self.margin

    @property
    def is_guarded(self) -> bool:
        """True if a core's buffer may be given more results than it holds."""
        return self.core_margin < self.needed_margin

    @property
    def line_registers(self) -> int:
        """Registers on each wire between the ends of the line, which lie far apart."""
        return -(-self.cores // self.reach)

    def link_registers(self, below: int) -> int:
        """Return the registers on each wire to a merger over `below` cores; 0: none are needed.

        Cores fill an area, so its links are as long as the root of their number.

        >>> [Design(64, 64, 64).link_registers(below) for below in (8, 16, 32, 64)]
        [0, 2, 2, 3]
        """
        hops = isqrt(below // self.reach)
        return hops and 1 + hops

    @property
    def unseen(self) -> int:
        """Tuples of S that may be given before the driver hears of the first: one in three cycles at most."""
        return 2 + 2 * self.line_registers // 3

    @property
    def in_flight(self) -> int:
        """Tuples of S that wait for their step to reach the last core, with two to spare."""
        shortest: int = 1 + sum(min(lengths) for lengths in zip(*self.segments, strict=True))
        # A step takes two cycles from core to core, and the driver hears of free places later still.
        return 2 * (self.cores + self.line_registers) // shortest + 2 + self.unseen


def at_most(what: str, value: int, most: int) -> None:
    """Refuse a circuit that is too large to build."""
    if value > most:
        raise UnsupportedError(f"{value:,} {what} are more than a circuit has, which is {most:,}; give fewer")


def _whole(what: str, value: Any, least: int, why: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UnsupportedError(f"{what} must be a whole number from {least} up{why}; {value!r} was given")


def check_choice(what: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise UnsupportedError(f"no {what} '{value}'; choose {' or '.join(choices)}")
