"""Aggregates: one value of a finite stream, sent when it ends (Glacier, section 4.6).

All have latency 1 (from the end of the stream to the result) and issue rate 1. State is a few registers;
widths follow from the most tuples that the stream can have, so that nothing overflows. NULL values are left
out; where no value is left, sum, avg, min, max and wsum are NULL.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

from amaranth.hdl import Const, Module, Mux, Shape, Signal, Value

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.operators import copy_field
from handshake.engines.circuit.components.stream import StreamSignature, beat, moves, stream_in, stream_out
from handshake.engines.circuit.components.types import Row, Wire, bits_of_range, count_of, null_of
from handshake.errors import UnsupportedError
from handshake.schema import Decimal, Float, Type


class Aggregate(Block):
    """Folds the stream `i` into one tuple on `o` when `i` ends; with `o.eos`, a stream of one tuple.

    `most` bounds the number of tuples of a stream. With `if_empty=False` a stream without tuples gives an
    end without a tuple. Only tuples in which `where` is TRUE count.
    """

    latency = 1
    choices: tuple[Hashable, ...] = ()
    """Parameters that only this kind of aggregate has."""

    def __init__(
        self,
        row: Row,
        name: str,
        kind: Type,
        field: str | None = None,
        *,
        most: int = 0,
        if_empty: bool = True,
        where: str | None = None,
    ) -> None:
        self.row, self.most, self.if_empty, self.where = row, most, if_empty, where
        self.field: Any = field
        self.result = result = self.wire(name, kind)
        hidden = tuple(w for w in row if w.name.startswith("@") and w.name != name)
        self.after = Row((result, *hidden))
        ports = {"i": stream_in(row), "o": stream_out(self.after)}
        super().__init__(ports, (row, result, most, if_empty, field, where, *self.choices))

    @abstractmethod
    def wire(self, name: str, kind: Type) -> Wire:
        """Return the wires of the result."""

    def build(self) -> Module:
        m = Module()
        free, take, any_ = Signal(), Signal(), Signal()
        seen = Signal()
        m.d.comb += [
            free.eq(~beat(self.o) | self.o.ready),
            self.i.ready.eq(~self.i.eos | free),  # only the end needs room for the result
            take.eq(self.i.valid & self.i.ready),
            any_.eq(seen | self.i.valid),
        ]
        result = StreamSignature(self.after).create(path=("result",))
        self.fold(m, take, moves(self.i) & self.i.eos, result.payload)
        for each in self.after.wires[1:]:
            copy_field(m, result.payload, self.i.payload, each, each.name)
        with m.If(moves(self.o)):
            m.d.sync += [self.o.valid.eq(0), self.o.eos.eq(0)]
        with m.If(moves(self.i)):
            m.d.sync += seen.eq(any_ & ~self.i.eos)
            with m.If(self.i.eos):
                m.d.sync += [
                    self.o.payload.eq(result.payload),
                    self.o.valid.eq(any_ | self.if_empty),
                    self.o.eos.eq(1),
                ]
        return m

    @abstractmethod
    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        """Keep the state: update it where `take` is high, start again after `clear`; drive the result."""

    def _present(self, take: Value) -> Value:
        """Return a bit that is high if there is a tuple that counts: the field is not NULL, FILTER holds."""
        for name in (self.field, self.where):
            if name is not None and self.row[name].nullable:
                take = take & ~self.i.payload[null_of(name)]
        return take if self.where is None else take & self.i.payload[self.where]

    def _number(self) -> Wire:
        """Return the wires of the field, which can be added up."""
        each = self.row[self.field]
        if isinstance(each.type, Float) or each.count_bits:
            raise UnsupportedError(
                f"the circuit has no unit for {self.title}() of '{self.field}' ({each.type}); "
                "it adds integers and decimals"
            )
        return each


def _counter_bits(most: int) -> int:
    return bits_of_range(0, most)[0]


def _keep(m: Module, state: Signal, after: Value, clear: Value) -> None:
    """Give a register its next value, or zero after the end."""
    m.d.sync += state.eq(Mux(clear, Const(0, len(state)), after))


class Count(Aggregate):
    """The number of tuples, or of those whose `field` is not NULL."""

    def wire(self, name: str, kind: Type) -> Wire:
        return Wire(name, kind, _counter_bits(self.most))

    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        count, after = Signal(self.result.bits), Signal(self.result.bits)
        present = self._present(take)
        m.d.comb += [after.eq(count + present), payload[self.result.name].eq(after)]
        _keep(m, count, after, clear)


class CountIf(Count):
    """The number of tuples whose `field` is TRUE."""

    def _present(self, take: Value) -> Value:
        return super()._present(take) & self.i.payload[self.field]


def _sum_shape(each: Wire, most: int) -> tuple[int, bool]:
    least, largest = each.range
    return bits_of_range(min(least * most, 0), max(largest * most, 0))


class Sum(Aggregate):
    """The sum of `field`, in as many bits as `most` values can need."""

    def wire(self, name: str, kind: Type) -> Wire:
        return Wire(name, kind, *_sum_shape(self._number(), self.most), True)

    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        total, after = Signal(self.result.shape), Signal(self.result.shape)
        some, any_ = Signal(), Signal()
        present = self._present(take)
        m.d.comb += [
            after.eq(Mux(present, total + self.i.payload[self.field], total)),
            any_.eq(some | present),
            payload[self.result.name].eq(after),
            payload[null_of(self.result.name)].eq(~any_),
        ]
        _keep(m, total, after, clear)
        _keep(m, some, any_, clear)


class Avg(Aggregate):
    """The average of `field`, as its sum and its count: the reader of the result divides.

    A divider would cost more cycles than all the rest of a query; the paper's average takes one cycle.
    """

    def wire(self, name: str, kind: Type) -> Wire:
        each = self._number()
        own = each.type
        shift = kind.scale - own.scale if isinstance(kind, Decimal) and isinstance(own, Decimal) else 0
        self.factor: int = 10**shift
        shape = _sum_shape(each, self.most * self.factor)
        return Wire(name, kind, *shape, count_bits=_counter_bits(self.most))

    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        bits, signed = _sum_shape(self.row[self.field], self.most)
        total, after = Signal(Shape(bits, signed=signed)), Signal(Shape(bits, signed=signed))
        count, counted = Signal(self.result.count_bits), Signal(self.result.count_bits)
        present = self._present(take)
        m.d.comb += [
            after.eq(Mux(present, total + self.i.payload[self.field], total)),
            counted.eq(count + present),
            payload[self.result.name].eq(after * self.factor if self.factor > 1 else after),
            payload[count_of(self.result.name)].eq(counted),
        ]
        _keep(m, total, after, clear)
        _keep(m, count, counted, clear)


class Extreme(Aggregate):
    """The least (`largest=False`) or the largest value of `field`."""

    def __init__(self, *common: Any, largest: bool, **rest: Any) -> None:
        self.largest, self.choices = largest, (largest,)
        super().__init__(*common, **rest)

    def wire(self, name: str, kind: Type) -> Wire:
        each = self.row[self.field]
        if isinstance(each.type, Float) or each.count_bits:
            raise UnsupportedError(
                f"the circuit has no unit for min() and max() of '{self.field}' ({each.type}); "
                "the local engine computes them"
            )
        return Wire(name, kind, each.bits, each.signed, True)

    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        best, after = Signal(self.result.shape), Signal(self.result.shape)
        some, any_ = Signal(), Signal()
        present = self._present(take)
        value = Value.cast(self.i.payload[self.field])
        better = ~some | (value > best if self.largest else value < best)
        m.d.comb += [
            after.eq(Mux(present & better, value, best)),
            any_.eq(some | present),
            payload[self.result.name].eq(after),
            payload[null_of(self.result.name)].eq(~any_),
        ]
        _keep(m, best, after, clear)
        _keep(m, some, any_, clear)

    @property
    def title(self) -> str:
        """The function's name."""
        return "max" if self.largest else "min"


