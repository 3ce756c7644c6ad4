"""The states of rows: which rows of a stream have matched, by their numbers."""

from __future__ import annotations

import struct
import threading
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_PENDING, _MATCHED, _GONE = 0, 1, 2
_LEAST, _BLOCK = 1024, 4096
_HEAD = struct.Struct("<QQQQ")


class RowStates:
    """The state of each row of a stream: it waits for a match, has one, or has left its window.

    Numbers count modulo 2**32, which is enough: fewer rows are in a window. Any thread may mark rows.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states = np.zeros(_LEAST, np.uint8)
        self._first = 0
        """The number of the row whose state comes first."""
        self._rows = 0
        """How many rows have a state, from the first one on."""
        self._gone = 0
        """How many rows at the start have left their window."""
        self._matched = 0
        self.unmatched = 0
        """Rows that have left without a match."""

    def number(self, rows: int) -> Array:
        """Return the numbers of new rows."""
        with self._lock:
            self._make_room(rows)
            start = self._first + self._rows
            self._states[self._rows : self._rows + rows] = _PENDING
            self._rows += rows
        return np.arange(start, start + rows).astype(np.uint32)

    def _make_room(self, rows: int) -> None:
        if self._rows + rows <= len(self._states):
            return
        kept = self._states[self._gone : self._rows]
        states = np.empty(max(2 * (len(kept) + rows), _LEAST), np.uint8)
        states[: len(kept)] = kept
        self._first, self._rows, self._gone = self._first + self._gone, len(kept), 0
        self._states = states

    def _places(self, numbers: Array) -> Array:
        places: Array = numbers - np.uint32(self._first & 0xFFFFFFFF)
        return places

    def mark(self, numbers: Array) -> None:
        """Record that rows have matched."""
        with self._lock:
            self._states[self._places(numbers)] = _MATCHED

    def mark_first(self, numbers: Array) -> Array:
        """Record that rows have matched; return the places in `numbers` of rows that had not, each once."""
        with self._lock:
            places = self._places(numbers)
            fresh = np.flatnonzero(self._states[places] == _PENDING)
            rows, where = np.unique(places[fresh], return_index=True)
            self._states[rows] = _MATCHED
        chosen: Array = np.sort(fresh[where])
        return chosen

    def are_matched(self, numbers: Array) -> Array:
        """Return which rows have matched; rows that are not known have not."""
        return self._have_state(numbers, _MATCHED)

    def are_pending(self, numbers: Array) -> Array:
        """Return which rows are in the window and have not matched."""
        return self._have_state(numbers, _PENDING)

    def _have_state(self, numbers: Array, state: int) -> Array:
        with self._lock:
            places = self._places(numbers)
            known = places < self._rows
            found: Array = known & (self._states[np.where(known, places, 0)] == state)
        return found

    def leave(self, numbers: Array, *, matched: bool = False) -> Array:
        """Record that rows have left their window; return which of them have left now, without a match.

        Args:
            numbers: The numbers of the rows.
            matched: Return rows with a match, too.
        """
        with self._lock:
            places = self._places(numbers)
            known = places < self._rows  # copies of rows in a handshake line may leave later, when forgotten
            if not known.all():
                places = np.where(known, places, 0)
            states = self._states[places]
            alone: Array = known & (states == _PENDING)
            self._matched += int(np.count_nonzero(known & (states == _MATCHED)))
            self.unmatched += int(np.count_nonzero(alone))
            self._states[places[known]] = _GONE
        return known & (states != _GONE) if matched else alone

    def forget(self) -> None:
        """Free the states of the oldest rows, if they have left their window."""
        with self._lock:
            while self._gone < self._rows:
                block = self._states[self._gone : min(self._gone + _BLOCK, self._rows)] != _GONE
                held = int(np.argmax(block)) if block.any() else len(block)
                self._gone += held
                if held < len(block):
                    return

    def dump(self) -> bytes:
        """Serialise the states: two bits per row, whether it has matched and whether it has left."""
        with self._lock:
            kept = self._states[self._gone : self._rows]
            head = _HEAD.pack(self._first + self._gone, len(kept), self._matched, self.unmatched)
            return head + b"".join(np.packbits(kept == state).tobytes() for state in (_MATCHED, _GONE))

    @classmethod
    def load(cls, data: bytes) -> RowStates:
        """Restore states from what `dump` returned."""
        made = cls()
        made._first, made._rows, made._matched, made.unmatched = _HEAD.unpack_from(data)
        bits = np.frombuffer(data, np.uint8, offset=_HEAD.size).reshape(2, -1)
        if bits.shape[1] != -(-made._rows // 8):
            raise ValueError(f"{bits.shape[1]} bytes of states for {made._rows} rows")
        matched, gone = (np.unpackbits(each, count=made._rows) for each in bits)
        made._states = matched * np.uint8(_MATCHED) + gone * np.uint8(_GONE)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return RowStates.load, (self.dump(),)

    @property
    def matched(self) -> int:
        """The number of rows that have matched."""
        return self._matched + self._count(_MATCHED)

    @property
    def pending(self) -> int:
        """The number of rows in the window that have not matched yet."""
        return self._count(_PENDING)

    def _count(self, state: int) -> int:
        with self._lock:
            return int(np.count_nonzero(self._states[self._gone : self._rows] == state))

    @property
    def nbytes(self) -> int:
        """The memory of the states."""
        return self._states.nbytes
