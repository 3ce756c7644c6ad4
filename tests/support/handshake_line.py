"""A line of handshake cores without threads: every step that could happen next is a choice.

A state is a value. Choices are: the driver does what comes next in its script, or acknowledges what has
expired; a core takes a message from either neighbour; a core sends something of its own accord. The driver
takes some steps only when the line is at rest. The caller of `step` decides the order.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import NamedTuple

from handshake.joins.arrangements.handshake.core import LEFT, RIGHT, HandshakeCore, Message, R, S


class Tuples(NamedTuple):
    """Tuples that arrive together, with one stamp for all, as the driver stamps them."""

    side: int
    own: int
    other: int
    rows: int = 1


class Bundle(NamedTuple):
    """A piece: tuples that arrived together, or several such parts that a core has merged."""

    parts: tuple[Tuples, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


Pair = tuple[Tuples, Tuples]
Choice = tuple[str, int, int]
Core = HandshakeCore[Bundle, Pair]


def match(piece: Bundle, window: Iterable[Bundle]) -> list[Pair]:
    """Return all pairs, as tests check which tuples meet."""
    pairs = [(a, b) for other in window for a in piece.parts for b in other.parts]
    return [(a, b) if a.side == R else (b, a) for a, b in pairs]


def newest(piece: Bundle) -> int:
    return max(part.own for part in piece.parts)


class Event(NamedTuple):
    """A step of the driver: `tuples` enter, `mark` begins a drain, `visit` sends a piece past all cores."""

    kind: str
    piece: Bundle | None = None
    met: bool = False


@dataclass(frozen=True)
class Script:
    """The steps of the driver in turn, and the windows."""

    events: tuple[Event, ...]
    arrivals: tuple[Tuples, ...]
    window: int | None = None
    room: int = 1
    merging: int = 0
    """The number of tuples up to which cores merge pieces."""
    patience: int = 2
    """The number of S pieces whose acknowledgements go by themselves; fewer go with the next R piece."""

    @classmethod
    def of(
        cls, text: str, window: int | None = None, room: int = 1, rows: Iterable[int] = (), merging: int = 0,
        patience: int = 2,
    ) -> Script:  # fmt: skip
        """Parse a script: `R` and `S` enter, `|` drains, `r` and `s` visit all cores before they enter.

        A drain ends the script.
        """
        counts, arrivals, events, sizes = [0, 0], [], [], list(rows)
        for letter in text:
            if letter == "|":
                events.append(Event("mark"))
                continue
            side = "RS".index(letter.upper())
            size = sizes[len(arrivals)] if len(arrivals) < len(sizes) else 1
            arrivals.append(Tuples(side, counts[side], counts[1 - side], size))
            counts[side] += 1
            piece = Bundle((arrivals[-1],))
            events += [Event("visit", piece)] if letter.islower() else []
            events.append(Event("tuples", piece, letter.islower()))
        return cls((*events, Event("mark")), tuple(arrivals), window, room, merging, patience)

    def count_arrived(self, entered: int, side: int) -> int:
        """Count the pieces of a stream that the driver has let in with the first `entered` events."""
        pieces = [e.piece for e in self.events[:entered] if e.kind == "tuples" and e.piece is not None]
        return sum(piece.parts[0].side == side for piece in pieces)

    def required_pairs(self) -> set[Pair]:
        """Return the pairs that docs/semantics.md defines, by stamps."""
        sides = [[t for t in self.arrivals if t.side == side] for side in (0, 1)]
        wide = len(self.arrivals) if self.window is None else self.window
        return {
            (r, s) for r in sides[0] for s in sides[1] if s.own >= r.other - wide and s.other <= r.own + wide
        }

    def merge(self, older: Bundle, newer: Bundle, held: int) -> Bundle | None:
        return Bundle(older.parts + newer.parts) if older.rows + newer.rows <= self.merging else None


@dataclass(frozen=True)
class Line:
    """Cores, queues and the driver at a moment. Queue 2k leads right, into core k; 2k+1 left, out of it."""

    script: Script
    cores: tuple[Core, ...]
    queues: tuple[tuple[Message[Bundle], ...], ...]
    reached: tuple[tuple[Bundle, ...], tuple[Bundle, ...]] = ((), ())
    entered: int = 0
    still: bool = False
    """Whether the driver waits for the line to come to rest, and lets nothing move."""
    met: frozenset[Pair] = field(default_factory=frozenset)

    @classmethod
    def of(cls, script: Script, cores: int, two_phase: bool = True) -> Line:
        line = tuple(
            Core(match, newest, k == 0, k == cores - 1, two_phase, script.merge, script.patience)
            for k in range(cores)
        )
        return cls(script, line, ((),) * (2 * cores + 2))

    def key(self) -> object:
        """Return a key that is equal for states with the same future."""
        cores = tuple(
            (
                *map(tuple, (*c.windows, c.marked, c.drained, c.sizes, c.owed, c.bound)),
                c.marks,
            )
            for c in self.cores
        )
        return cores, self.queues, self.reached, self.entered, self.still, self.met

    def choices(self) -> Iterator[Choice]:
        look(self.cores)
        yield from self._of_the_driver(self.at_rest())
        for k, core in enumerate(self.cores):
            for at in (LEFT, RIGHT):
                if self.queues[self._inward(k, at)]:
                    yield "receive", k, at
                if core.wants(at) and self._room(self._outward(k, at)):
                    yield "forward", k, at

    def _of_the_driver(self, at_rest: bool) -> Iterator[Choice]:
        if self.still:
            if at_rest:
                yield "rest", 0, 0
            return
        coming = self.script.events[self.entered : self.entered + 1]
        if any(at_rest or event.kind == "tuples" for event in coming):
            yield "enter", 0, 0
        for side in (0, 1):
            if any(newest(piece) < self._oldest(side) for piece in self.reached[side]):
                yield "expire", side, 0

    def at_rest(self) -> bool:
        look(self.cores)
        return not any(self.queues) and not any(c.wants(at) for c in self.cores for at in (LEFT, RIGHT))

    def _room(self, queue: int) -> bool:
        """Return whether a queue has room; only pieces that settle count."""
        return sum(message.kind == "tuples" for message in self.queues[queue]) < self.script.room

    def step(self, choice: Choice) -> Line:
        kind, number, at = choice
        return getattr(self, f"_{kind}")(number, at)

    def _rest(self, number: int, at: int) -> Line:
        return replace(self, still=False)

    def _enter(self, number: int, at: int) -> Line:
        kind, piece, met = self.script.events[self.entered]
        line = replace(self, entered=self.entered + 1, still=kind != "tuples")
        ends = (0, len(self.queues) - 1)
        if piece is None:
            return line._put(ends[0], Message("mark"))._put(ends[1], Message("mark"))
        side = piece.parts[0].side
        oldest = line._oldest(1 - side) if kind == "tuples" and self.script.window is not None else None
        return line._put(ends[side], Message(kind, piece, met, oldest=oldest))

    def _oldest(self, side: int) -> int:
        """Return the least stamp that a tuple to come can still ask for."""
        return 0 if self.script.window is None else self._count_arrived(side) - self.script.window

    def _count_arrived(self, side: int) -> int:
        return self.script.count_arrived(self.entered, side)

    def _expire(self, side: int, at: int) -> Line:
        """Send an acknowledgement in where the other stream enters, behind its tuples (figure 12)."""
        oldest = self._oldest(side)
        reached = [*self.reached]
        reached[side] = tuple(p for p in self.reached[side] if newest(p) >= oldest)
        entry = len(self.queues) - 1 if side == R else 0
        line = replace(self, reached=(reached[0], reached[1]))
        return line._put(entry, Message("acknowledgement", oldest=oldest))

    def _receive(self, k: int, origin: int) -> Line:
        queue = self._inward(k, origin)
        message, *rest = self.queues[queue]
        line, core = self._fork(k)
        results, replies = core.receive(origin, message)
        line = replace(line, queues=_with(self.queues, queue, tuple(rest)), met=_all(self.met, results))
        for direction, reply in replies:
            line = line._put(self._outward(k, direction), reply)
        return line

    def _forward(self, k: int, at: int) -> Line:
        look(self.cores)
        line, core = self._fork(k)
        message = core.forward(at)
        assert message is not None
        queue = self._outward(k, at)
        if queue not in (1, len(self.queues) - 2):
            return line._put(queue, message)
        # Out of the line: the driver notes what has reached its end.
        assert message.kind == "tuples"
        side, reached = 1 - at, list(self.reached)
        reached[side] = (*reached[side], message.piece)
        return replace(line, reached=tuple(reached))

    def _inward(self, k: int, origin: int) -> int:
        return 2 * k if origin == LEFT else 2 * k + 3

    def _outward(self, k: int, at: int) -> int:
        return 2 * k + 1 if at == LEFT else 2 * k + 2

    def _put(self, queue: int, message: Message[Bundle]) -> Line:
        return replace(self, queues=_with(self.queues, queue, (*self.queues[queue], message)))

    def _fork(self, k: int) -> tuple[Line, Core]:
        """Return this line with a copy of core k that may change."""
        core = copy.copy(self.cores[k])
        core.windows = (list(core.windows[0]), list(core.windows[1]))
        for name in ("marked", "drained", "sizes", "ahead", "owed", "bound"):
            setattr(core, name, list(getattr(core, name)))
        return replace(self, cores=_with(self.cores, k, core)), core


def look(cores: Sequence[Core]) -> None:
    """Let each core see what its neighbours hold at this moment."""
    for left, right in pairwise(cores):
        left.ahead[R], right.ahead[S] = right.sizes[R], left.sizes[S]


def _with(items: tuple, place: int, item: object) -> tuple:
    return (*items[:place], item, *items[place + 1 :])


def _all(met: frozenset[Pair], results: Iterable[Pair]) -> frozenset[Pair]:
    new = list(results)
    assert len({*new}) == len(new), f"met twice at once: {new}"
    assert not met.intersection(new), f"met again: {met.intersection(new)}"
    return met.union(new)


@dataclass
class Search:
    """Every order of steps: states are visited once, ends are checked."""

    missed: set[Pair] = field(default_factory=set)
    states: int = 0
    ends: int = 0

    def run(self, start: Line) -> Search:
        demanded = start.script.required_pairs()
        seen, stack = {start.key()}, [start]
        while stack:
            line = stack.pop()
            choices = list(line.choices())
            if not choices:
                self.ends += 1
                self.missed |= demanded - line.met
            for choice in choices:
                after = line.step(choice)
                key = after.key()
                if key not in seen:
                    seen.add(key)
                    stack.append(after)
        self.states = len(seen)
        return self


def loops(cores: int, window: int, rounds: int, turns: int, seed: int) -> list[Core]:
    """Run figure 9's loop in each core, on a steady input of one R and one S per round."""
    line = Line.of(Script((), ()), cores).cores
    for core in line:
        core.match = lambda piece, others: ()
    right, left = ([deque() for _ in range(cores + 1)] for _ in range(2))
    rng = Random(seed)
    for n in range(rounds):
        right[0].append(Message("tuples", Bundle((Tuples(0, n, n),))))
        left[cores].append(Message("tuples", Bundle((Tuples(1, n, n),))))
        for exits, entries in ((right[cores], left[cores]), (left[0], right[0])):
            while exits and newest(exits[0].piece) + window <= n:
                entries.append(Message("acknowledgement", oldest=newest(exits.popleft().piece) + 1))
        for k in (k for _ in range(turns) for k in rng.sample(range(cores), cores)):
            look(line)
            _loop(line[k], (right[k], left[k + 1]), (left[k], right[k + 1]))
    return list(line)


def _loop(core: Core, inward: tuple[deque, deque], outward: tuple[deque, deque]) -> None:
    for origin in (LEFT, RIGHT):
        kind = None
        while inward[origin] and kind != "tuples":
            message = inward[origin].popleft()
            kind = message.kind
            for direction, reply in core.receive(origin, message)[1]:
                outward[direction].append(reply)
    for direction in (LEFT, RIGHT):
        message = core.forward(direction)
        outward[direction].extend([] if message is None else [message])
