"""The input of a join circuit: each beat has a tuple of R, one of S, or both, R being the earlier one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from handshake.engines.circuit.components.types import Row, Wire
from handshake.engines.circuit.join.condition import Combination, PairGates
from handshake.engines.circuit.simulation.simulate import Feed
from handshake.engines.circuit.simulation.testbench import ALWAYS, Beat
from handshake.schema import BOOL

HAS_LEFT, HAS_RIGHT = "l?", "r?"
"""Fields that say whether a beat has a tuple of R, and of S."""


def arrivals_row(condition: PairGates | Combination) -> Row:
    """Return the wires of the input: a tuple of each stream, and flags that say which of them are there."""
    flags = (Wire(has_of(side), BOOL, 1) for side in condition.sides)
    streams = zip(condition.sides, condition.rows, strict=True)
    return Row((*flags, *(replace(w, name=f"{side}.{w.name}") for side, row in streams for w in row)))


def has_of(side: str) -> str:
    """Return the field that says whether a beat has a tuple of a stream."""
    return f"{side}?"


def steps(order: Iterable[tuple[int, int]]) -> Iterator[tuple[int | None, int | None]]:
    """Yield arrivals (side, payload) as beats: an R tuple and the S tuple right after it share one.

    >>> list(steps([(0, 1), (1, 2), (1, 3), (0, 4)]))
    [(1, 2), (None, 3), (4, None)]
    """
    waiting: int | None = None
    for side, payload in order:
        if side == 0:
            if waiting is not None:
                yield waiting, None
            waiting = payload
        else:
            yield waiting, payload
            waiting = None
    if waiting is not None:
        yield waiting, None


def feed_of(
    condition: PairGates,
    beats: Iterable[tuple[int | None, int | None]],
    *,
    pattern: Iterable[bool] = ALWAYS,
    end: bool = True,
) -> Feed:
    """Return packed tuples as beats of the circuit's input, and the end after them."""
    width = condition.left.bits
    packed = [
        Beat((left is not None) | (right is not None) << 1 | (left or 0) << 2 | (right or 0) << (2 + width))
        for left, right in beats
    ]
    return Feed([*packed, *[Beat(None, True)] * end], tuple(pattern))
