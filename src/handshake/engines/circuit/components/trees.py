"""Circuits that are wide or deep: gates over many operands, and tools that recurse."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from handshake.errors import UnsupportedError

T = TypeVar("T")

DEPTH = 20_000
"""Calls in each other: translation and Amaranth take several for each operation that reads another's."""


def tree_of(operation: Callable[[T, T], T], operands: Iterable[T]) -> T:
    """Combine operands by an associative operation, as a balanced tree instead of a deep chain."""
    level = list(operands)
    while len(level) > 1:
        pairs = [operation(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = [*pairs, *level[len(pairs) * 2 :]]
    return level[0]


@contextmanager
def deep() -> Iterator[None]:
    """Raise the recursion limit temporarily; report deeper nesting as `UnsupportedError`."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEPTH))
    try:
        yield
    except (RecursionError, IndentationError):  # the latter by programs that Amaranth writes
        raise UnsupportedError(
            "the query has too many operations that read each other for a circuit; write it with fewer "
            "branches of CASE, or compute parts of it in queries of their own"
        ) from None
    finally:
        sys.setrecursionlimit(before)
