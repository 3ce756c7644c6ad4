"""The join condition as gates: rows on wires, what matches, and what a result carries."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value

from handshake.engines.circuit.components.gates import Lowered, Operands, columns_of, lower
from handshake.engines.circuit.components.types import Row, Wire
from handshake.errors import UnsupportedError
from handshake.plan.expr import (
    And,
    Column,
    Compare,
    Expr,
    Not,
    Or,
    Udf,
    conjuncts,
    show,
    walk,
)
from handshake.schema import BOOL, Float

__all__ = ["Condition", "Delay", "check_gates", "is_true"]

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
        """The value, as many cycles later as the comparison is pipelined inside."""
        for _ in range(self.stages):
            value = self._later(value)
        return value

    def any(self, chunks: Sequence[Value]) -> Value:
        """Whether any of them is high, as many cycles later, in gates that the stages share."""
        for stage in range(self.stages):
            groups = [chunks[i : i + FAN_IN**stage] for i in range(0, len(chunks), FAN_IN**stage)]
            chunks = list(self._later(Cat(*(Cat(*group).any() for group in groups)), high=True))
        return Cat(*chunks).any()

    def _later(self, value: Value, *, high: bool = False) -> Value:
        """Through a register; `high`: it is so at first, as nothing has been found equal yet."""
        if self.m is None:
            return value
        later = Signal(value.shape(), name="compared", init=-1 if high else 0)
        self.m.d.sync += later.eq(value)
        return later


@dataclass(frozen=True)
class Condition:
    """A bound predicate on two rows: equalities, bands, inequalities, logic, whatever gates can compute."""

    left: Row
    right: Row
    on: Expr

    def __post_init__(self) -> None:
        check_gates(self.on)
        # What gates cannot compute is found here, before anything is built.
        self.matches(Delay(None), *(row.layout(Signal(row.bits)) for row in (self.left, self.right)))

    @property
    def rows(self) -> tuple[Row, Row]:
        """The wires of both streams."""
        return self.left, self.right

    @property
    def sides(self) -> tuple[str, str]:
        """What the fields of each stream begin with on the wires of arrivals and results."""
        return "l", "r"

    def carrier(self, side: int, name: str) -> tuple[int, str]:
        """The field of a result that carries a field of a stream: its own, or one that equals it."""
        shared = self.shared.get(name) if side == 1 else None
        return (0, shared) if shared is not None else (side, name)

    @property
    def key(self) -> Hashable:
        """Equal for equal conditions."""
        return self.left, self.right, self.on

    @cached_property
    def shared(self) -> dict[str, str]:
        """Right fields that equal a left one in every result, so that no wires need to carry them."""
        found: dict[str, str] = {}
        for part in conjuncts(self.on):
            match part:
                case Compare(op="=", left=Column() as a, right=Column() as b) if {a.side, b.side} == {0, 1}:
                    left, right = (a, b) if a.side == 0 else (b, a)
                    if self._alike(left.name, right.name):
                        found.setdefault(right.name, left.name)
        return found

    def _alike(self, left: str, right: str) -> bool:
        """Equal values on equal wires; floats may be equal and differ (0.0 and -0.0)."""
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
        """All fields of both tuples, from those that a result carries."""
        left = dict(zip(self.left.names, values, strict=False))
        right = dict(zip((w.name for w in self._carried), values[len(left) :], strict=True))
        return (
            *left.values(),
            *(right[w.name] if w.name in right else left[self.shared[w.name]] for w in self.right),
        )

    def carry(self, left: Any, right: Any) -> Value:
        """The wires of the result of two tuples that join."""
        kept = {w.name for w in self._carried}
        members = (name for name in self.right.layout.members if _field(name, self.right) in kept)
        return Cat(left.as_value(), *(Value.cast(right[name]) for name in members))

    def matches(self, delay: Delay, left: Any, right: Any) -> Value:
        """High where two tuples join; every path from them passes through `delay` once."""
        operands = self._operands(left, right)
        if not delay.stages:
            return is_true(lower(self.on, operands))
        leaves: list[Lowered] = []
        outline = _outline(self.on, operands, delay, leaves)
        return is_true(lower(outline, lambda column: leaves[int(column.name)]))

    def joins(self, delay: Delay, left: Any, right: Any, compared: Value) -> Value:
        """`matches`, of tuples that are compared; where it is one test, that flag is one of its parts."""
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
    """Refuse a condition that asks a Python function."""
    for node in walk(on):
        if isinstance(node, Udf):
            raise UnsupportedError(f"{show(node)} is a Python function, which no circuit can call")


def _field(member: str, row: Row) -> str:
    """The field that a member of the payload belongs to: itself, or the one whose NULL bit it is."""
    return member if member in row.names else member.rsplit(".", 1)[0]


def is_true(truth: Lowered) -> Value:
    """High where a truth is TRUE, neither FALSE nor NULL."""
    return truth.value[0] & truth.known()


def _outline(expr: Expr, operands: Operands, delay: Delay, leaves: list[Lowered]) -> Expr:
    """The logic of a condition over its delayed comparisons, which are added to `leaves`."""
    if isinstance(expr, (And, Or, Not)):
        return expr.with_children(tuple(_outline(e, operands, delay, leaves) for e in expr.children))
    leaves.append(_delayed(expr, operands, delay))
    return Column(0, str(len(leaves) - 1), type=BOOL)


def _delayed(expr: Expr, operands: Operands, delay: Delay) -> Lowered:
    whole = lower(expr, operands)
    null = None if whole.null is None else delay(whole.null)
    match expr:
        case Compare(op="=" | "<>" as op) if chunks := list(_differences(expr, operands)):
            differs = delay.any(chunks)
            return Lowered(differs if op == "<>" else ~differs, null, BOOL)
    return Lowered(delay(whole.value), null, BOOL)


def _differences(expr: Compare, operands: Operands) -> Iterator[Value]:
    """Where two whole numbers or texts of one length differ, chunk by chunk."""
    a, b = lower(expr.left, operands), lower(expr.right, operands)
    text = len(a.value) != len(b.value) and not (a.value.shape().signed or b.value.shape().signed)
    if isinstance(a.type, Float) or text:
        return
    difference = a.value ^ b.value
    for start in range(0, len(difference), CHUNK):
        yield difference[start : start + CHUNK].any()