class Wsum(Aggregate):
    """The weighted sum of the last values of `field`, the newest one first; NULL while there are fewer.

    The values lie in a shift register (section 4.6). Weights are whole numbers, scaled by the result's type.
    """

    def __init__(self, *common: Any, weights: tuple[int, ...], **rest: Any) -> None:
        self.weights, self.choices = weights, (weights,)
        super().__init__(*common, **rest)

    def wire(self, name: str, kind: Type) -> Wire:
        least, largest = self._number().range
        corners = [sorted((w * least, w * largest)) for w in self.weights]
        bits, signed = bits_of_range(min(0, sum(c[0] for c in corners)), max(0, sum(c[1] for c in corners)))
        return Wire(name, kind, bits, signed, True)

    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        n, shape = len(self.weights), self.row[self.field].shape
        held, after = ([Signal(shape, name=f"{what}{i}") for i in range(n)] for what in ("held", "after"))
        count, counted = Signal(range(n + 1)), Signal(range(n + 1))
        present = self._present(take)
        newer = [Value.cast(self.i.payload[self.field]), *held]
        for i in range(n):
            m.d.comb += after[i].eq(Mux(present, newer[i], held[i]))
            m.d.sync += held[i].eq(after[i])
        m.d.comb += [
            counted.eq(Mux(present & (count != n), count + 1, count)),
            payload[self.result.name].eq(sum(w * v for w, v in zip(self.weights, after, strict=True))),
            payload[null_of(self.result.name)].eq(counted != n),
        ]
        _keep(m, count, counted, clear)


class Bound(Aggregate):
    """The start of the window that ends, or the first instant (or position) after it."""

    def __init__(self, *common: Any, start: str, plus: int, **rest: Any) -> None:
        self.start, self.plus, self.choices = start, plus, (start, plus)
        super().__init__(*common, **rest)

    def wire(self, name: str, kind: Type) -> Wire:
        least, largest = self.row[self.start].range
        return Wire(name, kind, *bits_of_range(least, largest + self.plus))

    def fold(self, m: Module, take: Value, clear: Value, payload: Any) -> None:
        m.d.comb += payload[self.result.name].eq(Value.cast(self.i.payload[self.start]) + self.plus)


FORMS: dict[str, Callable[..., Aggregate]] = {
    "count": Count,
    "count_if": CountIf,
    "sum": Sum,
    "avg": Avg,
    "min": partial(Extreme, largest=False),
    "max": partial(Extreme, largest=True),
    "any": partial(Extreme, largest=True),
    "every": partial(Extreme, largest=False),
    "wsum": Wsum,
}
"""The components of aggregate functions by name; the circuit refuses a function that is not here."""
