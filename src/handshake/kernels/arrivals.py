"""Small batches described by one call: addresses, extremes and headroom of their columns.

Asking Arrow for the buffers of every column takes longer than joining a few rows. Here a batch is exported
once through Arrow's C data interface, and a compiled loop reads the structures.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from numba.core import types

from handshake.kernels.codes import FACTS
from handshake.kernels.collect import TEXTS, Shape
from handshake.kernels.columns import FEW, PLAIN, address_words, all_valid, headroom_range
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, QUICK, reader
from handshake.plan.expr import Column
from handshake.plan.ranges import storage_bits
from handshake.schema import Bool, Decimal, Float

Array = np.ndarray[Any, Any]
_BITS, _SIGNED, _UNSIGNED, _UNCHECKED = 0, 1, 2, 3
_DESCRIBED, _HAS_KEYS, _ASCENDS = 1, 2, 4
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Layout(NamedTuple):
    """How the batches of one schema become rows of a scan's table."""

    schema: pa.Schema
    shape: Shape
    columns: Array
    """Per kernel column: its place in the batch, the bytes of a value, its kind, and the limits of values
    with headroom."""
    stamps: tuple[int, int]
    """Places of the two stamps in the batch; -1 for none."""
    keys: Array
    """Per kernel column that must have a value: its place in the batch, and the bytes of a float, else 0."""
    words: int
    """Words of a row of the table."""


class Arrival(NamedTuple):
    """The description of one batch, valid as long as the batch is."""

    row: Array
    """Its row of a scan's table."""
    places: Array
    """The addresses of its columns (see `kernels.collect`)."""
    has_keys: bool
    """Whether all rows have stamps and keys: none is NULL or NaN."""
    ascends: bool
    """Whether no stamp is before the one ahead of it."""


