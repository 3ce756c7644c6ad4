"""Rows of many basic windows as one batch.

A result has a few tuples of each of many windows. Calling Arrow per column and window would take longer than
finding the pairs, and so does building arrays from their buffers, which takes about two microseconds per
column. Here two compiled calls write all rows of both sides as a message of Arrow's IPC format, and Arrow
reads that without a copy. The head of the message is the same for all batches of a schema but for a few
numbers.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, QUICK, prefetch, reader
from handshake.kernels.lower import I8

Array = np.ndarray[Any, Any]
_CHUNK = 32
_AHEAD = 24
"""Texts to prefetch ahead: those of large windows are not in the caches."""
_BITS = 0
_FEW, _LITTLE = 2048, 1 << 16
"""Rows and bytes that are copied in some microseconds, without releasing the interpreter's lock."""
_ALIGNED = 64
_PREFIX = 8
"""Bytes before the metadata of a message: a marker, and the size of the metadata."""
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


_NO_PLACES, _NO_WIDTHS = np.empty((0, 0), np.int64), np.empty(0, np.int64)


class Rows(NamedTuple):
    """Rows of several batches: `rows[ends[k - 1] : ends[k]]` are row numbers of batch `k`."""

    places: Sequence[Places]
    """The addresses of each batch."""
    rows: Array
    ends: Array


class RowsMessage:
    """Makes the batches of one schema, whose columns are those of one side or of two.

    Args:
        schema: The columns of the batches.
        shapes: The memory layout of the columns of each side.
    """

    def __init__(self, schema: pa.Schema, shapes: Sequence[Shape]) -> None:
        self._schema, self._widths = schema, [shape.widths for shape in shapes]
        self._sizes = [size for shape in shapes for size in shape.sizes]
        self._head, self._fields = _head_of(schema)

    def make(self, sides: Sequence[Rows], most: int | None = None) -> pa.RecordBatch:
        """Return the rows of each side as one batch.

        Raises:
            pa.ArrowInvalid: An array cannot hold the texts, or the batch would have more than `most` bytes.
        """
        given: list[Any] = []
        for side, widths in zip(sides, self._widths, strict=True):
            given += [np.concatenate(side.places).reshape(len(side.places), -1), widths, side.rows, side.ends]
        if len(sides) == 1:
            given += [_NO_PLACES, _NO_WIDTHS, *given[2:]]
        layout = np.empty((len(self._sizes), 6), np.int64)
        few = len(sides[0].rows) <= _FEW
        size = (_lay_out_few if few else _lay_out)(*given, layout)
        if most is not None and size > most:
            raise pa.ArrowInvalid(f"{size} bytes of results are more than {most}")
        if size >= REACH[4]:
            self._check_texts(layout)
        memory = pa.allocate_buffer(len(self._head) + size + _CHUNK)  # the last chunk may exceed the end
        write = _write_few if few and size <= _LITTLE else _write
        write(*given, layout, self._head, self._fields, size, memory.address)
        return pa.ipc.read_record_batch(memory, self._schema)

    def _check_texts(self, layout: Array) -> None:
        for width, total in zip(self._sizes, layout[:, 5].tolist(), strict=True):
            if width < 0 and total >= REACH[-width]:
                raise pa.ArrowInvalid(f"offsets of {-8 * width} bits cannot address {total} bytes of text")


