"""New tuples that probe the windows, with the facts that each basic window needs, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow
from handshake.joins.spec import Attribute
from handshake.kernels.cluster import sweep_order
from handshake.kernels.gather import gather_batch

__all__ = ["Outer"]

Array = np.ndarray[Any, Any]
Ranges = tuple[Array, Array]
_FEW = 32
"""So few tuples need not be put in order."""


@dataclass(frozen=True)
class Outer:
    """A piece, and the attributes that the other side's basic windows are indexed by."""

    piece: BasicWindow
    attributes: tuple[Attribute, ...]

    @cached_property
    def limits(self) -> tuple[Ranges, ...]:
        """For each attribute, the range that each tuple allows it to have."""
        return tuple(self.piece.limits(attribute) for attribute in self.attributes)

    @cached_property
    def spans(self) -> tuple[tuple[Any, Any], ...]:
        """For each attribute, the range that all tuples together allow it to have."""
        return tuple((low.min(), high.max()) for low, high in self.limits)

    @cached_property
    def swept(self) -> tuple[BasicWindow, Ranges, Ranges]:
        """The tuples in the order in which they sweep over cells, and their ranges of the two attributes.

        With one attribute, its range finds the only cell, and the granules in it.
        """
        first, second = self.limits[0], self.limits[-1]
        if self.piece.rows <= _FEW:
            return self.piece, first, second
        order = sweep_order(first[0], second[0] if len(self.limits) > 1 else None)
        moved = BasicWindow(self.piece.spec, gather_batch(self.piece.batch, order))
        return moved, _take(first, order), _take(second, order)

    def prepare(self) -> Outer:
        """Find everything now, so that several cores can share it."""
        if self.attributes and not self.piece.spec.hashed and self.piece.rows > _FEW:
            self.swept[0].columns  # noqa: B018  (a cached property)
        return self

    def misses(self, window: BasicWindow) -> bool:
        """Return whether no tuple's ranges reach into the window's values."""
        pairs = zip(self.spans, window.attribute_spans, strict=True)
        return any(high < least or low > most for (low, high), (least, most) in pairs)


def _take(ranges: Ranges, order: Array) -> Ranges:
    return ranges[0][order], ranges[1][order]
