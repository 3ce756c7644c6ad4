"""Reductions: what a search adds up of its pairs, instead of writing them down.

A pair belongs to a *pane*: the time of its later row, in units of a length that divides all windows above. It
may be behind the clock of one of its rows by some panes, and it may have a group on each side. Pairs with
equal panes and groups share a state, which is a few words of 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from handshake.errors import UnsupportedError
from handshake.plan.expr import Column, Expr
from handshake.schema import Int

Array = np.ndarray[Any, Any]
LIMB = 32
"""Bits of a limb of a sum."""


@dataclass(frozen=True)
class Word:
    """A word of a state: how many pairs fulfil a condition, or what is reduced of a value in these pairs.

    A largest key is biased, so that the word for no pair, which is 0, is not larger than any.
    """

    where: Expr
    value: Expr | None = None
    """None: the word counts."""
    limb: int = 0
    limbs: int = 0
    """Limbs of a sum, of which this is one; 0: the word is the largest key."""
    down: bool = False
    """Whether keys are in the opposite order of values."""
    unsigned: bool = False
    """Whether values are whole numbers of 64 bits without a sign."""

    @property
    def is_key(self) -> bool:
        """True if it is the largest of all, not their sum."""
        return self.value is not None and not self.limbs

    @property
    def exprs(self) -> Iterator[Expr]:
        """The expressions to compute."""
        yield self.where
        if self.value is not None:
            yield self.value


@dataclass(frozen=True)
class Panes:
    """The panes of pairs, and the stamps of rows: their pane, and how many panes their clock is ahead.

    A stamp wraps. Panes of rows that match are near each other, so that differences tell them apart.
    """

    start: int
    length: int
    reach: int
    """By how many panes matching rows may be apart."""
    most_ahead: int
    """Clocks that are further ahead make no difference: no window has a pair of such a row."""

    @classmethod
    def of(cls, start: int, length: int, size: int, reach: int) -> Panes:
        """Return the panes of windows of a size, for a join that reaches so far; refuse too many."""
        near = reach // length + 1
        panes = cls(start, length, near, near + -(-size // length) + 1)
        if panes.most_spread < 1:
            raise UnsupportedError(
                'device="gpu" takes windows of a join with up to a billion panes, and these have '
                f'{near:,}; make the window above advance by more, or use device="cpu"'
            )
        return panes

    @property
    def ahead_bits(self) -> int:
        """Bits of a stamp for how far its clock is ahead."""
        return self.most_ahead.bit_length()

    @property
    def bits(self) -> int:
        """Bits of a stamp; whole numbers of 32 and 64 bits with these have headroom."""
        return 28 if self.ahead_bits + (4 * self.reach).bit_length() < 28 else 60

    @property
    def type(self) -> Int:
        """The type of stamps."""
        return Int(32 if self.bits < 32 else 64)

    @property
    def most_spread(self) -> int:
        """By how many panes the probes of a search may be apart."""
        return (1 << max(self.bits - self.ahead_bits - 1, 0)) - self.reach - 1

    def number(self, times: Array) -> Array:
        """Return the panes of times."""
        return (times - self.start) // self.length

    def instants(self, panes: Array) -> Array:
        """Return the first instants of panes."""
        return panes * self.length + self.start

    def stamps(self, times: Array, clocks: Array) -> tuple[Array, int]:
        """Return the stamps of rows, and how many panes a clock is ahead at most."""
        panes = self.number(times)
        words, ahead = panes << self.ahead_bits, 0
        if clocks is not times and np.any(clocks > times):
            by = np.clip(self.number(clocks) - panes, 0, self.most_ahead)
            words, ahead = words | by, int(by.max())
        held = np.int32 if self.bits < 32 else np.int64
        return (words & ((1 << self.bits) - 1)).astype(held), ahead

    def word(self, pane: int) -> int:
        """Return the stamp of a row in a pane whose clock is not ahead."""
        return (pane << self.ahead_bits) & ((1 << self.bits) - 1)


@dataclass(frozen=True)
class Reduction:
    """The words that a search makes of its pairs, and where it finds their panes and groups."""

    words: tuple[Word, ...]
    """The first one counts all pairs."""
    panes: Panes
    stamps: tuple[Column, Column]
    """The columns with the stamps of both sides."""
    groups: tuple[Column | None, Column | None]
    """The columns with the numbers of groups, from 0; None: the side has one group."""
