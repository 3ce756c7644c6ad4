"""The condition of a join as gates: rows on wires, what matches, and what a result carries."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import and_
from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value

from handshake.engines.circuit.components.gates import Lowered, Operands, columns_of, lower
from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row, Wire
from handshake.errors import UnsupportedError
from handshake.plan.expr import And, Column, Compare, Expr, Not, Or, Udf, conjuncts, show, sides, walk
from handshake.schema import BOOL, Float

CHUNK = 2
"""Bits that one gate of a pipelined test for equality looks at: a look-up table behind a window's RAM."""

FAN_IN = 6
"""Parts that a second stage joins: look-up tables of four inputs and multiplexers beside them take six."""


@dataclass
class Delay:
    """Registers that a comparison may have between its operands and its verdict: up to two stages."""

    m: Module | None
    stages: int = 0

    def __call__(self, value: Value) -> Value:
        """Return the value, as many cycles later as the comparison has stages."""
        for _ in range(self.stages):
            value = self._later(value)
        return value

    def any(self, chunks: Sequence[Value]) -> Value:
        """Return whether any chunk is high, `stages` cycles later, in gates that the stages share."""
        for stage in range(self.stages):
            groups = [chunks[i : i + FAN_IN**stage] for i in range(0, len(chunks), FAN_IN**stage)]
            chunks = list(self._later(Cat(*(Cat(*group).any() for group in groups)), high=True))
        return Cat(*chunks).any()

    def _later(self, value: Value, *, high: bool = False) -> Value:
        """Return the value after a register; `high`: it starts high, as nothing has been found equal yet."""
        if self.m is None:
            return value
        later = Signal(value.shape(), name="compared", init=-1 if high else 0)
        self.m.d.sync += later.eq(value)
        return later


