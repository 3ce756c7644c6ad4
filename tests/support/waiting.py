"""A wait for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(
    look: Callable[[], Found], seconds: float = 60, *, pause: float = 0.01, what: str = ""
) -> Found:
    """Call a function until its result is true, and return the result.

    Args:
        look: The condition. It may raise an error if waiting has become useless.
        seconds: The deadline.
        pause: Seconds between two calls.
        what: The condition in words, for the error.

    Raises:
        TimeoutError: If the condition is still false at the deadline.
    """
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what or 'the condition'} was not reached in {seconds} s")
        time.sleep(pause)
    return found
