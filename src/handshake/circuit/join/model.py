"""The join circuit as a plain Python program, register by register: the gold that the circuits are tested by.

A part's outputs are functions of its registers alone; `tick` gives it its inputs of one cycle and moves the
registers. Tuples are any Python values, None being an empty place. Nothing here knows of wires or widths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from handshake.circuit.join.design import FAN, Design
from handshake.circuit.join.model_parts import (
    READY,
    SCAN_R,
    SCAN_S,
    BufferModel,
    GlobalCoreModel,
    GrantingMergerModel,
    LocalCoreModel,
    Match,
    StateMergerModel,
    Step,
)

__all__ = ["Beat", "JoinModel", "Trace", "run_model"]

OPEN, FLUSH, END, WAIT = range(4)


class Beat(NamedTuple):
    """What arrives: a tuple of R, one of S (None: none), or the end."""

    left: Any = None
    right: Any = None
    eos: bool = False


class DriverModel:
    """What both drivers share: the phases of the input."""

    def __init__(self, design: Design) -> None:
        self.design, self.longest = design, max(design.left, design.right)
        self.phase, self.left = OPEN, 0

    def close(self, beat: Beat | None) -> None:
        """Begin to push the last tuples through, at the end of the input."""
        if beat is not None and beat.eos:
            self.phase, self.left = FLUSH, self.longest - 1

    def flushed(self) -> None:
        """One empty tuple of each stream has been given."""
        self.phase, self.left = (FLUSH, self.left - 1) if self.left else (END, self.left)


def _shifts(beat: Beat | None) -> tuple[bool, bool]:
    return (False, False) if beat is None else (beat.left is not None, beat.right is not None)


class LocalDriverModel(DriverModel):
    """A register towards the first core, a queue towards the last."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        self.token: Step | None = None
        self.queue = BufferModel(design.in_flight)
        self.open, self.issues, self.room, self.was_over = True, False, False, False
        self.pushing: tuple[Any] | None = None

    def ready(self, beat: Beat | None) -> bool:
        """Whether a beat would be taken."""
        return self.open

    def tick(self, beat: Beat | None, over: bool, r_taken: bool, s_taken: bool) -> None:
        """One cycle."""
        had, waits, push = self.token is not None, self.phase == WAIT, self.pushing
        issues = not had and not self.open and not self.issues and self.room
        if had and r_taken:
            self.token = None
        self.pushing = self._take(beat) if self.open else self._issue() if self.issues else None
        if waits and self.was_over:
            self.phase = OPEN
        self.was_over = over
        self.room, self.issues = len(self.queue.ring) < self.queue.places - 1, issues
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
            self.flushed()
            return (None,)
        elif self.phase == END:
            self.token, self.phase = Step(False, False, True), WAIT
        return None


class GlobalDriverModel(DriverModel):
    """The controller: all cores' state machine, a register ahead of them."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        self.scan_left, self.scan_right = (max(lengths) for lengths in zip(*design.segments, strict=True))
        self.state, self.count, self.wants_s = READY, 0, False
        self.spread: tuple[Step | None, bool, Any, Any] = (None, False, None, None)
        self.gathering: list[list[bool]] = [[False]] * design.gather_stages

    @property
    def suspended(self) -> bool:
        """Whether some buffer was full, as many cycles ago as the flags need to come here."""
        return any(self.gathering[-1])

    def ready(self, beat: Beat | None) -> bool:
        """Whether a beat would be taken."""
        if self.suspended:
            return self.design.overload == "discard" and self.phase == OPEN and not (beat and beat.eos)
        return self.state == READY and self.phase == OPEN

    def tick(self, beat: Beat | None, over: bool, fulls: list[bool]) -> None:
        """One cycle."""
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
                self.flushed()
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
    """What was seen at the ports: cycles in which beats were taken, and what left when (None: the end)."""

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
        self.design, self.local = design, design.admission == "local"
        core = LocalCoreModel if self.local else GlobalCoreModel
        merger = GrantingMergerModel if self.local else StateMergerModel
        self.cores: list[Any] = [core(design, i, match) for i in range(design.cores)]
        self.mergers: list[Any] = [merger(design.merger_buffer) for _ in range(design.mergers)]
        self.inputs = _tree(self.cores, self.mergers)
        self.root: Any = (self.mergers or self.cores)[-1]
        self.driver: Any = LocalDriverModel(design) if self.local else GlobalDriverModel(design)
        self.relays: list[tuple[Any] | None] = [None] * (design.relays if self.local else 0)
        self.was = self.owed = False

    def ready(self, beat: Beat | None) -> bool:
        """Whether a beat would be taken in this cycle."""
        return bool(self.driver.ready(beat))

    @property
    def discards(self) -> bool:
        """Whether a beat that is taken in this cycle is thrown away."""
        return not self.local and self.driver.suspended

    def output(self) -> tuple[bool, Any]:
        """(something is offered, what): None is the end."""
        head = self.root.buffer.head
        return (True, head) if head is not None else (self.owed, None)

    def tick(self, beat: Beat | None, ready: bool) -> None:
        """One cycle: a beat that is offered, and whether the output is taken."""
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
        """For each core and merger, whether what it offers is taken in this cycle."""
        takes = {id(self.root): ready}
        for merger, inputs in self.inputs:
            takes |= {id(part): merger.ready(port) for port, part in enumerate(inputs)}
        return takes

    def _tick_local(self, beat: Beat | None, over: bool, takes: dict[int, bool]) -> None:
        cores, driver = self.cores, self.driver
        steps = [driver.token, *(core.r_out for core in cores)]
        gives = [(core.s[0],) if core.giving else None for core in cores]
        queue = [driver.queue.head, *self.relays]  # on its way to the last core
        free = [*(relay is None for relay in self.relays), not cores[-1].has_s]
        r_taken = [*(core.step is None for core in cores), True]
        s_in = [*gives[1:], queue[-1]]
        for index, core in enumerate(cores):
            core.tick(steps[index], s_in[index], r_taken[index + 1], takes[id(core)])
        for place in range(len(self.relays)):
            if free[place]:
                self.relays[place] = queue[place]
            elif free[place + 1]:
                self.relays[place] = None
        driver.tick(beat, over, r_taken[0], free[0])

    def _tick_global(self, beat: Beat | None, over: bool, takes: dict[int, bool]) -> None:
        cores, driver = self.cores, self.driver
        go, suspend, r, s = driver.spread
        r_in = [r, *(core.r[0] for core in cores)]
        s_in = [*(core.s[0] for core in cores[1:]), s]
        fulls = [part.full for part in (*cores, *self.mergers)]
        for index, core in enumerate(cores):
            core.tick(go, suspend, r_in[index], s_in[index], takes[id(core)])
        driver.tick(beat, over, fulls)


def _tree(cores: Sequence[Any], mergers: Sequence[Any]) -> list[tuple[Any, tuple[Any, Any]]]:
    """Which parts each merger reads."""
    level, waiting, inputs = list(cores), list(mergers), []
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        above = [waiting.pop(0) for _ in pairs]
        inputs += list(zip(above, pairs, strict=True))
        level = above + level[len(level) - len(level) % 2 :]
    return inputs


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
    trace.lost = sum(core.buffer.lost for core in model.cores)
    return trace
