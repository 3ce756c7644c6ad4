"""Dividers: averages, which leave their windows as a sum and a count, become quotients.

Two of them, with the same steps: `PipelinedDivide` has a stage for each and takes a tuple every cycle;
`SerialDivide` has one, and takes a tuple when it has done with the one before. Their latency is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.quotient import Quotient, quotient_of, quotient_wire
from handshake.engines.circuit.components.stream import StreamSignature, beat, moves, stream_in, stream_out
from handshake.engines.circuit.components.types import Row, count_of, null_of

__all__ = ["Divide", "PipelinedDivide", "SerialDivide", "divided_row"]


def divided_row(row: Row) -> Row:
    """The wires of a stream whose averages have been divided."""
    return Row(tuple(quotient_wire(w) if w.count_bits else w for w in row))


class Divide(Block):
    """Divides all averages of a stream, side by side. Ports: `i` and `o`.

    Latency: a cycle each to begin and to finish, and one for each bit of the longest quotient (float64: 55).
    """

    def __init__(self, row: Row) -> None:
        self.row, self.after = row, divided_row(row)
        self.quotients: list[Quotient] = [quotient_of(w) for w in row if w.count_bits]
        self.steps = max(each.steps for each in self.quotients)
        self.latency = self.steps + 2
        super().__init__({"i": stream_in(row), "o": stream_out(self.after)}, row)

    @property
    def _others(self) -> list[str]:
        names: list[str] = []
        for each in self.row:
            if not each.count_bits:
                names += [each.name, null_of(each.name)] if each.nullable else [each.name]
        return names

    def _rest(self) -> Value:
        """All that is no average, with `valid` and `eos`."""
        return Cat(self.i.valid, self.i.eos, *(Value.cast(self.i.payload[name]) for name in self._others))

    def _begin(self, m: Module) -> list[Any]:
        """The states before the first step."""
        states = []
        for n, each in enumerate(self.quotients):
            state = Signal(each.layout(), name=f"begin{n}")
            name = each.average.name
            total, count = (Value.cast(self.i.payload[part]) for part in (name, count_of(name)))
            each.begin(m, total, count, state)
            states.append(state)
        return states

    def _finish(self, m: Module, states: list[Any], rest: Value, made: Any) -> None:
        """Drive the divided tuple."""
        m.d.comb += [made.valid.eq(rest[0]), made.eos.eq(rest[1])]
        offset = 2
        for name in self._others:
            value = Value.cast(made.payload[name])
            m.d.comb += value.eq(rest[offset : offset + len(value)])
            offset += len(value)
        for each, state in zip(self.quotients, states, strict=True):
            value, none = each.finish(m, state)
            name = each.average.name
            m.d.comb += [made.payload[name].eq(value), made.payload[null_of(name)].eq(none)]

    @abstractmethod
    def build(self) -> Module:
        """The circuit."""


class DivideStage(Block):
    """Registers, and a step of those divisions that are `busy` behind them: written once, used in a line."""

    def __init__(self, row: Row, busy: tuple[bool, ...], others: int) -> None:
        self.quotients = [quotient_of(w) for w in row if w.count_bits]
        self.busy = busy
        ports: dict[str, Any] = {"free": In(1), "rest": In(others), "kept": Out(others)}
        for n, each in enumerate(self.quotients):
            ports |= {f"before{n}": In(each.layout()), f"after{n}": Out(each.layout())}
        super().__init__(ports, (row, busy))

    def build(self) -> Module:
        m = Module()
        with m.If(self.free):
            m.d.sync += self.kept.eq(self.rest)
        for n, (each, busy) in enumerate(zip(self.quotients, self.busy, strict=True)):
            before, after = getattr(self, f"before{n}"), getattr(self, f"after{n}")
            held = Signal(each.layout(), name=f"held{n}")
            with m.If(self.free):
                m.d.sync += held.eq(before)
            if busy:
                each.step(m, held, after)
            else:
                m.d.comb += after.eq(held)
        return m


class PipelinedDivide(Divide):
    """A stage of registers for each step: issue rate 1. A result that nobody takes holds all stages back."""

    def build(self) -> Module:
        m = Module()
        free = Signal()
        m.d.comb += [free.eq(~beat(self.o) | self.o.ready), self.i.ready.eq(free)]
        rest, states = self._rest(), self._begin(m)
        for at in range(self.steps + 1):
            rest, states = self._stage(m, free, rest, states, at)
        made = StreamSignature(self.after).create(path=("made",))
        self._finish(m, states, rest, made)
        with m.If(free):
            m.d.sync += [
                self.o.payload.eq(made.payload), self.o.valid.eq(made.valid), self.o.eos.eq(made.eos)
            ]  # fmt: skip
        return m

    def _stage(
        self, m: Module, free: Value, rest: Value, states: list[Any], at: int
    ) -> tuple[Value, list[Any]]:
        busy = tuple(at < each.steps for each in self.quotients)
        m.submodules[f"stage{at}"] = stage = DivideStage(self.row, busy, len(rest))
        m.d.comb += [stage.free.eq(free), stage.rest.eq(rest)]
        for n, state in enumerate(states):
            m.d.comb += getattr(stage, f"before{n}").eq(state)
        return stage.kept, [getattr(stage, f"after{n}") for n in range(len(states))]


class SerialDivide(Divide):
    """One stage, used again for each step: a tuple in as many cycles as it takes."""

    def __init__(self, row: Row) -> None:
        super().__init__(row)
        self.issue_rate = 1 / self.latency

    def build(self) -> Module:
        m = Module()
        rest, begun = self._rest(), self._begin(m)
        kept = Signal(len(rest), name="kept")
        states = [Signal(each.layout(), name=f"state{n}") for n, each in enumerate(self.quotients)]
        at, busy, free = Signal(range(self.steps + 1)), Signal(), Signal()
        m.d.comb += [self.i.ready.eq(~busy), free.eq(~beat(self.o) | self.o.ready)]
        made = StreamSignature(self.after).create(path=("made",))
        self._finish(m, states, kept, made)
        with m.If(moves(self.o)):
            m.d.sync += [self.o.valid.eq(0), self.o.eos.eq(0)]
        with m.If(moves(self.i)):
            m.d.sync += [kept.eq(rest), busy.eq(1), at.eq(0)]
            m.d.sync += [a.eq(b) for a, b in zip(states, begun, strict=True)]
        with m.Elif(busy & (at != self.steps)):
            self._advance(m, states, at)
        with m.Elif(busy & free):
            m.d.sync += [
                self.o.payload.eq(made.payload),
                self.o.valid.eq(made.valid),
                self.o.eos.eq(made.eos),
            ]
            m.d.sync += busy.eq(0)
        return m

    def _advance(self, m: Module, states: list[Any], at: Signal) -> None:
        m.d.sync += at.eq(at + 1)
        for n, (each, state) in enumerate(zip(self.quotients, states, strict=True)):
            after = Signal(each.layout(), name=f"after{n}")
            each.step(m, state, after)
            with m.If(at < each.steps):
                m.d.sync += state.eq(after)
