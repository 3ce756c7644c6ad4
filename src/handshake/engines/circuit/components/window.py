"""Windowing template: sub-plan copies that take turns (Glacier, section 4.5 and figure 5).

`⌈k/l⌉ + 1` copies of the sub-plan: as many as windows can be open, and one that sends results. Copies stand
in a ring; the one-hot register `oldest` (CSR2) marks the oldest open window, the windows after it are in the
copies after it (CSR1 is "all but the one before the oldest"). An advance sends `eos` to the oldest copy and
rotates the ring. Tuples go to the copies whose windows they are in.

Time windows advance by the clocks of tuples, tuple windows by counting; docs/queries.md says who is in.
"""

from __future__ import annotations

from operator import add, or_
from typing import Any, Protocol

from amaranth.hdl import Module
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.slide import Slide, body_row, window_row
from handshake.engines.circuit.components.stream import stream_in, stream_out
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.components.window_control import TimeControl, TupleControl


class Body(Protocol):
    """A sub-plan: what it reads, what it gives, and how to make one more copy of it."""

    @property
    def after(self) -> Row:
        """The row of its results."""

    @property
    def latency(self) -> int:
        """Cycles from `eos` to the first result."""

    def make(self) -> Block:
        """Return a copy, with the ports `i` and `o`."""


class Windows(Block):
    """Runs `body` on each window of the stream `i` and sends the results on `o`.

    `merge` is "union" (a FIFO per copy, then the output register: two cycles) or "multiplexer" (straight into
    the output register: one cycle; section 6.3); windows take turns in the order in which they closed.
    Latency is that of the sub-plan plus that of merging, from the beat that closes a window to its first
    result. The issue rate is 1 while a tuple closes at most one window; a tuple that closes w windows takes
    w cycles, and after a gap in which no window is open the place of the next one is found in one cycle per
    bit. Counters: `late` and `no_time` (tuples).
    """

    def __init__(self, row: Row, slide: Slide, body: Body, *, merge: str = "union") -> None:
        self.row, self.slide, self.body, self.merge = row, slide, body, merge
        self.latency = body.latency + (2 if merge == "union" else 1)
        self.inner = body_row(row, slide)
        self.after = window_row(body.after, slide)
        ports: dict[str, Any] = {"i": stream_in(row), "o": stream_out(self.after)}
        self.sample = body.make()
        self.counters = ("late", "no_time", *self.sample.counters)
        self.flags = self.sample.flags
        ports |= {name: Out(COUNTER) for name in self.counters}
        ports |= {name: Out(len(getattr(self.sample, name))) for name in self.flags}
        super().__init__(ports, (row, slide, body, merge))

    def build(self) -> Module:
        m = Module()
        n = self.slide.copies
        copies = [self.sample, *(self.body.make() for _ in range(n - 1))]
        for index, copy in enumerate(copies):
            m.submodules[f"copy{index}"] = copy
        for name in self.sample.counters:
            m.d.comb += getattr(self, name).eq(tree_of(add, (getattr(c, name) for c in copies)))
        for name in self.flags:
            m.d.comb += getattr(self, name).eq(tree_of(or_, (getattr(c, name) for c in copies)))
        (TimeControl if self.slide.kind == "time" else TupleControl)(m, self, copies).build()
        return m
