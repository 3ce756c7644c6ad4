"""Kernels: a predicate inside compiled loops. Arrays in, index pairs out.

Numba compiles the loops. The predicate is a function in LLVM that they call (`kernels.compile_cache`).
Columns are passed as plain addresses, (data, validity) each, so all kernels of one shape have the same type.
A kernel whose output is full returns its place in `state`; the caller empties the buffers and calls again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.columns import address_words
from handshake.kernels.compile_cache import (
    Emit,
    PredicateFunction,
    building,
    compile_loop,
    predicate_function,
)
from handshake.kernels.intrinsics import JIT, lower_bound, lowest_bit
from handshake.kernels.loosen import loosen
from handshake.kernels.lower import (
    I1,
    I8,
    I64,
    LANES,
    Env,
    Lowered,
    Number,
    Truth,
    emit,
    resize,
    splat,
    truth,
)
from handshake.plan.expr import Column, Expr
from handshake.plan.ranges import ranges, storage_bits, type_range, width_of
from handshake.schema import Bool, Float, Int

BLOCK = 64
"""Inner tuples per predicate mask."""
TILE = 4096
"""Inner tuples per check whether the output buffers have room."""
PASS, FEW_PASS = 2048, 1024
"""Inner tuples that stay in the first-level cache while many, or a few, outer tuples pass: 16 or 8 KiB of two
int32 columns. With 4096, 1,000 outer tuples take 1.04 times as long, and 3 take 1.4 times."""

for _library in ("libgcc_s.so.1", "libm.so.6"):  # 128-bit division and conversion, exp, log, …
    with contextlib.suppress(RuntimeError):
        binding.load_library_permanently(_library)


@dataclass(frozen=True)
class Program:
    """A predicate ready to compile: the columns of each side, and assumptions about their values.

    `headroom`: whole numbers have two bits to spare. `nullable`: validity bitmaps are passed and tested.
    """

    expr: Expr
    columns: tuple[tuple[Column, ...], tuple[Column, ...]]
    headroom: bool
    nullable: bool
    guard: Expr | None = None
    """A cheaper condition that `expr` implies. Blocks are tested with it first."""
    text: str = field(init=False, repr=False)
    """The `repr` of the expression, so that equal but different constants (0.0, -0.0) differ as keys."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", repr(self.expr))


# Loading columns.


def _loader(
    builder: ir.IRBuilder,
    program: Program,
    pointers: dict[int, tuple[ir.Value, ir.Value]],
    vector: int | None,
) -> Callable[[Column], Lowered]:
    """Return a function that loads a column at the index of its side; side `vector` is loaded in lanes."""
    once = builder.module.add_metadata([])

    def fetch(kind: ir.Type, address: ir.Value, index: ir.Value, align: int) -> ir.Value:
        base = builder.inttoptr(address, ir.PointerType(kind))
        place = builder.gep(base, [index])
        loaded = builder.load(place, align=align)
        loaded.set_metadata("invariant.load", once)  # columns never change: loads may move out of loops
        return loaded

    def bits(address: ir.Value, index: ir.Value, lanes: bool) -> ir.Value:
        if lanes:
            step = builder.udiv(index, ir.Constant(I64, LANES))
            return builder.bitcast(fetch(ir.IntType(LANES), address, step, 1), ir.VectorType(I1, LANES))
        byte = fetch(I8, address, builder.lshr(index, ir.Constant(I64, 3)), 1)
        shift = builder.trunc(builder.and_(index, ir.Constant(I64, 7)), I8)
        return builder.trunc(builder.lshr(byte, shift), I1)

    def load(column: Column) -> Lowered:
        position = 2 * program.columns[column.side].index(column)
        base, index = pointers[column.side]
        data, validity = (builder.extract_value(base, position + k) for k in (0, 1))
        lanes = vector == column.side
        valid = bits(validity, index, lanes) if program.nullable else None
        if isinstance(column.type, Bool):
            return _truth_of(builder, bits(data, index, lanes), valid)
        kind = _memory_type(column)
        align = memory_bytes(column)
        if lanes:
            # Address arithmetic by element, then the type of the vector.
            start = builder.gep(builder.inttoptr(data, ir.PointerType(kind)), [index])
            place = builder.bitcast(start, ir.PointerType(ir.VectorType(kind, LANES)))
            value = builder.load(place, align=min(align, 8))
            value.set_metadata("invariant.load", once)
        else:
            value = fetch(kind, data, index, min(align, 8))
        return Number(_widen(builder, column, value, program.headroom), valid)

    return load


