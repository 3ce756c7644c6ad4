"""n-way union: tuples of several streams in one, in turn (Glacier, section 4.4)."""

from __future__ import annotations

from operator import or_
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.fifo import Fifo
from handshake.engines.circuit.components.stream import forward, stream_in, stream_out
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row


def lowest(bits: Value) -> Value:
    """Return the lowest bit that is set, alone."""
    return bits & (-bits)[: len(bits)]


def rotating_grant(m: Module, requests: list[Value], after: Signal) -> Value:
    """Return a one-hot choice among `requests`, round robin; `after` has ones after the last choice."""
    asked, grant = Signal(len(requests), name="asked"), Signal(len(requests), name="grant")
    later = asked & after
    m.d.comb += [asked.eq(Cat(*requests)), grant.eq(Mux(later.any(), lowest(later), lowest(asked)))]
    return grant


def ones_above(grant: Value) -> Value:
    """Return ones at all positions above the one that is set."""
    return ~((grant - 1)[: len(grant)] | grant)


def multiplex(grant: Value, payloads: list[Any]) -> Value:
    """Return the payload that a one-hot choice names, by AND and OR."""
    values = [Value.cast(payload) for payload in payloads]
    return tree_of(or_, [value & grant[n].replicate(len(value)) for n, value in enumerate(values)])


class Union(Block):
    """Every tuple of the inputs `i0`, `i1`, … leaves on `o` once; tuples of one input keep their order.

    Each input has a FIFO of `depth` beats (latency 1); a round-robin state machine picks one of those that
    hold a tuple and writes it to the output register (latency 1). Together the inputs may bring one tuple
    per cycle; what is more is held back. `o.eos` follows when every input has ended. With `depth=0` the
    inputs have no FIFO and the latency is 1.
    """

    def __init__(self, row: Row, inputs: int, *, depth: int = 2) -> None:
        self.row, self.inputs, self.depth = row, inputs, depth
        self.latency = 2 if depth else 1
        ports: dict[str, Any] = {f"i{n}": stream_in(row) for n in range(inputs)}
        super().__init__(ports | {"o": stream_out(row)}, (row, inputs, depth))

    def build(self) -> Module:
        m = Module()
        heads = [self._head(m, n) for n in range(self.inputs)]
        after = Signal(self.inputs)
        ended = Signal(self.inputs)
        free = Signal()
        # An input that has ended waits until the others have too, so that its next stream cannot overtake.
        grant = rotating_grant(m, [head.valid & ~ended[n] for n, head in enumerate(heads)], after)
        m.d.comb += free.eq(~(self.o.valid | self.o.eos) | self.o.ready)
        ends = [head.eos & ~ended[n] & (~head.valid | grant[n]) for n, head in enumerate(heads)]
        for n, head in enumerate(heads):
            m.d.comb += head.ready.eq(free & ~ended[n] & Mux(head.valid, grant[n], head.eos))
        everything = Signal()
        m.d.comb += everything.eq((ended | Cat(*ends)).all())
        with m.If(free):
            m.d.sync += [
                self.o.valid.eq(grant.any()),
                self.o.eos.eq(everything),
                ended.eq(Mux(everything, 0, ended | Cat(*ends))),
                self.o.payload.eq(multiplex(grant, [head.payload for head in heads])),
            ]
            with m.If(grant.any()):
                m.d.sync += after.eq(ones_above(grant))
        return m

    def _head(self, m: Module, n: int) -> Any:
        """Return the stream that the state machine sees: the FIFO's, or the input itself."""
        source = getattr(self, f"i{n}")
        if not self.depth:
            return source
        m.submodules[f"fifo{n}"] = fifo = Fifo(self.row, self.depth)
        forward(m, source, fifo.i)
        return fifo.o
