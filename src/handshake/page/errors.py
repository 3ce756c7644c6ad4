"""The list of errors on a page."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

_MOST, _LONGEST = 50, 2000


class Errors:
    """The last errors of all queries."""

    def __init__(self) -> None:
        self._last: deque[dict[str, Any]] = deque(maxlen=_MOST)
        self.count = 0
        """The number of errors so far."""

    def note(self, query: str, error: str) -> None:
        """Add an error of a query; its text is cut if it is long."""
        self._last.append({"t": time.time(), "query": query, "error": error[:_LONGEST]})
        self.count += 1

    def last(self) -> list[dict[str, Any]]:
        """Return the last errors, the newest at the end."""
        return list(self._last)
