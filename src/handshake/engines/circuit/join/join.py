"""Handshake join as a circuit: cores in a line, a tree of mergers over them, and the admission of input.

R enters at the first core and S at the last one; each core hands its oldest tuples on. After the end of the
input, empty tuples push all others through, so that every pair that was to meet has met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Value

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.stream import forward, stream_in, stream_out
from handshake.engines.circuit.join.arrivals import arrivals_row
from handshake.engines.circuit.join.condition import PairGates
from handshake.engines.circuit.join.core import CoreShape, LocalCore
from handshake.engines.circuit.join.design import Design
from handshake.engines.circuit.join.driver import LocalDriver
from handshake.engines.circuit.join.links import Tail, Way
from handshake.engines.circuit.join.merger import GrantingMerger, leave, merge


class HandshakeJoin(Block):
    """The join of two streams over tuple windows.

    Ports: `arrivals` (see `arrivals_row`) and `results` (the condition's result row).
    """

    def __init__(self, condition: PairGates, design: Design, **ports: Any) -> None:
        self.condition, self.design = condition, design
        streams = {"arrivals": stream_in(arrivals_row(condition)), "results": stream_out(condition.result)}
        super().__init__({**streams, **ports}, (condition.key, design))

    def build(self) -> Module:
        m = Module()
        m.submodules.driver = driver = LocalDriver(self.condition, self.design)
        forward(m, self.arrivals, driver.arrivals)
        cores = [LocalCore(self.condition, CoreShape.of(self.design, i)) for i in range(self.design.cores)]
        for index, core in enumerate(cores):
            m.submodules[f"core{index}"] = core
        m.submodules.tail = tail = Tail(
            self.condition.right.bits + 1, self.design.in_flight, self.design.unseen
        )
        _link(m, [driver.r, *(core.r_out for core in cores)], [core.r_in for core in cores])
        _link(m, [*(core.s_out for core in cores[1:]), tail.s], [core.s_in for core in cores])
        m.d.comb += [cores[-1].r_out.ready.eq(1), cores[0].s_out.ready.eq(1)]
        root, _ = self._merge(m, cores, GrantingMerger)
        over = leave(m, root, self.results)
        m.d.comb += [
            Cat(tail.pushes, tail.pushed).eq(self._way(m, "there", Cat(driver.pushes, driver.pushed))),
            driver.room.eq(self._way(m, "back", tail.room)), driver.over.eq(self._way(m, "end", over)),
        ]  # fmt: skip
        return m

    def _way(self, m: Module, name: str, value: Value) -> Value:
        """Carry a value from one end of the line to the other."""
        m.submodules[name] = way = Way(len(value), self.design.line_registers)
        m.d.comb += way.i.eq(value)
        return Value.cast(way.o)

    def _merge(self, m: Module, cores: Sequence[Any], kind: Any) -> tuple[Any, list[Any]]:
        bits, depth = self.condition.result.bits, self.design.merger_buffer
        return merge(m, [core.results for core in cores], bits, depth, kind, self.design.link_registers)


def _link(m: Module, sources: Sequence[Any], sinks: Sequence[Any]) -> None:
    for source, sink in zip(sources, sinks, strict=False):
        m.d.comb += [
            sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)
        ]  # fmt: skip
