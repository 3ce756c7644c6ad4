"""A net to one component: blocks, wires between them, and forks where one stream feeds several."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import reduce
from operator import add
from typing import Any

from amaranth.hdl import Const, Module
from amaranth.lib.wiring import Out

from handshake.engines.circuit.components.block import COUNTER, Block
from handshake.engines.circuit.components.operators import Fork
from handshake.engines.circuit.components.stream import forward, stream_in, stream_out


class Circuit(Block):
    """All components of some nets, wired. Ports: an input for each leaf, an output for each net.

    `rename` gives leaves other names than their own. Counters of the components are put together by name.
    """

    def __init__(
        self, outputs: Mapping[str, Any], rename: Mapping[str, str] | None = None, title: str = "circuit"
    ) -> None:
        self.outputs, self._title = dict(outputs), title
        self.order = _sort(self.outputs.values())
        leaves = [net for net in self.order if not net.inputs]
        names = {net.unit: (rename or {}).get(net.name, net.name) for net in leaves}
        self.leaves = {names[net.unit]: net for net in leaves}
        self.blocks = {net.unit: net.block() for net in self.order if net.inputs}
        self.latency = max(net.latency for net in self.outputs.values())
        found = {name for block in self.blocks.values() for name in block.counters}
        self.counters = tuple(sorted(found))
        ports: dict[str, Any] = {name: stream_in(net.row) for name, net in self.leaves.items()}
        ports |= {name: stream_out(net.row) for name, net in self.outputs.items()}
        ports |= {name: Out(COUNTER) for name in self.counters}
        super().__init__(ports, (tuple(self.outputs.items()), title))

    @property
    def title(self) -> str:
        """The name that it was given."""
        return self._title

    def build(self) -> Module:
        m = Module()
        taken: dict[str, int] = {}
        for block in self.blocks.values():
            taken[block.title] = taken.get(block.title, 0) + 1
            m.submodules[f"{block.title}{taken[block.title]}"] = block
        self._wire(m, self._consumers())
        for name in self.counters:
            parts = [getattr(b, name) for b in self.blocks.values() if name in b.counters]
            m.d.comb += getattr(self, name).eq(reduce(add, parts))
        return m

    def _consumers(self) -> dict[tuple[Hashable, str], list[Any]]:
        """Return for each stream inside the inputs that it feeds."""
        fed: dict[tuple[Hashable, str], list[Any]] = {}
        done: set[Hashable] = set()
        for net in self.order:
            if net.inputs and net.unit not in done:
                done.add(net.unit)
                block, single = self.blocks[net.unit], len(net.inputs) == 1 and not hasattr(net, "sources")
                for n, source in enumerate(net.inputs):
                    sink = getattr(block, "i" if single else f"i{n}")
                    fed.setdefault((source.unit, source.port), []).append(sink)
        for name, net in self.outputs.items():
            fed.setdefault((net.unit, net.port), []).append(getattr(self, name))
        return fed

    def _wire(self, m: Module, fed: dict[tuple[Hashable, str], list[Any]]) -> None:
        rows = {(net.unit, net.port): net.row for net in self.order}
        streams = {(net.unit, net.port): getattr(self, name) for name, net in self.leaves.items()}
        for unit, block in self.blocks.items():
            outs = [name for name in block.signature.members if _is_output(block, name)]
            streams |= {(unit, name): getattr(block, name) for name in outs}
        for index, (key, stream) in enumerate(streams.items()):
            sinks = fed.get(key, [])
            if not sinks:  # a stream that nothing reads is let go
                m.d.comb += stream.ready.eq(Const(1, 1))
            elif len(sinks) == 1:
                forward(m, stream, sinks[0])
            else:
                m.submodules[f"fork{index}"] = fork = Fork(rows[key], len(sinks))
                forward(m, stream, fork.i)
                for n, sink in enumerate(sinks):
                    forward(m, getattr(fork, f"o{n}"), sink)


def _is_output(block: Block, name: str) -> bool:
    member = block.signature.members[name]
    return not member.is_port and member.flow.name == "Out"


def _sort(nets: Any) -> list[Any]:
    """Return all nets of a circuit, inputs before their readers."""
    order: dict[int, Any] = {}

    def visit(net: Any) -> None:
        if id(net) not in order:
            for source in net.inputs:
                visit(source)
            order[id(net)] = net

    for net in nets:
        visit(net)
    return list(order.values())
