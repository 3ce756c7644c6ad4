"""Sums over the pairs that a join finds, by which engines are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Pairs"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pairs:
    """The number of pairs, the sums of their positions, and the sum of products as a 64-bit integer."""

    count: int = 0
    left: int = 0
    right: int = 0
    products: int = 0

    @classmethod
    def of(cls, left: Array, right: Array) -> Pairs:
        """Sum up pairs of positions."""
        return cls(len(left), int(left.sum()), int(right.sum()), int((left * right).sum()))

    def __add__(self, other: Pairs) -> Pairs:
        """Add the sums of two sets of pairs."""
        products = (self.products + other.products + 2**63) % 2**64 - 2**63
        return Pairs(
            self.count + other.count, self.left + other.left, self.right + other.right, products
        )  # fmt: skip
