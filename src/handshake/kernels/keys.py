"""Keys that indexes sort and hash by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from numba.core import types

from handshake.kernels.columns import integers, layout
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, QUICK, reader
from handshake.plan.analyse import Bound
from handshake.schema import STRING, type_from_arrow

Array = np.ndarray[Any, Any]
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compile_loop(nogil=True)
def _hash_texts(data, offsets, out):  # type: ignore[no-untyped-def]
    for row in range(out.shape[0]):
        code = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[row], offsets[row + 1]):
            code = (code ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        code ^= code >> np.uint64(32)
        code *= np.uint64(0x9E3779B97F4A7C15)
        out[row] = code ^ (code >> np.uint64(29))


@compile_loop(nogil=True)
def _prefix_texts(data, offsets, out):  # type: ignore[no-untyped-def]
    for row in range(out.shape[0]):
        word = np.uint64(0)
        start, stop = offsets[row], offsets[row + 1]
        for at in range(start, start + 8):
            word = (word << np.uint64(8)) | (np.uint64(data[at]) if at < stop else np.uint64(0))
        out[row] = word ^ np.uint64(0x8000000000000000)


def _bytes(array: pa.Array) -> tuple[Array, Array]:
    """Return (data, offsets) of text or bytes."""
    array = layout(array)
    if pa.types.is_fixed_size_binary(array.type):
        array = array.cast(pa.binary())
    wide = array.cast(pa.large_string() if type_from_arrow(array.type) == STRING else pa.large_binary())
    _, offsets, data = wide.buffers()
    where = np.frombuffer(offsets, np.int64, len(wide) + 1, wide.offset * 8)
    return (np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)), where


def _over_texts(kernel: Any, array: pa.Array) -> pa.Array:
    out = np.empty(len(array), np.uint64)
    if len(array):
        kernel(*_bytes(array), out)
    missing = np.asarray(array.is_null()) if array.null_count else None
    return pa.array(out.view(np.int64), mask=missing)


def hash_of(array: pa.Array) -> pa.Array:
    """Return a 64-bit hash per text. Different hashes mean different texts."""
    return _over_texts(_hash_texts, array)


def prefix_of(array: pa.Array) -> pa.Array:
    """Return the first eight bytes per text as a number of the same order. Equal numbers decide nothing."""
    return _over_texts(_prefix_texts, array)


def _words(array: pa.Array) -> Array:
    """Return one 64-bit word per value. Equal values of any type have equal words."""
    array = layout(array)
    kind = array.type
    if pa.types.is_decimal(kind):
        return decimal_words(array)[:, 0].view(np.uint64)
    if pa.types.is_floating(kind):
        values: Array = numbers_of(array).astype(np.float64)
        return (values + 0.0).view(np.uint64)  # -0.0 + 0.0 is 0.0
    if pa.types.is_boolean(kind):
        flags: Array = array.fill_null(False).to_numpy(zero_copy_only=False)
        return flags.astype(np.uint64)
    if pa.types.is_primitive(kind):
        return integers(array).astype(np.int64).view(np.uint64)
    return integers(hash_of(array)).view(np.uint64)


def decimal_words(array: pa.Array) -> Array:
    """Return the low and the high 64 bits of decimals; any bits for NULL."""
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.empty((0, 2), np.int64)
    return np.frombuffer(data, np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)


def decimals_from_words(words: Array, missing: Array | None, arrow: pa.DataType) -> pa.Array:
    """Return decimals from their low and high 64 bits."""
    bitmap = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(arrow, len(words), [bitmap, pa.py_buffer(np.ascontiguousarray(words))])


def row_hash(arrays: list[pa.Array]) -> Array:
    """Return one hash per row over several key columns."""
    total = np.zeros(len(arrays[0]), np.uint64)
    for array in arrays:
        total = _mix(total * np.uint64(31) + _words(array))
    return total


def _mix(words: Array) -> Array:
    """Apply the finaliser of splitmix64, so that near keys get very different hashes."""
    words = words + _GOLDEN
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    result: Array = words ^ (words >> np.uint64(31))
    return result


def sort_key(array: pa.Array) -> Array:
    """Return values of the same order as the column: signed integers (saturated to 64 bits) or floats."""
    array = layout(array)
    kind = array.type
    if pa.types.is_decimal(kind):
        words = decimal_words(array)
        fits = words[:, 1] == (words[:, 0] >> 63)
        return np.where(fits, words[:, 0], np.where(words[:, 1] < 0, np.iinfo("i8").min, np.iinfo("i8").max))
    if pa.types.is_floating(kind):
        return numbers_of(array)
    values = integers(array)
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(2**63 - 1)).astype(np.int64)
    return values


@numba.njit(**JIT, inline="always")
def _moved_key(key, offset, is_lower):  # type: ignore[no-untyped-def]
    """Return `key + offset`, saturated to 64 bits.

    A key at an end may stand for a value beyond it (see `sort_key`), so its limit stays there.
    """
    end = _LEAST if is_lower else _MOST
    if key == end:
        return end
    if offset >= 0:
        return key + offset if key <= _MOST - offset else _MOST
    return key + offset if key >= _LEAST - offset else _LEAST


@numba.njit(**JIT, inline="always")
def _moved_float(value, offset, rounding, magnitude, is_lower):  # type: ignore[no-untyped-def]
    """Return `value + offset`, widened by more than rounding may be off by (see plan.analyse)."""
    edge = value + offset
    if rounding != 0.0:
        slack = 4.0 * rounding * (abs(value) + magnitude) + 1e-44
        edge = edge - slack if is_lower else edge + slack
        if np.isinf(value) or np.isnan(edge):
            edge = -np.inf if is_lower else np.inf
    return edge


class Edges(NamedTuple):
    """Bounds that an expression puts on an attribute of the other side, for `limits_at`."""

    dtype: np.dtype[Any]
    """The type of the expression's values."""
    offsets: Array
    roundings: Array
    magnitudes: Array
    lower: Array


