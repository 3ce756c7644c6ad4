"""The registry of aggregate functions: one entry per function, with its arguments and its type.

How an aggregate is computed is registered under the same name: in operators/aggregates.py for the local and
the Spark engine, and, optionally, in engines/circuit/components/aggregate.py as a component. docs/queries.md
says what each function means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal as PyDecimal
from typing import Literal

from handshake.errors import SchemaError, UnsupportedError
from handshake.schema import (
    BOOL,
    DIGITS,
    FLOAT64,
    INT64,
    STRING,
    Binary,
    Bool,
    Decimal,
    Float,
    Int,
    List,
    Opaque,
    String,
    Type,
)

Constant = PyDecimal | str
"""A constant argument: a weight, a fraction, or a separator."""


@dataclass(frozen=True)
class Argument:
    """The typed arguments of one call of an aggregate."""

    types: tuple[Type, ...]
    """The types of the columns."""
    clock: Type
    """The type of the bounds of windows."""
    constants: tuple[Constant, ...] = ()

    @property
    def type(self) -> Type | None:
        """The type of the first column; None if there is no column."""
        return self.types[0] if self.types else None


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
    arguments: tuple[int, ...] | None = (1,)
    """How many columns a call may have; None: any number."""
    constants: (
        Literal["weights", "fraction", "fraction and accuracy", "fraction within group", "separator"] | None
    ) = None
    """The constants that follow the columns. An accuracy and a separator may be left out. The column of a
    fraction within a group stands in `WITHIN GROUP (ORDER BY column)`; DESC is a second constant."""
    ordered: bool = False
    """Whether the result depends on the order of the rows."""
    sorts: bool = False
    """Whether a call may have ORDER BY."""
    keeps_nulls: bool = False
    """Whether NULL is a value like any other, unless a call has IGNORE NULLS."""
    distinct: Literal["allowed", "idle", "always", "refused"] = "allowed"
    """Whether a call may have DISTINCT; "idle": it makes no difference, "always": each call has it."""
    aliases: tuple[str, ...] = ()
    """Other names in query texts."""


def whole_weights(constants: tuple[Constant, ...]) -> tuple[tuple[int, ...], int]:
    """Return numbers times a power of ten that makes them whole, and its exponent.

    >>> whole_weights((PyDecimal(".5"), PyDecimal("2")))
    ((5, 20), 1)
    """
    numbers = [number for number in constants if isinstance(number, PyDecimal)]
    scale = max((max(0, -int(number.as_tuple().exponent)) for number in numbers), default=0)
    return tuple(int(number.scaleb(scale)) for number in numbers), scale


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
        if kind is None or isinstance(kind, (Opaque, List, Binary, *(() if booleans else (Bool,)))):
            raise SchemaError(f"{name}() takes numbers, times or text, not {kind}")
        return kind

    return result_type


def _sum_type(kind: Int | Decimal) -> Type:
    """Return a type with ten more digits, so that no sum of a window's values overflows."""
    if isinstance(kind, Decimal):
        return Decimal(min(kind.precision + 10, DIGITS), kind.scale)
    digits = len(str(2 ** (kind.bits - kind.signed)))
    return INT64 if kind.bits <= 32 else Decimal(min(digits + 10, DIGITS), 0)


def _finer(digits: int) -> Callable[[Int | Decimal], Type]:
    def finer(kind: Int | Decimal) -> Type:
        if not isinstance(kind, Decimal):
            return FLOAT64
        return Decimal(min(kind.precision + digits, DIGITS), min(kind.scale + digits, DIGITS))

    return finer


def _weighted_type(argument: Argument) -> Type:
    weights, scale = whole_weights(argument.constants)

    def exact(kind: Int | Decimal) -> Type:
        if isinstance(kind, Int):
            largest, own_scale = 2 ** (kind.bits - kind.signed), 0
        else:
            largest, own_scale = 10 ** (kind.precision or DIGITS), kind.scale
        digits = len(str(largest * sum(map(abs, weights))))
        precision = max(digits, own_scale + scale)
        if precision > DIGITS:
            raise SchemaError(f"wsum() of {kind} with these weights needs more than {DIGITS} digits; cast it")
        return Decimal(precision, own_scale + scale)

    return _numeric("wsum", exact)(argument)


def _real(name: str) -> Callable[[Argument], Type]:
    """Return the type function of an aggregate of numbers that gives float64."""
    return _numeric(name, lambda kind: FLOAT64)


def _truth(name: str, result: Type = BOOL) -> Callable[[Argument], Type]:
    """Return the type function of an aggregate of conditions."""

    def result_type(argument: Argument) -> Type:
        if not isinstance(argument.type, Bool):
            raise SchemaError(f"{name}() takes conditions, not {argument.type}")
        return result

    return result_type


def _value(name: str) -> Callable[[Argument], Type]:
    """Return the type function of an aggregate that picks a value of the first column."""

    def result_type(argument: Argument) -> Type:
        for kind in argument.types:
            check_sortable(kind, f"{name}()")
        assert argument.type is not None
        return argument.type

    return result_type


