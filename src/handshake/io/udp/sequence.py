"""What the numbers of datagrams tell: which are missing, out of sequence, or there twice."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

__all__ = ["Numbering", "Sequence"]

_REMEMBERED = 10_000
"""Runs of missing numbers kept per sender; what comes later than that counts as repeated."""


@dataclass
class Sequence:
    """The numbers of one sender: 0, 1, 2, …; the first one seen is where counting begins.

    >>> s = Sequence()
    >>> s.observe(np.array([7, 8, 11, 9, 9]))
    >>> s.missing, s.out_of_sequence, s.repeated
    (1, 2, 1)
    """

    missing: int = 0
    """Numbers passed over that have not come since."""
    out_of_sequence: int = 0
    """Datagrams behind one with a higher number, repeated ones included."""
    repeated: int = 0
    restarts: int = 0
    _highest: int | None = None
    _holes: list[tuple[int, int]] = field(default_factory=list)
    """Runs of numbers passed over: first, and one past the last."""

    def observe(self, numbers: np.ndarray) -> None:
        """Take note of the next datagrams' numbers."""
        if not len(numbers):
            return
        if self._highest is None:
            self._highest = int(numbers[0]) - 1
        before = np.concatenate(([self._highest], numbers[:-1]))
        if (numbers > before).all():
            self._advance(numbers, before)
        else:
            self._disordered(numbers.tolist())

    def _advance(self, numbers: np.ndarray, before: np.ndarray) -> None:
        jumps = np.flatnonzero(numbers > before + 1)
        self._pass_over([(int(before[at]) + 1, int(numbers[at])) for at in jumps])
        self._highest = int(numbers[-1])

    def _disordered(self, numbers: list[int]) -> None:
        """The rare case, number by number."""
        for number in numbers:
            awaited = self._highest + 1 if self._highest is not None else number
            if number < awaited:
                self._behind(number)
                continue
            self._pass_over([(awaited, number)] if number > awaited else [])
            self._highest = number

    def _pass_over(self, holes: list[tuple[int, int]]) -> None:
        self.missing += sum(end - first for first, end in holes)
        self._holes += holes
        del self._holes[:-_REMEMBERED]

    def _behind(self, number: int) -> None:
        for at in range(len(self._holes) - 1, -1, -1):
            first, end = self._holes[at]
            if first <= number < end:
                parts = [(first, number), (number + 1, end)]
                self._holes[at : at + 1] = [part for part in parts if part[0] < part[1]]
                self.missing -= 1
                self.out_of_sequence += 1
                return
            if end <= number:
                break
        if number == 0:  # every sender counts from 0: this one has begun anew
            self.restarts += 1
            self._highest, self._holes = 0, []
            return
        self.out_of_sequence += 1
        self.repeated += 1


@dataclass
class Numbering:
    """The sequences of all senders, told apart by their socket addresses."""

    senders: dict[bytes, Sequence] = field(default_factory=dict)

    def observe(self, numbers: np.ndarray, senders: tuple[bytes, ...], sender: np.ndarray | None) -> None:
        """Take note of datagrams and which of the senders sent each (None: the first one all)."""
        if not len(numbers):
            return
        if sender is None:
            self._of(senders[0]).observe(numbers)
            return
        for at in np.unique(sender).tolist():
            self._of(senders[at]).observe(numbers[sender == at])

    def _of(self, sender: bytes) -> Sequence:
        return self.senders.setdefault(sender, Sequence())

    def total(self, figure: str) -> int:
        """A figure, added up over all senders."""
        return sum(getattr(sequence, figure) for sequence in self.senders.values())
