"""What a shared scan has to know of a core's basic windows, kept from one job to the next.

Between two jobs a window gets a few tuples more, and most of its basic windows stay. To ask each of them
again takes the interpreter some time after a scan, which has just emptied the caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from handshake.joins.basic_window import BasicWindow

__all__ = ["ScanRows"]

Array = np.ndarray[Any, Any]


class ScanRows:
    """The `scan_row`s of some basic windows, as one table. Only what comes after the first change is made
    again."""

    def __init__(self) -> None:
        self._windows: list[BasicWindow] = []
        self._table: Array = np.empty((0, 0), np.int64)

    def of(self, windows: list[BasicWindow]) -> Array:
        """The table of these, good until it is asked for the next time."""
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
        """Let go of all from the first on that is not in the same place here."""
        same = 0
        for mine, theirs in zip(self._windows, windows, strict=False):
            if mine is not theirs:
                break
            same += 1
        del self._windows[same:]
