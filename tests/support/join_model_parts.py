"""The parts of the join circuit's model: buffers, cores, mergers. See `model`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from handshake.engines.circuit.join.design import Design

__all__ = [
    "READY", "SCAN_R", "SCAN_S", "BufferModel", "GlobalCoreModel", "GrantingMergerModel", "LocalCoreModel",
    "Match", "SpanModel", "StateMergerModel", "Step",
]  # fmt: skip

Match = Callable[[Any, Any], bool]
READY, SCAN_R, SCAN_S = range(3)


class Step(NamedTuple):
    """A step of a core: the streams that shift, whether it is the end, and the new R tuple."""

    shift_r: bool
    shift_s: bool
    end: bool = False
    new_r: Any = None


class BufferModel:
    """A queue of results."""

    def __init__(self, depth: int) -> None:
        self.places, self.lost = depth, 0
        self.ring: list[Any] = []

    def tick(self, push: Any, pop: bool) -> None:
        """Store `push` (None: nothing), if there is room; give `head` away, if asked to."""
        stores = push is not None and len(self.ring) < self.places
        self.lost += push is not None and not stores
        if pop:
            self.ring.pop(0)
        if stores:
            self.ring.append(push)

    @property
    def head(self) -> Any:
        """The offer; None if the queue is empty."""
        return self.ring[0] if self.ring else None

    @property
    def empty(self) -> bool:
        """True if the queue is empty."""
        return not self.ring


class CoreModel:
    """Segments (oldest tuple first), scans and output buffer of a core."""

    def __init__(self, design: Design, index: int, match: Match) -> None:
        left, right = design.segments[index]
        self.scan_left, self.scan_right = design.scans(index)
        self.r, self.s = [None] * left, [None] * right
        self.match, self.margin = match, design.core_margin
        self.buffer, self.depth = BufferModel(design.buffer), design.buffer
        self.pipe: list[Any] = [None] * design.stages
        self.end_pipe = [False] * design.stages
        self.state, self.count, self.wants_s = READY, 0, False
        self.new_r: Any = None
        self.new_s: Any = None
        self.full = self.ended = self.over = self.began = False

    def enter(self, shift_r: bool, shift_s: bool) -> None:
        """Go from READY to a scan."""
        self.wants_s = shift_s
        self.state = SCAN_R if shift_r else SCAN_S if shift_s else READY

    def scan_r(self, leave: bool) -> tuple[Any, bool]:
        """Advance the new R tuple's scan; return the pair if it matched, and whether it was the last."""
        last = self.count == self.scan_right - 1
        if last and not leave:
            return None, False
        found = self._probe(self.s, self.new_r, 0)
        if last:
            self.r = [*self.r[1:], self.new_r]
            self.state, self.count = SCAN_S if self.wants_s else READY, 0
        else:
            self.count += 1
        return found, last

    def scan_s(self) -> tuple[Any, bool]:
        """Advance the new S tuple's scan by one cycle."""
        last = self.count == self.scan_left - 1
        found = self._probe(self.r, self.new_s, 1)
        if last:
            self.s = [*self.s[1:], self.new_s]
            self.state, self.count = READY, 0
        else:
            self.count += 1
        return found, last

    def _probe(self, segment: list[Any], new: Any, side: int) -> Any:
        if self.count >= len(segment):
            return None
        # The segment turns: its oldest tuple is met first, and all are back in place after the scan.
        held = segment[self.count]
        pair = (held, new) if side else (new, held)
        return pair if None not in pair and self.match(*pair) else None

    def collect(self, found: Any, ends: bool, begins: bool, ready: bool) -> None:
        """Move what was found down the pipeline into the buffer."""
        push, self.pipe = ([*self.pipe, found][0], [*self.pipe, found][1:])
        arrives, self.end_pipe = ([*self.end_pipe, ends][0], [*self.end_pipe, ends][1:])
        self.over = self.ended and self.buffer.empty
        self.buffer.tick(push, ready and self.buffer.head is not None)
        self.ended, self.began = not self.began and (self.ended or arrives), begins
        self.full = len(self.buffer.ring) + self.margin >= self.depth


