"""Two-in one-out mergers, of which a binary tree collects the results of all cores (FPGA paper, IV-B and C).

An end that comes on one input waits for the one on the other: `eos` leaves once, after all results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib.enum import Enum
from amaranth.lib.wiring import Out

from handshake.circuit.block import Block
from handshake.circuit.join.buffer import Buffer
from handshake.circuit.stream import beat, forward, stream_in, stream_out
from handshake.circuit.types import Row

__all__ = ["GrantingMerger", "StateMerger", "merge"]


class _Merger(Block):
    """Ports: `a` and `b` (results in), `o` (results out)."""

    def __init__(self, row: Row, depth: int, ports: dict[str, Any] | None = None) -> None:
        self.row, self.depth = row, depth
        streams = {"a": stream_in(row), "b": stream_in(row), "o": stream_out(row)}
        super().__init__({**streams, **(ports or {})}, (row, depth))

    def _buffer(self, m: Module) -> Buffer:
        buffer = Buffer(self.row.bits + 1, self.depth)
        buffer.build(m)
        m.d.comb += [
            buffer.pop.eq(buffer.valid & self.o.ready),
            self.o.valid.eq(buffer.valid & ~buffer.head[0]),
            self.o.eos.eq(buffer.valid & buffer.head[0]),
            self.o.payload.as_value().eq(buffer.head[1:]),
        ]
        return buffer


def _entry(stream: Any) -> Value:
    return Cat(stream.eos, stream.payload.as_value())


class StateMerger(_Merger):
    """The papers' merger, figure 6: read both inputs, store the first, store the second; two in three cycles.

    `full`: its buffer has no room for two, so its inputs are disabled and, under global admission, all cores
    are suspended.
    """

    issue_rate = 2 / 3

    class State(Enum, shape=2):
        """STATE1 to STATE3 of the figure."""

        READ = 0
        FIRST = 1
        SECOND = 2

    def __init__(self, row: Row, depth: int) -> None:
        super().__init__(row, depth, {"full": Out(1)})

    def build(self) -> Module:
        m = Module()
        buffer, state = self._buffer(m), Signal(self.State)
        held = [Signal(self.row.bits + 1, name=f"held_{name}") for name in "ab"]
        has = [Signal(name=f"has_{name}") for name in "ab"]
        ended = [Signal(name=f"ended_{name}") for name in "ab"]
        m.d.sync += self.full.eq(buffer.after > self.depth - 2)
        with m.Switch(state):
            with m.Case(self.State.READ):
                self._read(m, held, has, ended)
                with m.If(~self.full):
                    m.d.sync += state.eq(self.State.FIRST)
            with m.Case(self.State.FIRST):
                _store(m, buffer, held[0], has[0], ended[0], ended[1])
                m.d.sync += state.eq(self.State.SECOND)
            with m.Case(self.State.SECOND):
                _store(m, buffer, held[1], has[1], ended[1], ended[0])
                m.d.sync += state.eq(self.State.READ)
        return m

    def _read(self, m: Module, held: list[Signal], has: list[Signal], ended: list[Signal]) -> None:
        for port, slot, flag, over in zip((self.a, self.b), held, has, ended, strict=True):
            m.d.comb += port.ready.eq(~self.full & ~over)
            m.d.sync += [slot.eq(_entry(port)), flag.eq(beat(port) & ~over)]


def _store(m: Module, buffer: Buffer, held: Signal, has: Signal, ended: Signal, other: Signal) -> None:
    """Put what was read into the buffer; an end only when the other input has ended too."""
    m.d.comb += [buffer.data.eq(held), buffer.push.eq(has & (~held[0] | other))]
    with m.If(has & held[0]):
        m.d.sync += [ended.eq(~other), other.eq(0)]


class GrantingMerger(_Merger):
    """One result per cycle: the input whose turn it is was told so a cycle before, by a register.

    A turn goes to the other input when that has something to give, and stays otherwise, so one busy input
    alone has all the cycles, and two share them.
    """

    def build(self) -> Module:
        m = Module()
        buffer, turn = self._buffer(m), Signal()  # turn: 0 for a, 1 for b
        ready = [Signal(name="grants_a", init=1), Signal(name="grants_b")]
        ended = [Signal(name="ended_a"), Signal(name="ended_b")]
        after = [Signal(name="ended_a_after"), Signal(name="ended_b_after")]
        m.d.comb += [self.a.ready.eq(ready[0]), self.b.ready.eq(ready[1])]
        offers = Mux(turn, beat(self.b), beat(self.a))
        entry = Mux(turn, _entry(self.b), _entry(self.a))
        takes = Signal()
        m.d.comb += takes.eq(offers & (ready[0] | ready[1]))
        self._end(m, takes & entry[0], turn, ended, after)
        m.d.comb += [
            buffer.data.eq(entry),
            buffer.push.eq(takes & (~entry[0] | Mux(turn, ended[0], ended[1]))),
        ]
        self._grant(m, turn, ready, after, buffer.level + takes < self.depth)
        return m

    def _end(
        self, m: Module, ends: Value, turn: Signal, ended: Sequence[Signal], after: Sequence[Signal]
    ) -> None:
        a, b = ended[0] | (ends & ~turn), ended[1] | (ends & turn)
        both = Signal(name="both_ended")
        m.d.comb += [both.eq(a & b), after[0].eq(a & ~both), after[1].eq(b & ~both)]
        m.d.sync += [flag.eq(then) for flag, then in zip(ended, after, strict=True)]

    def _grant(
        self, m: Module, turn: Signal, ready: Sequence[Signal], after: Sequence[Signal], room: Value
    ) -> None:
        wanted = [beat(self.a) & ~after[0], beat(self.b) & ~after[1]]
        then = Signal(name="turn_after")
        m.d.comb += then.eq(Mux(turn, ~(wanted[0] | after[1]), wanted[1] | after[0]))
        m.d.sync += [
            turn.eq(then),
            ready[0].eq(room & ~then & ~after[0]),
            ready[1].eq(room & then & ~after[1]),
        ]


def merge(m: Module, sources: Sequence[Any], row: Row, depth: int, kind: type[_Merger]) -> tuple[Any, list[Any]]:
    """A binary tree of mergers over `sources` (figure 7): its root's stream, and the mergers, leaves first."""
    level, mergers = list(sources), []
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            merger: Any = kind(row, depth)  # type: ignore[call-arg]
            m.submodules[f"merger{len(mergers)}"] = merger
            forward(m, left, merger.a)
            forward(m, right, merger.b)
            mergers.append(merger)
            above.append(merger.o)
        level = above + level[len(level) - len(level) % 2 :]
    return level[0], mergers
