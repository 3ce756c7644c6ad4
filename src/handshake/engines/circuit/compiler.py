"""The front of the circuit back end: from a query to a circuit, with its ports, latency and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from handshake.engines.circuit.adapters.attach import AdaptedCircuit, Adapters
from handshake.engines.circuit.components.trees import deep
from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.components.window_join import JoinSpec
from handshake.engines.circuit.emit import to_verilog
from handshake.engines.circuit.nets.assemble import Circuit
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.join_nets import JoinNet
from handshake.engines.circuit.nets.netlist import DelayNet, Net, walk
from handshake.engines.circuit.nets.rules import optimise, prepare
from handshake.engines.circuit.nets.translate import translate
from handshake.errors import UnsupportedError
from handshake.plan.algebra import Plan

_TAKEN = ("late", "no_time", "overflow", "unknown", "evicted", "clk", "rst")


@dataclass(frozen=True)
class Compiled:
    """A query as a circuit: nets for each result, from which any number of circuits can be made."""

    plan: Plan
    nets: dict[str, Net]
    adapters: Adapters = field(default_factory=Adapters)

    @deep()
    def circuit(self) -> Circuit:
        """Return the circuit: an input stream for each source, an output stream for each result."""
        return Circuit(self.nets, title="query")

    @deep()
    def with_adapters(self) -> AdaptedCircuit:
        """Return the circuit behind its adapters."""
        circuit = Circuit(self.nets, title="plan")
        return AdaptedCircuit(circuit, self.inputs, self.outputs, self.adapters)

    def top(self) -> Circuit | AdaptedCircuit:
        """Return the top of the design: the circuit, behind its adapters if it has any."""
        return self.with_adapters() if self.adapters.latency else self.circuit()

    def verilog(self, name: str = "query") -> str:
        """Return the circuit as Verilog, with its adapters if it has some."""
        return to_verilog(self.top(), name)

    @cached_property
    def inputs(self) -> dict[str, Row]:
        """The wires of each input stream."""
        return {name: net.row for name, net in self.circuit().leaves.items()}

    @property
    def outputs(self) -> dict[str, Row]:
        """The wires of each result."""
        return {name: net.row for name, net in self.nets.items()}

    @property
    def latency(self) -> dict[str, int]:
        """For each result, cycles from the tuple that completes it to the result itself, adapters included.

        A tuple of a new group takes as many more as the CAM needs to take it in.
        """
        return {name: net.latency + self.adapters.latency for name, net in self.nets.items()}

    def drifts(self, name: str) -> bool:
        """Return whether a result comes from a handshake join, whose latency is a lower bound."""
        return any(not net.spec.ordered for net in _joins(self.nets[name]))

    @property
    def nested(self) -> list[JoinSpec]:
        """The joins of three and more streams, whose windows are scanned inside one another."""
        joins = (net.spec for each in self.nets.values() for net in _joins(each))
        return list(dict.fromkeys(spec for spec in joins if len(spec.held) > 2))

    @property
    def issue_rate(self) -> float:
        """Tuples per cycle that the slowest component accepts."""
        blocks = self.circuit().blocks.values()
        return min((block.issue_rate for block in blocks), default=1.0)


def _joins(net: Net) -> Iterator[JoinNet]:
    return (each for each in walk(net) if isinstance(each, JoinNet))


@deep()
def compile_plan(
    plan: Plan,
    bounds: Bounds | None = None,
    *,
    without: Iterable[str] = (),
    input_adapter: str = "none",
    output_adapter: str = "none",
    udp_port: int = 5001,
    delay: int = 0,
) -> Compiled:
    """Translate a plan and optimise its circuit.

    Args:
        plan: The query.
        bounds: The limits that hardware needs and the query does not name.
        without: Names of optimisation rules to leave out.
        input_adapter: `none` (streams), `udp` (Ethernet frames) or `cpu` (registers).
        output_adapter: `none` (streams) or `cpu` (registers).
        udp_port: The UDP port of the first input stream; each further stream has the next one.
        delay: Cycles by which every result is delayed, to meet another circuit in step.
    """
    adapters = Adapters(input_adapter, output_adapter, udp_port)
    taken = (*_TAKEN, *adapters.ports)
    for name in (*(s.name for s in plan.inputs), *(o.name for o in plan.outputs)):
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in taken:
            raise UnsupportedError(
                f"ports of the circuit are called after streams, and '{name}' is no name for one; rename it"
            )
    left_out = tuple(without)
    nets = optimise(translate(prepare(plan, left_out), bounds), left_out)
    if delay:
        nets = {name: DelayNet(net, delay) for name, net in nets.items()}
    return Compiled(plan, nets, adapters)
