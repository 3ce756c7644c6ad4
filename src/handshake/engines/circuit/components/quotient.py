"""Long division, a bit per step: an average's sum by its count, rounded as the engines round it.

Of whole numbers the quotient is the float64 nearest to it, ties to even: 55 bits, and whether anything is
left (guard and sticky bits). Of decimals it is a decimal, halves away from zero. Both are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Shape, Signal, Value
from amaranth.lib.data import StructLayout

from handshake.engines.circuit.components.types import Wire
from handshake.schema import Decimal

__all__ = ["Quotient", "quotient_of", "quotient_wire"]

_BITS = 55
"""Of the quotient of two numbers between 1 and 2: one before the point, 54 behind; 53 are kept."""
_FRACTION, _BIAS = 52, 1023


def quotient_wire(average: Wire) -> Wire:
    """The wires of an average that has been divided: NULL of no values."""
    plain = replace(average, nullable=True, count_bits=0)
    if isinstance(average.type, Decimal):
        return replace(plain, bits=_whole_bits(average) + 1, signed=True)
    return replace(plain, bits=64, signed=False)


def _whole_bits(average: Wire) -> int:
    """Bits of the largest average: that of a sum of so many bits by the largest count."""
    return max(1, average.bits - average.count_bits + 1)


class Quotient(ABC):
    """A division in steps. The state of one is a struct: what is left, the digits, the divisor, and more."""

    steps: int

    def __init__(self, average: Wire) -> None:
        self.average = average

    def layout(self) -> StructLayout:
        """The state between two steps."""
        return StructLayout(
            {
                "rest": self._divisor_bits(),
                "digits": self.steps,
                "divisor": self._divisor_bits(),
                **self._more(),
            }
        )

    @abstractmethod
    def _divisor_bits(self) -> int:
        """The width of the divisor."""

    @abstractmethod
    def _more(self) -> dict[str, Any]:
        """What else goes along."""

    @abstractmethod
    def begin(self, m: Module, total: Value, count: Value, state: Any) -> None:
        """Drive the state before the first step."""

    @abstractmethod
    def finish(self, m: Module, state: Any) -> tuple[Value, Value]:
        """The quotient after the last step, and whether it is NULL."""

    def step(self, m: Module, before: Any, after: Any) -> None:
        """One bit of the quotient: the next digit comes down, and the divisor is taken off where it fits."""
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

    def _more(self) -> dict[str, Any]:
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

    def _more(self) -> dict[str, Any]:
        return {"negative": 1, "none": 1, "zero": 1, "sticky": 1, "exponent": Shape(12, signed=True)}

    def begin(self, m: Module, total: Value, count: Value, state: Any) -> None:
        size, width = Signal(self.average.bits), self.average.count_bits
        m.d.comb += size.eq(abs(total))
        a, a_zeros = _normalised(m, size, "sum")
        b, b_zeros = _normalised(m, count, "count")
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


def _normalised(m: Module, value: Value, name: str) -> tuple[Value, Value]:
    """The value with its first one at the top, and by how many bits it was moved; a barrel shifter."""
    zeros = Const(0, 0)
    for power in reversed(range((len(value) - 1).bit_length())):
        by = 1 << power
        free = Signal(name=f"{name}_free{by}")
        moved = Signal(len(value), name=f"{name}_by{by}")
        m.d.comb += [free.eq(~value[-by:].any()), moved.eq(Mux(free, value << by, value))]
        value, zeros = moved, Cat(free, zeros)
    return value, zeros


def quotient_of(average: Wire) -> Quotient:
    """The division that an average of these wires needs."""
    return _ToDecimal(average) if isinstance(average.type, Decimal) else _ToFloat(average)