def _truth_of(builder: ir.IRBuilder, value: ir.Value, valid: ir.Value | None) -> Truth:
    ones = (
        ir.Constant(value.type, [1] * LANES) if isinstance(value.type, ir.VectorType) else ir.Constant(I1, 1)
    )
    inverse = builder.xor(value, ones)
    if valid is None:
        return Truth(value, inverse)
    return Truth(builder.and_(value, valid), builder.and_(inverse, valid))


def _memory_type(column: Column) -> ir.Type:
    if isinstance(column.type, Float):
        return ir.FloatType() if column.type.bits == 32 else ir.DoubleType()
    return ir.IntType(storage_bits(column.type))


def memory_bytes(column: Column) -> int:
    """Return the bytes per value of a column; not for bools, which are bits."""
    return (column.type.bits if isinstance(column.type, Float) else storage_bits(column.type)) // 8


def _widen(builder: ir.IRBuilder, column: Column, value: ir.Value, headroom: bool) -> ir.Value:
    if isinstance(column.type, Float):
        return value
    width = width_of(type_range(column.type, headroom))
    assert width is not None
    signed = not (isinstance(column.type, Int) and not column.type.signed)
    return resize(Env(builder, lambda c: Number(value, None), headroom), value, width, signed)


# Intrinsics: the predicate on one pair, and on a block of inner tuples.


def addresses(program: Program, side: int) -> ir.Type:
    """Return the LLVM type of the addresses of a side's columns."""
    return ir.ArrayType(I64, address_words(len(program.columns[side])))


