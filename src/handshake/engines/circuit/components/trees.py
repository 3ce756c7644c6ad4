"""Circuits that are wide or deep: gates over many operands, and tools that recurse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from handshake.errors import UnsupportedError

__all__ = ["balanced", "deep"]

T = TypeVar("T")

DEPTH = 20_000
"""Calls in each other: translation and Amaranth take several for each operation that reads another's."""


def balanced(operation: Callable[[T, T], T], operands: Iterable[T]) -> T:
    """Operands under an associative operation as a tree: a chain of hundreds would be as deep."""
    level = list(operands)
    while len(level) > 1:
        pairs = [operation(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = [*pairs, *level[len(pairs) * 2 :]]
    return level[0]


@contextmanager
def deep() -> Iterator[None]:
    """Walk plans and gates whose operations read each other hundreds deep; what is deeper is told of."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    except (
        RecursionError,
        IndentationError,
    ):  # the latter by programs that Amaranth writes
        raise UnsupportedError(
            "the query has too many operations that read each other for a circuit; write it with fewer "
            "branches of CASE, or compute parts of it in queries of their own"
        ) from None
    finally:
        sys.setrecursionlimit(before)
