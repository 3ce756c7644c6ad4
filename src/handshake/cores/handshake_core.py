"""One core of the handshake line as a state machine: one message in, messages and results out, no threads.

R enters the line at the left end and moves right; S enters at the right end and moves left (handshake join,
section 3). The unit that moves is a piece, a batch of tuples that stays together: what section 4 says of
a tuple holds for a piece. Who runs the machine decides when; every order of steps gives the same results.

Why each pair ⟨r, s⟩ meets exactly once (section 4.2): let core k send r right, and core k+1 send s left.
- k sent r before it took s: r overtakes the acknowledgement of s, finds s marked on k+1, and they meet there.
- k took s before it sent r: they met on k; the acknowledgement goes before r, so r finds s gone from k+1.

Draining makes all pairs meet without moving a tuple. While nothing else happens in the line, pieces are sent
past the cores ahead of them as visitors, which are compared and not kept. Who has been in the line during a
drain has met everyone there, and such pieces are not compared when they drift past each other later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

__all__ = ["LEFT", "RIGHT", "HandshakeCore", "Message", "Piece", "R", "S"]

R, S = 0, 1
LEFT, RIGHT = 0, 1
"""Directions. Stream `side` comes from direction `side` and goes to direction `1 - side`."""
Kind = Literal["tuples", "acknowledgement", "visit", "mark", "sizes"]


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

    `visit` brings a piece that is compared but not kept, `mark` follows the last visitor of its stream,
    `sizes` carries nothing but the sender's window size.
    """

    kind: Kind
    piece: P | None = None
    met: bool = False
    """Whether these tuples have met all that has been in the line during a drain."""
    place: int = 0
    """A visitor's place in the window that it comes from."""
    oldest: int | None = None
    """The driver's acknowledgements are for all pieces whose newest stamp is below this."""
    size: int = 0
    """Tuples that the sender holds of the stream that the receiver sends its way."""
    taken: int = 0
    """Tuples of that stream that it has taken from the receiver so far, so that those in flight are known."""


def _apart(older: Any, newer: Any, held: int) -> None:
    """Merge nothing."""


