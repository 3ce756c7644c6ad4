"""Arrow arrays as lists of physical values, and back.

Dates, timestamps, intervals and decimals are whole numbers in the unit or scale of their type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from handshake.errors import UnsupportedError
from handshake.schema import (
    Binary,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Interval,
    Months,
    String,
    TimeOfDay,
    Timestamp,
    Type,
)


def natural_type(kind: Type) -> pa.DataType:
    """Return the Arrow type of computed values."""
    match kind:
        case Bool():
            return pa.bool_()
        case Int() | Interval(unit="d") | Months():
            return pa.int64()
        case Float(bits=bits):
            return pa.float32() if bits == 32 else pa.float64()
        case Decimal(scale=scale):
            return pa.decimal128(38, scale)
        case Date():
            return pa.date32()
        case Timestamp(unit=unit, zone=zone):
            return pa.timestamp(unit, zone)
        case Interval(unit=unit):
            return pa.duration(unit)
        case TimeOfDay(unit=unit):
            return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
        case String():
            return pa.large_string()
        case Binary():
            return pa.large_binary()
    raise UnsupportedError(f"a value of type {kind} cannot be computed")


def values_of(array: pa.Array) -> list[Any]:
    """Return the physical values of an array; None is NULL."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return values_of(array.dictionary_decode())
    if pa.types.is_decimal(kind):
        return _scale_decimals(array)
    if pa.types.is_date64(kind):
        return values_of(array.cast(pa.date32()))
    if pa.types.is_temporal(kind):
        array = array.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    values: list[Any] = array.to_pylist()
    return values


def _scale_decimals(array: pa.Array) -> list[int | None]:
    """Return the digits of decimals as whole numbers."""
    if not pa.types.is_decimal128(array.type):
        array = array.cast(pa.decimal128(38, array.type.scale))
    words = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    digits = [(high << 64) | (low & (2**64 - 1)) for low, high in words.tolist()]
    missing = pc.is_null(array).to_pylist()
    return [None if lost else value for value, lost in zip(digits, missing, strict=True)]


def array_of(values: Sequence[Any], kind: Type) -> pa.Array:
    """Return physical values as an array of the natural type.

    Whole numbers that do not fit it become decimals without a scale, as in sums that outgrow 64 bits.
    """
    natural = natural_type(kind)
    if isinstance(kind, (Bool, Float, String, Binary)):
        return pa.array(values, natural)
    bits = 128 if isinstance(kind, Decimal) else natural.bit_width
    known = [value for value in values if value is not None]
    if bits == 128 or any(not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) for value in known):
        return _decimals(values, kind.scale if isinstance(kind, Decimal) else 0)
    return pa.array(values, pa.int32() if bits == 32 else pa.int64()).view(natural)


def _decimals(values: Sequence[int | None], scale: int) -> pa.Array:
    if any(value is not None and not -(2**127) <= value < 2**127 for value in values):
        raise UnsupportedError("a value needs more than 128 bits; cast it to a smaller type")
    whole = b"".join((value or 0).to_bytes(16, "little", signed=True) for value in values)
    present = np.packbits([value is not None for value in values], bitorder="little")
    buffers = [pa.py_buffer(present), pa.py_buffer(whole)]
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(values), buffers)