def layout_of(
    schema: pa.Schema, shape: Shape | None, columns: Sequence[tuple[int, Column]], stamps: tuple[int, int],
    keys: Sequence[int] = (),
) -> Layout | None:  # fmt: skip
    """Return the layout of the batches of a schema; None if they are not described by one call.

    Args:
        schema: The columns of a batch, including hidden ones.
        shape: The memory layout of the first columns, which results show.
        columns: The place of each kernel column in the batch.
        stamps: The places of the stamps; -1 for none.
        keys: The places of columns without whose value a row cannot match.
    """
    rows = [_facts(at, column, schema.types[at]) for at, column in columns]
    if shape is None or None in rows:
        return None
    facts = np.array(rows, np.int64).reshape(len(rows), 5)
    widths = [schema.types[at].bit_width // 8 if pa.types.is_floating(schema.types[at]) else 0 for at in keys]
    needed = np.array([*zip(keys, widths, strict=True)], np.int64).reshape(len(keys), 2)
    return Layout(schema, shape, facts, stamps, needed, FACTS + address_words(len(rows)))


def _facts(at: int, column: Column, kind: pa.DataType) -> tuple[int, ...] | None:
    if kind.id not in PLAIN or kind in TEXTS or isinstance(column.type, Decimal):
        return None
    if isinstance(column.type, Bool):
        return (at, 0, _BITS, 0, 0)
    bits = column.type.bits if isinstance(column.type, Float) else storage_bits(column.type)
    limits = headroom_range(column.type)
    if limits is None:
        return (at, bits // 8, _UNCHECKED, 0, 0)
    dtype, low, high = limits
    return (at, bits // 8, _UNSIGNED if dtype.kind == "u" else _SIGNED, low, high)


def describe(batch: pa.RecordBatch, layout: Layout, known_headroom: bool) -> Arrival | None:
    """Describe a batch of 1 to `FEW` rows; return None if its bits begin inside a byte."""
    columns = len(layout.shape.sizes)
    row = np.zeros(layout.words, np.int64)
    places = np.empty(2 * columns + 2 * len(layout.shape.texts), np.int64)
    capsule = batch.__arrow_c_array__()[1]  # frees what was exported; the batch owns the memory
    at = _pointer(capsule, b"arrow_array")
    found = _describe(
        at, layout.shape.widths, layout.columns, layout.stamps, layout.keys, known_headroom, all_valid(FEW),
        row, places,
    )  # fmt: skip
    return Arrival(row, places, found & _HAS_KEYS != 0, found & _ASCENDS != 0) if found else None


_word, _half, _byte = reader(types.int64), reader(types.int32), reader(types.uint8)

_LENGTH, _NULLS, _OFFSET, _BUFFERS, _CHILDREN = 0, 8, 16, 40, 48
"""Bytes before the fields of Arrow's C structure of an array that are read here."""


@numba.njit(**JIT, inline="always")
def _missing(array):  # type: ignore[no-untyped-def]
    """Return the number of NULLs of an array."""
    nulls, bits, offset = _word(array + _NULLS), _word(_word(array + _BUFFERS)), _word(array + _OFFSET)
    if nulls >= 0 or bits == 0:
        return max(nulls, 0)
    nulls = 0
    for at in range(offset, offset + _word(array + _LENGTH)):
        nulls += 1 - np.int64(_byte(bits + (at >> 3)) >> np.uint8(at & 7) & np.uint8(1))
    return nulls


@numba.njit(**JIT, inline="always")
def _fits(address, rows, width, kind, low, high):  # type: ignore[no-untyped-def]
    """Return whether all whole numbers have headroom."""
    for at in range(rows):
        value = np.int64(_half(address + 4 * at)) if width == 4 else _word(address + 8 * at)
        if kind == _UNSIGNED:
            value = value & 0xFFFFFFFF if width == 4 else value
            if value < 0:
                return False
        if value < low or value > high:
            return False
    return True


@numba.njit(**JIT, inline="always")
def _any_nan(array, rows, width):  # type: ignore[no-untyped-def]
    """Return whether a float is NaN: its exponent is all ones, and its fraction is not zero."""
    address = _word(_word(array + _BUFFERS) + 8) + width * _word(array + _OFFSET)
    for at in range(rows):
        if width == 4:
            if np.int64(_half(address + 4 * at)) & 0x7FFFFFFF > 0x7F800000:
                return True
        elif _word(address + 8 * at) & 0x7FFFFFFFFFFFFFFF > 0x7FF0000000000000:
            return True
    return False


@compile_loop(**QUICK)
def _describe(batch, widths, columns, stamps, keys, known_headroom, ones, row, places):  # type: ignore[no-untyped-def]
    rows, children, start = _word(batch + _LENGTH), _word(batch + _CHILDREN), _word(batch + _OFFSET)
    if start != 0:
        return 0
    row[0] = rows
    many, texts = widths.shape[0], 2 * widths.shape[0]
    for c in range(many):
        array, width = _word(children + 8 * c), widths[c]
        buffers, offset = _word(array + _BUFFERS), _word(array + _OFFSET)
        values = _word(buffers + 8)
        places[c] = values + abs(width) * offset if width else 8 * values + offset
        places[many + c] = 8 * _word(buffers) + offset if _missing(array) else 0
        if width < 0:
            last = places[c] - width * _word(array + _LENGTH)
            places[texts] = _word(buffers + 16)
            places[texts + 1] = 0 if values == 0 else (np.int64(_half(last)) if width == -4 else _word(last))
            texts += 2
    headroom, nullable = True, False
    for c in range(columns.shape[0]):
        array, width, kind = _word(children + 8 * columns[c, 0]), columns[c, 1], columns[c, 2]
        buffers, offset = _word(array + _BUFFERS), _word(array + _OFFSET)
        missing = _missing(array)
        if offset & 7 and (kind == _BITS or missing):
            return 0
        address = _word(buffers + 8) + (offset >> 3 if kind == _BITS else offset * width)
        if not known_headroom and _SIGNED <= kind <= _UNSIGNED:
            headroom &= _fits(address, rows, width, kind, columns[c, 3], columns[c, 4])
        nullable |= missing != 0
        row[FACTS + 2 * c] = address
        row[FACTS + 2 * c + 1] = _word(buffers) + (offset >> 3) if missing else ones
    row[5], row[6] = headroom, nullable
    found = _DESCRIBED | _HAS_KEYS | _ASCENDS
    for n in range(2):
        if stamps[n] >= 0:
            array = _word(children + 8 * stamps[n])
            address = _word(_word(array + _BUFFERS) + 8) + 8 * _word(array + _OFFSET)
            least = most = before = _word(address)
            for at in range(1, rows):
                stamp = _word(address + 8 * at)
                least, most = min(least, stamp), max(most, stamp)
                if stamp < before:
                    found &= ~_ASCENDS
                before = stamp
            row[1 + 2 * n], row[2 + 2 * n] = least, most
            if _missing(array) != 0:
                found &= ~_HAS_KEYS
    for c in range(keys.shape[0]):
        array, width = _word(children + 8 * keys[c, 0]), keys[c, 1]
        if _missing(array) != 0 or (width and _any_nan(array, rows, width)):
            found &= ~_HAS_KEYS
    return found
