"""Arrow arrays as the plain addresses that kernels read, without a copy if the layout allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from handshake.kernels.compile_cache import compile_loop
from handshake.plan.expr import Column
from handshake.plan.ranges import storage_bits, type_range
from handshake.plan.types import is_exact
from handshake.schema import Bool, Decimal, Float, Type

FEW = 4096
"""Rows that a compiled loop reads faster than NumPy."""


@dataclass(frozen=True)
class View:
    """One column in memory. `validity` is 0 if no value is missing; `owner` keeps the memory alive."""

    data: int
    validity: int
    headroom: bool
    owner: Any


def as_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a column as one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        if column.num_chunks == 1:
            return column.chunk(0)
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column


PLAIN = frozenset(
    kind.id
    for kind in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float32(), pa.float64(), pa.date32(), pa.timestamp("s"), pa.duration("s"),
        pa.string(), pa.binary(), pa.decimal128(1),
    )
)  # fmt: skip
"""Ids of the types in a layout that kernels know, to save five tests per column of a small batch."""


def layout(array: pa.Array) -> pa.Array:
    """Return the array in a layout that kernels know."""
    kind = array.type
    if kind.id in PLAIN:
        return array
    if pa.types.is_dictionary(kind):
        return layout(array.dictionary_decode())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    if pa.types.is_date64(kind):
        return array.cast(pa.date32())
    if pa.types.is_decimal(kind) and not pa.types.is_decimal128(kind):
        return array.cast(pa.decimal128(kind.precision, kind.scale))
    return array


def view(array: pa.Array, kind: Type, known_headroom: bool = False) -> View:
    """Return the addresses of a column of the given predicate type."""
    array = layout(array)
    validity, data = array.buffers()[:2]
    owners = [array]
    nulls = _bitmap(validity, array.offset, len(array), owners) if array.null_count else 0
    if isinstance(kind, Bool):
        return View(_bitmap(data, array.offset, len(array), owners), nulls, True, owners)
    width = (kind.bits if isinstance(kind, Float) else storage_bits(kind)) // 8
    address = data.address + array.offset * width if data is not None else 0
    return View(address, nulls, known_headroom or _has_headroom(data, array.offset, len(array), kind), owners)


def _bitmap(buffer: pa.Buffer | None, offset: int, rows: int, owners: list[Any]) -> int:
    """Return the address of a bitmap that begins with the array's first bit; copy it if need be."""
    if buffer is None or rows == 0:
        return 0
    if offset % 8 == 0:
        return int(buffer.address) + offset // 8
    # Only the bytes of this slice, not those of the whole batch.
    start, stop = offset // 8, (offset + rows + 7) // 8
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8, stop - start, start), bitorder="little")
    packed = np.packbits(bits[offset % 8 : offset % 8 + rows], bitorder="little")
    owners.append(packed)
    return int(packed.ctypes.data)


def _has_headroom(data: pa.Buffer | None, offset: int, rows: int, kind: Type) -> bool:
    """Return whether all whole numbers leave two bits to spare (see plan.ranges)."""
    limits = headroom_range(kind)
    if rows == 0 or data is None or limits is None:
        return True
    dtype, low, high = limits
    if isinstance(kind, Decimal):
        return _decimals_fit(np.frombuffer(data, dtype, 2 * rows, 16 * offset).reshape(rows, 2), low, high)
    least, most = extremes(np.frombuffer(data, dtype, rows, dtype.itemsize * offset))
    return least >= low and most <= high


def extremes(values: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the least and the largest number. For a few, one call takes half the time of NumPy's two."""
    if len(values) <= FEW:
        return _extremes(values)  # type: ignore[no-any-return]
    return int(values.min()), int(values.max())


@compile_loop()
def _extremes(values):  # type: ignore[no-untyped-def]
    least = most = values[0]
    for value in values:
        least, most = min(least, value), max(most, value)
    return least, most


@lru_cache(maxsize=256)
def headroom_range(kind: Type) -> tuple[np.dtype[Any], int, int] | None:
    """Return the NumPy type and the limits of values with headroom; None if all values have it."""
    if not is_exact(kind) or storage_bits(kind) < 32:
        return None
    bits = 64 if isinstance(kind, Decimal) else storage_bits(kind)
    sign = "u" if type_range(kind, False)[0] == 0 else "i"
    return (np.dtype(f"{sign}{bits // 8}"), *type_range(kind, headroom=True))


def _decimals_fit(words: np.ndarray[Any, Any], low: int, high: int) -> bool:
    lower, upper = words[:, 0], words[:, 1]
    return bool((upper == (lower >> 63)).all() and lower.min() >= low and lower.max() <= high)


def integers(array: pa.Array) -> np.ndarray[Any, Any]:
    """Return the whole numbers of a fixed-width exact array of up to 64 bits, any number for NULL."""
    array = layout(array)
    width = array.type.bit_width
    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    data = array.buffers()[1]
    if data is None or len(array) == 0:
        return np.empty(0, f"{sign}{width // 8}")
    return np.frombuffer(data, f"{sign}{width // 8}", len(array), array.offset * width // 8)


def _with_address(ones: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], int]:
    return ones, int(ones.ctypes.data)


_ones = [_with_address(np.full(1 << 13, 0xFF, np.uint8))]


def all_valid(rows: int) -> int:
    """Return the address of a bitmap of ones. Smaller ones that are in use stay alive."""
    need = rows // 8 + 16
    ones, address = _ones[-1]
    if len(ones) < need:
        made = _with_address(np.full(2 * need, 0xFF, np.uint8))
        _ones.append(made)  # another thread may append a shorter one next: use this one, not the last
        address = made[1]
    return address


def address_words(columns: int) -> int:
    """Return the number of addresses for some columns, rounded up so that loops have few shapes."""
    return 4 * max((columns + 1) // 2, 1)


@dataclass(frozen=True)
class Columns:
    """The kernel columns of some rows."""

    rows: int
    views: tuple[View, ...]
    headroom: bool
    nullable: bool

    @classmethod
    def of(
        cls, rows: int, order: Sequence[Column], arrays: Sequence[pa.Array], known_headroom: bool = False
    ) -> Columns:
        """View arrays, given in the order in which a program loads its columns."""
        views = tuple(
            view(array, column.type, known_headroom) for column, array in zip(order, arrays, strict=True)
        )
        headroom = all(v.headroom for v in views)
        return cls(rows, views, headroom, any(v.validity for v in views))

    def addresses(self, nullable: bool) -> tuple[int, ...]:
        """Return (data, validity) per column, and zeros up to `address_words`."""
        ones = all_valid(self.rows) if nullable else 0
        found = [address for v in self.views for address in (v.data, v.validity or ones)]
        return (*found, *(0,) * (address_words(len(self.views)) - len(found)))