def as_intrinsic(function: PredicateFunction, kind: types.Type) -> Any:
    """Make a function of two or four arguments, with a result of this kind, callable from loops."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return function.call(context, builder, args)

    @intrinsic
    def of_two(typing_context, columns, row):  # type: ignore[no-untyped-def]
        return kind(columns, row), code

    @intrinsic
    def of_four(typing_context, columns, row, third, fourth):  # type: ignore[no-untyped-def]
        return kind(columns, row, third, fourth), code

    return of_two if len(function.kind.args) == 2 else of_four


def _mask_of(program: Program, inner: int, kind: ir.Type = I64) -> ir.FunctionType:
    return ir.FunctionType(kind, [addresses(program, 1 - inner), I64, addresses(program, inner), I64])


def pair_intrinsic(program: Program, inner: int) -> Any:
    def emit_pair(builder: ir.IRBuilder, args: Any) -> ir.Value:
        pointers = {1 - inner: (args[0], args[1]), inner: (args[2], args[3])}
        env = Env(builder, _loader(builder, program, pointers, None), program.headroom, inner)
        return truth(program.expr, env).yes

    return as_intrinsic(predicate_function("pair", _mask_of(program, inner, I1), emit_pair), types.boolean)


def column_value(builder: ir.IRBuilder, program: Program, side: int, column: Column, args: Any) -> ir.Value:
    """Load a number of the tuple `args[1]` of a side as a float64."""
    found = _loader(builder, program, {side: (args[0], args[1])}, None)(column)
    assert isinstance(found, Number)
    if not isinstance(column.type, Float):
        return builder.sitofp(found.value, ir.DoubleType())
    return found.value if column.type.bits == 64 else builder.fpext(found.value, ir.DoubleType())


def block_intrinsic(program: Program, inner: int) -> Any:
    """Return `matches(outer, i, inner, j)`: a mask of the matches among `BLOCK` inner tuples.

    A loosened predicate is tested first if that is cheaper.
    """
    loose = loosen(program.guard or program.expr, inner) or program.guard

    def emit_block(builder: ir.IRBuilder, args: Any) -> ir.Value:
        if loose is None:
            return block_mask(builder, program, program.expr, inner, args)
        mask = block_mask(builder, program, loose, inner, args)
        before = builder.block
        with builder.if_then(builder.icmp_unsigned("!=", mask, ir.Constant(I64, 0)), likely=False):
            confirmed = builder.and_(mask, block_mask(builder, program, program.expr, inner, args))
            after = builder.block
        result = builder.phi(I64)
        result.add_incoming(mask, before)
        result.add_incoming(confirmed, after)
        return result

    return mask_intrinsic("block", program, inner, emit_block)


def mask_intrinsic(role: str, program: Program, inner: int, emit_mask: Emit) -> Any:
    """Return `matches(outer, i, inner, j)`: a mask of the matches among inner tuples from `j` on."""
    return as_intrinsic(predicate_function(role, _mask_of(program, inner), emit_mask), types.uint64)


def block_mask(
    builder: ir.IRBuilder, program: Program, expr: Expr, inner: int, args: Any, tuples: int = BLOCK
) -> ir.Value:
    """Emit the mask of the matches among inner tuples from `args[3]` on."""
    mask = ir.Constant(I64, 0)
    for step in range(0, tuples, LANES):
        start = builder.add(args[3], ir.Constant(I64, step))
        pointers = {1 - inner: (args[0], args[1]), inner: (args[2], start)}
        env = Env(builder, _loader(builder, program, pointers, inner), program.headroom, inner)
        lanes = splat(env, truth(expr, env).yes, LANES)
        word = builder.zext(builder.bitcast(lanes, ir.IntType(LANES)), I64)
        mask = builder.or_(mask, builder.shl(word, ir.Constant(I64, step)))
    return mask


_lock = threading.Lock()


def once(build: Callable[..., Any]) -> Callable[..., Any]:
    """Build a kernel once, even if several threads ask for it at the same time."""

    @lru_cache(maxsize=512)
    def build_once(*args: Any) -> Any:
        with building(args, _shape(*args)):
            return build(*args)

    @wraps(build)
    def build_locked(*args: Any) -> Any:
        with _lock:
            return build_once(*args)

    return build_locked


def _shape(program: Program, inner: int = 0, *rest: Any) -> tuple[Any, ...]:
    """Return what loops depend on apart from predicate functions: the number of addresses per side, the
    number of bands, and other options. Which side is the inner one matters to predicate functions alone."""
    words = (address_words(len(program.columns[side])) for side in (1 - inner, inner))
    return (*words, *(len(option) if isinstance(option, tuple) else option for option in rest))


# Loops.


@numba.njit(**JIT, inline="always")
def _upper_bound(keys, start, stop, key):  # type: ignore[no-untyped-def]
    """Return the first place whose key is above `key`. Doubling steps find it quickly if it is near."""
    step = 4
    while start + step < stop and keys[start + step] <= key:
        start += step
        step += step
    stop = min(stop, start + step)
    while start < stop:
        middle = (start + stop) >> 1
        if keys[middle] <= key:
            start = middle + 1
        else:
            stop = middle
    return start


SMALL = 24
"""Candidates in a row up to which they are tested one by one; more are tested in blocks."""


@once
def cells_kernel(program: Program, inner: int) -> Any:
    """Return the index probe: outer tuple `order[p]` against cells `first[p] … last[p] - 1` of inner tuples.

    A cell is the run `offsets[c] … offsets[c + 1]`. If `keys` is not empty, the cell is sorted by them and
    only `low[p] … high[p]` is searched. `kernel(…) -> (count, candidates)`; done when `state[0] >=
    len(order)`.
    """
    matches, holds = block_intrinsic(program, inner), pair_intrinsic(program, inner)

    @compile_loop(**JIT)
    def cells(  # type: ignore[no-untyped-def]
        outer, order, first, last, low, high, inner, inner_rows, offsets, keys, state, out_outer, out_inner
    ):
        count = 0
        seen = np.int64(0)
        room = out_outer.shape[0] - TILE
        sorted_cells = keys.shape[0] > 0
        blocks = inner_rows & ~(BLOCK - 1)
        p, c, at = state[0], state[1], state[2]
        while p < order.shape[0]:
            i = np.int64(order[p])
            c = max(c, np.int64(first[p]))
            while c < last[p]:
                start, stop = np.int64(offsets[c]), np.int64(offsets[c + 1])
                if sorted_cells:
                    start = lower_bound(keys, start, stop, low[p])
                    stop = _upper_bound(keys, start, stop, high[p])
                start = max(start, at)
                while start < stop:
                    if count > room:
                        state[0], state[1], state[2] = p, c, start
                        return count, seen
                    piece = min(stop, start + TILE - BLOCK)
                    seen += piece - start
                    j = start
                    if piece - start > SMALL:
                        block = start & ~(BLOCK - 1)
                        while block < piece and block + BLOCK <= blocks:
                            mask = matches(outer, i, inner, block)
                            if block < start:
                                mask &= ~np.uint64(0) << np.uint64(start - block)
                            if block + BLOCK > piece:
                                mask &= ~np.uint64(0) >> np.uint64(block + BLOCK - piece)
                            while mask != np.uint64(0):
                                out_outer[count] = i
                                out_inner[count] = block + lowest_bit(mask)
                                count += 1
                                mask &= mask - np.uint64(1)
                            block += BLOCK
                        j = max(start, min(block, piece))
                    while j < piece:
                        if holds(outer, i, inner, j):
                            out_outer[count] = i
                            out_inner[count] = j
                            count += 1
                        j += 1
                    start = piece
                at = 0
                c += 1
            p += 1
            c = 0
        state[0], state[1], state[2] = p, 0, 0
        return count, seen

    return cells


# Row by row: derived columns, bounds and filters.


@once
def rows_kernel(program: Program) -> tuple[Any, np.dtype[Any] | None]:
    """Return `kernel(columns, rows, out_address, valid_address)`, which computes an expression per row.

    Conditions and validity are bytes. Exact values are int64, or 128 bits if the returned type is None. All
    columns are of side 0 in the program.
    """
    kind = _result_type(program)

    def emit_store(builder: ir.IRBuilder, args: Any) -> None:
        env = Env(builder, _loader(builder, program, {0: (args[0], args[1])}, None), program.headroom)
        lowered = emit(program.expr, env)
        _store(builder, env, lowered, kind, args[1], args[2], args[3])

    arguments = ir.FunctionType(ir.VoidType(), [addresses(program, 0), I64, I64, I64])
    store = as_intrinsic(predicate_function("store", arguments, emit_store), types.void)

    @compile_loop(**JIT)
    def rows(columns, count, out, valid):  # type: ignore[no-untyped-def]
        for row in range(count):
            store(columns, row, out, valid)

    return rows, kind


def _result_type(program: Program) -> np.dtype[Any] | None:
    kind = program.expr.type
    if isinstance(kind, Bool):
        return np.dtype(np.bool_)
    if isinstance(kind, Float):
        return np.dtype(f"f{kind.bits // 8}")
    return np.dtype(np.int64) if (width_of(ranges(program.expr, program.headroom)) or 128) <= 64 else None


def _store(
    builder: ir.IRBuilder,
    env: Env,
    lowered: Lowered,
    kind: Any,
    row: ir.Value,
    out: ir.Value,
    valid: ir.Value,
) -> None:
    if isinstance(lowered, Truth):
        value = builder.zext(lowered.yes, I8)
        present = builder.zext(builder.or_(lowered.yes, lowered.no), I8)
    else:
        value = lowered.value
        if isinstance(value.type, ir.IntType):
            value = _saturate(builder, env, value, 64 if kind is not None else 128)
        present = ir.Constant(I8, 1) if lowered.valid is None else builder.zext(lowered.valid, I8)
    place = builder.gep(builder.inttoptr(out, ir.PointerType(value.type)), [row])
    builder.store(value, place, align=1 if value.type == I8 else 4 if value.type == ir.FloatType() else 8)
    builder.store(present, builder.gep(builder.inttoptr(valid, ir.PointerType(I8)), [row]), align=1)


def _saturate(builder: ir.IRBuilder, env: Env, value: ir.Value, width: int) -> ir.Value:
    """Return a whole number in its output width. Wider ones are saturated: they only serve as sort keys."""
    if value.type.width > 128:
        for limit, op in ((2**127 - 1, ">"), (-(2**127), "<")):
            edge = ir.Constant(value.type, limit)
            value = builder.select(builder.icmp_signed(op, value, edge), edge, value)
    return resize(env, value, width)
