"""Dividers: averages, which leave their windows as a sum and a count, become quotients.

Two of them, with the same steps: `PipelinedDivide` has a stage for each and takes a tuple every cycle;
`SerialDivide` has one, and takes a tuple when it has done with the one before. Their latency is the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value
from amaranth.lib.data import StructLayout
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import (
    StreamSignature,
    beat,
    copy_beat,
    moves,
    stream_in,
    stream_out,
)
from handshake.engines.circuit.components.types import Row, Wire, count_of, null_of
from handshake.schema import Decimal

_BITS = 55
"""Of the quotient of two numbers between 1 and 2: one before the point, 54 behind; 53 are kept."""
_FRACTION, _BIAS = 52, 1023


def quotient_wire(average: Wire) -> Wire:
    """Return the wires of an average that has been divided: NULL of no values."""
    plain = replace(average, nullable=True, count_bits=0)
    if isinstance(average.type, Decimal):
        return replace(plain, bits=_whole_bits(average) + 1, signed=True)
    return replace(plain, bits=64, signed=False)


def _whole_bits(average: Wire) -> int:
    """Return the bits of the largest average."""
    return max(1, average.bits - average.count_bits + 1)


class Quotient(ABC):
    """A division in steps. Its state is a struct: the rest, the digits, the divisor, and more."""

    steps: int

    def __init__(self, average: Wire) -> None:
        self.average = average

    def layout(self) -> StructLayout:
        """Return the state between two steps."""
        return StructLayout(
            {
                "rest": self._divisor_bits(),
                "digits": self.steps,
                "divisor": self._divisor_bits(),
                **self._other_fields(),
            }
        )

    @abstractmethod
    def _divisor_bits(self) -> int:
        """Return the width of the divisor."""

    @abstractmethod
    def _other_fields(self) -> dict[str, Any]:
        """Return the other fields of the state."""

    @abstractmethod
    def begin(self, m: Module, total: Value, count: Value, state: Any) -> None:
        """Drive the state before the first step."""

    @abstractmethod
    def finish(self, m: Module, state: Any) -> tuple[Value, Value]:
        """Return the quotient after the last step, and whether it is NULL."""

    def step(self, m: Module, before: Any, after: Any) -> None:
        """Build one step: the next digit comes down, and the divisor is subtracted if it fits."""
        rest = Cat(before.digits[-1], before.rest)
        fits = Signal(name="fits")
        m.d.comb += [
            fits.eq(rest >= before.divisor),
            after.eq(before),
            after.rest.eq(Mux(fits, rest - before.divisor, rest)),
            after.digits.eq(Cat(fits, before.digits[:-1])),
        ]


class _ToDecimal(Quotient):
    def __init__(self, average: Wire) -> None:
        super().__init__(average)
        self.steps = _whole_bits(average)

    def _divisor_bits(self) -> int:
        return self.average.count_bits + 1

    def _other_fields(self) -> dict[str, Any]:
        return {"negative": 1, "none": 1}

    def begin(self, m: Module, total: Value, count: Value, state: Any) -> None:
        doubled = Signal(self.average.bits + 2)
        m.d.comb += [
            doubled.eq(2 * abs(total) + count),
            state.digits.eq(doubled[: self.steps]), state.rest.eq(doubled[self.steps :]),
            state.divisor.eq(count << 1),
            state.negative.eq(total < 0), state.none.eq(count == 0),
        ]  # fmt: skip

    def finish(self, m: Module, state: Any) -> tuple[Value, Value]:
        return Mux(state.negative, -state.digits, state.digits), state.none


class _ToFloat(Quotient):
    steps = _BITS

    def _divisor_bits(self) -> int:
        return self.average.count_bits

    def _other_fields(self) -> dict[str, Any]:
        return {"negative": 1, "none": 1, "zero": 1, "sticky": 1, "exponent": Shape(12, signed=True)}

    def begin(self, m: Module, total: Value, count: Value, state: Any) -> None:
        size, width = Signal(self.average.bits), self.average.count_bits
        m.d.comb += size.eq(abs(total))
        a, a_zeros = _normalise(m, size, "sum")
        b, b_zeros = _normalise(m, count, "count")
        # The divisor's first bit is set, so the first width - 1 bits of the dividend are less than it.
        stream = Cat(Const(0, max(0, width - 1 + _BITS - len(a))), a)
        below = len(stream) - (width - 1) - _BITS
        m.d.comb += [
            state.rest.eq(stream[len(stream) - (width - 1) :] if width > 1 else Const(0, 1)),
            state.digits.eq(stream[below : below + _BITS]),
            state.sticky.eq(stream[:below].any() if below else 0),
            state.divisor.eq(b),
            state.exponent.eq((len(a) - 1 - a_zeros) - (len(b) - 1 - b_zeros)),
            state.negative.eq(total < 0), state.none.eq(count == 0), state.zero.eq(total == 0),
        ]  # fmt: skip

    def finish(self, m: Module, state: Any) -> tuple[Value, Value]:
        digits, large = state.digits, state.digits[-1]
        fraction = Mux(large, digits[2 : 2 + _FRACTION], digits[1 : 1 + _FRACTION])
        guard = Mux(large, digits[1], digits[0])
        sticky = state.sticky | state.rest.any() | (large & digits[0])
        up, size = Signal(name="up"), Signal(63, name="size")
        biased = state.exponent + _BIAS - ~large
        m.d.comb += up.eq(guard & (sticky | fraction[0]))
        # A carry out of the fraction goes into the exponent, as it should.
        m.d.comb += size.eq(Cat(fraction, biased[:11]) + up)
        return Mux(state.zero, 0, Cat(size, state.negative)), state.none


def _normalise(m: Module, value: Value, name: str) -> tuple[Value, Value]:
    """Return the value shifted until its top bit is set, and the number of bits: a barrel shifter."""
    zeros = Const(0, 0)
    for power in reversed(range((len(value) - 1).bit_length())):
        by = 1 << power
        free = Signal(name=f"{name}_free{by}")
        moved = Signal(len(value), name=f"{name}_by{by}")
        m.d.comb += [free.eq(~value[-by:].any()), moved.eq(Mux(free, value << by, value))]
        value, zeros = moved, Cat(free, zeros)
    return value, zeros


def quotient_of(average: Wire) -> Quotient:
    """Return the division that an average of these wires needs."""
    return _ToDecimal(average) if isinstance(average.type, Decimal) else _ToFloat(average)


def divided_row(row: Row) -> Row:
    """Return the wires of a stream whose averages have been divided."""
    return Row(tuple(quotient_wire(w) if w.count_bits else w for w in row))


class Divide(Block):
    """A component that divides all averages of a stream in parallel. Ports: `i` and `o`.

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

    def _other_wires(self) -> Value:
        """Return all fields but the averages, with `valid` and `eos`."""
        return Cat(self.i.valid, self.i.eos, *(Value.cast(self.i.payload[name]) for name in self._others))

    def _begin(self, m: Module) -> list[Any]:
        """Return the states before the first step."""
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
        """Return the circuit."""


class DivideStage(Block):
    """Registers, and one step of those divisions that are `busy`: written once, used in a line."""

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
    """A stage of registers for each step: issue rate 1. A result that is not taken holds all stages back."""

    def build(self) -> Module:
        m = Module()
        free = Signal()
        m.d.comb += [free.eq(~beat(self.o) | self.o.ready), self.i.ready.eq(free)]
        rest, states = self._other_wires(), self._begin(m)
        for at in range(self.steps + 1):
            rest, states = self._stage(m, free, rest, states, at)
        made = StreamSignature(self.after).create(path=("made",))
        self._finish(m, states, rest, made)
        with m.If(free):
            m.d.sync += copy_beat(self.o, made)
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
        rest, begun = self._other_wires(), self._begin(m)
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
            m.d.sync += [*copy_beat(self.o, made), busy.eq(0)]
        return m

    def _advance(self, m: Module, states: list[Any], at: Signal) -> None:
        m.d.sync += at.eq(at + 1)
        for n, (each, state) in enumerate(zip(self.quotients, states, strict=True)):
            after = Signal(each.layout(), name=f"after{n}")
            each.step(m, state, after)
            with m.If(at < each.steps):
                m.d.sync += state.eq(after)
