"""One core of the handshake line as a state machine: one message in, messages and results out, no threads.

R enters the line at the left end and moves right; S enters at the right end and moves left (handshake join,
section 3). The unit that moves is a piece, a batch of tuples that stays together: what section 4 says of
a tuple holds for a piece. The caller decides when a step runs; every order of steps gives the same results.

Why each pair ⟨r, s⟩ meets exactly once (section 4.2): let core k send r right, and core k+1 send s left.
- k sent r before it took s: r overtakes the acknowledgement of s, finds s marked on k+1, and they meet there.
- k took s before it sent r: they met on k; the acknowledgement goes before r, so r finds s gone from k+1.

Draining makes all pairs meet without moving a tuple. While nothing else happens in the line, pieces are sent
past the cores ahead of them as visitors, which are compared and not kept. Pieces that have been in the line
during a drain have met all others there, and are not compared when they drift past each other later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

R, S = 0, 1
LEFT, RIGHT = 0, 1
"""Directions. Stream `side` comes from direction `side` and goes to direction `1 - side`."""
Kind = Literal["tuples", "acknowledgement", "visit", "mark"]


class Piece(Protocol):
    """Tuples that move together."""

    @property
    def rows(self) -> int:
        """How many tuples."""


P = TypeVar("P", bound=Piece)
X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Message(Generic[P]):
    """A message between two neighbours; all kinds share one queue, so they stay in order.

    `visit` brings a piece that is compared but not kept, `mark` follows the last visitor of its stream.
    """

    kind: Kind
    piece: P | None = None
    met: bool = False
    """Whether these tuples have met all that has been in the line during a drain."""
    place: int = 0
    """A visitor's place in the window that it comes from."""
    taken: tuple[P, ...] = ()
    """Acknowledged before all else: pieces that the sender has taken from the receiver."""
    oldest: int | None = None
    """The driver's acknowledgement, after all else: of the stream that leaves the line where this message
    enters it, all pieces whose newest stamp is below this have expired."""


