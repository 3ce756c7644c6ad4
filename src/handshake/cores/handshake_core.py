"""One core of the handshake line as a state machine: one message in, messages and results out, no threads.

R enters the line at the left end and moves right; S enters at the right end and moves left (handshake join,
section 3). The unit that moves is a piece, a batch of tuples that stays together: what section 4 says of
a tuple holds for a piece. Who runs the machine decides when; every order of steps gives the same results.

Why each pair ⟨r, s⟩ meets exactly once (section 4.2): let core k send r right, and core k+1 send s left.
- k sent r before it took s: r overtakes the acknowledgement of s, finds s marked on k+1, and they meet there.
- k took s before it sent r: they met on k; the acknowledgement goes before r, so r finds s gone from k+1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

__all__ = ["LEFT", "RIGHT", "HandshakeCore", "Message", "Piece", "R", "S"]

R, S = 0, 1
LEFT, RIGHT = 0, 1
"""Directions. Stream `side` comes from direction `side` and goes to direction `1 - side`."""


class Piece(Protocol):
    """Tuples that move together."""

    @property
    def rows(self) -> int:
        """How many tuples."""


P = TypeVar("P", bound=Piece)
X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Message(Generic[P]):
    """What goes through the queue between two neighbours; all kinds share it, so they stay in order.

    `flush` makes every core pass its R pieces on; `sizes` carries nothing but the sender's window size.
    """

    kind: Literal["tuples", "acknowledgement", "flush", "sizes"]
    piece: P | None = None
    size: int = 0
    """Tuples that the sender holds of the stream that the receiver sends its way."""
    taken: int = 0
    """Tuples of that stream that it has taken from the receiver so far, so that those in flight are known."""


@dataclass
class HandshakeCore(Generic[P, X]):
    """A segment of both windows, and the code of figure 9; at the right end, that of figure 13."""

    match: Callable[[P, Sequence[P]], Iterable[X]]
    """Results of a new piece with pieces of the other stream; asked for each pair of pieces once."""
    leftmost: bool
    rightmost: bool
    two_phase: bool = True
    """Whether S pieces stay until they are acknowledged; without that, pairs in flight miss each other."""

    windows: tuple[list[P], list[P]] = field(default_factory=lambda: ([], []))
    """R and S, oldest first, those marked as forwarded included."""
    marked: list[int] = field(default_factory=lambda: [0, 0])
    """How many of each window's oldest pieces are marked as forwarded."""
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    """Tuples that this core is responsible for."""
    taken: list[int] = field(default_factory=lambda: [0, 0])
    sent: list[int] = field(default_factory=lambda: [0, 0])
    known: list[int] = field(default_factory=lambda: [0, 0])
    """Size of the next core's window of each stream when it last said so, less what it had taken by then."""
    told: list[int] = field(default_factory=lambda: [0, 0])
    """What the core before must take this one's size of each stream for."""
    flushing: bool = False
    pieces: int = 0
    forwarded: int = 0
    acknowledged: int = 0

    # Figure 9, lines 8 to 22: one message.

    def receive(self, origin: int, message: Message[P]) -> tuple[Iterable[X], Message[P] | None]:
        """Handle a message from a neighbour: results, to be taken before the next step, and a reply to it."""
        self.known[1 - origin] = message.size - message.taken
        if message.kind == "flush":
            self.flushing = not self.rightmost  # the right end passes everything on as it is
        elif message.piece is None:
            pass
        elif message.kind == "tuples":
            return self._accept(origin, message.piece)
        else:
            self._remove(1 - origin, message.piece)
        return (), None

    def _accept(self, side: int, piece: P) -> tuple[Iterable[X], Message[P] | None]:
        """Scan the other window, marked pieces included, and insert (lines 11 to 13 and 19 to 22)."""
        results = self.match(piece, tuple(self.windows[1 - side]))
        self.windows[side].append(piece)
        self.pieces += 1
        for count in (self.sizes, self.taken, self.told):
            count[side] += piece.rows
        # Only S is acknowledged (line 22); the driver at the right end keeps no copies.
        if side == R or self.rightmost or not self.two_phase:
            return results, None
        return results, self._message(RIGHT, "acknowledgement", piece)

    def _remove(self, side: int, piece: P) -> None:
        """The second phase: a forwarded piece has arrived (line 15) or, at the ends, expired (figure 13).

        An acknowledgement names its piece: out of order, the driver's may be for any that was sent to it.
        """
        window = self.windows[side]
        place = next(n for n in range(self.marked[side]) if window[n] is piece)
        del window[place]
        self.marked[side] -= 1
        self.acknowledged += 1
        if self._last(side):
            self.sizes[side] -= piece.rows

    # Figure 9, lines 23 to 29: what a core sends of its own accord.

    def wants(self, direction: int) -> bool:
        """Whether there is something to send that way."""
        return self.moves(1 - direction) or self._flushes(direction) or self._shrunk(direction)

    def forward(self, direction: int) -> Message[P] | None:
        """The next message that way: the oldest piece not sent, the mark behind the last one, or sizes."""
        if self.moves(1 - direction):
            return self._message(direction, "tuples", self._send(1 - direction))
        if self._flushes(direction):
            self.flushing = False
            return self._message(direction, "flush")
        return self._message(direction, "sizes") if self._shrunk(direction) else None

    def moves(self, side: int) -> bool:
        """Whether the window is larger than the next core's, as far as that is known (lines 24 and 27)."""
        if len(self.windows[side]) == self.marked[side]:
            return False
        if self._last(side):  # neighbours that do not exist have size 0 (section 4.4)
            return True
        return self.sizes[side] > self.known[side] + self.sent[side] or (side == R and self.flushing)

    def _send(self, side: int) -> P:
        window = self.windows[side]
        piece = window[self.marked[side]]
        self.sent[side] += piece.rows
        self.forwarded += 1
        if not self._last(side):
            self.sizes[side] -= piece.rows
        if self._keeps(side):
            self.marked[side] += 1  # line 26, and figure 13 for R
        else:
            del window[self.marked[side]]  # line 29
        return piece

    def _keeps(self, side: int) -> bool:
        return self._last(side) or (side == S and self.two_phase)

    def _last(self, side: int) -> bool:
        """Whether this is the far end for a stream: the driver says when its tuples expire (section 4.4)."""
        return self.rightmost if side == R else self.leftmost

    def _flushes(self, direction: int) -> bool:
        return direction == RIGHT and self.flushing

    def _shrunk(self, direction: int) -> bool:
        """Whether the neighbour takes the window that it sends to for larger than it is."""
        driver = self.leftmost if direction == LEFT else self.rightmost
        return not driver and self.sizes[direction] < self.told[direction]

    def _message(
        self,
        direction: int,
        kind: Literal["tuples", "acknowledgement", "flush", "sizes"],
        piece: P | None = None,
    ) -> Message[P]:
        """A message with this core's size of the stream that comes from there."""
        self.told[direction] = self.sizes[direction]
        return Message(kind, piece, self.sizes[direction], self.taken[direction])
