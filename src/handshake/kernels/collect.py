"""Rows of several runs of tuples as one batch: a result has a few tuples of each of many basic windows.

Arrow would be asked once for each column and basic window, which for a small batch takes longer than finding
the pairs. Here one call copies all columns of a side that have a fixed width, and two each column of texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.compile import JIT
from handshake.kernels.lower import I8
from handshake.kernels.memory import prefetch

__all__ = ["TEXTS", "Places", "Shape", "collect", "collect_texts", "places_of", "shape_of"]

Array = np.ndarray[Any, Any]
_CHUNK = 32
_AHEAD = 24
"""How many texts ahead memory is asked for: 1.3 times faster than Arrow's `take` on large windows."""
_BITS = 0
REACH = {4: 1 << 31, 8: 1 << 63}
"""Bytes of text that offsets of so many bytes reach."""
TEXTS = {pa.string(): 4, pa.binary(): 4, pa.large_string(): 8, pa.large_binary(): 8}


class Shape(NamedTuple):
    """How the columns of a side lie in memory."""

    kinds: tuple[pa.DataType, ...]
    widths: Array
    """Bytes of a value; 0 for bits, minus those of an offset for texts."""
    texts: tuple[int, ...]
    """Which columns are texts."""


class Places(NamedTuple):
    """Where the columns of one batch are. Addresses of bits count bits: a slice may begin anywhere."""

    values: tuple[int, ...]
    valid: tuple[int, ...]
    """0 where no value is missing."""
    texts: tuple[int, ...]
    """For each column of texts, where the bytes are, and how many."""


def shape_of(schema: pa.Schema) -> Shape | None:
    """None where a column lies in a way that is not known here (dictionaries, lists, …)."""
    widths = [_width(kind) for kind in schema.types]
    if any(width is None for width in widths):
        return None
    texts = tuple(k for k, kind in enumerate(schema.types) if kind in TEXTS)
    return Shape(tuple(schema.types), np.array(widths, np.int64), texts)


def _width(kind: pa.DataType) -> int | None:
    if kind in TEXTS:
        return -TEXTS[kind]
    if pa.types.is_boolean(kind):
        return _BITS
    plain = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return kind.bit_width // 8 if plain and kind.bit_width in (8, 16, 32, 64, 128, 256) else None


def places_of(shape: Shape, batch: pa.RecordBatch) -> Places:
    """The first columns of a batch, as many as the shape has. The batch must outlive what comes of it."""
    values, valid, texts = [], [], []
    for position, width in enumerate(shape.widths.tolist()):
        array = batch.column(position)
        buffers = array.buffers()
        valid.append(8 * buffers[0].address + array.offset if array.null_count else 0)
        start = buffers[1].address if buffers[1] is not None else 0
        values.append(start + abs(width) * array.offset if width else 8 * start + array.offset)
        if width < 0:
            texts += [buffers[2].address, buffers[2].size] if buffers[2] is not None else [0, 0]
    return Places(tuple(values), tuple(valid), tuple(texts))


