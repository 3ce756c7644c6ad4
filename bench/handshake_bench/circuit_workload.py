"""The workload of both papers: 32-bit keys and payloads, an equi-join, 96-bit results, 8 tuples per core."""

from __future__ import annotations

import random
from collections.abc import Iterator

from handshake.engines.circuit.components.types import Row, wire
from handshake.engines.circuit.join.condition import PairGates
from handshake.plan.bind import Scope, bind
from handshake.plan.parse import parse
from handshake.schema import Field, Int, Schema

__all__ = ["SEGMENT", "keys", "papers_condition"]

SEGMENT = 8
"""Tuples of each stream in a core."""


def papers_condition() -> PairGates:
    """Equality of the keys; a result is a key and two payloads.

    >>> papers_condition().result.bits
    96
    """
    fields = (Field("key", Int(32)), Field("payload", Int(32)))
    row = Row(tuple(wire(field) for field in fields))
    on = bind(parse("l.key = r.key"), Scope.of(Schema(fields, "left"), Schema(fields, "right")))
    return PairGates(row, row, on)


def keys(count: int, match_rate: float, seed: int = 1) -> Iterator[tuple[int, int]]:
    """Keys of R and of S tuples, in random order, such that a pair matches with that probability.

    A share `a` of either stream has one and the same key, all others have keys of their own: a pair matches
    with probability a * a.
    """
    draw = random.Random(seed)
    share = round(count * match_rate**0.5)
    left = [0] * share + [2 * i + 1 for i in range(count - share)]
    right = [0] * share + [2 * i + 2 for i in range(count - share)]
    draw.shuffle(left)
    draw.shuffle(right)
    return zip(left, right, strict=True)
