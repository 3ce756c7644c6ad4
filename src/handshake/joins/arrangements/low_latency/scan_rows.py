"""A table of a core's basic windows for shared scans, kept from one job to the next.

Most basic windows stay the same between two jobs. Reading all of them again would be slow, since a scan has
just emptied the caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow

__all__ = ["ScanRows"]

Array = np.ndarray[Any, Any]


class ScanRows:
    """The `scan_row`s of some basic windows, as one table; rows after the first change are made again."""

    def __init__(self) -> None:
        self._windows: list[BasicWindow] = []
        self._table: Array = np.empty((0, 0), np.int64)

    def of(self, windows: list[BasicWindow]) -> Array:
        """Return the table of these basic windows, valid until the next call."""
        self.forget(windows)
        for window in windows[len(self._windows) :]:
            self._append(window)
        return self._table[: len(windows)]

    def _append(self, window: BasicWindow) -> None:
        row, at = window.scan_row, len(self._windows)
        if at == len(self._table):
            grown = np.empty((max(2 * at, 32), len(row)), np.int64)
            if at:
                grown[:at] = self._table
            self._table = grown
        self._table[at] = row
        self._windows.append(window)

    def forget(self, windows: list[BasicWindow]) -> None:
        """Drop all rows from the first one on whose basic window has changed."""
        same = 0
        for mine, theirs in zip(self._windows, windows, strict=False):
            if mine is not theirs:
                break
            same += 1
        del self._windows[same:]
