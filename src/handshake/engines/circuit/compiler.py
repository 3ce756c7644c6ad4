"""The front of the circuit back end: from a query to a circuit, with its ports, latency and text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from handshake.engines.circuit.components.trees import deep
from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.components.window_join import JoinSpec
from handshake.engines.circuit.emit import to_verilog
from handshake.engines.circuit.nets.assemble import Circuit
from handshake.engines.circuit.nets.bounds import Bounds
from handshake.engines.circuit.nets.join_nets import JoinNet
from handshake.engines.circuit.nets.netlist import Net, walk
from handshake.engines.circuit.nets.rules import optimise, prepare
from handshake.engines.circuit.nets.translate import translate
from handshake.errors import UnsupportedError
from handshake.plan.algebra import Plan

__all__ = ["Compiled", "compile_plan"]

_TAKEN = ("late", "no_time", "overflow", "unknown", "evicted", "clk", "rst")


@dataclass(frozen=True)
class Compiled:
    """A query as a circuit: nets for each result, from which any number of circuits can be made."""

    plan: Plan
    nets: dict[str, Net]

    @deep()
    def circuit(self) -> Circuit:
        """The circuit: an input stream for each source, an output stream for each result."""
        return Circuit(self.nets, title="query")

    def verilog(self, name: str = "query") -> str:
        """The circuit as Verilog."""
        return to_verilog(self.circuit(), name)

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
        """For each result, cycles from the tuple that completes it to the result itself.

        A tuple of a new group takes as many more as the CAM needs to take it in.
        """
        return {name: net.latency for name, net in self.nets.items()}

    def drifts(self, name: str) -> bool:
        """Whether a result comes from a handshake join, whose latency is the least: tuples drift together."""
        return any(not net.spec.ordered for net in _joins(self.nets[name]))

    @property
    def nested(self) -> list[JoinSpec]:
        """The joins of three and more streams, whose windows are scanned one inside of the other."""
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
def compile_plan(plan: Plan, bounds: Bounds | None = None, *, without: Iterable[str] = ()) -> Compiled:
    """Translate a plan and optimise its circuit; `without` names rules to leave out."""
    for name in (*(s.name for s in plan.inputs), *(o.name for o in plan.outputs)):
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or name in _TAKEN:
            raise UnsupportedError(
                f"ports of the circuit are called after streams, and '{name}' is no name for one; rename it"
            )
    left_out = tuple(without)
    return Compiled(plan, optimise(translate(prepare(plan, left_out), bounds), left_out))
