"""Circuits as values: which components a query needs and how they are wired. Building one makes no gates.

Rules rewrite these; `block()` turns a node into a component, and handshake.circuit.assemble wires them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from handshake.circuit import aggregate as agg
from handshake.circuit.assemble import Circuit
from handshake.circuit.block import Block
from handshake.circuit.demux import StreamDemux
from handshake.circuit.group import Group, Route, grouped_row
from handshake.circuit.grouped_window import GroupedWindows, looked_up_row
from handshake.circuit.operators import (
    Compute,
    Concat,
    Operation,
    Project,
    Select,
    computed_row,
    concatenated_row,
    projected_row,
)
from handshake.circuit.slide import START, Slide, body_row, window_row
from handshake.circuit.stamp import Stamp, Widen, stamped_row
from handshake.circuit.types import Row
from handshake.circuit.union import Union
from handshake.circuit.window import Windows
from handshake.errors import HandshakeError
from handshake.schema import Type

__all__ = [
    "AggregateNet",
    "ComputeNet",
    "ConcatNet",
    "DemuxNet",
    "GroupNet",
    "GroupedWindowNet",
    "Input",
    "Net",
    "ProjectNet",
    "RouteBody",
    "SelectNet",
    "StageNet",
    "StampNet",
    "SubCircuit",
    "UnionNet",
    "WidenNet",
    "WindowNet",
    "rebuild",
    "walk",
]


@dataclass(frozen=True)
class Net(ABC):
    """A component and what feeds it."""

    @property
    def inputs(self) -> tuple[Net, ...]:
        """The nets that feed its inputs, in order."""
        return ()

    @property
    @abstractmethod
    def row(self) -> Row:
        """The wires of its output."""

    @abstractmethod
    def block(self) -> Block:
        """The component itself."""

    @property
    def delay(self) -> int:
        """Cycles that this component alone takes."""
        return self.block().latency

    @property
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
        """The same component, fed by others."""
        return self


@dataclass(frozen=True)
class Input(Net):
    """A stream that comes from outside: of the circuit, or of a sub-circuit."""

    name: str
    wires: Row

    @property
    def row(self) -> Row:
        return self.wires

    def block(self) -> Block:
        raise HandshakeError(f"no component makes the input '{self.name}': it comes from outside")

    @property
    def delay(self) -> int:
        return 0


@dataclass(frozen=True)
class _Unary(Net):
    source: Net

    @property
    def inputs(self) -> tuple[Net, ...]:
        return (self.source,)

    def with_inputs(self, inputs: tuple[Net, ...]) -> Net:
        return replace(self, source=inputs[0])


@dataclass(frozen=True)
class StageNet(_Unary):
    """Gates with an optional register behind them."""

    registered: bool = field(default=True, kw_only=True)

    @property
    def delay(self) -> int:
        return int(self.registered)


@dataclass(frozen=True)
class StampNet(_Unary):
    """Time and clock of a source's tuples, as hidden fields."""

    time: str
    lateness: int

    @property
    def row(self) -> Row:
        return stamped_row(self.source.row, self.time)

    @property
    def delay(self) -> int:
        return 0

    def block(self) -> Block:
        return Stamp(self.source.row, self.time, self.lateness)


@dataclass(frozen=True)
class WidenNet(_Unary):
    """The same fields on more wires, so that streams of a union are alike."""

    target: Row

    @property
    def row(self) -> Row:
        return self.target

    @property
    def delay(self) -> int:
        return 0

    def block(self) -> Block:
        return Widen(self.source.row, self.target)


@dataclass(frozen=True)
class DemuxNet(_Unary):
    """One of the streams that an input carries."""

    field: str
    values: tuple[tuple[int | str, ...], ...]
    """What the field holds in the tuples of each stream."""
    columns: tuple[tuple[str, ...], ...]
    chosen: int

    @property
    def unit(self) -> Hashable:
        return ("demux", id(self.source))

    @property
    def port(self) -> str:
        return f"o{self.chosen}"

    @property
    def row(self) -> Row:
        return Row(tuple(self.source.row[name] for name in self.columns[self.chosen]))

    @property
    def delay(self) -> int:
        return 1

    def block(self) -> Block:
        return StreamDemux(self.source.row, self.field, self.values, self.columns)


@dataclass(frozen=True)
class SelectNet(StageNet):
    """Selection."""

    field: str

    @property
    def row(self) -> Row:
        return self.source.row

    def block(self) -> Block:
        return Select(self.source.row, self.field, registered=self.registered)


@dataclass(frozen=True)
class ProjectNet(StageNet):
    """Projection."""

    columns: tuple[tuple[str, str], ...]

    @cached_property
    def _row(self) -> Row:
        return projected_row(self.source.row, self.columns)

    @property
    def row(self) -> Row:
        return self._row

    def block(self) -> Block:
        return Project(self.source.row, self.columns, registered=self.registered)


@dataclass(frozen=True)
class ComputeNet(StageNet):
    """One operation, or several side by side (arithmetic, comparison, logic)."""

    operations: tuple[Operation, ...]

    @cached_property
    def _row(self) -> Row:
        return computed_row(self.source.row, self.operations)

    @property
    def row(self) -> Row:
        return self._row

    def block(self) -> Block:
        return Compute(self.source.row, self.operations, registered=self.registered)