@dataclass
class HandshakeCore(Generic[P, X]):
    """A segment of both windows, and the code of figure 9; at the right end, that of figure 13."""

    match: Callable[[P, Sequence[P]], Iterable[X]]
    """Results of a new piece with pieces of the other stream; asked for each pair of pieces once."""
    newest: Callable[[P], int]
    """The newest of a piece's stamps that it expires by."""
    leftmost: bool
    rightmost: bool
    two_phase: bool = True
    """Whether S pieces stay until they are acknowledged; without that, pairs in flight miss each other."""
    merge: Callable[[P, P, int], P | None] = _apart
    """One piece of two neighbours on a core that holds so many tuples of their stream, or None."""

    windows: tuple[list[P], list[P]] = field(default_factory=lambda: ([], []))
    """R and S, oldest first, those marked as forwarded included."""
    marked: list[int] = field(default_factory=lambda: [0, 0])
    """How many of each window's oldest pieces are marked as forwarded."""
    drained: list[int] = field(default_factory=lambda: [0, 0])
    """How many of each window's oldest pieces have been in the line during a drain, and so have met."""
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    """Tuples that this core is responsible for."""
    taken: list[int] = field(default_factory=lambda: [0, 0])
    sent: list[int] = field(default_factory=lambda: [0, 0])
    known: list[int] = field(default_factory=lambda: [0, 0])
    """Size of the next core's window of each stream when it last said so, less what it had taken by then."""
    told: list[int] = field(default_factory=lambda: [0, 0])
    """What the core before must take this one's size of each stream for."""
    marks: int = 0
    """How many of a drain's two marks have passed."""
    pieces: int = 0
    forwarded: int = 0
    acknowledged: int = 0

    # Figure 9, lines 8 to 22: one message.

    def receive(self, origin: int, message: Message[P]) -> tuple[Iterable[X], list[tuple[int, Message[P]]]]:
        """Handle a message from a neighbour: results, and what to send at once, with its direction.

        Results are those of this moment, whenever they are taken: what is sent may go before.
        """
        self.known[1 - origin] = message.size - message.taken
        match message.kind:
            case "tuples":
                return self._accept(origin, message)
            case "visit":
                return self._visited(origin, message)
            case "mark":
                return (), self._drain(origin)
            case "acknowledgement":
                self._remove(1 - origin, message)
        return (), []

    def _accept(self, side: int, message: Message[P]) -> tuple[Iterable[X], list[tuple[int, Message[P]]]]:
        """Scan the other window, marked pieces included, and insert (lines 11 to 13 and 19 to 22)."""
        piece, others = message.piece, self.windows[1 - side]
        assert piece is not None
        results = self.match(piece, tuple(others[self.drained[1 - side] :] if message.met else others))
        self.windows[side].append(piece)
        self.drained[side] += message.met
        self.pieces += 1
        for count in (self.sizes, self.taken, self.told):
            count[side] += piece.rows
        if not self._last(side):  # at the far end, only what the driver knows of is merged
            self._merge(side, len(self.windows[side]) - 1)
        # Only S is acknowledged (line 22); the driver at the right end keeps no copies.
        if side == R or self.rightmost or not self.two_phase:
            return results, []
        return results, [(RIGHT, self._message(RIGHT, "acknowledgement", piece))]

    def _remove(self, side: int, message: Message[P]) -> None:
        """The second phase: a forwarded piece has arrived (line 15) or, at the ends, expired (figure 13)."""
        window = self.windows[side]
        for place in reversed(range(self.marked[side])):
            if self._meant(window[place], message):
                self.sizes[side] -= window[place].rows if self._last(side) else 0
                del window[place]
                self.marked[side] -= 1
                self.drained[side] -= place < self.drained[side]
                self.acknowledged += 1

    def _meant(self, piece: P, message: Message[P]) -> bool:
        """Neighbours name the piece. The driver gives a limit: pieces it was sent may have been merged."""
        return piece is message.piece if message.oldest is None else self.newest(piece) < message.oldest

    # Draining: the line is at rest, and takes no tuples until it is again.

    def _drain(self, side: int) -> list[tuple[int, Message[P]]]:
        """Send what has not met the cores ahead past them, and the mark behind it."""
        window, onward = self.windows[side], 1 - side
        visits = [
            (onward, self._message(onward, "visit", window[place], place=place))
            for place in range(self.drained[side], len(window))
        ]
        self.marks = (self.marks + 1) % 2
        if self.marks == 0:  # all visitors of both streams have been here
            self.drained = [len(w) for w in self.windows]
        return [] if self._last(side) else [*visits, (onward, self._message(onward, "mark"))]

    def _visited(self, side: int, message: Message[P]) -> tuple[Iterable[X], list[tuple[int, Message[P]]]]:
        """Compare a visitor, which is new since the last drain, and send it on.

        If its counterpart is new, too, each visits the other's core. Half of these pairs meet here and half
        there, by their places, so that all cores have the same work.
        """
        assert message.piece is not None
        met = self.drained[1 - side]
        window = enumerate(self.windows[1 - side])
        here = tuple(p for place, p in window if place < met or (place + message.place) % 2 == side)
        results = self.match(message.piece, here)
        if self._last(side):
            return results, []
        return results, [(1 - side, self._message(1 - side, "visit", message.piece, place=message.place))]

    # Figure 9, lines 23 to 29: what a core sends of its own accord.

    def wants(self, direction: int) -> bool:
        """Whether there is something to send that way."""
        return self.moves(1 - direction) or self._shrunk(direction)

    def forward(self, direction: int) -> Message[P] | None:
        """The next message that way: the oldest piece not sent, or sizes."""
        if self.moves(1 - direction):
            return self._send(1 - direction)
        return self._message(direction, "sizes") if self._shrunk(direction) else None

    def moves(self, side: int) -> bool:
        """Whether the window is larger than the next core's, as far as that is known (lines 24 and 27)."""
        if len(self.windows[side]) == self.marked[side]:
            return False
        if self._last(side):  # neighbours that do not exist have size 0 (section 4.4)
            return True
        return self.sizes[side] > self.known[side] + self.sent[side]

    def _send(self, side: int) -> Message[P]:
        window, place = self.windows[side], self.marked[side]
        piece, met = window[place], place < self.drained[side]
        self.sent[side] += piece.rows
        self.forwarded += 1
        if not self._last(side):
            self.sizes[side] -= piece.rows
        if self._last(side) or (side == S and self.two_phase):
            self.marked[side] += 1  # line 26, and figure 13 for R
        else:
            del window[place]  # line 29
            self.drained[side] -= met
        message = self._message(1 - side, "tuples", piece, met=met)
        if self._last(side):
            self._merge(side, place)
        return message

    def _last(self, side: int) -> bool:
        """Whether this is the far end for a stream: the driver says when its tuples expire (section 4.4)."""
        return self.rightmost if side == R else self.leftmost

    def _shrunk(self, direction: int) -> bool:
        """Whether the neighbour takes the window that it sends to for larger than it is."""
        driver = self.leftmost if direction == LEFT else self.rightmost
        return not driver and self.sizes[direction] < self.told[direction]

    def _message(
        self, direction: int, kind: Kind, piece: P | None = None, *, met: bool = False, place: int = 0
    ) -> Message[P]:
        """A message with this core's size of the stream that comes from there."""
        self.told[direction] = self.sizes[direction]
        return Message(kind, piece, met, place, size=self.sizes[direction], taken=self.taken[direction])

    # Small pieces become large ones: each costs a fixed time to look at.

    def _merge(self, side: int, place: int) -> None:
        """Merge the piece at a place with those before it, as long as that is wanted."""
        window = self.windows[side]
        while place > 0 and self._alike(side, place):
            both = self.merge(window[place - 1], window[place], self.sizes[side])
            if both is None:
                return
            window[place - 1 : place + 1] = [both]
            self.marked[side] -= place < self.marked[side]
            self.drained[side] -= place < self.drained[side]
            place -= 1

    def _alike(self, side: int, place: int) -> bool:
        """Whether the same is known of a piece and the one before it."""
        return all(place != count for count in (self.marked[side], self.drained[side])) and (
            place >= self.marked[side] or self._last(side)
        )
