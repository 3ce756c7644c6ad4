"""The driver's side of the handshake line: what goes into both ends, and what has reached the far ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise

import pyarrow as pa

from handshake.joins.arrangements.handshake.core import Message
from handshake.joins.arrangements.handshake.worker import Queue, largest, newest
from handshake.joins.basic_window import BasicWindow, seal
from handshake.joins.driver import Driver, Seen
from handshake.joins.pieces import coalesce, pieces

_PART = 2
"""Tuples wait here until there are as many as this part of the largest piece: pieces should be few."""


@dataclass
class Held:
    """Counts of one stream's tuples in the line: entered, and not yet acknowledged by the driver."""

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
        self.departed: list[list[BasicWindow]] = [[], []]
        """Expired pieces of tracked streams; the line takes them out."""
        self.apart = False
        """Whether there may be tuples in the line that have yet to meet."""
        self._cores, self._fewest = cores, driver.spec.tuning.line_piece
        self._entries, self._exits = entries, exits
        self._gathered: tuple[list[pa.RecordBatch], ...] = ([], [])
        self._since = [0.0, 0.0]  # when the first of what is gathered came
        self._outbox: tuple[deque[Message[BasicWindow]], ...] = (deque(), deque())
        self._visitors: list[BasicWindow] = []
        self._reached: tuple[list[tuple[int, int, BasicWindow]], ...] = ([], [])
        self._order = 0
        self._oldest: list[int | None] = [None, None]
        self._announced: list[int | None] = [None, None]
        """The stamps up to which tuples have expired, and up to which the line knows it."""

    def admit(self, side: int, batch: pa.RecordBatch, seen: Seen | None, came: float) -> None:
        """Stamp a batch and keep it here; what waited before goes into the line if it is enough for a piece.

        The newest batch always waits, so that a drain finds it here and can send it past all cores at once.
        """
        enough = max(self._fewest, self._largest(self.held[side].rows) // _PART)
        if self._waiting(side) >= enough:
            self.release(side)
        admitted = self.driver.admit(side, batch, seen)
        if admitted.num_rows:
            if not self._gathered[side]:
                self._since[side] = came
            self._gathered[side].append(admitted)

    def _waiting(self, side: int) -> int:
        return sum(int(b.num_rows) for b in self._gathered[side])

    def rows(self, side: int) -> int:
        """Tuples of a stream in the line and on their way into it."""
        return self.held[side].rows + self._waiting(side)

    def release(self, side: int) -> None:
        """Put what was kept into the line."""
        self.apart = True
        self._enter(side, self._pieces(side), met=False)

    def visit(self, side: int) -> bool:
        """Send what was kept past all cores, if there is any; to be done when the line is at rest."""
        self._visitors = list(self._pieces(side))
        for piece in self._visitors:
            self.put(side, Message("visit", piece))
        return bool(self._visitors)

    def enter(self, side: int) -> None:
        """Let in those that have visited all cores."""
        self._enter(side, self._visitors, met=True)

    def _enter(self, side: int, pieces: Iterable[BasicWindow], met: bool) -> None:
        """Let tuples in; each piece brings word of what has expired where it enters."""
        entering = list(pieces)
        self._gathered[side].clear()
        self._oldest[1 - side] = self.driver.oldest(1 - side)
        for piece, oldest in zip(entering, self._bounds(side, entering), strict=True):
            self.held[side].add(piece, 1)
            self.put(side, Message("tuples", piece, met, oldest=oldest))
            self._announced[1 - side] = oldest

    def _bounds(self, side: int, entering: Sequence[BasicWindow]) -> Sequence[int | None]:
        """Return, per piece, the least stamp of the other stream that tuples behind it can join."""
        oldest, reach = self._oldest[1 - side], self.driver.spec.reach(1 - side)
        if oldest is None or reach is None:
            return [None] * len(entering)
        asked = [(piece.first if side == 0 else piece.second)[0] - reach for piece in entering[:0:-1]]
        return list(accumulate([oldest, *asked], min))[: len(entering)][::-1]

    def mark(self) -> None:
        """Make all that is in the line meet; to be done when it is at rest."""
        self.apart = False
        for side in (0, 1):
            self.put(side, Message("mark"))

    def _largest(self, rows: int) -> int:
        return largest(self.driver.spec, rows // self._cores, self._cores)

    def _pieces(self, side: int) -> Iterator[BasicWindow]:
        """Indexed once, here: then each core probes by the join's own method."""
        limit = max(self._fewest, self._largest(self.rows(side)))
        for batch in coalesce(iter(self._gathered[side])):
            for piece in pieces(self.driver.spec, side, batch):
                parts = -(-piece.rows // limit)
                for start, stop in pairwise(piece.rows * n // parts for n in range(parts + 1)):
                    part = piece.batch.slice(start, stop - start)
                    yield seal(BasicWindow(piece.spec, part, arrived=self._since[side]))

    def put(self, side: int, message: Message[BasicWindow]) -> None:
        """Send a message into the end where a stream enters."""
        self._outbox[side].append(message)

    def exchange(self, still: bool = False) -> None:
        """Take what has reached its far end, acknowledge what has expired, send what there is room for.

        Acknowledgements make pieces move, so none is sent while the line must stand still.
        """
        for side in (0, 1):
            while (message := self._exits[side].poll()) is not None:
                assert message.piece is not None
                self._order += 1
                heappush(self._reached[side], (newest(message.piece), self._order, message.piece))
        for side in (0, 1) if not still else ():
            self._acknowledge(side)
        for outbox, entry in zip(self._outbox, self._entries, strict=True):
            while outbox and entry.offer(outbox[0]):
                outbox.popleft()

    def _acknowledge(self, side: int) -> None:
        """Acknowledge expired tuples where the other stream enters, behind all that may join them (4.4)."""
        if not self._gathered[1 - side]:  # tuples that wait here have yet to meet what expires now
            self._oldest[side] = self.driver.oldest(side)
        oldest, reached, expired = self._oldest[side], self._reached[side], self.expired
        while oldest is not None and reached and reached[0][0] < oldest:
            piece = heappop(reached)[2]
            self.held[side].add(piece, -1)
            self.expired += piece.rows
            if self.driver.tracked[side] is not None:
                self.departed[side].append(piece)
        if self.expired > expired and oldest != self._announced[side]:
            self._announced[side] = oldest
            self.put(1 - side, Message("acknowledgement", oldest=oldest))

    @property
    def waiting(self) -> bool:
        """True if a message has found no room in the line."""
        return any(self._outbox)

    def movable(self) -> bool:
        """Return whether `exchange` would do something; to be called under the monitor's lock."""
        return any(len(queue) for queue in self._exits) or any(
            outbox and (entry.room or outbox[0].kind != "tuples")
            for outbox, entry in zip(self._outbox, self._entries, strict=True)
        )
