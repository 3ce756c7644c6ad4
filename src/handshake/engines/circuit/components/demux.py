"""De-multiplexing a stream that carries several, by the type of its messages (Glacier, section 5.3)."""

from __future__ import annotations

from operator import or_
from typing import Any

from amaranth.hdl import Const, Module, Value
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.operators import branch, copy_field
from handshake.engines.circuit.components.stream import (
    StreamSignature,
    moves,
    register,
    stream_in,
    stream_out,
)
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row, Wire, null_of


class StreamDemux(Block):
    """Tuples of `i` leave on `o0`, `o1`, … by what `field` holds; those that no stream claims are counted.

    `values[n]` are the values of the stream n, `columns[n]` its fields. A tuple that several claim leaves on
    each of them. Latency 1, issue rate 1. Counter: `unknown`.
    """

    latency = 1
    counters = ("unknown",)

    def __init__(
        self,
        row: Row,
        field: str,
        values: tuple[tuple[int | str, ...], ...],
        columns: tuple[tuple[str, ...], ...],
    ) -> None:
        self.row, self.field, self.values = row, field, values
        self.rows = [Row(tuple(row[name] for name in names)) for names in columns]
        ports: dict[str, Any] = {f"o{n}": stream_out(each) for n, each in enumerate(self.rows)}
        ports |= {"i": stream_in(row), "unknown": Out(COUNTER)}
        super().__init__(ports, (row, field, values, columns))

    def build(self) -> Module:
        m = Module()
        ways = [StreamSignature(self.row).create(path=(f"way{n}",)) for n in range(len(self.rows))]
        branch(m, self.i, ways)
        claims = [holds(self.i.payload, self.row[self.field], values) for values in self.values]
        for n, (way, row) in enumerate(zip(ways, self.rows, strict=True)):
            made = StreamSignature(row).create(path=(f"made{n}",))
            for each in row:
                copy_field(m, made.payload, way.payload, each, each.name)
            m.d.comb += [made.valid.eq(way.valid & claims[n]), made.eos.eq(way.eos), way.ready.eq(made.ready)]
            register(m, made, getattr(self, f"o{n}"))
        with m.If(moves(self.i) & self.i.valid & ~tree_of(or_, claims)):
            m.d.sync += self.unknown.eq(self.unknown + 1)
        return m


def holds(payload: Any, each: Wire, values: tuple[int | str, ...]) -> Value:
    """Return whether a field holds one of these values."""
    tag = Value.cast(payload[each.name])
    fits = [Const(each.encode(value), each.shape) for value in values]
    claimed = tree_of(or_, [tag == constant for constant in fits])
    return claimed & ~payload[null_of(each.name)] if each.nullable else claimed
