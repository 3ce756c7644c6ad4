"""Intrinsics and searches that compiled loops share."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from handshake.kernels.lower import I1, I8, I32

JIT = {"nogil": True, "error_model": "numpy", "boundscheck": False, "no_cfunc_wrapper": True}
QUICK = {**JIT, "nogil": False}
"""Options for loops of a few microseconds, which are shorter than releasing the interpreter's lock."""


def emit_prefetch(builder: ir.IRBuilder, address: ir.Value) -> None:
    """Ask for the cache line at an address without waiting for it. An invalid address does no harm."""
    pointer = ir.PointerType(I8)
    kind = ir.FunctionType(ir.VoidType(), [pointer, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    to_read, keep, data = (ir.Constant(I32, n) for n in (0, 3, 1))
    builder.call(function, [builder.inttoptr(address, pointer), to_read, keep, data])


@intrinsic
def prefetch(typing_context, address):  # type: ignore[no-untyped-def]
    """Call `emit_prefetch` in a compiled loop."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        emit_prefetch(builder, args[0])
        return context.get_dummy_value()

    return types.void(address), code


def _lowest_bit(always_set: bool) -> Any:
    @intrinsic
    def lowest(typing_context, mask):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            return builder.cttz(args[0], ir.Constant(I1, int(always_set)))

        return types.int64(mask), code

    return lowest


lowest_bit = _lowest_bit(always_set=True)
"""Returns the index of the lowest set bit. One must be set."""
lowest_bit_or_64 = _lowest_bit(always_set=False)
"""Returns the index of the lowest set bit, or 64 if none is set."""


@intrinsic
def count_bits(typing_context, mask):  # type: ignore[no-untyped-def]
    """Return the number of set bits."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.ctpop(args[0])

    return types.int64(mask), code


def reader(kind: types.Type) -> Any:
    """Return `read(address)`, which loads a number from an address that need not be aligned."""

    @intrinsic
    def read(typing_context, address):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            place = builder.inttoptr(args[0], ir.PointerType(context.get_data_type(kind)))
            return builder.load(place, align=1)

        return kind(types.int64), code

    return read


def writer(kind: types.Type) -> Any:
    """Return `write(address, value)`, which stores a number at an address that need not be aligned."""

    @intrinsic
    def write(typing_context, address, value):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            value = context.cast(builder, args[1], signature.args[1], kind)
            place = builder.inttoptr(args[0], ir.PointerType(context.get_data_type(kind)))
            builder.store(value, place, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, value), code

    return write


def row_intrinsic(width: int, skip: int = 0) -> Any:
    """Return `row(table, at)`: the `width` addresses in row `at` of a table, after `skip` other words."""

    @intrinsic
    def row(typing_context, table, at):  # type: ignore[no-untyped-def]
        answer = types.UniTuple(types.int64, width)  # type: ignore[attr-defined]

        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            array = context.make_array(signature.args[0])(context, builder, args[0])
            start = builder.mul(args[1], context.get_constant(types.intp, skip + width))
            places = [
                builder.gep(array.data, [builder.add(start, context.get_constant(types.intp, skip + k))])
                for k in range(width)
            ]
            return context.make_tuple(builder, answer, [builder.load(place) for place in places])

        return answer(table, types.intp), code

    return row


@numba.njit(**JIT, inline="always")
def lower_bound(keys, start, stop, key):  # type: ignore[no-untyped-def]
    """Return the first place whose key is not below `key`. Each step is a conditional move, not a jump."""
    length = stop - start
    while length > 1:
        half = length >> 1
        start += half if keys[start + half - 1] < key else 0
        length -= half
    if length == 1 and keys[start] < key:
        start += 1
    return start