class LocalCoreModel(CoreModel):
    """A core that waits for its neighbours only."""

    def __init__(self, design: Design, index: int, match: Match) -> None:
        super().__init__(design, index, match)
        self.step: Step | None = None
        self.has_s = False
        self.passing: Step | None = None
        self.giving = self.left_s = self.was_full = False

    @property
    def r_out(self) -> Step | None:
        """The step for the right neighbour, with its own oldest R tuple."""
        return self.passing and self.passing._replace(new_r=self.r[0])

    def tick(self, r_in: Step | None, s_in: tuple[Any] | None, r_taken: bool, ready: bool) -> None:
        """Advance by one cycle; `s_in` is a tuple of one S tuple, which may be empty."""
        loads_r, loads_s = self.step is None and r_in is not None, not self.has_s and s_in is not None
        found, begins = None, False
        step, passing, giving, room = self.step, self.passing, False, not self.was_full
        left_s, self.left_s, self.was_full = self.left_s, False, self.full
        if passing is not None and r_taken:
            self.passing = None
        if self.state == READY:
            if step is not None and passing is None and room:
                begins, giving = True, step.shift_s
                self.passing, self.new_r = step, step.new_r
                self.enter(step.shift_r, step.shift_s)
                self.step = step if step.shift_r else None
        elif self.state == SCAN_R:
            if room:
                found, last = self.scan_r(leave=passing is None)
                self.step = None if last else self.step
        elif room and self.has_s:
            found, self.left_s = self.scan_s()
        if left_s:
            self.has_s = False
        self.giving = giving
        if loads_r:
            self.step = r_in
        if loads_s:
            assert s_in is not None
            self.has_s, self.new_s = True, s_in[0]
        ends = begins and step is not None and step.end
        self.collect(found, ends, begins and not ends, ready)


class GlobalCoreModel(CoreModel):
    """A core in lock step with all others."""

    def tick(self, go: Step | None, suspend: bool, r_in: Any, s_in: Any, ready: bool) -> None:
        """Advance by one cycle; `r_in` and `s_in` are the neighbours' oldest tuples."""
        found, begins = None, go is not None and not suspend and self.state == READY
        if not suspend:
            if self.state == SCAN_R:
                found, _ = self.scan_r(leave=True)
            elif self.state == SCAN_S:
                found, _ = self.scan_s()
            elif go is not None:
                self.new_r, self.new_s = r_in, s_in
                self.enter(go.shift_r, go.shift_s)
        ends = begins and go is not None and go.end
        self.collect(found, ends, begins and not ends, ready)


class GrantingMergerModel:
    """One result per cycle, from the input that was granted a cycle before."""

    def __init__(self, depth: int) -> None:
        self.buffer, self.turn, self.grant, self.over = BufferModel(depth), 0, True, False
        self.full, self.held = False, None

    def ready(self, port: int) -> bool:
        """Return whether that input may give."""
        return self.grant and self.turn == port

    def tick(self, offers: Sequence[Any], overs: Sequence[bool], ready: bool) -> None:
        """Advance by one cycle."""
        taken = offers[self.turn] if self.grant else None
        self.over = all(overs) and self.buffer.empty and self.held is None
        room = len(self.buffer.ring) + (self.held is not None) + self.grant < self.buffer.places
        self.buffer.tick(self.held, ready and self.buffer.head is not None)
        self.held = taken
        self.turn = 1 - self.turn if offers[1 - self.turn] is not None else self.turn
        self.grant = room


class SpanModel:
    """A long link: registers there and back, and a queue at its end."""

    def __init__(self, registers: int) -> None:
        self.buffer, self.registers, self.over = BufferModel(4 * registers), registers, False
        self.way, self.overs = [None] * registers, [False] * registers
        self.asks = [False] * registers

    def ready(self, port: int) -> bool:
        """Return whether its input may give."""
        return self.asks[-1]

    def tick(self, offers: Sequence[Any], overs: Sequence[bool], ready: bool) -> None:
        """Advance by one cycle."""
        taken, asks = offers[0] if self.asks[-1] else None, len(self.buffer.ring) < 2 * self.registers
        self.over = self.overs[-1] and self.buffer.empty
        self.buffer.tick(self.way[-1], ready and self.buffer.head is not None)
        self.way, self.overs = [taken, *self.way[:-1]], [overs[0], *self.overs[:-1]]
        self.asks = [asks, *self.asks[:-1]]


class StateMergerModel:
    """The papers' merger: two results in three cycles."""

    def __init__(self, depth: int) -> None:
        self.buffer, self.state, self.held, self.over = BufferModel(depth), 0, [None, None], False
        self.full = False

    def ready(self, port: int) -> bool:
        """Return whether that input may give."""
        return self.state == 0 and not self.full

    def tick(self, offers: Sequence[Any], overs: Sequence[bool], ready: bool) -> None:
        """Advance by one cycle."""
        push, was_held = None, any(entry is not None for entry in self.held)
        self.over = all(overs) and self.buffer.empty and not was_held
        if self.state == 0:
            if not self.full:
                self.held, self.state = list(offers), 1
        else:
            push, self.held[self.state - 1] = self.held[self.state - 1], None
            self.state = (self.state + 1) % 3
        self.buffer.tick(push, ready and self.buffer.head is not None)
        self.full = len(self.buffer.ring) > self.buffer.places - 2
