"""The registry of aggregate functions: one entry per function, with its arguments and its type.

How an aggregate is computed is registered under the same name: in operators/aggregates.py for the local and
the Spark engine, and, optionally, in engines/circuit/components/aggregate.py as a component. docs/queries.md
says what each function means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from handshake.errors import SchemaError, UnsupportedError
from handshake.schema import FLOAT64, INT64, Binary, Bool, Decimal, Float, Int, Opaque, Type

__all__ = ["AGGREGATES", "BOUNDS", "AggregateFunction", "Argument", "aggregate_function"]

_DIGITS = 38


@dataclass(frozen=True)
class Argument:
    """The typed arguments of one call of an aggregate."""

    type: Type | None
    """The type of the column; None if there is no column."""
    clock: Type
    """The type of the bounds of windows."""
    weights: tuple[int, ...] = ()
    scale: int = 0


@dataclass(frozen=True)
class AggregateFunction:
    """The entry of an aggregate function."""

    name: str
    """The name in query texts, in lower case."""
    result_type: Callable[[Argument], Type]
    """Return the type of the result; raise SchemaError if the argument has the wrong type."""
    kind: Literal["algebraic", "holistic", "bound"]
    """Algebraic functions have a state of fixed size, and the state of a window follows from those of its
    panes (Glacier, section 4.6). Holistic ones need the rows of the window. Bounds say where it lies."""
    arguments: tuple[int, ...] = (1,)
    """How many columns a call may have."""
    weighted: bool = False
    """Whether a list of constant weights follows the column."""
    ordered: bool = False
    """Whether the result depends on the order of the rows."""


def _integer(argument: Argument) -> Type:
    return INT64


def _clock(argument: Argument) -> Type:
    return argument.clock


def _numeric(name: str, exact: Callable[[Int | Decimal], Type]) -> Callable[[Argument], Type]:
    """Return the type function of an aggregate of numbers: float64 for floats, else what `exact` returns."""

    def result_type(argument: Argument) -> Type:
        if isinstance(argument.type, Float):
            return FLOAT64
        if not isinstance(argument.type, (Int, Decimal)):
            raise SchemaError(f"{name}() takes numbers, not {argument.type}")
        return exact(argument.type)

    return result_type


def _comparable(name: str, *, booleans: bool = False) -> Callable[[Argument], Type]:
    """Return the type function of an aggregate that picks one of the values."""

    def result_type(argument: Argument) -> Type:
        kind = argument.type
        if kind is None or isinstance(kind, (Opaque, Binary)) or (isinstance(kind, Bool) and not booleans):
            raise SchemaError(f"{name}() takes numbers, times or text, not {kind}")
        return kind

    return result_type


def _sum_type(kind: Int | Decimal) -> Type:
    """Return a type with ten more digits, so that no sum of a window's values overflows."""
    if isinstance(kind, Decimal):
        return Decimal(min(kind.precision + 10, _DIGITS), kind.scale)
    digits = len(str(2 ** (kind.bits - kind.signed)))
    return INT64 if kind.bits <= 32 else Decimal(min(digits + 10, _DIGITS), 0)


def _finer(digits: int) -> Callable[[Int | Decimal], Type]:
    def finer(kind: Int | Decimal) -> Type:
        if not isinstance(kind, Decimal):
            return FLOAT64
        return Decimal(min(kind.precision + digits, _DIGITS), min(kind.scale + digits, _DIGITS))

    return finer


def _weighted_type(argument: Argument) -> Type:
    def exact(kind: Int | Decimal) -> Type:
        if isinstance(kind, Int):
            largest, own_scale = 2 ** (kind.bits - kind.signed), 0
        else:
            largest, own_scale = 10 ** (kind.precision or _DIGITS), kind.scale
        digits = len(str(largest * sum(map(abs, argument.weights))))
        precision = max(digits, own_scale + argument.scale)
        if precision > _DIGITS:
            raise SchemaError(
                f"wsum() of {kind} with these weights needs more than {_DIGITS} digits; cast it"
            )
        return Decimal(precision, own_scale + argument.scale)

    return _numeric("wsum", exact)(argument)


AGGREGATES: dict[str, AggregateFunction] = {
    function.name: function
    for function in (
        AggregateFunction("count", _integer, "algebraic", arguments=(0, 1)),
        AggregateFunction("sum", _numeric("sum", _sum_type), "algebraic"),
        AggregateFunction("avg", _numeric("avg", _finer(4)), "algebraic"),
        AggregateFunction("min", _comparable("min"), "algebraic"),
        AggregateFunction("max", _comparable("max"), "algebraic"),
        AggregateFunction("wsum", _weighted_type, "holistic", weighted=True, ordered=True),
        AggregateFunction("median", _numeric("median", _finer(1)), "holistic"),
        AggregateFunction("mode", _comparable("mode", booleans=True), "holistic"),
        AggregateFunction("window_start", _clock, "bound", arguments=(0,)),
        AggregateFunction("window_end", _clock, "bound", arguments=(0,)),
    )
}
"""All aggregate functions by name; `handshake.operators.aggregates.register` adds one."""
BOUNDS = ("window_start", "window_end")
"""The first instant of the window and the first one after it, or positions of tuples."""


def aggregate_function(name: str) -> AggregateFunction:
    """Return the entry of an aggregate function; raise UnsupportedError if there is none."""
    if name not in AGGREGATES:
        raise UnsupportedError(f"no aggregate function {name}(); there are {', '.join(AGGREGATES)}")
    return AGGREGATES[name]
