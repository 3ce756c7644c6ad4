"""Arrival order inside a micro-batch, for windows that count tuples.

Every segment computes it from the same chunks, so each tuple gets the same stamps wherever it goes: tuples
arrive by event time, ties left first, then in source order (partition, then row); without a time column left
and right take turns in source order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["stamps"]

Array = np.ndarray[Any, Any]


def stamps(
    sides: Sequence[int], times: Sequence[Array | None], places: Sequence[Array], admitted: Sequence[Array],
    arrived: Sequence[int],
) -> list[tuple[Array, Array]]:  # fmt: skip
    """(own, other) counts for the tuples of chunks given in source order; those not admitted do not count."""
    chunk = np.repeat(np.arange(len(sides)), [len(p) for p in places])
    side = np.asarray(sides, np.int64)[chunk] if len(chunk) else np.empty(0, np.int64)
    counts = _joined(admitted, np.bool_)
    source = np.lexsort((_joined(places, np.int64), chunk))
    if any(t is None for t in times):
        order = source[np.lexsort((side[source], _turn(side[source], counts[source])))]
    else:
        when = _joined([t for t in times if t is not None], np.int64)[source]
        order = source[np.lexsort((side[source], when))]
    own, other = _counted(side, counts, order, arrived)
    edges = np.cumsum([len(p) for p in places])[:-1]
    return list(zip(np.split(own, edges), np.split(other, edges), strict=True))


def _joined(parts: Sequence[Array], dtype: Any) -> Array:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def _turn(side: Array, counts: Array) -> Array:
    """How many of its own side come before each tuple."""
    left = np.cumsum((side == 0) & counts)
    right = np.cumsum((side == 1) & counts)
    return np.where(side == 0, left, right)


def _counted(side: Array, counts: Array, order: Array, arrived: Sequence[int]) -> tuple[Array, Array]:
    is_left, is_right = (side[order] == 0) & counts[order], (side[order] == 1) & counts[order]
    lefts = arrived[0] + np.cumsum(is_left) - is_left
    rights = arrived[1] + np.cumsum(is_right) - is_right
    own, other = np.empty(len(side), np.int64), np.empty(len(side), np.int64)
    own[order] = np.where(side[order] == 0, lefts, rights)
    other[order] = np.where(side[order] == 0, rights, lefts)
    return own, other
