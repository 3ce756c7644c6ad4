"""The join condition as a circuit sees it: rows on wires, what matches, and what a result carries."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from amaranth.hdl import Cat, Module, Signal, Value

from handshake.circuit.types import Row

__all__ = ["Condition", "Delay"]


@dataclass
class Delay:
    """Registers that a comparison may put between its operands and its verdict: none, or one stage."""

    m: Module
    stages: int

    def __call__(self, value: Value) -> Value:
        """The value, one cycle later where the comparison is pipelined inside."""
        if not self.stages:
            return value
        later = Signal(value.shape(), name="compared")
        self.m.d.sync += later.eq(value)
        return later


class Condition(Protocol):
    """What the join cores compare: `left` and `right` are the rows on the wires of R and S."""

    left: Row
    right: Row
    result: Row

    def matches(self, delay: Delay, left: Any, right: Any) -> Value:
        """High where two tuples join; every path from them passes through `delay` once."""

    def carry(self, left: Any, right: Any) -> Value:
        """The wires of the result of two tuples that join."""

    @property
    def key(self) -> Hashable:
        """Equal for equal conditions."""


def wires(row: Row, payload: Any, names: tuple[str, ...]) -> Value:
    """Some fields of a payload, with their NULL bits, side by side."""
    kept = [name for name in row.layout.members if name.removesuffix(".null") in names]
    return Cat(*(payload[name] if isinstance(payload[name], Value) else payload[name] for name in kept))
