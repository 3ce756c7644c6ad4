"""Rows whose text equals a constant, the most common filter of Glacier's queries.

One compiled pass reads offsets and bytes. Lengths are compared 64 at a time, then the first eight bytes as
one word. Adjacent texts of one length, as symbols often are, are compared as vectors.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pyarrow as pa
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.collect import TEXTS
from handshake.kernels.compile_cache import building, compile_loop
from handshake.kernels.intrinsics import JIT, lowest_bit, reader
from handshake.kernels.lower import I64, LANES, repeat

Array = np.ndarray[Any, Any]
_BLOCK = 64
"""Rows per mask."""
_ALL = ~np.uint64(0)


def rows_equal(column: pa.Array, wanted: bytes) -> Array | None:
    """Return the rows with the wanted bytes in ascending order, or None if the column has no offsets.

    >>> rows_equal(pa.array(["UBSN", "UBS", "", None, "CS"]), b"UBSN")
    array([0])
    """
    rows, width = len(column), TEXTS.get(column.type)
    if width is None:
        return None
    valid, places, data = column.buffers()
    out = np.empty(rows, np.int64)
    if not rows:
        return out
    bits = 8 * valid.address + column.offset if column.null_count else 0
    address, size = (0, 0) if data is None else (data.address, data.size)
    search = _search_short if width == 4 else _search_long
    found = search(
        places.address + width * column.offset, address, size, bits, np.frombuffer(wanted, np.uint8), out
    )
    return out[:found]


def _comparison(bits: int, between: bool) -> Any:
    """Return `mask(address, value)`: which of 64 numbers, or differences of neighbours, are the value."""
    kind = ir.IntType(bits)

    def load(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
        return builder.load(builder.inttoptr(address, ir.PointerType(ir.VectorType(kind, LANES))), align=1)

    @intrinsic
    def mask(typing_context, address, value):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            wanted = repeat(builder, builder.trunc(args[1], kind) if bits < 64 else args[1], LANES)
            result = ir.Constant(I64, 0)
            for step in range(0, _BLOCK, LANES):
                place = builder.add(args[0], ir.Constant(I64, step * bits // 8))
                found = load(builder, place)
                if between:
                    after = builder.add(place, ir.Constant(I64, bits // 8))
                    found = builder.sub(load(builder, after), found)
                same = builder.icmp_signed("==", found, wanted)
                word = builder.zext(builder.bitcast(same, ir.IntType(LANES)), I64)
                result = builder.or_(result, builder.shl(word, ir.Constant(I64, step)))
            return result

        return types.uint64(types.int64, types.int64), code

    return mask


_byte, _half, _word = reader(types.uint8), reader(types.int32), reader(types.int64)
_same_bytes, _same_shorts, _same_halves, _same_words = (_comparison(bits, False) for bits in (8, 16, 32, 64))


@numba.njit(**JIT, inline="always")
def _same_texts(address, length, first):  # type: ignore[no-untyped-def]
    """Return the mask of 64 adjacent texts of 1, 2, 4 or 8 bytes that are the wanted one."""
    if length == 4:
        return _same_halves(address, first)
    if length == 8:
        return _same_words(address, first)
    return _same_shorts(address, first) if length == 2 else _same_bytes(address, first)


@numba.njit(**JIT, inline="always")
def _is_wanted(address, wanted, known, bits, row):  # type: ignore[no-untyped-def]
    """Return whether a row is valid and has the wanted bytes. The first `known` bytes are the same."""
    for at in range(known, wanted.shape[0]):
        if _byte(address + at) != wanted[at]:
            return False
    return bits == 0 or (_byte((bits + row) >> 3) >> np.uint8((bits + row) & 7)) & np.uint8(1) != 0


def _search(width: int) -> Any:
    """Return the loop for offsets of `width` bytes. Words of eight bytes are read inside the buffer only."""
    offset, fitting = _half if width == 4 else _word, _comparison(8 * width, True)

    def search(offsets, data, size, bits, wanted, out):  # type: ignore[no-untyped-def]
        rows, length, known = out.shape[0], wanted.shape[0], min(wanted.shape[0], 8)
        powers = length == 1 or length == 2 or length == 4 or length == 8
        mask = (np.int64(1) << np.int64(8 * known)) - np.int64(1) if known < 8 else np.int64(-1)
        first = np.int64(0)
        for k in range(known):
            first |= np.int64(wanted[k]) << np.int64(8 * k)
        count = row = 0
        while row + _BLOCK <= rows:
            at = offsets + width * row
            if np.int64(offset(at + width * (_BLOCK - 1))) + 8 > size:
                break
            hits = fits = fitting(at, length)
            if powers and fits == _ALL:
                hits = _same_texts(data + np.int64(offset(at)), length, first)
            elif fits != np.uint64(0):
                hits = np.uint64(0)
                for k in range(_BLOCK):
                    same = _word(data + np.int64(offset(at + width * k))) & mask == first
                    hits |= np.uint64(same) << np.uint64(k)
                hits &= fits
            while hits != np.uint64(0):
                k = lowest_bit(hits)
                hits &= hits - np.uint64(1)
                if _is_wanted(data + np.int64(offset(at + width * k)), wanted, known, bits, row + k):
                    out[count] = row + k
                    count += 1
            row += _BLOCK
        for rest in range(row, rows):
            start = np.int64(offset(offsets + width * rest))
            fits_one = np.int64(offset(offsets + width * (rest + 1))) - start == length
            if fits_one and _is_wanted(data + start, wanted, 0, bits, rest):
                out[count] = rest
                count += 1
        return count

    with building(f"texts with offsets of {width} bytes"):
        return compile_loop(**JIT)(search)


_search_short, _search_long = _search(4), _search(8)
