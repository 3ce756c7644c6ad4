"""The join circuit as a plain Python program, register by register: the gold that the circuits are tested by.

A part's outputs are functions of its registers alone; `tick` gives it its inputs of one cycle and moves the
registers. Tuples are any Python values, None being an empty place. Nothing here knows of wires or widths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from handshake.engines.circuit.join.design import Design
from handshake_bench.lockstep import FAN, GlobalDesign
from join_model_parts import (
    READY,
    SCAN_R,
    SCAN_S,
    BufferModel,
    GlobalCoreModel,
    GrantingMergerModel,
    LocalCoreModel,
    Match,
    SpanModel,
    StateMergerModel,
    Step,
)

__all__ = ["Beat", "JoinModel", "Trace", "run_model"]

OPEN, FLUSH, END, WAIT = range(4)


class Beat(NamedTuple):
    """A beat of arrivals: a tuple of R, one of S (None: none), or the end."""

    left: Any = None
    right: Any = None
    eos: bool = False


class DriverModel:
    """The common part of both drivers: the phases of the input."""

    def __init__(self, design: Design) -> None:
        self.design, self.longest = design, max(design.left, design.right)
        self.phase, self.left = OPEN, 0

    def close(self, beat: Beat | None) -> None:
        """Begin to push the last tuples through, at the end of the input."""
        if beat is not None and beat.eos:
            self.phase, self.left = FLUSH, self.longest - 1

    def count_flush(self) -> None:
        """Count an empty tuple of each stream that was given."""
        self.phase, self.left = (FLUSH, self.left - 1) if self.left else (END, self.left)


def _shifts(beat: Beat | None) -> tuple[bool, bool]:
    return (False, False) if beat is None else (beat.left is not None, beat.right is not None)


class LocalDriverModel(DriverModel):
    """A register towards the first core, a queue at the last one, and registers between it and the driver."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        self.token: Step | None = None
        self.queue = BufferModel(design.in_flight)
        self.open, self.issues = True, False
        registers = design.line_registers
        self.there: list[tuple[Any] | None] = [None] * (registers + 1)
        self.back, self.overs = [False] * (registers + 1), [False] * (registers + 1)

    def ready(self, beat: Beat | None) -> bool:
        """True if a beat would be taken."""
        return self.open

    def tick(self, beat: Beat | None, over: bool, r_taken: bool, s_taken: bool) -> None:
        """Advance by one cycle."""
        had, waits, push = self.token is not None, self.phase == WAIT, self.there[-1]
        issues = not had and not self.open and not self.issues and self.back[-1]
        if had and r_taken:
            self.token = None
        given = self._take(beat) if self.open else self._issue() if self.issues else None
        if waits and self.overs[-1]:
            self.phase = OPEN
        room = len(self.queue.ring) <= self.queue.places - self.design.unseen
        self.issues, self.there = issues, [given, *self.there[:-1]]
        self.back, self.overs = [room, *self.back[:-1]], [over, *self.overs[:-1]]
        self.queue.tick(push, s_taken and self.queue.head is not None)

    def _take(self, beat: Beat | None) -> tuple[Any] | None:
        shift_r, shift_s = _shifts(beat)
        if beat is None:
            return None
        if shift_r or shift_s:
            self.token = Step(shift_r, shift_s, False, beat.left)
        self.open = False
        self.close(beat)
        return (beat.right,) if shift_s else None

    def _issue(self) -> tuple[Any] | None:
        if self.phase == OPEN:
            self.open = True
        elif self.phase == FLUSH:
            self.token = Step(True, True)
            self.count_flush()
            return (None,)
        elif self.phase == END:
            self.token, self.phase = Step(False, False, True), WAIT
        return None


