"""Aggregates on columns: by slots (panes, groups, whole windows), and finished into values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context
from decimal import Decimal as PyDecimal
from functools import total_ordering
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import HandshakeError
from handshake.kernels.panes import FLOAT_LIMBS, add_floats, add_limbs, count_rows, greatest
from handshake.operators.chunk import Array, fit
from handshake.plan.algebra import Aggregate
from handshake.schema import Decimal, Float, Int, Type, arrow_of

__all__ = ["EVERY", "Additive", "Extreme", "decimals_of", "keys_of", "part_of", "words_of"]

EVERY = np.empty(0, np.bool_)
"""A mask that leaves nothing out."""
_LIMB = np.int64(0xFFFFFFFF)
_ODD = 3
_HIGHEST = 10**38 >> 64
_EXACT = Context(prec=80)


def _mask(array: pa.Array) -> Array:
    return np.asarray(array.is_valid()) if array.null_count else EVERY


class Additive:
    """count, sum and avg: a row of whole numbers for each slot, which may be added and taken away again."""

    def __init__(self, aggregate: Aggregate, kind: Type | None) -> None:
        self._function, self._argument = aggregate.function, kind
        self.name, self.field = aggregate.name, aggregate.field
        self.type = aggregate.schema.get(aggregate.name).type
        self.width = 1 if self._function == "count" else 1 + _limbs(kind)

    def reduce(self, slots: Array, count: int, array: pa.Array | None) -> Array:
        """For each slot: how many values, and the limbs of their sum."""
        out = np.zeros((count, self.width), np.int64)
        valid = EVERY if array is None else _mask(array)
        counted = np.zeros(count, np.int64)
        count_rows(slots, valid, counted)
        out[:, 0] = counted
        if self.width > 1:
            assert array is not None
            self._add(slots, array, valid, out)
        return out

    def _add(self, slots: Array, array: pa.Array, valid: Array, out: Array) -> None:
        if not isinstance(self._argument, Float):
            add_limbs(slots, limbs_of(array), valid, out[:, 1:])
            return
        values = _numbers(array.cast(pa.float64()))
        odd, limbs = out[:, 1 : 1 + _ODD], out[:, 1 + _ODD :]
        add_floats(slots, values, values.view(np.int64), valid, limbs, odd)

    def finish(self, state: Array) -> pa.Array:
        """The values of slots."""
        if self._function == "count":
            return pa.array(np.ascontiguousarray(state[:, 0]))
        missing = state[:, 0] == 0
        finish = _average if self._function == "avg" else _sum
        return finish(state[:, 0], state[:, 1:], self._argument, self.type, missing)


def _limbs(kind: Type | None) -> int:
    if isinstance(kind, Float):
        return _ODD + FLOAT_LIMBS
    arrow = arrow_of(kind) if kind is not None else pa.int64()
    return 4 if pa.types.is_decimal(arrow) else 2 if arrow.bit_width == 64 else 1


def _numbers(array: pa.Array) -> Array:
    """Values as an array; what stands for NULL does not matter."""
    filled = array.fill_null(0) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def limbs_of(array: pa.Array) -> Array:
    """Whole numbers in pieces of 32 bits, the highest with the sign."""
    if pa.types.is_decimal(array.type):
        low, high = words_of(array)
        return np.stack([low & _LIMB, (low >> 32) & _LIMB, high & _LIMB, high >> 32], axis=1)
    values = _numbers(array)
    if values.dtype.itemsize < 8:
        return values.astype(np.int64)[:, None]
    return np.stack(
        [(values & np.array(0xFFFFFFFF, values.dtype)).astype(np.int64), (values >> 32).astype(np.int64)],
        axis=1,
    )


def words_of(array: pa.Array) -> tuple[Array, Array]:
    """The low and the high 64 bits of decimals."""
    array = array.fill_null(PyDecimal(0)) if array.null_count else array
    words = np.frombuffer(array.buffers()[1], np.int64)
    words = words[2 * array.offset : 2 * (array.offset + len(array))].reshape(-1, 2)
    return words[:, 0], words[:, 1]


def _whole(limbs: Array) -> list[int]:
    """Sums of limbs as Python's whole numbers."""
    totals = [int(value) for value in limbs[:, 0]]
    for k in range(1, limbs.shape[1]):
        totals = [total + (int(value) << 32 * k) for total, value in zip(totals, limbs[:, k], strict=True)]
    return totals


