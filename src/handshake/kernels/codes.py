"""Codes: columns with one byte per value, so that one instruction of a scan compares 64 of them.

A code is the number of the 256th part of a basic window's range that holds the value. Codes grow with values,
so a value between two limits has a code between theirs. The scan first compares the codes of two bands, and
evaluates the predicate only on blocks in which some tuple passes both. Four blocks share a branch, because
one in a hundred passes. No match is missed. (Weber, Schek and Blott call such columns a vector approximation
file.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from handshake.kernels.compile import BLOCK, Program, addresses, as_intrinsic, column_value
from handshake.kernels.compile_cache import compile_loop, predicate_function
from handshake.kernels.intrinsics import JIT, reader, writer
from handshake.kernels.lower import I1, I64, repeat
from handshake.kernels.tiles import pair_writers, tile_search
from handshake.plan.analyse import Bound
from handshake.plan.expr import Column

Array = np.ndarray[Any, Any]
Band = tuple[Column, tuple[Bound, ...]]
"""A column of the outer side, and its bounds on the coded column."""
CODES, WORDS = 12, 3
"""Place of the codes of two columns in a row of a scan's table, and the words of each: address (0 for none),
least value and parts per unit."""
NO_CODES = (0,) * (2 * WORDS)
FACTS = CODES + len(NO_CODES)
"""Words of a row of the table before the addresses; the first is the number of tuples."""
PASSED = 7
"""Place in a thread's state that counts the blocks on which the predicate was evaluated."""
_DOUBLE = ir.DoubleType()
_PARTS = 256
_GROUP = 4 * BLOCK
"""Tuples whose codes share a branch; the memory of codes is filled up to whole groups."""
_ROUNDING = 2.0**-52


@compile_loop(**JIT)
def _encode(values, codes):  # type: ignore[no-untyped-def]
    least, most = np.inf, -np.inf
    for value in values:
        number = np.float64(value)
        if abs(number) < np.inf:
            least, most = min(least, number), max(most, number)
    if not least <= most:
        least = most = 0.0
    scale = _PARTS / (most - least) if most > least else 1.0
    for row in range(values.shape[0]):
        codes[row] = _code(np.float64(values[row]), least, scale)
    return least, scale


class Codes(NamedTuple):
    """The codes of some columns."""

    arrays: tuple[Array, ...]
    places: tuple[int, ...]
    """Their words in a table, valid as long as the codes are referenced."""

    @classmethod
    def of(cls, columns: Sequence[Array]) -> Codes:
        """Encode columns of numbers."""
        arrays, places = [], list[int]()
        for values in columns:
            filled = np.zeros(-(-len(values) // _GROUP) * _GROUP, np.uint8)
            arrays.append(filled[: len(values)])
            facts = np.array(_encode(values, arrays[-1])).view(np.int64).tolist()
            places += [int(arrays[-1].ctypes.data), *facts]
        return cls(tuple(arrays), tuple(places))

    @property
    def nbytes(self) -> int:
        return sum(codes.nbytes for codes in self.arrays)


@numba.njit(**JIT, inline="always")
def _code(number, least, scale):  # type: ignore[no-untyped-def]
    """Return a code that is not below that of any smaller number: each step rounds monotonically."""
    part = (number - least) * scale
    return np.uint8(part if part < _PARTS - 1 else _PARTS - 1) if part > 0 else np.uint8(0)


@intrinsic
def _number(typing_context, word):  # type: ignore[no-untyped-def]
    """Return the float with the given bits."""

    def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), code


def _near(blocks: int) -> Any:
    """Return `near(first, second, low, span, other, other_span)`: whether a tuple of some blocks passes.

    The codes at address `first` must be `low` or up to `span` above it, and those at `second` likewise.
    """
    lanes = ir.VectorType(ir.IntType(8), BLOCK)

    def passing(builder: ir.IRBuilder, start: ir.Value, step: int, low: ir.Value, span: ir.Value) -> ir.Value:
        place = builder.inttoptr(builder.add(start, ir.Constant(I64, step * BLOCK)), ir.PointerType(lanes))
        above = builder.sub(builder.load(place, align=1), repeat(builder, low, BLOCK))
        return builder.icmp_unsigned("<=", above, repeat(builder, span, BLOCK))

    @intrinsic
    def near(typing_context, first, second, low, span, other, other_span):  # type: ignore[no-untyped-def]
        def code(context, builder, signature, args):  # type: ignore[no-untyped-def]
            found = ir.Constant(ir.VectorType(I1, BLOCK), [False] * BLOCK)
            for step in range(blocks):
                one = passing(builder, args[0], step, args[2], args[3])
                two = passing(builder, args[1], step, args[4], args[5])
                found = builder.or_(found, builder.and_(one, two))
            mask = builder.bitcast(found, ir.IntType(BLOCK))
            return builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))

        byte = types.uint8
        return types.boolean(types.int64, types.int64, byte, byte, byte, byte), code

    return near