class GlobalDriverModel(DriverModel):
    """The controller: all cores' state machine, a register ahead of them."""

    design: GlobalDesign

    def __init__(self, design: GlobalDesign) -> None:
        super().__init__(design)
        self.scan_left, self.scan_right = (max(lengths) for lengths in zip(*design.segments, strict=True))
        self.state, self.count, self.wants_s = READY, 0, False
        self.spread: tuple[Step | None, bool, Any, Any] = (None, False, None, None)
        self.gathering: list[list[bool]] = [[False]] * design.gather_stages

    @property
    def suspended(self) -> bool:
        """True if some buffer was full, as many cycles ago as the flags take."""
        return any(self.gathering[-1])

    def ready(self, beat: Beat | None) -> bool:
        """True if a beat would be taken."""
        if self.suspended:
            return self.design.overload == "discard" and self.phase == OPEN and not (beat and beat.eos)
        return self.state == READY and self.phase == OPEN

    def tick(self, beat: Beat | None, over: bool, fulls: list[bool]) -> None:
        """Advance by one cycle."""
        suspended, go = self.suspended, None
        r, s = self.spread[2:]
        if not suspended and self.state == READY:
            go, r, s = self._start(beat, over, r, s)
        elif not suspended:
            self._scan()
        self.spread = (go, suspended, r, s)
        for stage in range(len(self.gathering)):
            groups = [fulls[i : i + FAN] for i in range(0, len(fulls), FAN)]
            fulls, self.gathering[stage] = self.gathering[stage], [any(group) for group in groups]

    def _start(self, beat: Beat | None, over: bool, r: Any, s: Any) -> tuple[Step | None, Any, Any]:
        match self.phase:
            case 0:  # OPEN
                r, s = (None, None) if beat is None else (beat.left, beat.right)
                self.close(beat)
                return self._step(*_shifts(beat)), r, s
            case 1:  # FLUSH
                self.count_flush()
                return self._step(True, True), None, None
            case 2:  # END
                self.phase = WAIT
                return Step(False, False, True), r, s
        self.phase = OPEN if over else WAIT
        return None, r, s

    def _step(self, shift_r: bool, shift_s: bool) -> Step | None:
        self.wants_s = shift_s
        self.state = SCAN_R if shift_r else SCAN_S if shift_s else READY
        return Step(shift_r, shift_s) if shift_r or shift_s else None

    def _scan(self) -> None:
        length = self.scan_right if self.state == SCAN_R else self.scan_left
        self.count += 1
        if self.count == length:
            self.state = SCAN_S if self.state == SCAN_R and self.wants_s else READY
            self.count = 0


@dataclass
class Trace:
    """The record of the ports: cycles of beats that were taken, and of results that left (None: the end)."""

    accepted: list[int] = field(default_factory=list)
    results: list[tuple[int, Any]] = field(default_factory=list)
    cycles: int = 0
    dropped: list[int] = field(default_factory=list)
    """Positions of the beats that were discarded."""
    lost: int = 0
    """Results that found no room, for want of a margin."""