def _sum(counts: Array, limbs: Array, argument: Type | None, kind: Type, missing: Array) -> pa.Array:
    if isinstance(argument, Float):
        return pa.array(_floats(limbs), mask=missing)
    if isinstance(kind, Int):
        return pa.array(np.ascontiguousarray(limbs[:, 0]), mask=missing)
    return _decimals(limbs, kind, missing)


def _decimals(limbs: Array, kind: Type, missing: Array) -> pa.Array:
    """Limbs to decimals, 128 bits at a time."""
    assert isinstance(kind, Decimal)
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


def _floats(state: Array) -> Array:
    """Exact sums of floats, rounded once."""
    out = np.zeros(len(state))
    odd = state[:, :_ODD]
    for row in np.flatnonzero(odd.any(axis=1)):
        nan, plus, minus = odd[row]
        out[row] = np.nan if nan or (plus and minus) else np.inf if plus else -np.inf
    for row in np.flatnonzero(~odd.any(axis=1)):
        limbs = state[row, _ODD:]
        total = sum(int(limbs[k]) << (32 * int(k)) for k in np.flatnonzero(limbs))
        out[row] = _rounded(total)
    return out


_ONE = 2**1074


def _rounded(total: int) -> float:
    try:
        return total / _ONE
    except OverflowError:
        return float("inf") if total > 0 else float("-inf")


def _average(counts: Array, limbs: Array, argument: Type | None, kind: Type, missing: Array) -> pa.Array:
    safe = np.where(missing, 1, counts)
    if isinstance(argument, Float):
        with np.errstate(invalid="ignore"):
            return pa.array(_floats(limbs) / safe, mask=missing)
    if isinstance(argument, Decimal):
        assert isinstance(kind, Decimal)
        return _decimal_averages(limbs, safe, kind, kind.scale - argument.scale, missing)
    if limbs.shape[1] == 1 and np.all(np.abs(limbs) < 2**53):
        return pa.array(limbs[:, 0] / safe, mask=missing)
    totals = [total / int(n) for total, n in zip(_whole(limbs), safe, strict=True)]
    return pa.array(np.array(totals, np.float64), mask=missing)


def _decimal_averages(limbs: Array, counts: Array, kind: Decimal, shift: int, missing: Array) -> pa.Array:
    values = [
        None if gone else PyDecimal(half_away(total * 10**shift, int(n))).scaleb(-kind.scale, _EXACT)
        for total, n, gone in zip(_whole(limbs), counts, missing, strict=True)
    ]
    try:
        return pa.array(values, arrow_of(kind))
    except pa.ArrowInvalid:
        raise HandshakeError(f"an average has more digits than {kind} holds; cast its argument") from None


def half_away(number: int, by: int) -> int:
    """A quotient rounded to the nearest whole number, halves away from zero."""
    quotient = (2 * abs(number) + by) // (2 * by)
    return -quotient if number < 0 else quotient


# Extremes.


@total_ordering
class _Down:
    """A value in the opposite order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and self.value == other.value

    def __lt__(self, other: _Down) -> bool:
        return bool(other.value < self.value)

    def __hash__(self) -> int:
        return hash(self.value)


class Extreme:
    """min and max: the greatest key of each slot, in the order of values or against it."""

    def __init__(self, aggregate: Aggregate, kind: Type) -> None:
        self.name, self.field = aggregate.name, aggregate.field
        self.type, self._down = kind, aggregate.function == "min"
        self._arrow = arrow_of(kind)
        self.compiled = _codec(self._arrow) is not None
        """Whether keys are 64-bit numbers; else they are Python's values."""

    @property
    def dtype(self) -> Any:
        """What keys are kept in."""
        return np.int64 if self.compiled else object

    def keys(self, array: pa.Array) -> tuple[Array, Array]:
        """Keys of values, and which rows have one."""
        return keys_of(array, self._arrow, self._down), _mask(array)

    def reduce(self, slots: Array, count: int, array: pa.Array | None) -> tuple[Array, Array]:
        """For each slot: its greatest key, and whether there is one."""
        assert array is not None
        keys, valid = self.keys(array)
        out, seen = np.zeros(count, self.dtype), np.zeros(count, np.bool_)
        (greatest if self.compiled else greatest.py_func)(slots, keys, valid, out, seen)
        return out, seen

    def finish(self, keys: Array, seen: Array) -> pa.Array:
        """The values of slots."""
        return values_of(keys, seen, self._arrow, self._down, self.type)