_read, _write = reader(types.int64), writer(types.int64)


def _limits(program: Program, inner: int, band: Band) -> Any:
    """Return `limits(outer, i)`: the range of the coded column for an outer tuple, or a little more."""
    low, high = (_limit(program, inner, band, lower) for lower in (True, False))

    @numba.njit(**JIT, inline="always")
    def limits(outer, i):  # type: ignore[no-untyped-def]
        return low(outer, i), high(outer, i)

    return limits


def _limit(program: Program, inner: int, band: Band, lower: bool) -> Any:
    column, bounds = band
    edges = [edge for edge in (_edge(bound, inner) for bound in bounds) if edge.lower == lower]

    def emit_limit(builder: ir.IRBuilder, args: Any) -> ir.Value:
        value = column_value(builder, program, 1 - inner, column, args)
        size = builder.call(builder.module.declare_intrinsic("llvm.fabs", [_DOUBLE]), [value])
        limit = ir.Constant(_DOUBLE, -np.inf if lower else np.inf)
        for edge in edges:
            offset, rounding, magnitude, least = (
                ir.Constant(_DOUBLE, number) for number in (edge.offset, edge.rounding, edge.magnitude, 1e-44)
            )
            slack = builder.fadd(builder.fmul(rounding, builder.fadd(size, magnitude)), least)
            found = (builder.fsub if lower else builder.fadd)(builder.fadd(value, offset), slack)
            # NaN, which infinity may lead to, is neither above nor below and leaves the limit as it is.
            limit = builder.select(builder.fcmp_ordered(">" if lower else "<", found, limit), found, limit)
        return limit

    arguments = ir.FunctionType(_DOUBLE, [addresses(program, 1 - inner), I64])
    return as_intrinsic(predicate_function("limit", arguments, emit_limit), types.float64)


class _Edge(NamedTuple):
    """The limit of a bound on the inner side."""

    offset: float
    lower: bool
    rounding: float
    """Relative error of the value and of `magnitude`, in indexes and in the conversion to float."""
    magnitude: float


def _edge(bound: Bound, inner: int) -> _Edge:
    offset = float(bound.offset if inner == 0 else -bound.offset)
    is_lower = bound.is_lower if inner == 0 else not bound.is_lower
    return _Edge(offset, is_lower, 4 * (bound.rounding + _ROUNDING), float(bound.magnitude + abs(offset)))


def searcher(program: Program, inner: int, bands: Sequence[Band]) -> Any:
    """Return `search(outer, i, inner, row, tile, stop, passed, out_outer, out_inner, count)`.

    It does the same as `kernels.tiles.tile_search`. With `bands`, it first compares the codes of the basic
    window if its row of the table, at address `row`, has some. It counts the blocks that pass at `passed`.
    """
    if bands:
        return _coded_search(program, inner, bands)
    search = tile_search(program, inner)

    @numba.njit(**JIT, inline="always")
    def search_uncoded(outer, i, inner, row, tile, stop, passed, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        return search(outer, i, inner, tile, stop, out_outer, out_inner, count)

    return search_uncoded


def _coded_search(program: Program, inner: int, bands: Sequence[Band]) -> Any:
    block, rest = pair_writers(program, inner)
    first, second = (_limits(program, inner, band) for band in bands)
    near_block, near_group = _near(1), _near(_GROUP // BLOCK)

    @numba.njit(**JIT, inline="always")
    def span_of(limits, row, at):  # type: ignore[no-untyped-def]
        least, scale = _number(_read(row + 8 * (at + 1))), _number(_read(row + 8 * (at + 2)))
        low = _code(limits[0], least, scale)
        return low, np.uint8(_code(limits[1], least, scale) - low)

    @numba.njit(**JIT, inline="always")
    def search(outer, i, inner, row, tile, stop, passed, out_outer, out_inner, count):  # type: ignore[no-untyped-def]
        codes, others = _read(row + 8 * CODES), _read(row + 8 * (CODES + WORDS))
        coded = codes != 0
        low, span, other, other_span = np.uint8(0), np.uint8(0), np.uint8(0), np.uint8(0)
        if coded:
            one, two = first(outer, i), second(outer, i)
            if one[0] > one[1] or two[0] > two[1]:
                return count
            low, span = span_of(one, row, CODES)
            other, other_span = span_of(two, row, CODES + WORDS)
        whole = stop & ~(BLOCK - 1)
        for group in range(tile, whole, _GROUP):
            if coded and not near_group(codes + group, others + group, low, span, other, other_span):
                continue
            for j in range(group, min(group + _GROUP, whole), BLOCK):
                if coded:
                    if not near_block(codes + j, others + j, low, span, other, other_span):
                        continue
                    _write(passed, _read(passed) + 1)
                count = block(outer, i, inner, j, out_outer, out_inner, count)
        return rest(outer, i, inner, whole, stop, out_outer, out_inner, count)

    return search
