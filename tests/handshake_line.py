"""A line of handshake cores without threads: every step that could happen next is a choice.

A state is a value. Choices are: the driver lets the next piece in, or acknowledges one that has expired; a
core takes a message from either neighbour; a core sends something of its own accord. When all pieces have
been let in, the driver sends the flush mark behind the last R. Whoever calls `step` decides the order.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from handshake.cores.handshake_core import LEFT, RIGHT, HandshakeCore, Message, R


class Tuples(NamedTuple):
    """A piece: stamped as the driver stamps tuples, one number for all of a piece's tuples."""

    side: int
    own: int
    other: int
    rows: int = 1


Pair = tuple[Tuples, Tuples]
Choice = tuple[str, int, int]


def match(piece: Tuples, window: Iterable[Tuples]) -> list[Pair]:
    """All pairs: who meets is what is tested."""
    return [(piece, one) if piece.side == R else (one, piece) for one in window]


@dataclass(frozen=True)
class Script:
    """What the driver lets in, and what the windows are."""

    arrivals: tuple[Tuples, ...]
    window: int | None = None
    room: int = 1

    @classmethod
    def of(cls, sides: str, window: int | None = None, room: int = 1, rows: Iterable[int] = ()) -> Script:
        counts, arrivals, sizes = [0, 0], [], list(rows)
        for n, letter in enumerate(sides):
            side = "RS".index(letter)
            size = sizes[n] if n < len(sizes) else 1
            arrivals.append(Tuples(side, counts[side], counts[1 - side], size))
            counts[side] += 1
        return cls(tuple(arrivals), window, room)

    def demanded(self) -> set[Pair]:
        """docs/semantics.md, on stamps."""
        sides = [[t for t in self.arrivals if t.side == side] for side in (0, 1)]
        wide = len(self.arrivals) if self.window is None else self.window
        return {
            (r, s) for r in sides[0] for s in sides[1] if s.own >= r.other - wide and s.other <= r.own + wide
        }


@dataclass(frozen=True)
class Line:
    """Cores, queues and the driver at a moment. Queue 2k leads right, into core k; 2k+1 left, out of it."""

    script: Script
    cores: tuple[HandshakeCore[Tuples, Pair], ...]
    queues: tuple[tuple[Message[Tuples], ...], ...]
    reached: tuple[tuple[Tuples, ...], tuple[Tuples, ...]] = ((), ())
    entered: int = 0
    met: frozenset[Pair] = field(default_factory=frozenset)

    @classmethod
    def of(cls, script: Script, cores: int, two_phase: bool = True) -> Line:
        line = tuple(
            HandshakeCore[Tuples, Pair](match, k == 0, k == cores - 1, two_phase) for k in range(cores)
        )
        return cls(script, line, ((),) * (2 * cores + 2))

    def key(self) -> object:
        """Equal for states with the same future."""
        cores = tuple(
            (*map(tuple, (*c.windows, c.marked, c.sizes, c.taken, c.sent, c.known, c.told)), c.flushing)
            for c in self.cores
        )
        return cores, self.queues, self.reached, self.entered, self.met

    def choices(self) -> Iterator[Choice]:
        if self.entered <= len(self.script.arrivals):
            yield "enter", 0, 0
        for side in (0, 1):
            if any(self._expired(piece) for piece in self.reached[side]):
                yield "expire", side, 0
        for k, core in enumerate(self.cores):
            for at in (LEFT, RIGHT):
                if self.queues[self._inward(k, at)]:
                    yield "receive", k, at
                if core.wants(at) and len(self.queues[self._outward(k, at)]) < self.script.room:
                    yield "forward", k, at

    def step(self, choice: Choice) -> Line:
        kind, number, at = choice
        return getattr(self, f"_{kind}")(number, at)

    def _enter(self, number: int, at: int) -> Line:
        entered = self.entered + 1
        if entered > len(self.script.arrivals):
            return replace(self, entered=entered)._put(0, Message("flush"))
        piece = self.script.arrivals[self.entered]
        entry = 0 if piece.side == R else len(self.queues) - 1
        return replace(self, entered=entered)._put(entry, Message("tuples", piece))

    def _expired(self, piece: Tuples) -> bool:
        arrived = sum(t.side == piece.side for t in self.script.arrivals[: self.entered])
        return self.script.window is not None and piece.own + self.script.window < arrived

    def _expire(self, side: int, at: int) -> Line:
        """The acknowledgement enters where the other stream does, behind its tuples (figure 12)."""
        piece = next(p for p in self.reached[side] if self._expired(p))
        left = tuple(p for p in self.reached[side] if p is not piece)
        reached = (left, self.reached[1]) if side == 0 else (self.reached[0], left)
        entry = len(self.queues) - 1 if side == R else 0
        return replace(self, reached=reached)._put(entry, Message("acknowledgement", piece))

    def _receive(self, k: int, origin: int) -> Line:
        queue = self._inward(k, origin)
        message, *rest = self.queues[queue]
        line, core = self._fork(k)
        results, reply = core.receive(origin, message)
        line = replace(line, queues=_with(self.queues, queue, tuple(rest)), met=_all(self.met, results))
        return line if reply is None else line._put(self._outward(k, origin), reply)

    def _forward(self, k: int, at: int) -> Line:
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

    def _put(self, queue: int, message: Message[Tuples]) -> Line:
        return replace(self, queues=_with(self.queues, queue, (*self.queues[queue], message)))

    def _fork(self, k: int) -> tuple[Line, HandshakeCore[Tuples, Pair]]:
        """This line with a copy of core k that may change."""
        core = copy.copy(self.cores[k])
        core.windows = (list(core.windows[0]), list(core.windows[1]))
        for name in ("marked", "sizes", "taken", "sent", "known", "told"):
            setattr(core, name, list(getattr(core, name)))
        return replace(self, cores=_with(self.cores, k, core)), core


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
        demanded = start.script.demanded()
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


def loops(cores: int, window: int, rounds: int, turns: int, seed: int) -> list[HandshakeCore[Tuples, Pair]]:
    """A steady input, one R and one S a round, in which each core runs figure 9's loop some times."""
    line = Line.of(Script(()), cores).cores
    for core in line:
        core.match = lambda piece, others: ()
    right, left = ([deque() for _ in range(cores + 1)] for _ in range(2))
    rng = Random(seed)
    for n in range(rounds):
        right[0].append(Message("tuples", Tuples(0, n, n)))
        left[cores].append(Message("tuples", Tuples(1, n, n)))
        for exits, entries in ((right[cores], left[cores]), (left[0], right[0])):
            while exits and exits[0].piece.own + window <= n:
                entries.append(Message("acknowledgement", exits.popleft().piece))
        for k in (k for _ in range(turns) for k in rng.sample(range(cores), cores)):
            _loop(line[k], (right[k], left[k + 1]), (left[k], right[k + 1]))
    return list(line)


def _loop(
    core: HandshakeCore[Tuples, Pair], inward: tuple[deque, deque], outward: tuple[deque, deque]
) -> None:
    for origin in (LEFT, RIGHT):
        kind = None
        while inward[origin] and kind != "tuples":
            message = inward[origin].popleft()
            kind = message.kind
            _, reply = core.receive(origin, message)
            outward[origin].extend([] if reply is None else [reply])
    for direction in (LEFT, RIGHT):
        message = core.forward(direction)
        outward[direction].extend([] if message is None else [message])