def check_sortable(kind: Type, what: str) -> None:
    """Refuse types whose values have no order."""
    if isinstance(kind, (Opaque, List)):
        raise SchemaError(f"{what} takes numbers, times, text, bools and binary values, not {kind}")


def _list(name: str) -> Callable[[Argument], Type]:
    def result_type(argument: Argument) -> Type:
        kind = _value(name)(argument)
        return List(kind)

    return result_type


def _text(argument: Argument) -> Type:
    if not isinstance(argument.type, String):
        raise SchemaError(f"string_agg() takes text, not {argument.type}; cast it, as in CAST(x AS STRING)")
    return STRING


_FUNCTIONS = (
    AggregateFunction("count", lambda argument: INT64, "algebraic", arguments=None),
    AggregateFunction("count_if", _truth("count_if", INT64), "algebraic"),
    AggregateFunction("sum", _numeric("sum", _sum_type), "algebraic"),
    AggregateFunction("avg", _numeric("avg", _finer(4)), "algebraic", aliases=("mean",)),
    AggregateFunction("min", _comparable("min"), "algebraic", distinct="idle"),
    AggregateFunction("max", _comparable("max"), "algebraic", distinct="idle"),
    AggregateFunction("var_samp", _real("var_samp"), "algebraic", aliases=("variance",)),
    AggregateFunction("var_pop", _real("var_pop"), "algebraic"),
    AggregateFunction("stddev_samp", _real("stddev_samp"), "algebraic", aliases=("stddev", "std")),
    AggregateFunction("stddev_pop", _real("stddev_pop"), "algebraic"),
    AggregateFunction("any", _truth("any"), "algebraic", distinct="idle", aliases=("some", "bool_or")),
    AggregateFunction("every", _truth("every"), "algebraic", distinct="idle", aliases=("bool_and",)),
    *(
        AggregateFunction(
            name, _value(name), "algebraic", ordered=True, sorts=True, keeps_nulls=True, distinct="refused",
            aliases=aliases,
        )
        for name, aliases in (("first", ("first_value", "any_value")), ("last", ("last_value",)))
    ),
    *(
        AggregateFunction(name, _value(name), "algebraic", arguments=(2,), ordered=True, distinct="refused")
        for name in ("max_by", "min_by")
    ),
    AggregateFunction(
        "wsum", _weighted_type, "holistic", constants="weights", ordered=True, distinct="refused"
    ),
    AggregateFunction("median", _numeric("median", _finer(1)), "holistic"),
    AggregateFunction("mode", _comparable("mode", booleans=True), "holistic"),
    AggregateFunction("percentile", _real("percentile"), "holistic", constants="fraction"),
    AggregateFunction(
        "approx_percentile", _comparable("approx_percentile"), "holistic",
        constants="fraction and accuracy", aliases=("percentile_approx",),
    ),
    *(
        AggregateFunction(
            name, result_type(name), "holistic", constants="fraction within group", sorts=True,
            distinct="refused",
        )
        for name, result_type in (("percentile_cont", _real), ("percentile_disc", _comparable))
    ),
    AggregateFunction(
        "collect_list", _list("collect_list"), "holistic", ordered=True, sorts=True, aliases=("array_agg",)
    ),
    AggregateFunction(
        "collect_set", _list("collect_set"), "holistic", ordered=True, sorts=True, distinct="always"
    ),
    AggregateFunction(
        "string_agg", _text, "holistic", constants="separator", ordered=True, sorts=True,
        aliases=("listagg",),
    ),
    AggregateFunction("window_start", _clock, "bound", arguments=(0,), distinct="refused"),
    AggregateFunction("window_end", _clock, "bound", arguments=(0,), distinct="refused"),
)  # fmt: skip
AGGREGATES: dict[str, AggregateFunction] = {function.name: function for function in _FUNCTIONS}
"""All aggregate functions by name; `handshake.operators.aggregates.register` adds one."""
BOUNDS = ("window_start", "window_end")
"""The first instant of the window and the first one after it, or positions of tuples."""


def aggregate_function(name: str) -> AggregateFunction:
    """Return the entry of an aggregate function; raise UnsupportedError if there is none."""
    if name not in AGGREGATES:
        raise UnsupportedError(f"no aggregate function {name}(); there are {', '.join(AGGREGATES)}")
    return AGGREGATES[name]


def find_aggregate(name: str) -> AggregateFunction | None:
    """Return the function that a query text calls by this name or alias, in any case; None if there is none.

    >>> find_aggregate("STDDEV").name
    'stddev_samp'
    """
    called = name.lower()
    return AGGREGATES.get(called) or next((f for f in AGGREGATES.values() if called in f.aliases), None)


def aggregate_names() -> list[str]:
    """Return the names and aliases of all functions."""
    return [*AGGREGATES, *(alias for function in AGGREGATES.values() for alias in function.aliases)]