@dataclass(frozen=True)
class AggregateNet(_Unary):
    """An aggregate."""

    function: str
    name: str
    type: Type
    field: str | None
    most: int
    if_empty: bool
    weights: tuple[int, ...] = ()
    size: int = 0

    @cached_property
    def _row(self) -> Row:
        return self._block().after

    @property
    def row(self) -> Row:
        return self._row

    @property
    def delay(self) -> int:
        return 1

    def block(self) -> Block:
        return self._block()

    def _block(self) -> agg.Aggregate:
        row, name, kind = self.source.row, self.name, self.type
        rest: dict[str, Any] = {"most": self.most, "if_empty": self.if_empty}
        if self.function == "count":
            return agg.Count(row, name, kind, self.field, **rest)
        if self.function in ("window_start", "window_end"):
            plus = self.size if self.function == "window_end" else 0
            return agg.Bound(row, name, kind, start=START, plus=plus, if_empty=self.if_empty)
        assert self.field is not None
        if self.function == "wsum":
            return agg.Wsum(row, name, kind, self.field, weights=self.weights, **rest)
        if self.function in ("min", "max"):
            return agg.Extreme(row, name, kind, self.field, largest=self.function == "max", **rest)
        return {"sum": agg.Sum, "avg": agg.Avg}[self.function](row, name, kind, self.field, **rest)


@dataclass(frozen=True)
class _Nary(Net):
    sources: tuple[Net, ...]

    @property
    def inputs(self) -> tuple[Net, ...]:
        return self.sources

    def with_inputs(self, inputs: tuple[Net, ...]) -> Net:
        return replace(self, sources=inputs)


@dataclass(frozen=True)
class ConcatNet(_Nary):
    """Concatenation."""

    registered: bool = True

    @property
    def row(self) -> Row:
        return concatenated_row(tuple(net.row for net in self.sources))

    @property
    def delay(self) -> int:
        return int(self.registered)

    def block(self) -> Block:
        return Concat(tuple(net.row for net in self.sources), registered=self.registered)


@dataclass(frozen=True)
class UnionNet(_Nary):
    """Union."""

    @property
    def row(self) -> Row:
        return self.sources[0].row

    @property
    def delay(self) -> int:
        return 2

    def block(self) -> Block:
        return Union(self.row, len(self.sources))


@dataclass(frozen=True)
class SubCircuit:
    """A sub-plan as a component that can be copied: from its parameter to its result."""

    net: Net

    @property
    def after(self) -> Row:
        """The row of its results."""
        return self.net.row

    @property
    def latency(self) -> int:
        """Cycles from `eos` to the first result."""
        return self.net.latency

    def make(self) -> Block:
        """A copy, with the ports `i` and `o`."""
        return Circuit({"o": self.net}, {"x": "i", "y": "i"}, title="sub_plan")


@dataclass(frozen=True)
class RouteBody:
    """De-multiplexer and copies for groups, as the sub-plan of a window whose CAM stands outside."""

    row: Row
    keys: tuple[str, ...]
    body: SubCircuit

    @property
    def after(self) -> Row:
        """The row of its results."""
        return grouped_row(self.body.after, self.keys)

    @property
    def latency(self) -> int:
        """Cycles from `eos` to the first result."""
        return self.body.latency + 1

    def make(self) -> Block:
        """A copy."""
        return Route(self.row, self.keys, self.body)


@dataclass(frozen=True)
class GroupNet(_Unary):
    """Grouping, with a CAM of its own."""

    keys: tuple[str, ...]
    body: Net
    entries: int
    write_cycles: int

    @property
    def row(self) -> Row:
        return grouped_row(self.body.row, self.keys)

    @property
    def delay(self) -> int:
        return 2 + self.body.latency + 1

    def block(self) -> Block:
        body = SubCircuit(self.body)
        return Group(self.source.row, self.keys, body, self.entries, write_cycles=self.write_cycles)


@dataclass(frozen=True)
class WindowNet(_Unary):
    """Windowing."""

    slide: Slide
    body: Net
    merge: str = "union"

    @property
    def row(self) -> Row:
        return window_row(self.body.row, self.slide)

    @property
    def delay(self) -> int:
        return self.body.latency + (2 if self.merge == "union" else 1)

    def block(self) -> Block:
        return Windows(self.source.row, self.slide, SubCircuit(self.body), merge=self.merge)


@dataclass(frozen=True)
class GroupedWindowNet(_Unary):
    """Grouping inside windows, with one CAM for all of them (section 6.4)."""

    keys: tuple[str, ...]
    slide: Slide
    body: Net
    entries: int
    write_cycles: int
    merge: str = "union"

    @property
    def row(self) -> Row:
        return window_row(grouped_row(self.body.row, self.keys), self.slide)

    @property
    def delay(self) -> int:
        return 2 + self.body.latency + 1 + (2 if self.merge == "union" else 1)

    def block(self) -> Block:
        lookup = looked_up_row(self.source.row, self.entries)
        route = RouteBody(body_row(lookup, self.slide), self.keys, SubCircuit(self.body))
        return GroupedWindows(
            self.source.row, self.keys, self.slide, route, self.entries, self.write_cycles, self.merge
        )


def walk(net: Net) -> Iterator[Net]:
    """The net and all that feeds it, bodies included, each object once, what is behind first."""
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
    """Rewrite a net from its inputs on; what is shared, also by calls with the same `done`, stays shared."""

    def rewritten(here: Net) -> Net:
        if id(here) not in done:
            done[id(here)] = rule(_with_parts(here, rewritten))
        return done[id(here)]

    return rewritten(net)


def _with_parts(here: Net, rewritten: Callable[[Net], Net]) -> Net:
    inputs = tuple(rewritten(net) for net in here.inputs)
    if any(a is not b for a, b in zip(inputs, here.inputs, strict=True)):
        here = here.with_inputs(inputs)
    body = getattr(here, "body", None)
    if isinstance(body, Net) and (made := rewritten(body)) is not body:
        here = replace(here, body=made)  # type: ignore[call-arg]
    return here
