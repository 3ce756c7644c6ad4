"""The aggregate functions, and the types of what they give. docs/queries.md says what each one means."""

from __future__ import annotations

from handshake.errors import SchemaError
from handshake.schema import (
    FLOAT64,
    INT64,
    Binary,
    Bool,
    Decimal,
    Float,
    Int,
    Opaque,
    Type,
)

__all__ = ["ALGEBRAIC", "BOUNDS", "FUNCTIONS", "HOLISTIC", "aggregate_type"]

ALGEBRAIC = ("count", "sum", "avg", "min", "max")
"""Functions of fixed state (section 4.6); that of a window follows from those of its panes."""
HOLISTIC = ("wsum", "median", "mode")
"""Functions that need tuples of the window."""
BOUNDS = ("window_start", "window_end")
"""Where the window lies: its first instant and the first one after it, or positions of tuples."""
FUNCTIONS = (*ALGEBRAIC, *HOLISTIC, *BOUNDS)

_DIGITS = 38


def aggregate_type(
    function: str, argument: Type | None, clock: Type, weights: tuple[int, ...] = (), scale: int = 0
) -> Type:
    """The type that an aggregate has, given that of its argument; SchemaError where it has none."""
    if function == "count":
        return INT64
    if function in BOUNDS:
        return clock
    assert argument is not None
    if function in ("min", "max", "mode"):
        return _ordered(function, argument)
    if not isinstance(argument, (Int, Decimal, Float)):
        raise SchemaError(f"{function}() takes numbers, not {argument}")
    if isinstance(argument, Float):
        return FLOAT64
    if function == "wsum":
        return _weighted(argument, weights, scale)
    return {"sum": _sum, "avg": _average, "median": _median}[function](argument)


def _ordered(function: str, kind: Type) -> Type:
    if isinstance(kind, (Opaque, Binary)) or (isinstance(kind, Bool) and function != "mode"):
        raise SchemaError(f"{function}() takes numbers, times or text, not {kind}")
    return kind


def _sum(kind: Type) -> Type:
    """Wide enough that no sum of a window's values gets out of it: ten digits for their number."""
    if isinstance(kind, Int):
        digits = len(str(2 ** (kind.bits - kind.signed)))
        return INT64 if kind.bits <= 32 else Decimal(min(digits + 10, _DIGITS), 0)
    assert isinstance(kind, Decimal)
    return Decimal(min(kind.precision + 10, _DIGITS), kind.scale)


def _average(kind: Type) -> Type:
    if not isinstance(kind, Decimal):
        return FLOAT64
    return Decimal(min(kind.precision + 4, _DIGITS), min(kind.scale + 4, _DIGITS))


def _median(kind: Type) -> Type:
    if not isinstance(kind, Decimal):
        return FLOAT64
    return Decimal(min(kind.precision + 1, _DIGITS), min(kind.scale + 1, _DIGITS))


def _weighted(kind: Type, weights: tuple[int, ...], scale: int) -> Type:
    own = kind.scale if isinstance(kind, Decimal) else 0
    if isinstance(kind, Int):
        most = 2 ** (kind.bits - kind.signed)
    else:
        assert isinstance(kind, Decimal)
        most = 10 ** (kind.precision or _DIGITS)
    digits = len(str(most * sum(abs(weight) for weight in weights)))
    if max(digits, own + scale) > _DIGITS:
        raise SchemaError(f"wsum() of {kind} with these weights needs more than {_DIGITS} digits; cast it")
    return Decimal(max(digits, own + scale), own + scale)
