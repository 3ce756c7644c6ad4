"""The condition of a join of three and more streams as gates, split by the streams that its parts read."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import and_

from amaranth.hdl import Const, Signal, Value

from handshake.engines.circuit.components.gates import columns_of, lower
from handshake.engines.circuit.components.trees import balanced
from handshake.engines.circuit.components.types import Row
from handshake.engines.circuit.join.condition import check_gates, is_true
from handshake.plan.expr import Expr, conjuncts, sides

__all__ = ["Combination", "Part"]


@dataclass(frozen=True)
class Part:
    """A conjunct, and the streams that it reads; one that reads none goes with the first stream."""

    reads: frozenset[int]
    on: Expr


@dataclass(frozen=True)
class Combination:
    """A bound predicate on a tuple of each stream: it holds where all its parts are TRUE, NULL being not."""

    rows: tuple[Row, ...]
    on: Expr

    def __post_init__(self) -> None:
        check_gates(self.on)
        # What gates cannot compute is found here, before anything is built.
        self.holds(self.parts, {k: Signal(row.bits) for k, row in enumerate(self.rows)})

    @property
    def key(self) -> Hashable:
        """Equal for equal conditions."""
        return self.rows, self.on

    @property
    def sides(self) -> tuple[str, ...]:
        """What the fields of each stream begin with on the wires of arrivals and results."""
        return tuple(map(str, range(len(self.rows))))

    def carrier(self, side: int, name: str) -> tuple[int, str]:
        """The field of a result that carries a field of a stream: its own."""
        return side, name

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The conjuncts of the condition."""
        return tuple(Part(sides(part) or frozenset({0}), part) for part in conjuncts(self.on))

    @cached_property
    def result(self) -> Row:
        """The wires of a result: those of all members."""
        streams = zip(self.sides, self.rows, strict=True)
        return Row(tuple(replace(w, name=f"{side}.{w.name}") for side, row in streams for w in row))

    def holds(self, parts: Collection[Part], members: Mapping[int, Value]) -> Value:
        """High where all of some parts are TRUE for the members that they read."""
        operands = {k: columns_of(self.rows[k].layout(bits), self.rows[k]) for k, bits in members.items()}
        truths = [is_true(lower(part.on, lambda c: operands[c.side](c))) for part in parts]
        return balanced(and_, truths) if truths else Const(1, 1)
