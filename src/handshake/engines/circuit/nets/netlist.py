"""Circuits as values: which components a query needs and how they are wired. Building one makes no gates.

Rules rewrite these; `block()` turns a node into a component, and nets.assemble wires them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.demux import StreamDemux
from handshake.engines.circuit.components.divide import PipelinedDivide, SerialDivide
from handshake.engines.circuit.components.operators import Compute, Concat, Delay, Operation, Project, Select
from handshake.engines.circuit.components.stamp import Stamp, Widen
from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.components.union import Union
from handshake.errors import HandshakeError


@dataclass(frozen=True)
class Net(ABC):
    """A component and what feeds it."""

    @property
    def inputs(self) -> tuple[Net, ...]:
        """The nets that feed its inputs, in order."""
        return ()

    @abstractmethod
    def block(self) -> Block:
        """Return the component itself."""

    @cached_property
    def row(self) -> Row:
        """The wires of its output."""
        row: Row = self.block().signature.members[self.port].signature.row
        return row

    @cached_property
    def delay(self) -> int:
        """Cycles that this component alone takes."""
        return self.block().latency

    @cached_property
    def latency(self) -> int:
        """Cycles from the input of the circuit to the output of this component."""
        return max((net.latency for net in self.inputs), default=0) + self.delay

    @property
    def unit(self) -> Hashable:
        """The component that this is an output of."""
        return id(self)

    @property
    def port(self) -> str:
        """The output of that component."""
        return "o"

    def with_inputs(self, inputs: tuple[Net, ...]) -> Net:
        """Return this component, fed by other nets."""
        return self


@dataclass(frozen=True)
class Input(Net):
    """A stream that comes from outside: of the circuit, or of a sub-circuit."""

    name: str
    wires: Row

    @cached_property
    def row(self) -> Row:
        return self.wires

    @cached_property
    def delay(self) -> int:
        return 0

    def block(self) -> Block:
        raise HandshakeError(f"no component makes the input '{self.name}': it comes from outside")


@dataclass(frozen=True)
class UnaryNet(Net):
    """A component with one input."""

    source: Net

    @property
    def inputs(self) -> tuple[Net, ...]:
        return (self.source,)

    def with_inputs(self, inputs: tuple[Net, ...]) -> Net:
        return replace(self, source=inputs[0])


@dataclass(frozen=True)
class StageNet(UnaryNet):
    """Gates with an optional register behind them."""

    registered: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class StampNet(UnaryNet):
    """Time and clock of a source's tuples, as hidden fields."""

    time: str
    lateness: int

    def block(self) -> Block:
        return Stamp(self.source.row, self.time, self.lateness)


@dataclass(frozen=True)
class WidenNet(UnaryNet):
    """Fields on more wires, so that all streams of a union have the same wires."""

    target: Row

    def block(self) -> Block:
        return Widen(self.source.row, self.target)


@dataclass(frozen=True)
class DemuxNet(UnaryNet):
    """One of the streams that an input carries."""

    field: str
    values: tuple[tuple[int | str, ...], ...]
    """The values of the field in the tuples of each stream."""
    columns: tuple[tuple[str, ...], ...]
    chosen: int

    @property
    def unit(self) -> Hashable:
        return ("demux", id(self.source))

    @property
    def port(self) -> str:
        return f"o{self.chosen}"

    def block(self) -> Block:
        return StreamDemux(self.source.row, self.field, self.values, self.columns)


@dataclass(frozen=True)
class SelectNet(StageNet):
    """A selection by a Boolean field."""

    field: str

    def block(self) -> Block:
        return Select(self.source.row, self.field, registered=self.registered)


@dataclass(frozen=True)
class ProjectNet(StageNet):
    """A projection to some fields."""

    columns: tuple[tuple[str, str], ...]

    def block(self) -> Block:
        return Project(self.source.row, self.columns, registered=self.registered)


@dataclass(frozen=True)
class ComputeNet(StageNet):
    """One operation, or several in parallel (arithmetic, comparison, logic)."""

    operations: tuple[Operation, ...]

    def block(self) -> Block:
        return Compute(self.source.row, self.operations, registered=self.registered)


@dataclass(frozen=True)
class DelayNet(UnaryNet):
    """A result that leaves `cycles` later."""

    cycles: int

    def block(self) -> Block:
        return Delay(self.source.row, self.cycles)


@dataclass(frozen=True)
class DivideNet(UnaryNet):
    """A divider of averages: a stage for each step, or one for all of them."""

    pipelined: bool

    def block(self) -> Block:
        return (PipelinedDivide if self.pipelined else SerialDivide)(self.source.row)


@dataclass(frozen=True)
class NaryNet(Net):
    """A component with several inputs."""

    sources: tuple[Net, ...]

    @property
    def inputs(self) -> tuple[Net, ...]:
        return self.sources

    def with_inputs(self, inputs: tuple[Net, ...]) -> Net:
        return replace(self, sources=inputs)


@dataclass(frozen=True)
class ConcatNet(NaryNet):
    """A concatenation of rows."""

    registered: bool = True

    def block(self) -> Block:
        return Concat(tuple(net.row for net in self.sources), registered=self.registered)


@dataclass(frozen=True)
class UnionNet(NaryNet):
    """A union of streams of the same wires."""

    def block(self) -> Block:
        return Union(self.sources[0].row, len(self.sources))


def walk(net: Net) -> Iterator[Net]:
    """Yield the net and all that feeds it, bodies included, each object once, readers first."""
    seen: set[int] = set()
    waiting = [net]
    while waiting:
        here = waiting.pop()
        if id(here) not in seen:
            seen.add(id(here))
            yield here
            waiting.extend(here.inputs)
            body = getattr(here, "body", None)
            waiting.extend([body] if isinstance(body, Net) else [])


def rebuild(net: Net, rule: Callable[[Net], Net], done: dict[int, Net]) -> Net:
    """Rewrite a net from its inputs on; shared nets stay shared, also by calls with the same `done`."""

    def rewrite(here: Net) -> Net:
        if id(here) not in done:
            done[id(here)] = rule(_with_parts(here, rewrite))
        return done[id(here)]

    return rewrite(net)


def _with_parts(here: Net, rewrite: Callable[[Net], Net]) -> Net:
    inputs = tuple(rewrite(net) for net in here.inputs)
    if any(a is not b for a, b in zip(inputs, here.inputs, strict=True)):
        here = here.with_inputs(inputs)
    body = getattr(here, "body", None)
    if isinstance(body, Net) and (made := rewrite(body)) is not body:
        here = replace(here, body=made)  # type: ignore[call-arg]
    return here
