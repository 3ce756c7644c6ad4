"""Grouping inside windows with one CAM for all of them: un-nesting (Glacier, section 6.4)."""

from __future__ import annotations

from amaranth.hdl import Module
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.group import GROUP, Lookup
from handshake.engines.circuit.components.slide import Slide
from handshake.engines.circuit.components.stream import forward, stream_in, stream_out
from handshake.engines.circuit.components.types import Row, Wire
from handshake.engines.circuit.components.window import Body, Windows
from handshake.schema import INT64

__all__ = ["GroupedWindows", "looked_up_row"]


def looked_up_row(row: Row, entries: int) -> Row:
    """A tuple with the place of its group."""
    return Row((*row.wires, Wire(GROUP, INT64, entries)))


class GroupedWindows(Block):
    """A CAM, then windows whose copies are de-multiplexers with a sub-plan per group.

    The CAM holds the groups of all open windows; an entry is free again when no open window has its group.
    """

    counters = ("late", "no_time", "overflow")

    def __init__(
        self,
        row: Row,
        keys: tuple[str, ...],
        slide: Slide,
        route: Body,
        entries: int,
        write_cycles: int,
        merge: str,
    ) -> None:
        self.lookup = Lookup(row, keys, entries, write_cycles=write_cycles, clear_at_end=False)
        self.windows = Windows(self.lookup.after, slide, route, merge=merge)
        self.latency = self.lookup.latency + self.windows.latency
        ports = {"i": stream_in(row), "o": stream_out(self.windows.after)}
        ports |= {name: Out(COUNTER) for name in self.counters}
        super().__init__(ports, (row, keys, slide, route, entries, write_cycles, merge))

    def build(self) -> Module:
        m = Module()
        m.submodules.lookup, m.submodules.windows = self.lookup, self.windows
        forward(m, self.i, self.lookup.i)
        forward(m, self.lookup.o, self.windows.i)
        forward(m, self.windows.o, self.o)
        m.d.comb += [
            self.lookup.occupied.eq(self.windows.occupied),
            self.overflow.eq(self.lookup.overflow),
            self.late.eq(self.windows.late),
            self.no_time.eq(self.windows.no_time),
        ]
        return m