def _head_of(schema: pa.Schema) -> tuple[Array, Array]:
    """Return the head of a message, and the places in it of: body size, rows, nodes, buffers.

    Nodes have the rows and NULLs of each column. Buffers have the start and size of each buffer.
    """
    sample = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in schema.types], schema=schema)
    message = sample.serialize().to_pybytes()
    (length,) = struct.unpack_from("<i", message, 4)
    root = _PREFIX + _word(message, _PREFIX)
    body = _field(message, root, 3)
    batch = _target(message, _field(message, root, 2))
    rows = _field(message, batch, 0)
    nodes, buffers = (_target(message, _field(message, batch, number)) + 4 for number in (1, 2))
    size = -(-(_PREFIX + length) // _ALIGNED) * _ALIGNED
    head = np.zeros(size, np.uint8)
    head[: _PREFIX + length] = np.frombuffer(message, np.uint8, _PREFIX + length)
    head[4:8] = np.frombuffer(struct.pack("<i", size - _PREFIX), np.uint8)
    return head, np.array([body, rows, nodes, buffers], np.int64)


def _word(message: bytes, at: int) -> int:
    return int(struct.unpack_from("<i", message, at)[0])


def _field(message: bytes, table: int, number: int) -> int:
    """Return the place of a field of a FlatBuffers table."""
    (offset,) = struct.unpack_from("<H", message, table - _word(message, table) + 4 + 2 * number)
    assert offset, f"field {number} is missing"
    return int(table + offset)


def _target(message: bytes, at: int) -> int:
    return at + _word(message, at)


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
_write_half, _write_word = _writer(types.int32, 32), _writer(types.int64, 64)
_copy_byte, _copy2, _copy4, _copy8 = (_copier(ir.IntType(8 * n)) for n in (1, 2, 4, 8))
_copy16, _copy_chunk = (_copier(ir.VectorType(I8, n)) for n in (16, _CHUNK))
_byte, _short, _long = reader(types.uint8), reader(types.int32), reader(types.int64)


@numba.njit(**JIT, inline="always")
def _copy_value(width, source, target):  # type: ignore[no-untyped-def]
    if width == 4:
        _copy4(source, target)
    elif width == 8:
        _copy8(source, target)
    elif width == 2:
        _copy2(source, target)
    elif width == 1:
        _copy_byte(source, target)
    elif width == 16:
        _copy16(source, target)
    else:
        _copy_chunk(source, target)


@numba.njit(**JIT)
def _copy_bits(at, rows, ends, out):  # type: ignore[no-untyped-def]
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


@numba.njit(**JIT, inline="always")
def _text_offset(width, address, row):  # type: ignore[no-untyped-def]
    return np.int64(_short(address + 4 * row)) if width == 4 else _long(address + 8 * row)


@numba.njit(**JIT, inline="always")
def _room(size):  # type: ignore[no-untyped-def]
    return (size + _ALIGNED - 1) // _ALIGNED * _ALIGNED


@numba.njit(**JIT)
def _lay_out_side(table, widths, rows, ends, layout, size):  # type: ignore[no-untyped-def]
    count, columns = rows.shape[0], widths.shape[0]
    bits = count // 8 + 1
    for c in range(columns):
        width = widths[c]
        layout[c, 0], layout[c, 1], layout[c, 4], layout[c, 5] = size, 0, size, 0
        for k in range(table.shape[0]):
            if table[k, columns + c] != 0:
                layout[c, 1] = bits
                size += _room(bits)
                break
        length = bits if width == 0 else (count + (width < 0)) * abs(width)
        layout[c, 2], layout[c, 3] = size, length
        size += _room(length)
        if width < 0:
            total, k = 0, 0
            for r in range(count):
                while r >= ends[k]:
                    k += 1
                address, row = table[k, c], np.int64(rows[r])
                total += _text_offset(-width, address, row + 1) - _text_offset(-width, address, row)
            layout[c, 4], layout[c, 5] = size, total
            size += _room(total)
    return size


def _lay_all_out(  # type: ignore[no-untyped-def]
    first, first_widths, first_rows, first_ends, second, second_widths, second_rows, second_ends, layout
):
    """Place the buffers of all columns in the body of a message; return its size.

    Per column: start and size of the validity (size 0 for none), of the values, and of the texts.
    """
    size = _lay_out_side(first, first_widths, first_rows, first_ends, layout, 0)
    others = layout[first_widths.shape[0] :]
    return _lay_out_side(second, second_widths, second_rows, second_ends, others, size)


@numba.njit(**JIT, inline="always")
def _write_offset(width, address, value):  # type: ignore[no-untyped-def]
    if width == 4:
        _write_half(address, np.int32(value))
    else:
        _write_word(address, np.int64(value))


@numba.njit(**JIT)
def _write_values(table, c, width, rows, ends, out):  # type: ignore[no-untyped-def]
    k = 0
    for r in range(rows.shape[0]):
        while r >= ends[k]:
            k += 1
        _copy_value(width, table[k, c] + width * rows[r], out + width * r)


@numba.njit(**JIT)
def _write_texts(table, c, texts, width, rows, ends, offsets, out):  # type: ignore[no-untyped-def]
    """Write offsets and bytes; columns `texts` and `texts + 1` of the table have the address and the size."""
    k, ahead, total, count = 0, 0, np.int64(0), rows.shape[0]
    _write_offset(width, offsets, 0)
    for r in range(count):
        if r + _AHEAD < count:
            while r + _AHEAD >= ends[ahead]:
                ahead += 1
            row = np.int64(rows[r + _AHEAD])
            prefetch(table[ahead, texts] + _text_offset(width, table[ahead, c], row))
        while r >= ends[k]:
            k += 1
        row, data, size = np.int64(rows[r]), table[k, texts], table[k, texts + 1]
        start, stop = _text_offset(width, table[k, c], row), _text_offset(width, table[k, c], row + 1)
        place = out + total
        total += stop - start
        _write_offset(width, offsets + width * (r + 1), total)
        # Whole chunks: bytes beyond a text are overwritten by what is written next.
        while start < stop and start + _CHUNK <= size:
            _copy_chunk(data + start, place)
            start += _CHUNK
            place += _CHUNK
        while start < stop:
            _copy_byte(data + start, place)
            start += 1
            place += 1


@numba.njit(**JIT)
def _write_side(table, widths, rows, ends, layout, body, node, buffer):  # type: ignore[no-untyped-def]
    count, columns = rows.shape[0], widths.shape[0]
    texts = 2 * columns
    for c in range(columns):
        width, out, missing = widths[c], body + layout[c, 2], 0
        if layout[c, 1] > 0:
            missing = _copy_bits(table[:, columns + c].copy(), rows, ends, body + layout[c, 0])
        _write_word(node, count)
        _write_word(node + 8, missing)
        node += 16
        for n in range(6 if width < 0 else 4):
            _write_word(buffer, layout[c, n])
            buffer += 8
        if width == 0:
            _copy_bits(table[:, c].copy(), rows, ends, out)
        elif width > 0:
            _write_values(table, c, width, rows, ends, out)
        else:
            _write_texts(table, c, texts, -width, rows, ends, out, body + layout[c, 4])
            texts += 2
    return node, buffer


def _write_all(  # type: ignore[no-untyped-def]
    first, first_widths, first_rows, first_ends, second, second_widths, second_rows, second_ends, layout,
    head, fields, size, memory,
):  # fmt: skip
    """Write a message whose buffers lie as `layout` says."""
    for n in range(0, head.shape[0], 8):
        _copy_value(8, head.ctypes.data + n, memory + n)
    _write_word(memory + fields[0], size)
    _write_word(memory + fields[1], first_rows.shape[0])
    body, node, buffer = memory + head.shape[0], memory + fields[2], memory + fields[3]
    node, buffer = _write_side(first, first_widths, first_rows, first_ends, layout, body, node, buffer)
    others = layout[first_widths.shape[0] :]
    _write_side(second, second_widths, second_rows, second_ends, others, body, node, buffer)


_lay_out, _lay_out_few = (compile_loop(**options)(_lay_all_out) for options in (JIT, QUICK))
_write, _write_few = (compile_loop(**options)(_write_all) for options in (JIT, QUICK))