def collect(shape: Shape, places: Sequence[Places], rows: Array, ends: Array) -> list[pa.Array]:
    """Rows of several batches: those up to `ends[k]` are numbers of rows in batch `k`."""
    count = len(rows)
    table = np.array([place.values for place in places])
    sizes = [(count * width if width else count // 8 + 1) if width >= 0 else 0 for width in shape.widths]
    values = [pa.allocate_buffer(size) for size in sizes]
    _copy_values(table, shape.widths, rows, ends, np.array([buffer.address for buffer in values]))
    valid = _validity(places, rows, ends)
    for number, column in enumerate(shape.texts):
        at = np.array([(p.values[column], *p.texts[2 * number : 2 * number + 2]) for p in places])
        values[column] = _texts(at, -int(shape.widths[column]), rows, ends)
    return [
        pa.Array.from_buffers(kind, count, [known, *data] if isinstance(data, tuple) else [known, data])
        for kind, known, data in zip(shape.kinds, valid, values, strict=True)
    ]


def collect_texts(array: pa.Array, rows: Array) -> pa.Array:
    """The texts at these rows of one array, none of them missing."""
    width = TEXTS[array.type]
    _, offsets, data = array.buffers()
    at = np.array([(offsets.address + width * array.offset, data.address, data.size)])
    buffers = _texts(at, width, rows, np.array([len(rows)]))
    return pa.Array.from_buffers(array.type, len(rows), [None, *buffers])


def _validity(places: Sequence[Places], rows: Array, ends: Array) -> list[pa.Buffer | None]:
    found: list[pa.Buffer | None] = [None] * len(places[0].valid)
    for column in range(len(found)):
        if any(place.valid[column] for place in places):
            bits = found[column] = pa.allocate_buffer(len(rows) // 8 + 1)
            at = np.array([place.valid[column] for place in places])
            _copy_bits(at, rows, ends, bits.address)
    return found


def _texts(at: Array, width: int, rows: Array, ends: Array) -> tuple[pa.Buffer, pa.Buffer]:
    places = pa.allocate_buffer((len(rows) + 1) * width)
    offsets = np.frombuffer(places, np.int32 if width == 4 else np.int64)
    total = _measure(at, rows, ends, offsets)
    if total >= REACH[width]:
        raise pa.ArrowInvalid(f"offsets of {8 * width} bits do not reach {total} bytes of text")
    data = pa.allocate_buffer(total + _CHUNK)  # the last chunk may go beyond the end
    _copy_texts(at, rows, ends, offsets, data.address)
    return places, data.slice(0, total)


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


def _reader(bits: int, kind: types.Type) -> Any:
    @intrinsic
    def read(typing_context, address):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            place = builder.inttoptr(args[0], ir.PointerType(ir.IntType(bits)))
            return builder.load(place, align=1)

        return kind(types.int64), code

    return read


@intrinsic
def _write_byte(typing_context, address, value):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[1], builder.inttoptr(args[0], ir.PointerType(I8)), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint8), code


_copy1, _copy2, _copy4, _copy8 = (_copier(ir.IntType(8 * n)) for n in (1, 2, 4, 8))
_copy16, _copy_chunk = (_copier(ir.VectorType(I8, n)) for n in (16, _CHUNK))
_byte, _short, _long = _reader(8, types.uint8), _reader(32, types.int32), _reader(64, types.int64)


@numba.njit(**JIT, inline="always")
def _copy_value(width, source, target):  # type: ignore[no-untyped-def]
    if width == 4:
        _copy4(source, target)
    elif width == 8:
        _copy8(source, target)
    elif width == 2:
        _copy2(source, target)
    elif width == 1:
        _copy1(source, target)
    elif width == 16:
        _copy16(source, target)
    else:
        _copy_chunk(source, target)


@numba.njit(**JIT)
def _copy_bits(at, rows, ends, out):  # type: ignore[no-untyped-def]
    """Bits from addresses in bits; where the address is 0, all are set."""
    k = 0
    byte = np.uint8(0)
    for r in range(rows.shape[0]):
        while r >= ends[k]:
            k += 1
        bit = np.uint8(1)
        if at[k] != 0:
            place = at[k] + rows[r]
            bit = (_byte(place >> 3) >> np.uint8(place & 7)) & np.uint8(1)
        byte |= bit << np.uint8(r & 7)
        if r & 7 == 7:
            _write_byte(out + (r >> 3), byte)
            byte = np.uint8(0)
    _write_byte(out + (rows.shape[0] >> 3), byte)


@numba.njit(**JIT)
def _copy_values(table, widths, rows, ends, outs):  # type: ignore[no-untyped-def]
    for c in range(widths.shape[0]):
        width, out = widths[c], outs[c]
        if width == 0:
            _copy_bits(table[:, c].copy(), rows, ends, out)
        elif width > 0:
            k = 0
            for r in range(rows.shape[0]):
                while r >= ends[k]:
                    k += 1
                _copy_value(width, table[k, c] + width * rows[r], out + width * r)


@numba.njit(**JIT, inline="always")
def _offset(width, address, row):  # type: ignore[no-untyped-def]
    return np.int64(_short(address + 4 * row)) if width == 4 else _long(address + 8 * row)


@numba.njit(**JIT)
def _measure(at, rows, ends, offsets):  # type: ignore[no-untyped-def]
    """Where each text will end; the whole length, which may be more than offsets can say."""
    total = np.int64(0)
    offsets[0] = 0
    k = 0
    width = offsets.itemsize
    for r in range(rows.shape[0]):
        while r >= ends[k]:
            k += 1
        row = np.int64(rows[r])
        total += _offset(width, at[k, 0], row + 1) - _offset(width, at[k, 0], row)
        offsets[r + 1] = total
    return total


@numba.njit(**JIT)
def _copy_texts(at, rows, ends, offsets, out):  # type: ignore[no-untyped-def]
    k = ahead = 0
    count, width = rows.shape[0], offsets.itemsize
    for r in range(count):
        if r + _AHEAD < count:
            while r + _AHEAD >= ends[ahead]:
                ahead += 1
            prefetch(at[ahead, 1] + _offset(width, at[ahead, 0], np.int64(rows[r + _AHEAD])))
        while r >= ends[k]:
            k += 1
        data, size = at[k, 1], at[k, 2]
        start = _offset(width, at[k, 0], np.int64(rows[r]))
        stop = start + np.int64(offsets[r + 1] - offsets[r])
        place = out + offsets[r]
        # Whole chunks: what goes beyond a text is overwritten by the next one.
        while start < stop and start + _CHUNK <= size:
            _copy_chunk(data + start, place)
            start += _CHUNK
            place += _CHUNK
        while start < stop:
            _copy1(data + start, place)
            start += 1
            place += 1