class JoinModel:
    """The circuit of a design, for any condition on Python values."""

    def __init__(self, design: Design, match: Match) -> None:
        self.design, self.local = design, not isinstance(design, GlobalDesign)
        core = LocalCoreModel if self.local else GlobalCoreModel
        merger = GrantingMergerModel if self.local else StateMergerModel
        self.cores: list[Any] = [core(design, i, match) for i in range(design.cores)]
        self.inputs = list(_tree(design, self.cores, merger))
        self.mergers = [part for part, _ in self.inputs]
        self.root: Any = (self.mergers or self.cores)[-1]
        kind = GlobalDriverModel if isinstance(design, GlobalDesign) else LocalDriverModel
        self.driver: Any = kind(design)
        self.was = self.owed = False

    def ready(self, beat: Beat | None) -> bool:
        """True if a beat would be taken in this cycle."""
        return bool(self.driver.ready(beat))

    @property
    def discards(self) -> bool:
        """True if a beat that is taken in this cycle is discarded."""
        return not self.local and self.driver.suspended

    @property
    def lost(self) -> int:
        """Number of results that found no room in any buffer."""
        queues = [self.driver.queue] if self.local else []
        buffers = [part.buffer for part in (*self.cores, *self.mergers)]
        return sum(buffer.lost for buffer in (*buffers, *queues))

    def output(self) -> tuple[bool, Any]:
        """(something is offered, what): None is the end."""
        head = self.root.buffer.head
        return (True, head) if head is not None else (self.owed, None)

    def tick(self, beat: Beat | None, ready: bool) -> None:
        """Advance by one cycle, given the beat on offer and whether the output is taken."""
        over = self.owed and ready
        takes = self._takes(ready)
        rises = self.root.over and not self.was
        self.was, self.owed = self.root.over, rises or (self.owed and not ready)
        heads = {id(part): part.buffer.head for part in (*self.cores, *self.mergers)}
        overs = {id(part): part.over for part in (*self.cores, *self.mergers)}
        if self.local:
            self._tick_local(beat, over, takes)
        else:
            self._tick_global(beat, over, takes)
        for merger, inputs in self.inputs:
            merger.tick([heads[id(i)] for i in inputs], [overs[id(i)] for i in inputs], takes[id(merger)])

    def _takes(self, ready: bool) -> dict[int, bool]:
        """Return for each core and merger whether its offer is taken in this cycle."""
        takes = {id(self.root): ready}
        for merger, inputs in self.inputs:
            takes |= {id(part): merger.ready(port) for port, part in enumerate(inputs)}
        return takes

    def _tick_local(self, beat: Beat | None, over: bool, takes: dict[int, bool]) -> None:
        cores, driver = self.cores, self.driver
        steps = [driver.token, *(core.r_out for core in cores)]
        gives = [(core.s[0],) if core.giving else None for core in cores]
        r_taken, s_taken = [*(core.step is None for core in cores), True], not cores[-1].has_s
        s_in = [*gives[1:], driver.queue.head]
        for index, core in enumerate(cores):
            core.tick(steps[index], s_in[index], r_taken[index + 1], takes[id(core)])
        driver.tick(beat, over, r_taken[0], s_taken)

    def _tick_global(self, beat: Beat | None, over: bool, takes: dict[int, bool]) -> None:
        cores, driver = self.cores, self.driver
        go, suspend, r, s = driver.spread
        r_in = [r, *(core.r[0] for core in cores)]
        s_in = [*(core.s[0] for core in cores[1:]), s]
        fulls = [part.full for part in (*cores, *self.mergers)]
        for index, core in enumerate(cores):
            core.tick(go, suspend, r_in[index], s_in[index], takes[id(core)])
        driver.tick(beat, over, fulls)


def _tree(design: Design, cores: Sequence[Any], merger: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Mergers and long links, in the order of the results' way, and which parts each of them reads."""
    level = [(core, 1) for core in cores]
    while len(level) > 1:
        above = []
        for (left, few), (right, more) in zip(level[::2], level[1::2], strict=False):
            registers, ends = design.link_registers(few + more), [left, right]
            if registers:
                ends = [SpanModel(registers) for _ in ends]
                yield from zip(ends, ((left,), (right,)), strict=True)
            above.append((merger(design.merger_buffer), few + more))
            yield above[-1][0], tuple(ends)
        level = above + level[len(level) - len(level) % 2 :]


def run_model(
    design: Design,
    match: Match,
    beats: Sequence[Beat],
    *,
    offered: Sequence[bool] = (True,),
    taken: Sequence[bool] = (True,),
    limit: int = 10_000_000,
    quiet: int = 1_000_000,
) -> Trace:
    """Feed `beats`; a new one is offered, and output taken, in the cycles that the patterns say.

    It ends with the end of the results, or when nothing has moved for `quiet` cycles.
    """
    model, trace = JoinModel(design, match), Trace()
    last, offering = 0, False
    while trace.cycles < limit and trace.cycles - last <= quiet:
        now = trace.cycles
        position = len(trace.accepted)
        offering = position < len(beats) and (offering or offered[now % len(offered)])
        beat = beats[position] if offering else None
        takes = taken[now % len(taken)]
        if beat is not None and model.ready(beat):
            trace.dropped += [position] if model.discards else []
            trace.accepted.append(now)
            last, offering = now, False
        present, value = model.output()
        if present and takes:
            trace.results.append((now, value))
            last = now
        model.tick(beat, takes)
        trace.cycles += 1
        if position == len(beats) and trace.results and trace.results[-1][1] is None:
            break
    trace.lost = model.lost
    return trace
