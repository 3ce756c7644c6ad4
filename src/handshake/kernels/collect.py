"""Rows of many basic windows as one batch.

A result has a few tuples of each of many windows. Calling Arrow per column and window would take longer than
finding the pairs. Here one call copies all fixed-width columns of a side, and two calls each text column.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, prefetch, reader
from handshake.kernels.lower import I8

Array = np.ndarray[Any, Any]
_CHUNK = 32
_AHEAD = 24
"""Texts to prefetch ahead, which is 1.3 times faster than Arrow's `take` on large windows."""
_BITS = 0
_ALIGNED = 64
_LITTLE = 1 << 16
REACH = {4: 1 << 31, 8: 1 << 63}
"""Bytes of text that offsets of 4 and 8 bytes can address."""
TEXTS = {pa.string(): 4, pa.binary(): 4, pa.large_string(): 8, pa.large_binary(): 8}


class Shape(NamedTuple):
    """The memory layout of the columns of a side."""

    kinds: tuple[pa.DataType, ...]
    widths: Array
    """Bytes per value; 0 for bits, and the negative size of an offset for texts."""
    sizes: tuple[int, ...]
    """The widths as Python numbers."""
    texts: tuple[int, ...]
    """Positions of the text columns."""


Places = Array
"""Addresses of the columns of one batch: of the values per column, of the validity per column (0 if no value
is missing), then address and size of the bytes per text column. Addresses of bits count bits, since a slice
may begin anywhere."""


def shape_of(schema: pa.Schema) -> Shape | None:
    """Return the layout of a schema, or None if a column has an unknown one (dictionary, list, …)."""
    widths = [_width(kind) for kind in schema.types]
    sizes = tuple(width for width in widths if width is not None)
    if len(sizes) < len(widths):
        return None
    texts = tuple(k for k, kind in enumerate(schema.types) if kind in TEXTS)
    return Shape(tuple(schema.types), np.array(sizes, np.int64), sizes, texts)


def _width(kind: pa.DataType) -> int | None:
    if kind in TEXTS:
        return -TEXTS[kind]
    if pa.types.is_boolean(kind):
        return _BITS
    plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return kind.bit_width // 8 if plain and kind.bit_width in (8, 16, 32, 64, 128, 256) else None


def places_of(shape: Shape, batch: pa.RecordBatch) -> Places:
    """Return the addresses of the first columns of a batch, which must outlive them."""
    values, valid, texts = [], [], []
    for position, width in enumerate(shape.sizes):
        array = batch.column(position)
        buffers, offset = array.buffers(), array.offset
        valid.append(8 * buffers[0].address + offset if array.null_count else 0)
        start = buffers[1].address if buffers[1] is not None else 0
        values.append(start + abs(width) * offset if width else 8 * start + offset)
        if width < 0:
            texts += [buffers[2].address, buffers[2].size] if buffers[2] is not None else [0, 0]
    return np.array([*values, *valid, *texts], np.int64)


def row_bytes(shape: Shape, places: Places, rows: int) -> float:
    """Return the mean memory of a row, faster than Arrow does."""
    total = float(sum(map(abs, shape.sizes)))
    for column in shape.texts:
        width, start = -shape.sizes[column], int(places[column])
        offset = ctypes.c_int32 if width == 4 else ctypes.c_int64
        ends = (offset.from_address(start + width * row).value for row in (0, rows))
        total += (-next(ends) + next(ends)) / rows
    return total