def _codec(arrow: pa.DataType) -> str | None:
    """How values of an Arrow type become whole numbers in the same order."""
    if pa.types.is_floating(arrow):
        return "float"
    if pa.types.is_decimal(arrow):
        return "decimal" if arrow.precision <= 18 else None
    if arrow == pa.uint64():
        return "unsigned"
    return (
        "whole"
        if pa.types.is_integer(arrow) or pa.types.is_temporal(arrow) or pa.types.is_boolean(arrow)
        else None
    )


def keys_of(array: pa.Array, arrow: pa.DataType, down: bool) -> Array:
    """Values as keys whose order is theirs (NaN the largest), or the opposite."""
    codec = _codec(arrow)
    if codec is None:
        values = array.to_pylist()
        made = [None if v is None else _Down(v) if down else v for v in values]
        keys = np.empty(len(made), object)
        keys[:] = made
        return keys
    whole = _CODECS[codec](array)
    return ~whole if down else whole


def _float_keys(array: pa.Array) -> Array:
    values = _numbers(array.cast(pa.float64())) + 0.0  # no minus zero
    bits = np.where(np.isnan(values), np.array(np.nan), values).view(np.int64)
    keys = np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)
    return np.where(np.isnan(values), np.int64(2**63 - 1), keys)


def _whole_keys(array: pa.Array) -> Array:
    if pa.types.is_boolean(array.type):
        return _numbers(array.cast(pa.int8())).astype(np.int64)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return _numbers(array).astype(np.int64)


_CODECS: dict[str, Callable[[pa.Array], Array]] = {
    "float": _float_keys,
    "decimal": lambda array: words_of(array)[0].copy(),
    "unsigned": lambda array: (_numbers(array) ^ np.uint64(2**63)).view(np.int64),
    "whole": _whole_keys,
}


def values_of(keys: Array, seen: Array, arrow: pa.DataType, down: bool, kind: Type) -> pa.Array:
    """Keys back to values."""
    codec = _codec(arrow)
    if codec is None:
        values = [k.value if down and s else k if s else None for k, s in zip(keys, seen, strict=True)]
        return pa.array(values, arrow)
    whole = ~keys if down else keys
    missing = None if seen.all() else ~seen
    if codec == "float":
        bits = np.where(whole < 0, whole ^ np.int64(2**63 - 1), whole)
        numbers = np.where(whole == 2**63 - 1, np.nan, bits.view(np.float64))
        return pa.array(numbers, mask=missing).cast(arrow)
    if codec == "unsigned":
        return pa.array(whole.view(np.uint64) ^ np.uint64(2**63), mask=missing)
    if codec == "decimal":
        return decimals_of(whole, missing, arrow)
    if pa.types.is_boolean(arrow):
        return pc.not_equal(pa.array(whole, mask=missing), 0)
    plain = pa.array(whole, mask=missing)
    if pa.types.is_temporal(arrow):
        return plain.cast(pa.int32()).view(arrow) if arrow.bit_width == 32 else plain.view(arrow)
    return fit(plain, kind, "an aggregate")


def decimals_of(whole: Array, missing: Array | None, arrow: pa.DataType) -> pa.Array:
    """Decimals from their digits, where 64 bits hold them."""
    words = np.stack([whole, whole >> 63], axis=1)
    bitmap = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(whole), [bitmap, pa.py_buffer(words)])


def part_of(aggregate: Aggregate) -> Additive | Extreme:
    """How an algebraic aggregate is kept."""
    kind = None if aggregate.field is None else aggregate.input.schema.get(aggregate.field).type
    if aggregate.function in ("min", "max"):
        assert kind is not None
        return Extreme(aggregate, kind)
    return Additive(aggregate, kind)
