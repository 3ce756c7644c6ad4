"""Nets with sub-plans: aggregates, groups and windows, and the templates that copy what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from handshake.engines.circuit.components import aggregate as agg
from handshake.engines.circuit.components.block import Block
from handshake.engines.circuit.components.group import (
    Group,
    GroupedWindows,
    Route,
    grouped_row,
    looked_up_row,
)
from handshake.engines.circuit.components.slide import START, Slide, body_row
from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.components.window import Windows
from handshake.engines.circuit.nets.assemble import Circuit
from handshake.engines.circuit.nets.netlist import Net, UnaryNet
from handshake.schema import Type


@dataclass(frozen=True)
class AggregateNet(UnaryNet):
    """An aggregate function of a window or group."""

    function: str
    name: str
    type: Type
    field: str | None
    most: int
    if_empty: bool
    weights: tuple[int, ...] = ()
    size: int = 0
    where: str | None = None
    """FILTER: the column that is TRUE in the tuples that count."""

    def block(self) -> Block:
        row, name, kind = self.source.row, self.name, self.type
        rest: dict[str, Any] = {"most": self.most, "if_empty": self.if_empty, "where": self.where}
        if self.function in ("window_start", "window_end"):
            plus = self.size if self.function == "window_end" else 0
            return agg.Bound(row, name, kind, start=START, plus=plus, if_empty=self.if_empty)
        if self.weights:
            rest["weights"] = self.weights
        return agg.FORMS[self.function](row, name, kind, self.field, **rest)


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
        """Return a copy, with the ports `i` and `o`."""
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
        """Return a copy, with the ports `i` and `o`."""
        return Route(self.row, self.keys, self.body)


@dataclass(frozen=True)
class GroupNet(UnaryNet):
    """Grouping, with a CAM of its own."""

    keys: tuple[str, ...]
    body: Net
    entries: int
    write_cycles: int

    def block(self) -> Block:
        body = SubCircuit(self.body)
        return Group(self.source.row, self.keys, body, self.entries, write_cycles=self.write_cycles)


@dataclass(frozen=True)
class WindowNet(UnaryNet):
    """Windows around a sub-plan."""

    slide: Slide
    body: Net
    merge: str = "union"

    def block(self) -> Block:
        return Windows(self.source.row, self.slide, SubCircuit(self.body), merge=self.merge)


@dataclass(frozen=True)
class GroupedWindowNet(UnaryNet):
    """Grouping inside windows, with one CAM for all of them (section 6.4)."""

    keys: tuple[str, ...]
    slide: Slide
    body: Net
    entries: int
    write_cycles: int
    merge: str = "union"

    def block(self) -> Block:
        lookup = looked_up_row(self.source.row, self.entries)
        route = RouteBody(body_row(lookup, self.slide), self.keys, SubCircuit(self.body))
        return GroupedWindows(
            self.source.row, self.keys, self.slide, route, self.entries, self.write_cycles, self.merge
        )
