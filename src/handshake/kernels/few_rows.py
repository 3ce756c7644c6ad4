"""Batches of a few rows of many basic windows, made by one call of Arrow.

Arrow takes about two microseconds per column to build an array from its buffers, and as long again to put it
into a batch. Here a compiled loop writes the rows as a message of Arrow's IPC format, and Arrow reads that
without a copy. The head of the message is the same for all batches of a schema but for a few numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa

from handshake.kernels.collect import (
    REACH,
    Places,
    Shape,
    copy_bits,
    copy_byte,
    copy_value,
    text_offset,
    write_half,
    write_word,
)
from handshake.kernels.compile_cache import compile_loop
from handshake.kernels.intrinsics import JIT, QUICK

Array = np.ndarray[Any, Any]
_FEW = 2048
"""Rows that are copied in some microseconds."""
_LITTLE = 1 << 16
"""Bytes of the largest message."""
_ALIGNED = 64
_PREFIX = 8
"""Bytes before the metadata of a message: a marker, and the size of the metadata."""
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
        self._columns = len(schema)
        self._head, self._fields = _head_of(schema)

    def make(self, sides: Sequence[Rows]) -> pa.RecordBatch | None:
        """Return the rows of each side as one batch; None if they are not few, or take too much memory."""
        count = len(sides[0].rows)
        if count > _FEW:
            return None
        given: list[Any] = []
        for side, widths in zip(sides, self._widths, strict=True):
            given += [np.concatenate(side.places).reshape(len(side.places), -1), widths, side.rows, side.ends]
        if len(sides) == 1:
            given += [_NO_PLACES, _NO_WIDTHS, *given[2:]]
        layout = np.empty((self._columns, 6), np.int64)
        size = _lay_out(*given, layout)
        if size > min(_LITTLE, REACH[4]):
            return None
        memory = pa.allocate_buffer(len(self._head) + size)
        _write(*given, layout, self._head, self._fields, size, memory.address)
        return pa.ipc.read_record_batch(memory, self._schema)


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
                total += text_offset(-width, address, row + 1) - text_offset(-width, address, row)
            layout[c, 4], layout[c, 5] = size, total
            size += _room(total)
    return size


@compile_loop(**QUICK)
def _lay_out(  # type: ignore[no-untyped-def]
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
        write_half(address, np.int32(value))
    else:
        write_word(address, np.int64(value))


@numba.njit(**JIT)
def _write_side(table, widths, rows, ends, layout, body, node, buffer):  # type: ignore[no-untyped-def]
    count, columns = rows.shape[0], widths.shape[0]
    texts = 2 * columns
    for c in range(columns):
        width, out, missing = widths[c], body + layout[c, 2], 0
        if layout[c, 1] > 0:
            missing = copy_bits(table[:, columns + c].copy(), rows, ends, body + layout[c, 0])
        write_word(node, count)
        write_word(node + 8, missing)
        node += 16
        for n in range(6 if width < 0 else 4):
            write_word(buffer, layout[c, n])
            buffer += 8
        if width == 0:
            copy_bits(table[:, c].copy(), rows, ends, out)
            continue
        k, total = 0, 0
        if width < 0:
            _write_offset(-width, out, 0)
        for r in range(count):
            while r >= ends[k]:
                k += 1
            source, row = table[k, c], np.int64(rows[r])
            if width > 0:
                copy_value(width, source + width * row, out + width * r)
                continue
            start, stop = text_offset(-width, source, row), text_offset(-width, source, row + 1)
            data, place = table[k, texts] + start, body + layout[c, 4] + total
            for n in range(stop - start):
                copy_byte(data + n, place + n)
            total += stop - start
            _write_offset(-width, out - width * (r + 1), total)
        if width < 0:
            texts += 2
    return node, buffer


@compile_loop(**QUICK)
def _write(  # type: ignore[no-untyped-def]
    first, first_widths, first_rows, first_ends, second, second_widths, second_rows, second_ends, layout,
    head, fields, size, memory,
):  # fmt: skip
    """Write a message whose buffers lie as `layout` says."""
    for n in range(0, head.shape[0], 8):
        copy_value(8, head.ctypes.data + n, memory + n)
    write_word(memory + fields[0], size)
    write_word(memory + fields[1], first_rows.shape[0])
    body, node, buffer = memory + head.shape[0], memory + fields[2], memory + fields[3]
    node, buffer = _write_side(first, first_widths, first_rows, first_ends, layout, body, node, buffer)
    others = layout[first_widths.shape[0] :]
    _write_side(second, second_widths, second_rows, second_ends, others, body, node, buffer)
