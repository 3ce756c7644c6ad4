"""The use of codes by scans: which columns have them, and when scans do without (see `kernels.codes`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from handshake.joins.spec import JoinSpec
from handshake.kernels.codes import CODES, Band
from handshake.kernels.compile import BLOCK
from handshake.plan.expr import Column

Array = np.ndarray[Any, Any]
_PASSING, _SCANS = 4, 64
"""If more than one block in `_PASSING` passes by its codes, the next `_SCANS` scans do without them."""


class Coding:
    """The codes that scans of a join compare first, as long as they rule out most blocks."""

    def __init__(self, spec: JoinSpec) -> None:
        self.bands = (_bands(spec, 0), _bands(spec, 1))
        """For each inner side, the ranges that outer tuples allow for its coded columns."""
        self.without = 0
        """The number of next scans for which codes are switched off."""

    def prepare(self, table: Array) -> Array:
        """Return the table of a scan, with its codes cleared while they are switched off."""
        if self.without:
            table[:, CODES] = 0
        return table

    def note(self, passed: int, pairs: int) -> None:
        """Record how many blocks have passed in a scan of a number of pairs."""
        self.without -= self.without > 0
        if self.bands[0] and passed * BLOCK * _PASSING > pairs:
            self.without = _SCANS


def _bands(spec: JoinSpec, inner: int) -> tuple[Band, ...]:
    return tuple(
        (column, tuple(bound for _, bound in attribute.limits))
        for attribute in spec.sides[inner].coded
        if isinstance(column := attribute.limits[0][0], Column)
    )
