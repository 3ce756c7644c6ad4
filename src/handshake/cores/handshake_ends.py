"""The driver's side of the handshake line: what goes into both ends, and what has reached the far ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.cores.basic_window import INDEXED_FROM, BasicWindow, sealed
from handshake.cores.driver import Driver
from handshake.cores.handshake_core import Message
from handshake.cores.handshake_worker import Queue
from handshake.cores.pieces import coalesced, pieces

__all__ = ["Ends", "Held"]

_LARGEST, _SMALLEST = 8, 32
"""A piece is at most 1/8 of a core's share of the window, so that cores can get even shares, and at least
1/32 of it, so that pieces are few: smaller batches wait here until there is enough of them."""


@dataclass
class Held:
    """What is in the line of one stream: entered, and not yet acknowledged by the driver."""

    rows: int = 0
    pieces: int = 0
    nbytes: int = 0

    def add(self, piece: BasicWindow, sign: int) -> None:
        """Count a piece in (1) or out (-1)."""
        self.rows += sign * piece.rows
        self.pieces += sign
        self.nbytes += sign * piece.nbytes


class Ends:
    """Both ends of the line. Entry and exit of stream `side` are at `entries[side]` and `exits[side]`."""

    def __init__(
        self, driver: Driver, cores: int, entries: tuple[Queue, Queue], exits: tuple[Queue, Queue]
    ) -> None:
        self.driver = driver
        self.held = (Held(), Held())
        self.expired = 0
        self._cores = cores
        self._entries, self._exits = entries, exits
        self._gathered: tuple[list[pa.RecordBatch], ...] = ([], [])
        self._outbox: tuple[deque[Message[BasicWindow]], ...] = (deque(), deque())
        self._reached: list[list[BasicWindow]] = [[], []]
        self._oldest: list[int | None] = [None, None]

    def admit(self, side: int, batch: pa.RecordBatch, other: np.ndarray[Any, Any] | None) -> None:
        """Stamp a batch and put it into the line, or keep it until there are tuples enough for a piece."""
        admitted = self.driver.admit(side, batch, other)
        if admitted.num_rows:
            self._gathered[side].append(admitted)
        waiting = self.rows(side) - self.held[side].rows
        if waiting >= self.held[side].rows // (_SMALLEST * self._cores):
            self.release(side)

    def rows(self, side: int) -> int:
        """Tuples of a stream in the line and on their way into it."""
        return self.held[side].rows + sum(int(b.num_rows) for b in self._gathered[side])

    def release(self, *sides: int) -> None:
        """Put what was kept into the line."""
        for side in sides or (0, 1):
            for piece in self._pieces(side):
                self.held[side].add(piece, 1)
                self.put(side, Message("tuples", piece))
            self._gathered[side].clear()

    def _pieces(self, side: int) -> Iterator[BasicWindow]:
        """Indexed once, here: then each core probes by the join's own method."""
        largest = max(INDEXED_FROM, self.rows(side) // (_LARGEST * self._cores))
        for batch in coalesced(iter(self._gathered[side])):
            for piece in pieces(self.driver.spec, side, batch):
                for start in range(0, piece.rows, largest):
                    yield sealed(BasicWindow(piece.spec, piece.batch.slice(start, largest)))

    def put(self, side: int, message: Message[BasicWindow]) -> None:
        """Send a message into the end where a stream enters."""
        self._outbox[side].append(message)

    def exchange(self) -> None:
        """Take what has reached its far end, acknowledge what has expired, send what there is room for."""
        for side in (0, 1):
            while (message := self._exits[side].poll()) is not None:
                assert message.piece is not None
                self._reached[side].append(message.piece)
        for side in (0, 1):
            self._acknowledge(side)
        for outbox, entry in zip(self._outbox, self._entries, strict=True):
            while outbox and entry.offer(outbox[0]):
                outbox.popleft()

    def _acknowledge(self, side: int) -> None:
        """Acknowledge expired tuples where the other stream enters, behind all that may join them (4.4)."""
        if not self._gathered[1 - side]:  # tuples that wait here have yet to meet what expires now
            self._oldest[side] = self.driver.oldest(side)
        oldest = self._oldest[side]
        if oldest is None:
            return
        kept = []
        for piece in self._reached[side]:
            if (piece.second if side == 0 else piece.first)[1] >= oldest:
                kept.append(piece)
                continue
            self.held[side].add(piece, -1)
            self.expired += piece.rows
            self.put(1 - side, Message("acknowledgement", piece))
        self._reached[side] = kept

    @property
    def waiting(self) -> bool:
        """Whether something has found no room in the line."""
        return any(self._outbox)

    def movable(self) -> bool:
        """Whether `exchange` would do something (asked under the bell's lock)."""
        return any(len(queue) for queue in self._exits) or any(
            outbox and len(entry) < entry.capacity
            for outbox, entry in zip(self._outbox, self._entries, strict=True)
        )
