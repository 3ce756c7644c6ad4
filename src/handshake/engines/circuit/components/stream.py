"""The one interface between components: a stream of tuples, with back-pressure and an end.

In a cycle a stream carries a *beat* when `valid` or `eos` is high, and the beat moves when `ready` is
high too:

========= ======= ==========================================================
`valid`   `eos`   the beat is
========= ======= ==========================================================
1         0       a tuple
1         1       a tuple, the last of this (sub-)stream
0         1       the end of the (sub-)stream, with no tuple
0         0       nothing: no beat
========= ======= ==========================================================

Rules that every component keeps: a beat once offered stays as it is until it has moved; `valid` and `eos`
never depend on `ready` of the same stream in the same cycle; after `eos` a component is as after reset, so
a new stream may follow at once. `eos` closes a window towards a sub-plan and the whole input towards a
query (Glacier, section 4.5).
"""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from handshake.engines.circuit.components.types import Row


class StreamSignature(wiring.Signature):
    """Payload laid out by `row`, `valid`, `eos` (outwards) and `ready` (back)."""

    def __init__(self, row: Row) -> None:
        self.row = row
        super().__init__({"payload": Out(row.layout), "valid": Out(1), "eos": Out(1), "ready": In(1)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamSignature) and other.row.layout == self.row.layout

    __hash__ = None  # type: ignore[assignment]  # as of every Amaranth signature

    def __repr__(self) -> str:
        return f"StreamSignature({', '.join(f'{w.name}: {w.type}' for w in self.row)})"


def beat(stream: Any) -> Value:
    """Return a bit that is high while the stream offers a beat."""
    return stream.valid | stream.eos


def moves(stream: Any) -> Value:
    """Return a bit that is high in the cycle in which a beat moves."""
    return beat(stream) & stream.ready


def copy_beat(sink: Any, source: Any) -> list[Any]:
    """Return statements that give `sink` the beat of `source`."""
    return [sink.payload.eq(source.payload), sink.valid.eq(source.valid), sink.eos.eq(source.eos)]


def forward(m: Module, source: Any, sink: Any) -> None:
    """Wire `source` to `sink` of the same row, with no register between: latency 0."""
    m.d.comb += [*copy_beat(sink, source), source.ready.eq(sink.ready)]


def register(m: Module, source: Any, sink: Any) -> None:
    """Put a register between `source` and `sink`: latency 1, issue rate 1.

    A beat that is held holds `source` back.
    """
    free = Signal(name="free")
    m.d.comb += [free.eq(~beat(sink) | sink.ready), source.ready.eq(free)]
    with m.If(free):
        m.d.sync += copy_beat(sink, source)


def stream_in(row: Row) -> Any:
    """Return the signature member of an input stream."""
    return In(StreamSignature(row))


def stream_out(row: Row) -> Any:
    """Return the signature member of an output stream."""
    return Out(StreamSignature(row))
