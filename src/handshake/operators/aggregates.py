"""How aggregates are computed: pane states of algebraic functions, and the registry of all functions.

A *slot* is a set of rows that are aggregated together: a pane, a group of a pane, or a window. The state of
an algebraic function is `Additive` (states are added and subtracted) or `Extreme` (the largest key stays).
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context
from decimal import Decimal as PyDecimal
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.errors import HandshakeError, UnsupportedError
from handshake.kernels.panes import FLOAT_LIMBS, add_floats, add_limbs, count_rows, greatest
from handshake.operators.chunk import Array
from handshake.operators.holistic import Values, medians, modes, sorted_values, weighted_sums
from handshake.operators.sort_keys import has_integer_keys, keys_of, numbers_of, values_of, words_of
from handshake.plan.aggregates import AGGREGATES, AggregateFunction
from handshake.plan.algebra import Aggregate
from handshake.schema import Decimal, Float, Int, Type, arrow_of

__all__ = ["Additive", "Extreme", "Form", "aggregate_slots", "part_of", "register", "unregister"]

_ALL = np.empty(0, np.bool_)
"""A mask that selects every row."""
_LIMB = np.int64(0xFFFFFFFF)
_SPECIAL = 3
"""Counters of NaN, infinity and minus infinity in the state of a float sum."""
_HIGHEST = 10**38 >> 64
_EXACT = Context(prec=80)
_ONE = 2**1074


def _valid(array: pa.Array | None) -> Array:
    return np.asarray(array.is_valid()) if array is not None and array.null_count else _ALL


class Additive:
    """A state of whole numbers per slot: the count of values that are not NULL, then those of a subclass.

    The state of a pane is added when it enters a window and subtracted when it leaves. This class is `count`.
    """

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        self.argument, self.field = kind, aggregate.field
        self.type = aggregate.schema.get(aggregate.name).type
        self.width = 1 + self.extra_width()

    def extra_width(self) -> int:
        """Return how many whole numbers follow the count."""
        return 0

    def reduce(self, slots: Array, count: int, array: pa.Array | None) -> Array:
        """Return the state of each slot, given the slot and the value of each row."""
        out = np.zeros((count, self.width), np.int64)
        valid, counted = _valid(array), np.zeros(count, np.int64)
        count_rows(slots, valid, counted)
        out[:, 0] = counted
        if self.width > 1:
            assert array is not None
            self.add(slots, array, valid, out[:, 1:])
        return out

    def add(self, slots: Array, array: pa.Array, valid: Array, out: Array) -> None:
        """Add values to the numbers that follow the count."""

    def finish(self, state: Array) -> pa.Array:
        """Return the results of slots."""
        return pa.array(np.ascontiguousarray(state[:, 0]))


class Sum(Additive):
    """The sum of values, in limbs of 32 bits; that of floats is exact, too."""

    def extra_width(self) -> int:
        """Return the number of limbs, and three counters for floats that are not finite."""
        if isinstance(self.argument, Float):
            return _SPECIAL + FLOAT_LIMBS
        assert self.argument is not None
        arrow = arrow_of(self.argument)
        return 4 if pa.types.is_decimal(arrow) else 2 if arrow.bit_width == 64 else 1

    def add(self, slots: Array, array: pa.Array, valid: Array, out: Array) -> None:
        """Add the limbs of values."""
        if not isinstance(self.argument, Float):
            add_limbs(slots, _limbs_of(array), valid, out)
            return
        values = numbers_of(array.cast(pa.float64()))
        add_floats(slots, values, values.view(np.int64), valid, out[:, _SPECIAL:], out[:, :_SPECIAL])

    def finish(self, state: Array) -> pa.Array:
        """Return the sums; NULL without a value."""
        limbs, missing = state[:, 1:], state[:, 0] == 0
        if isinstance(self.argument, Float):
            return pa.array(_float_sums(limbs), mask=missing)
        if isinstance(self.type, Int):
            return pa.array(np.ascontiguousarray(limbs[:, 0]), mask=missing)
        return _decimal_sums(limbs, self.type, missing)


class Average(Sum):
    """The sum of values over their count."""

    def finish(self, state: Array) -> pa.Array:
        """Return the averages; NULL without a value."""
        limbs, missing = state[:, 1:], state[:, 0] == 0
        counts = np.where(missing, 1, state[:, 0])
        if isinstance(self.argument, Float):
            with np.errstate(invalid="ignore"):
                return pa.array(_float_sums(limbs) / counts, mask=missing)
        if isinstance(self.argument, Decimal):
            return self._decimals(limbs, counts, missing)
        if limbs.shape[1] == 1 and np.all(np.abs(limbs) < 2**53):
            return pa.array(limbs[:, 0] / counts, mask=missing)
        totals = [total / int(n) for total, n in zip(_totals(limbs), counts, strict=True)]
        return pa.array(np.array(totals, np.float64), mask=missing)

    def _decimals(self, limbs: Array, counts: Array, missing: Array) -> pa.Array:
        assert isinstance(self.type, Decimal)
        assert isinstance(self.argument, Decimal)
        factor = 10 ** (self.type.scale - self.argument.scale)
        values = [
            None if null else PyDecimal(_divide(total * factor, int(n))).scaleb(-self.type.scale, _EXACT)
            for total, n, null in zip(_totals(limbs), counts, missing, strict=True)
        ]
        try:
            return pa.array(values, arrow_of(self.type))
        except pa.ArrowInvalid:
            raise HandshakeError(
                f"an average has more digits than {self.type} holds; cast its argument"
            ) from None


def _divide(number: int, by: int) -> int:
    """Divide and round to the nearest whole number, halves away from zero."""
    quotient = (2 * abs(number) + by) // (2 * by)
    return -quotient if number < 0 else quotient


def _limbs_of(array: pa.Array) -> Array:
    """Split whole numbers into limbs of 32 bits, the highest with the sign."""
    if pa.types.is_decimal(array.type):
        low, high = words_of(array)
        return np.stack([low & _LIMB, (low >> 32) & _LIMB, high & _LIMB, high >> 32], axis=1)
    values = numbers_of(array)
    if values.dtype.itemsize < 8:
        return values.astype(np.int64)[:, None]
    low = (values & np.array(0xFFFFFFFF, values.dtype)).astype(np.int64)
    return np.stack([low, (values >> 32).astype(np.int64)], axis=1)


def _totals(limbs: Array) -> list[int]:
    """Return sums of limbs as Python integers."""
    return [sum(int(limb) << 32 * k for k, limb in enumerate(row)) for row in limbs]


def _decimal_sums(limbs: Array, kind: Type, missing: Array) -> pa.Array:
    """Carry over between limbs to make decimals of 128 bits."""
    pieces, carry = [], np.zeros(len(limbs), np.int64)
    for k in range(4):
        carry = carry + (limbs[:, k] if k < limbs.shape[1] else 0)
        pieces.append(carry & _LIMB)
        carry >>= 32
    low, high = (pieces[0] | pieces[1] << 32), (pieces[2] | pieces[3] << 32)
    if np.any(carry != high >> 63) or np.any((high >= _HIGHEST) | (high < -_HIGHEST)):
        raise HandshakeError("a sum has more than 38 digits, which no column can hold; cast its argument")
    words = np.stack([low, high], axis=1)
    bitmap = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    return pa.Array.from_buffers(arrow_of(kind), len(limbs), [bitmap, pa.py_buffer(words)])


def _float_sums(state: Array) -> Array:
    """Round exact sums of floats once."""
    out = np.zeros(len(state))
    special = state[:, :_SPECIAL]
    for row in np.flatnonzero(special.any(axis=1)):
        nan, plus, minus = special[row]
        out[row] = np.nan if nan or (plus and minus) else np.inf if plus else -np.inf
    for row in np.flatnonzero(~special.any(axis=1)):
        limbs = state[row, _SPECIAL:]
        total = sum(int(limbs[k]) << (32 * int(k)) for k in np.flatnonzero(limbs))
        try:
            out[row] = total / _ONE
        except OverflowError:
            out[row] = np.inf if total > 0 else -np.inf
    return out


class Extreme:
    """The largest key of each slot; keys are in the order of the values (`max`), or against it (`min`)."""

    down = False

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        assert kind is not None
        self.field, self.type, self._arrow = aggregate.field, kind, arrow_of(kind)
        self.compiled = has_integer_keys(self._arrow)
        """Whether keys are 64-bit integers, not Python objects."""
        self.dtype: Any = np.int64 if self.compiled else object

    def reduce(self, slots: Array, count: int, array: pa.Array | None) -> tuple[Array, Array]:
        """Return the largest key of each slot, and whether there is one."""
        assert array is not None
        keys = keys_of(array, self._arrow, self.down)
        out, seen = np.zeros(count, self.dtype), np.zeros(count, np.bool_)
        (greatest if self.compiled else greatest.py_func)(slots, keys, _valid(array), out, seen)
        return out, seen

    def finish(self, state: tuple[Array, Array]) -> pa.Array:
        """Return the values of keys; NULL without a value."""
        return values_of(*state, self._arrow, self.down, self.type)


class Least(Extreme):
    """The least value."""

    down = True


State = Additive | Extreme
Form = type[Additive] | type[Extreme] | Callable[[Aggregate, Values], pa.Array]
"""How a function is computed: the class of its pane state, or a function of the sorted values of slots."""
_FORMS: dict[str, Form] = {
    "count": Additive,
    "sum": Sum,
    "avg": Average,
    "min": Least,
    "max": Extreme,
    "wsum": weighted_sums,
    "median": medians,
    "mode": modes,
}


def register(function: AggregateFunction, form: Form) -> None:
    """Add an aggregate function that queries on the local and the Spark engine can use from now on.

    Args:
        function: its name, arguments and type. An algebraic one needs a class as its form, a holistic one a
            function.
        form: a subclass of `Additive` or `Extreme`, or a function from the values of slots to an Arrow array.

    Raises:
        UnsupportedError: The name is taken, or the form does not fit the kind.
    """
    if function.name in AGGREGATES:
        raise UnsupportedError(f"an aggregate function {function.name}() is registered already")
    if (function.kind == "algebraic") != isinstance(form, type):
        raise UnsupportedError(
            f"{function.name}() is {function.kind}: the form of an algebraic function is a class, that of a "
            "holistic one is a function"
        )
    AGGREGATES[function.name], _FORMS[function.name] = function, form


def unregister(name: str) -> None:
    """Remove an aggregate function that `register` added."""
    del AGGREGATES[name], _FORMS[name]


def _form(aggregate: Aggregate) -> Form:
    if aggregate.function not in _FORMS:
        raise UnsupportedError(f"the local engine cannot compute {aggregate.function}()")
    return _FORMS[aggregate.function]


def part_of(aggregate: Aggregate) -> State:
    """Return how the states of an algebraic aggregate are computed."""
    form: Any = _form(aggregate)
    kind = None if aggregate.field is None else aggregate.input.schema.get(aggregate.field).type
    state: State = form(aggregate, kind)
    return state


def aggregate_slots(aggregate: Aggregate, slots: Array, count: int, array: pa.Array | None) -> pa.Array:
    """Return the result of each slot, given the slot and the value of each row in the order of arrival."""
    form = _form(aggregate)
    if not isinstance(form, type):
        assert array is not None
        return form(aggregate, sorted_values(slots, count, array))
    part: Any = part_of(aggregate)
    return part.finish(part.reduce(slots, count, array))