def edges_of(side: int, dtype: np.dtype[Any], bounds: Sequence[Bound]) -> Edges:
    """Return the bounds that an expression of a side puts on the other side.

    Offsets of whole numbers beyond 64 bits are left out: what they exclude is not worth the trouble.
    """
    sign, is_whole = (1 if side == 1 else -1), dtype.kind != "f"
    if is_whole:
        bounds = [bound for bound in bounds if _LEAST <= sign * bound.offset <= _MOST]
    return Edges(
        dtype,
        np.array([sign * bound.offset for bound in bounds], np.int64 if is_whole else np.float64),
        np.array([bound.rounding for bound in bounds], np.float64),
        np.array([bound.magnitude for bound in bounds], np.float64),
        np.array([bound.is_lower == (side == 1) for bound in bounds], np.bool_),
    )


def limits_at(address: int, rows: int, edges: Edges) -> tuple[Array, Array]:
    """Return the inclusive limits that values in memory put on an attribute, in one call."""
    low, high = np.empty(rows, edges.offsets.dtype), np.empty(rows, edges.offsets.dtype)
    given = (address, edges.dtype.itemsize, edges.offsets, edges.lower)
    if edges.dtype.kind == "f":
        _limit_floats(*given, edges.roundings, edges.magnitudes, low, high)
    else:
        _limit_keys(*given, edges.dtype.kind == "i", low, high)
    return low, high


_i1, _i2, _i4, _i8 = (reader(kind) for kind in (types.int8, types.int16, types.int32, types.int64))
_u1, _u2, _u4 = (reader(kind) for kind in (types.uint8, types.uint16, types.uint32))
_f4, _f8 = reader(types.float32), reader(types.float64)


@numba.njit(**JIT, inline="always")
def _whole_at(address, width, signed):  # type: ignore[no-untyped-def]
    if width == 4:
        return np.int64(_i4(address)) if signed else np.int64(_u4(address))
    if width == 8:
        return _i8(address)
    if width == 2:
        return np.int64(_i2(address)) if signed else np.int64(_u2(address))
    return np.int64(_i1(address)) if signed else np.int64(_u1(address))


@compile_loop(**QUICK)
def _limit_keys(address, width, offsets, lower, signed, low, high):  # type: ignore[no-untyped-def]
    for row in range(low.shape[0]):
        key = _whole_at(address + width * row, width, signed)
        least, most = _LEAST, _MOST
        for n in range(offsets.shape[0]):
            edge = _moved_key(key, offsets[n], lower[n])
            if lower[n]:
                least = max(least, edge)
            else:
                most = min(most, edge)
        low[row], high[row] = least, most


@compile_loop(**QUICK)
def _limit_floats(address, width, offsets, lower, roundings, magnitudes, low, high):  # type: ignore[no-untyped-def]
    for row in range(low.shape[0]):
        place = address + width * row
        value = np.float64(_f4(place)) if width == 4 else _f8(place)
        least, most = -np.inf, np.inf
        for n in range(offsets.shape[0]):
            edge = _moved_float(value, offsets[n], roundings[n], magnitudes[n], lower[n])
            if lower[n]:
                least = max(least, edge)
            else:
                most = min(most, edge)
        low[row], high[row] = least, most


def has_value(array: pa.Array) -> Array | None:
    """Return a mask of the keys that can match: neither NULL nor NaN. None if all can."""
    valid = np.asarray(array.is_valid()) if array.null_count else None
    if not pa.types.is_floating(array.type):
        return valid
    values = numbers_of(array)
    if valid is None and _all_numbers(values):
        return None
    number: Array = ~np.isnan(values)
    return number if valid is None else valid & number


@compile_loop()
def _all_numbers(values):  # type: ignore[no-untyped-def]
    for value in values:  # noqa: SIM110  (compiled)
        if np.isnan(value):
            return False
    return True


def numbers_of(array: pa.Array) -> Array:
    """Return numbers as a NumPy array, with 0 for NULL."""
    if not array.null_count and len(array) and array.type in (pa.float32(), pa.float64()):
        width = array.type.bit_width // 8
        return np.frombuffer(array.buffers()[1], f"f{width}", len(array), width * array.offset)
    whole = array.fill_null(0) if array.null_count else array
    return np.asarray(whole.to_numpy(zero_copy_only=False))
