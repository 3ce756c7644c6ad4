"""The registry of functions, and the rules by which arguments are checked and results typed.

A function computes on physical values: dates, timestamps, intervals and decimals are whole numbers in the
unit or scale of their type. Constants are folded with it, and columns that kernels do not compile are
evaluated with it, so both have the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from handshake.errors import suggest
from handshake.plan.casts import round_float32
from handshake.plan.expr import Call, Expr, Literal, show
from handshake.plan.ranges import type_range
from handshake.plan.types import coerce, fail
from handshake.schema import (
    DATE,
    FLOAT32,
    FLOAT64,
    STRING,
    Binary,
    Date,
    Decimal,
    Float,
    Int,
    Null,
    String,
    Timestamp,
    Type,
)

Rule = Callable[[Call, tuple[Expr, ...]], Expr]
"""Checks the bound arguments of a call; returns the typed call, or an expression that replaces it."""


@dataclass(frozen=True)
class Function:
    """A function of the language.

    Attributes:
        name: Its name in trees, and in SQL if `spelled`.
        bind: The rule for its arguments and its result.
        values: Given a typed call, a function from the values of its arguments to its value. None for a
            function that binding replaces.
        strict: It is NULL if an argument is NULL, and its values are never called with None.
        compiled: Kernels have machine code for it (`kernels/lower.py`).
        spelled: SQL texts may call it by its name.
    """

    name: str
    bind: Rule
    values: Callable[[Call], Callable[..., Any]] | None = None
    strict: bool = True
    compiled: bool = False
    spelled: bool = True


FUNCTIONS: dict[str, Function] = {}
"""All functions by name."""
ALIASES: dict[str, str] = {}
"""Other names in SQL."""
_SYNTAX = ("cast", "date", "extract", "if", "log", "mod", "nullif", "try_cast")
"""Names that the parser translates to other nodes."""


def bind_call(call: Call, args: tuple[Expr, ...]) -> Expr:
    """Check the arguments of a function and type its result."""
    if call.name not in FUNCTIONS:
        raise fail(no_function(call.name), call)
    return FUNCTIONS[call.name].bind(call, args)


def spelled_names() -> list[str]:
    """Return the names of functions that SQL texts may use."""
    spelled = {name for name, function in FUNCTIONS.items() if function.spelled}
    return sorted(spelled.union(ALIASES, _SYNTAX))


def no_function(name: str) -> str:
    """Return the error message for an unknown function."""
    near = suggest(name, spelled_names())
    return f"no function {name}(){near or '; docs/semantics.md lists the functions'}"


def call_values(call: Call) -> Callable[..., Any]:
    """Return a function from the physical values of a call's arguments to its value; None is NULL."""
    function = FUNCTIONS[call.name]
    assert function.values is not None, call.name
    compute, kind, exact = function.values(call), call.type, function.compiled

    def value(*args: Any) -> Any:
        if function.strict and any(arg is None for arg in args):
            return None
        found = compute(*args)
        return found if found is None else _fit(found, kind, exact)

    return value


def _fit(value: Any, kind: Type, exact: bool) -> Any:
    """Return a value in the width of its type; a whole number that does not fit is NULL, unless `exact`."""
    if kind == FLOAT32:
        return round_float32(value)
    if exact or not isinstance(kind, (Int, Decimal, Date, Timestamp)):
        return value
    low, high = type_range(Decimal(38, 0) if isinstance(kind, Decimal) else kind, False)
    return value if low <= value <= high else None


# Arguments.


@dataclass(frozen=True)
class Argument:
    """A kind of argument: its name in errors, the types that it may have, and the type that it becomes."""

    what: str
    kinds: tuple[type[Type], ...]
    to: Type | None = None


INT = Int(32)
"""The type of results that are INT in Spark."""
TEXT = Argument("text", (String,), STRING)
BYTES = Argument("text or bytes", (String, Binary))
NUMBER = Argument("a number", (Int, Decimal, Float))
REAL = Argument("a number", (Int, Decimal, Float), FLOAT64)
WHOLE = Argument("a whole number", (Int,))
DAY = Argument("a date or timestamp", (Date, Timestamp), DATE)
MOMENT = Argument("a date or timestamp", (Date, Timestamp))
TIMESTAMP = Argument("a timestamp", (Timestamp,))


def takes(*arguments: Argument, gives: Type | Callable[[tuple[Expr, ...]], Type], optional: int = 0) -> Rule:
    """Return the rule of a function with these arguments, of which the last `optional` may be missing."""

    def rule(call: Call, args: tuple[Expr, ...]) -> Expr:
        check_count(call, args, len(arguments) - optional, len(arguments))
        bound = tuple(check(call, arg, wanted) for arg, wanted in zip(args, arguments, strict=False))
        return replace(call, args=bound, type=gives(bound) if callable(gives) else gives)

    return rule


def check_count(call: Call, args: tuple[Expr, ...], low: int, high: int) -> None:
    """Refuse a wrong number of arguments."""
    if not low <= len(args) <= high:
        many = str(low) if low == high else f"{low} to {high}"
        raise fail(f"{call.name}() takes {many} argument{'s' if high != 1 else ''}, not {len(args)}", call)


def check(call: Call, arg: Expr, wanted: Argument) -> Expr:
    """Return an argument in the type that it must have; a constant text may stand for a date or time."""
    dated = isinstance(arg, Literal) and isinstance(arg.type, String) and arg.value is not None
    if dated and Date in wanted.kinds:
        return coerce(arg, DATE)
    if not isinstance(arg.type, (*wanted.kinds, Null)):
        raise wrong(call, arg, wanted.what)
    if wanted.to is not None:
        return coerce(arg, wanted.to)
    return arg


def wrong(call: Call, arg: Expr, wanted: str) -> Exception:
    """Return the error for an argument of a wrong type."""
    return fail(f"{call.name}() takes {wanted}, but {show(arg)} is {arg.type}", call)


def constant(call: Call, arg: Expr, what: str) -> Any:
    """Return the value of an argument that must be a constant."""
    if not isinstance(arg, Literal):
        raise fail(f"{call.name}() takes {what} as a constant, not {show(arg)}", call)
    return arg.value


def plain(function: Callable[..., Any]) -> Callable[[Call], Callable[..., Any]]:
    """Return the values of a function that needs no types."""
    return lambda call: function