@dataclass(frozen=True)
class PairGates:
    """A bound predicate on two rows: equalities, bands, inequalities, logic, whatever gates can compute."""

    left: Row
    right: Row
    on: Expr

    def __post_init__(self) -> None:
        check_gates(self.on)
        # Refuses what gates cannot compute, before anything is built.
        self.matches(Delay(None), *(row.layout(Signal(row.bits)) for row in (self.left, self.right)))

    @property
    def rows(self) -> tuple[Row, Row]:
        """The wires of both streams."""
        return self.left, self.right

    @property
    def sides(self) -> tuple[str, str]:
        """Prefixes of the fields of each stream on the wires of arrivals and results."""
        return "l", "r"

    def carrier(self, side: int, name: str) -> tuple[int, str]:
        """Return the field of a result that carries a field of a stream: its own, or one that equals it."""
        shared = self.shared.get(name) if side == 1 else None
        return (0, shared) if shared is not None else (side, name)

    @property
    def key(self) -> Hashable:
        """A value that is equal for equal conditions."""
        return self.left, self.right, self.on

    @cached_property
    def shared(self) -> dict[str, str]:
        """Right fields that equal a left one in every result, so that no wires need to carry them."""
        found: dict[str, str] = {}
        for part in conjuncts(self.on):
            match part:
                case Compare(op="=", left=Column() as a, right=Column() as b) if {a.side, b.side} == {0, 1}:
                    left, right = (a, b) if a.side == 0 else (b, a)
                    if self._share_wires(left.name, right.name):
                        found.setdefault(right.name, left.name)
        return found

    def _share_wires(self, left: str, right: str) -> bool:
        """Return whether equal values are on equal wires; floats may be equal and differ (0.0 and -0.0)."""
        a, b = self.left[left], self.right[right]
        return (a.type, a.bits, a.signed) == (b.type, b.bits, b.signed) and not isinstance(a.type, Float)

    @property
    def _carried(self) -> tuple[Wire, ...]:
        return tuple(w for w in self.right if w.name not in self.shared)

    @cached_property
    def result(self) -> Row:
        """The wires of a result."""
        left = (replace(w, name=f"l.{w.name}") for w in self.left)
        return Row((*left, *(replace(w, name=f"r.{w.name}") for w in self._carried)))

    def restore(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return all fields of both tuples from those that a result carries."""
        left = dict(zip(self.left.names, values, strict=False))
        right = dict(zip((w.name for w in self._carried), values[len(left) :], strict=True))
        return (
            *left.values(),
            *(right[w.name] if w.name in right else left[self.shared[w.name]] for w in self.right),
        )

    def carry(self, left: Any, right: Any) -> Value:
        """Return the wires of the result of two tuples that join."""
        kept = {w.name for w in self._carried}
        members = (name for name in self.right.layout.members if _field(name, self.right) in kept)
        return Cat(left.as_value(), *(Value.cast(right[name]) for name in members))

    def matches(self, delay: Delay, left: Any, right: Any) -> Value:
        """Return a bit that is high if two tuples join; every path passes through `delay` once."""
        operands = self._operands(left, right)
        if not delay.stages:
            return is_true(lower(self.on, operands))
        leaves: list[Lowered] = []
        outline = _outline(self.on, operands, delay, leaves)
        return is_true(lower(outline, lambda column: leaves[int(column.name)]))

    def joins(self, delay: Delay, left: Any, right: Any, compared: Value) -> Value:
        """Return `matches` for tuples that are compared; a single equality includes that flag."""
        operands = self._operands(left, right)
        match self.on:
            case Compare(op="=") if delay.stages and lower(self.on, operands).null is None:
                chunks = list(_differences(self.on, operands))
                if chunks:
                    return ~delay.any([*chunks, ~compared])
        return self.matches(delay, left, right) & delay(compared)

    def _operands(self, left: Any, right: Any) -> Operands:
        sides = (columns_of(left, self.left), columns_of(right, self.right))
        return lambda column: sides[column.side](column)


def check_gates(on: Expr) -> None:
    """Refuse a condition that calls a Python function."""
    for node in walk(on):
        if isinstance(node, Udf):
            raise UnsupportedError(
                f'{show(node)} is a Python function, which no circuit can call; use engine="local"'
            )


def _field(member: str, row: Row) -> str:
    """Return the field that a member of the payload belongs to: itself, or the one whose NULL bit it is."""
    return member if member in row.names else member.rsplit(".", 1)[0]


def is_true(truth: Lowered) -> Value:
    """Return a bit that is high if a truth is TRUE, neither FALSE nor NULL."""
    return truth.value[0] & truth.is_known()


def _outline(expr: Expr, operands: Operands, delay: Delay, leaves: list[Lowered]) -> Expr:
    """Return the logic of a condition over its delayed comparisons, which are added to `leaves`."""
    if isinstance(expr, (And, Or, Not)):
        return expr.with_children(tuple(_outline(e, operands, delay, leaves) for e in expr.children))
    leaves.append(_delay(expr, operands, delay))
    return Column(0, str(len(leaves) - 1), type=BOOL)


def _delay(expr: Expr, operands: Operands, delay: Delay) -> Lowered:
    whole = lower(expr, operands)
    null = None if whole.null is None else delay(whole.null)
    match expr:
        case Compare(op="=" | "<>" as op) if chunks := list(_differences(expr, operands)):
            differs = delay.any(chunks)
            return Lowered(differs if op == "<>" else ~differs, null, BOOL)
    return Lowered(delay(whole.value), null, BOOL)


def _differences(expr: Compare, operands: Operands) -> Iterator[Value]:
    """Yield whether two whole numbers or texts of one length differ, chunk by chunk."""
    a, b = lower(expr.left, operands), lower(expr.right, operands)
    text = len(a.value) != len(b.value) and not (a.value.shape().signed or b.value.shape().signed)
    if isinstance(a.type, Float) or text:
        return
    difference = a.value ^ b.value
    for start in range(0, len(difference), CHUNK):
        yield difference[start : start + CHUNK].any()


@dataclass(frozen=True)
class Conjunct:
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
        # Refuses what gates cannot compute, before anything is built.
        self.holds(self.parts, {k: Signal(row.bits) for k, row in enumerate(self.rows)})

    @property
    def key(self) -> Hashable:
        """A value that is equal for equal conditions."""
        return self.rows, self.on

    @property
    def sides(self) -> tuple[str, ...]:
        """Prefixes of the fields of each stream on the wires of arrivals and results."""
        return tuple(map(str, range(len(self.rows))))

    def carrier(self, side: int, name: str) -> tuple[int, str]:
        """Return the field of a result that carries a field of a stream: its own."""
        return side, name

    @cached_property
    def parts(self) -> tuple[Conjunct, ...]:
        """The conjuncts of the condition."""
        return tuple(Conjunct(sides(part) or frozenset({0}), part) for part in conjuncts(self.on))

    @cached_property
    def result(self) -> Row:
        """The wires of a result: those of all members."""
        streams = zip(self.sides, self.rows, strict=True)
        return Row(tuple(replace(w, name=f"{side}.{w.name}") for side, row in streams for w in row))

    def holds(self, parts: Collection[Conjunct], members: Mapping[int, Value]) -> Value:
        """Return a bit that is high if all of some conjuncts are TRUE for the members that they read."""
        operands = {k: columns_of(self.rows[k].layout(bits), self.rows[k]) for k, bits in members.items()}
        truths = [is_true(lower(part.on, lambda c: operands[c.side](c))) for part in parts]
        return tree_of(and_, truths) if truths else Const(1, 1)