def _apart(older: Any, newer: Any, held: int) -> None:
    """Return None: pieces are never merged."""


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
    """Merges two neighbouring pieces on a core that holds this many of their tuples, or returns None."""
    patience: int = 8
    """S pieces after which acknowledgements go by themselves, if no R piece has taken them along."""

    windows: tuple[list[P], list[P]] = field(default_factory=lambda: ([], []))
    """R and S, oldest first, those marked as forwarded included."""
    marked: list[int] = field(default_factory=lambda: [0, 0])
    """How many of each window's oldest pieces are marked as forwarded."""
    drained: list[int] = field(default_factory=lambda: [0, 0])
    """How many of each window's oldest pieces have been in the line during a drain, and so have met."""
    sizes: list[int] = field(default_factory=lambda: [0, 0])
    """Tuples that this core is responsible for."""
    ahead: list[int] = field(default_factory=lambda: [0, 0])
    """Such tuples of the next core of each stream, when it was last looked at."""
    gone: int = 0
    """Tuples that have left its windows: who sends to this core may send more now."""
    owed: list[P] = field(default_factory=list)
    """S pieces that were taken and are not yet acknowledged."""
    bound: list[int | None] = field(default_factory=lambda: [None, None])
    """The stamp up to which tuples have expired, where a stream leaves the line."""
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
        for piece in message.taken:
            self._take_acknowledgement(piece)
        results: Iterable[X] = ()
        replies: list[tuple[int, Message[P]]] = []
        match message.kind:
            case "tuples":
                results = self._accept(origin, message)
            case "visit":
                results, replies = self._visit(origin, message)
            case "mark":
                replies = self._drain(origin)
        if message.oldest is not None:
            self._expire(1 - origin, message.oldest)
        return results, replies

    def _accept(self, side: int, message: Message[P]) -> Iterable[X]:
        """Scan the other window, marked pieces included, and insert (lines 11 to 13 and 19 to 22)."""
        piece, others = message.piece, self.windows[1 - side]
        assert piece is not None
        results = self.match(piece, tuple(others[self.drained[1 - side] :] if message.met else others))
        self.windows[side].append(piece)
        self.drained[side] += message.met
        self.pieces += 1
        self.sizes[side] += piece.rows
        if not self._last(side):  # at the far end, only what the driver knows of is merged
            self._merge(side, len(self.windows[side]) - 1)
        # Only S is acknowledged (line 22); the driver at the right end keeps no copies.
        if side == S and self.two_phase and not self.rightmost:
            self.owed.append(piece)
        return results

    def _take_acknowledgement(self, piece: P) -> None:
        """Drop a forwarded piece that has arrived: the second phase (line 15)."""
        window = self.windows[S]
        self._remove(S, next(place for place in range(self.marked[S]) if window[place] is piece))

    def _expire(self, side: int, oldest: int) -> None:
        """Drop what has reached its end and expired (figure 13)."""
        self.bound[side] = oldest
        for place in reversed(range(self.marked[side])):
            if self.newest(self.windows[side][place]) < oldest:
                self._shrink(side, self.windows[side][place].rows)
                self._remove(side, place)

    def _remove(self, side: int, place: int) -> None:
        """Drop a piece that is marked as forwarded."""
        del self.windows[side][place]
        self.marked[side] -= 1
        self.drained[side] -= place < self.drained[side]
        self.acknowledged += 1

    def _shrink(self, side: int, rows: int) -> None:
        self.sizes[side] -= rows
        self.gone += rows

    # Draining: the line is at rest, and takes no tuples until it is again.

    def _drain(self, side: int) -> list[tuple[int, Message[P]]]:
        """Send what has not met the cores ahead past them, and the mark behind it."""
        window, onward = self.windows[side], 1 - side
        visits = [
            (onward, self._message(onward, "visit", window[place], place=place - self._copies(side)))
            for place in range(max(self.drained[side], self._copies(side)), len(window))
        ]
        self.marks = (self.marks + 1) % 2
        if self.marks == 0:  # all visitors of both streams have been here
            self.drained = [len(w) for w in self.windows]
        return [] if self._last(side) else [*visits, (onward, self._message(onward, "mark"))]

    def _visit(self, side: int, message: Message[P]) -> tuple[Iterable[X], list[tuple[int, Message[P]]]]:
        """Compare a visitor, which is new since the last drain, and send it on.

        If its counterpart is new, too, each visits the other's core. Half of these pairs meet here and half
        there, by their places, so that all cores have the same work.
        """
        assert message.piece is not None
        met, window = self.drained[1 - side], self.windows[1 - side]
        places = enumerate(range(len(window)), message.place - self._copies(1 - side))
        here = tuple(window[place] for both, place in places if place < met or both % 2 == side)
        results = self.match(message.piece, here)
        if self._last(side):
            return results, []
        return results, [(1 - side, self._message(1 - side, "visit", message.piece, place=message.place))]

    def _copies(self, side: int) -> int:
        """Return how many of a window's oldest pieces are on the next core already.

        They may vanish at any time, even during a drain, so places are counted from there.
        """
        return 0 if self._last(side) else self.marked[side]

    # Figure 9, lines 23 to 29: what a core sends of its own accord.

    def wants(self, direction: int) -> bool:
        """Return whether there is something to send in a direction."""
        return self.moves(1 - direction) or self._owes(direction)

    def forward(self, direction: int) -> Message[P] | None:
        """Return the next message to send: the oldest unsent piece, or overdue acknowledgements."""
        if self.moves(1 - direction):
            return self._send(1 - direction)
        return self._message(direction, "acknowledgement") if self._owes(direction) else None

    def moves(self, side: int) -> bool:
        """Return whether the window is larger than the next core's (lines 24 and 27).

        Pieces on their way there do not count: in a busy line, as many are on their way out. A piece that
        moves because of a single tuple leaves the next core with two pieces more, and so on along the line,
        so windows must differ by a quarter of the piece. Then 64 cores that are busy for nine tenths of the
        time do 0.98 to 1.05 of their share, and otherwise 0.94 to 1.14 (`bench work`).
        """
        if len(self.windows[side]) == self.marked[side]:
            return False
        if self._last(side):  # neighbours that do not exist have size 0 (section 4.4)
            return True
        piece = self.windows[side][self.marked[side]]
        return self.sizes[side] > self.ahead[side] + piece.rows // 4

    def _send(self, side: int) -> Message[P]:
        window, place = self.windows[side], self.marked[side]
        piece, met = window[place], place < self.drained[side]
        self.forwarded += 1
        kept = self._keeps(side, piece)
        if not kept or not self._last(side):
            self._shrink(side, piece.rows)
        if kept:
            self.marked[side] += 1  # line 26, and figure 13 for R
        else:
            del window[place]  # line 29
            self.drained[side] -= met
        message = self._message(1 - side, "tuples", piece, met=met)
        if kept and self._last(side):
            self._merge(side, place)
        return message

    def _keeps(self, side: int, piece: P) -> bool:
        """Return whether a copy stays: of S until acknowledged, at the far end of either until expired."""
        if not self._last(side):
            return side == S and self.two_phase
        bound = self.bound[side]
        return bound is None or self.newest(piece) >= bound

    def _last(self, side: int) -> bool:
        """Return whether this is the far end of a stream; there the driver expires tuples (section 4.4)."""
        return self.rightmost if side == R else self.leftmost

    def _owes(self, direction: int) -> bool:
        """Return whether acknowledgements have waited for an R piece long enough."""
        return direction == RIGHT and len(self.owed) >= self.patience

    def _message(
        self, direction: int, kind: Kind, piece: P | None = None, *, met: bool = False, place: int = 0
    ) -> Message[P]:
        """Make a message with all owed acknowledgements, which must go before its piece."""
        if direction == LEFT or not self.owed:
            return Message(kind, piece, met, place)
        taken, self.owed = tuple(self.owed), []
        return Message(kind, piece, met, place, taken)

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
        """Return whether a piece and the one before it have the same state."""
        return all(place != count for count in (self.marked[side], self.drained[side])) and (
            place >= self.marked[side] or self._last(side)
        )
