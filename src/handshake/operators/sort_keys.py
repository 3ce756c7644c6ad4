"""Values as whole numbers in the same order, and back; values without such a form stay Python objects."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal as PyDecimal
from functools import total_ordering
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.kernels.keys import decimal_words, decimals_from_words, numbers_of
from handshake.operators.chunk import Array, fit
from handshake.schema import Type

_LARGEST = np.int64(2**63 - 1)


@total_ordering
class _Reversed:
    """A value in the opposite order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and self.value == other.value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __hash__(self) -> int:
        return hash(self.value)


def words_of(array: pa.Array) -> tuple[Array, Array]:
    """Return the low and the high 64 bits of decimals."""
    array = array.fill_null(PyDecimal(0)) if array.null_count else array
    words = decimal_words(array)
    return words[:, 0], words[:, 1]


def decimals_of(whole: Array, missing: Array | None, arrow: pa.DataType) -> pa.Array:
    """Return decimals from their digits, which fit 64 bits."""
    return decimals_from_words(np.stack([whole, whole >> 63], axis=1), missing, arrow)


def _codec(arrow: pa.DataType) -> str | None:
    if pa.types.is_floating(arrow):
        return "float"
    if pa.types.is_decimal(arrow):
        return "decimal" if arrow.precision <= 18 else None
    if arrow == pa.uint64():
        return "unsigned"
    whole = pa.types.is_integer(arrow) or pa.types.is_temporal(arrow) or pa.types.is_boolean(arrow)
    return "whole" if whole else None


def has_integer_keys(arrow: pa.DataType) -> bool:
    """Return whether the keys of a type are 64-bit integers, not Python objects."""
    return _codec(arrow) is not None


def keys_of(array: pa.Array, arrow: pa.DataType, down: bool) -> Array:
    """Return keys in the order of the values (NaN is the largest), or in the opposite order."""
    codec = _codec(arrow)
    if codec is None:
        keys = np.empty(len(array), object)
        keys[:] = [_Reversed(v) if down and v is not None else v for v in array.to_pylist()]
        return keys
    whole = _CODECS[codec](array)
    return ~whole if down else whole


def _float_keys(array: pa.Array) -> Array:
    values = numbers_of(array.cast(pa.float64())) + 0.0  # no minus zero
    bits = np.where(np.isnan(values), np.array(np.nan), values).view(np.int64)
    keys = np.where(bits < 0, bits ^ _LARGEST, bits)
    return np.where(np.isnan(values), _LARGEST, keys)


def _whole_keys(array: pa.Array) -> Array:
    if pa.types.is_boolean(array.type):
        return numbers_of(array.cast(pa.int8())).astype(np.int64)
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    return numbers_of(array).astype(np.int64)


_CODECS: dict[str, Callable[[pa.Array], Array]] = {
    "float": _float_keys,
    "decimal": lambda array: words_of(array)[0].copy(),
    "unsigned": lambda array: (numbers_of(array) ^ np.uint64(2**63)).view(np.int64),
    "whole": _whole_keys,
}


def values_of(keys: Array, seen: Array, arrow: pa.DataType, down: bool, kind: Type) -> pa.Array:
    """Return the values of keys, and NULL if `seen` is False."""
    codec = _codec(arrow)
    if codec is None:
        values = [k.value if down and s else k if s else None for k, s in zip(keys, seen, strict=True)]
        return pa.array(values, arrow)
    whole = ~keys if down else keys
    missing = None if seen.all() else ~seen
    if codec == "float":
        bits = np.where(whole < 0, whole ^ _LARGEST, whole)
        numbers = np.where(whole == _LARGEST, np.nan, bits.view(np.float64))
        return pa.array(numbers, mask=missing).cast(arrow)
    if codec == "unsigned":
        return pa.array(whole.view(np.uint64) ^ np.uint64(2**63), mask=missing)
    if codec == "decimal":
        return decimals_of(whole, missing, arrow)
    plain = pa.array(whole, mask=missing)
    if pa.types.is_boolean(arrow):
        return pc.not_equal(plain, 0)
    if pa.types.is_temporal(arrow):
        return plain.cast(pa.int32()).view(arrow) if arrow.bit_width == 32 else plain.view(arrow)
    return fit(plain, kind, "an aggregate")


def cells_of(array: pa.Array) -> Array:
    """Return values as whole numbers or Python objects that restore them exactly, also minus zero."""
    if pa.types.is_floating(array.type):
        return numbers_of(array.cast(pa.float64())).view(np.int64)
    return keys_of(array, array.type, False)


def restore_cells(cells: Array, seen: Array, arrow: pa.DataType, kind: Type) -> pa.Array:
    """Return the values of cells, and NULL if `seen` is False."""
    if has_integer_keys(arrow):
        cells = cells.astype(np.int64)
    if pa.types.is_floating(arrow):
        return pa.array(cells.view(np.float64), mask=~seen).cast(arrow)
    return values_of(cells, seen, arrow, False, kind)