def collect(shape: Shape, places: Sequence[Places], rows: Array, ends: Array) -> list[pa.Array]:
    """Return rows of several batches; `rows[ends[k - 1] : ends[k]]` are row numbers of batch `k`.

    Raises:
        pa.ArrowInvalid: An array cannot hold the texts.
    """
    table = np.concatenate(places).reshape(len(places), -1)
    count, columns = len(rows), len(shape.sizes)
    values = _allocate(
        [(count * width if width else count // 8 + 1) if width > -1 else 0 for width in shape.sizes]
    )
    _copy_values(table, shape.widths, rows, ends, np.array([data.address for (data,) in values]))
    valid = _validity(table, columns, rows, ends)
    for number, column in enumerate(shape.texts):
        values[column] = _texts(table, column, 2 * (columns + number), -shape.sizes[column], rows, ends)
    return [
        pa.Array.from_buffers(kind, count, [known, *data])
        for kind, known, data in zip(shape.kinds, valid, values, strict=True)
    ]


def _allocate(sizes: list[int]) -> list[tuple[pa.Buffer, ...]]:
    """Allocate buffers; small ones in one piece, since allocating takes longer than copying."""
    if sum(sizes) > _LITTLE:
        return [(pa.allocate_buffer(size),) for size in sizes]
    starts = list(accumulate((-(-size // _ALIGNED) * _ALIGNED for size in sizes), initial=0))
    memory = pa.allocate_buffer(starts[-1])
    return [(memory.slice(at, size),) for at, size in zip(starts, sizes, strict=False)]


def collect_texts(array: pa.Array, rows: Array) -> pa.Array:
    """Return the texts at some rows of an array without NULLs."""
    width = TEXTS[array.type]
    _, offsets, data = array.buffers()
    at = np.array([(offsets.address + width * array.offset, data.address, data.size)])
    buffers = _texts(at, 0, 1, width, rows, np.array([len(rows)]))
    return pa.Array.from_buffers(array.type, len(rows), [None, *buffers])


def _validity(table: Array, columns: int, rows: Array, ends: Array) -> list[pa.Buffer | None]:
    found: list[pa.Buffer | None] = [None] * columns
    valid = table[:, columns : 2 * columns]
    for column in np.flatnonzero(valid.any(0)).tolist() if valid.any() else ():
        bits = found[column] = pa.allocate_buffer(len(rows) // 8 + 1)
        copy_bits(valid[:, column].copy(), rows, ends, bits.address)
    return found


def _texts(
    table: Array, values: int, data: int, width: int, rows: Array, ends: Array
) -> tuple[pa.Buffer, pa.Buffer]:
    """Copy texts; column `values` of the table holds offsets, `data` and `data + 1` address and size."""
    places = pa.allocate_buffer((len(rows) + 1) * width)
    offsets = np.frombuffer(places, np.int32 if width == 4 else np.int64)
    total = _measure(table, values, rows, ends, offsets)
    if total >= REACH[width]:
        raise pa.ArrowInvalid(f"offsets of {8 * width} bits cannot address {total} bytes of text")
    copy = pa.allocate_buffer(total + _CHUNK)  # the last chunk may exceed the end
    _copy_texts(table, values, data, rows, ends, offsets, copy.address)
    return places, copy.slice(0, total)


# Memory at plain addresses.


def _copier(kind: ir.Type) -> Any:
    @intrinsic
    def copy(typing_context, source, target):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            where = [builder.inttoptr(address, ir.PointerType(kind)) for address in args]
            builder.store(builder.load(where[0], align=1), where[1], align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), code

    return copy


def _writer(kind: types.Type, bits: int) -> Any:
    @intrinsic
    def write(typing_context, address, value):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            place = builder.inttoptr(args[0], ir.PointerType(ir.IntType(bits)))
            builder.store(args[1], place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, kind), code

    return write


_write_byte = _writer(types.uint8, 8)
write_half, write_word = _writer(types.int32, 32), _writer(types.int64, 64)
copy_byte, _copy2, _copy4, _copy8 = (_copier(ir.IntType(8 * n)) for n in (1, 2, 4, 8))
_copy16, _copy_chunk = (_copier(ir.VectorType(I8, n)) for n in (16, _CHUNK))
_byte, _short, _long = reader(types.uint8), reader(types.int32), reader(types.int64)


@numba.njit(**JIT, inline="always")
def copy_value(width, source, target):  # type: ignore[no-untyped-def]
    if width == 4:
        _copy4(source, target)
    elif width == 8:
        _copy8(source, target)
    elif width == 2:
        _copy2(source, target)
    elif width == 1:
        copy_byte(source, target)
    elif width == 16:
        _copy16(source, target)
    else:
        _copy_chunk(source, target)


@compile_loop(**JIT)
def copy_bits(at, rows, ends, out):  # type: ignore[no-untyped-def]
    """Copy bits from addresses in bits; return how many are not set. An address of 0 stands for set bits."""
    k, missing = 0, np.int64(0)
    byte = np.uint8(0)
    for r in range(rows.shape[0]):
        while r >= ends[k]:
            k += 1
        bit = np.uint8(1)
        if at[k] != 0:
            place = at[k] + rows[r]
            bit = (_byte(place >> 3) >> np.uint8(place & 7)) & np.uint8(1)
        byte |= bit << np.uint8(r & 7)
        missing += 1 - np.int64(bit)
        if r & 7 == 7:
            _write_byte(out + (r >> 3), byte)
            byte = np.uint8(0)
    _write_byte(out + (rows.shape[0] >> 3), byte)
    return missing


@compile_loop(**JIT)
def _copy_values(table, widths, rows, ends, outs):  # type: ignore[no-untyped-def]
    for c in range(widths.shape[0]):
        width, out = widths[c], outs[c]
        if width == 0:
            copy_bits(table[:, c].copy(), rows, ends, out)
        elif width > 0:
            k = 0
            for r in range(rows.shape[0]):
                while r >= ends[k]:
                    k += 1
                copy_value(width, table[k, c] + width * rows[r], out + width * r)


@numba.njit(**JIT, inline="always")
def text_offset(width, address, row):  # type: ignore[no-untyped-def]
    return np.int64(_short(address + 4 * row)) if width == 4 else _long(address + 8 * row)


@compile_loop(**JIT)
def _measure(table, values, rows, ends, offsets):  # type: ignore[no-untyped-def]
    """Compute the end of each text; return the total, which may exceed the range of offsets."""
    total = np.int64(0)
    offsets[0] = 0
    k = 0
    width = offsets.itemsize
    for r in range(rows.shape[0]):
        while r >= ends[k]:
            k += 1
        row = np.int64(rows[r])
        total += text_offset(width, table[k, values], row + 1) - text_offset(width, table[k, values], row)
        offsets[r + 1] = total
    return total


@compile_loop(**JIT)
def _copy_texts(table, values, texts, rows, ends, offsets, out):  # type: ignore[no-untyped-def]
    k = ahead = 0
    count, width = rows.shape[0], offsets.itemsize
    for r in range(count):
        if r + _AHEAD < count:
            while r + _AHEAD >= ends[ahead]:
                ahead += 1
            row = np.int64(rows[r + _AHEAD])
            prefetch(table[ahead, texts] + text_offset(width, table[ahead, values], row))
        while r >= ends[k]:
            k += 1
        data, size = table[k, texts], table[k, texts + 1]
        start = text_offset(width, table[k, values], np.int64(rows[r]))
        stop = start + np.int64(offsets[r + 1] - offsets[r])
        place = out + offsets[r]
        # Whole chunks: bytes beyond a text are overwritten by the next one.
        while start < stop and start + _CHUNK <= size:
            _copy_chunk(data + start, place)
            start += _CHUNK
            place += _CHUNK
        while start < stop:
            copy_byte(data + start, place)
            start += 1
            place += 1
