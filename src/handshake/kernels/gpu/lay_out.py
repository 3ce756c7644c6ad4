"""The making of an index in device memory: rows are counted by the cells of a grid, then laid out by cell.

The first kernel gives each row its cell and its number within the cell. Two more add the counts up: the sums
of chunks of cells, then the place where each cell begins. The last one copies the row numbers and the columns
to their places in the order of cells.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from handshake.kernels.gpu.frame import device_type, size_of
from handshake.kernels.gpu.target import THREADS, Kernel, Target, call
from handshake.kernels.lower import I32, I64
from handshake.plan.expr import Column
from handshake.schema import Int

CHUNK = 1024
"""Cells whose counts a thread adds up."""
_F64 = ir.DoubleType()


def count_module(target: Target, bands: Sequence[Column]) -> ir.Module:
    """Return the module of a kernel `count`, for cells by two columns of plain numbers.

    Its arguments are the number of rows, the addresses of cells, of numbers within cells and of counts. Then
    come for each band the address of its column, where cells begin, cells per unit (both as bits of a float
    of 64 bits), and cells in all.
    """
    module = ir.Module("count")
    kernel = target.kernel(module, "count", [I64] * (4 + 4 * len(bands)))
    b, (rows, cells, numbers, counts) = kernel.builder, kernel.args[:4]
    row = _begin(kernel, rows)
    cell: ir.Value = I64(0)
    for k, column in enumerate(bands):
        address, least, scale, parts = kernel.args[4 + 4 * k : 8 + 4 * k]
        value = _as_double(b, column, _load(target, b, device_type(column), address, row))
        part = _part(b, value, b.bitcast(least, _F64), b.bitcast(scale, _F64), parts)
        cell = b.add(b.mul(cell, parts), part)
    count = b.gep(target.pointer(b, counts, I32), [cell])
    number = b.atomic_rmw("add", count, I32(1), "monotonic")
    b.store(b.trunc(cell, I32), b.gep(target.pointer(b, cells, I32), [row]))
    b.store(number, b.gep(target.pointer(b, numbers, I32), [row]))
    b.branch(kernel.end)
    return module


def sums_module(target: Target) -> ir.Module:
    """Return the module of a kernel `sums`, which adds up the counts of each chunk of cells.

    Its arguments are the number of chunks, the addresses of counts and of sums, and the number of cells.
    """
    module = ir.Module("sums")
    kernel = target.kernel(module, "sums", [I64] * 4)
    b, (chunks, counts, sums, cells) = kernel.builder, kernel.args
    chunk = _begin(kernel, chunks)
    total = _sum(target, kernel, counts, *_cells_of(b, chunk, cells))
    b.store(total, b.gep(target.pointer(b, sums, I32), [chunk]))
    b.branch(kernel.end)
    return module


def offsets_module(target: Target) -> ir.Module:
    """Return the module of a kernel `offsets`, which says where each cell begins.

    Its arguments are those of `sums`, and the address of one place more than there are cells.
    """
    module = ir.Module("offsets")
    kernel = target.kernel(module, "offsets", [I64] * 5)
    b, (chunks, counts, sums, cells, offsets) = kernel.builder, kernel.args
    chunk = _begin(kernel, chunks)
    place = kernel.variable(I32)
    b.store(_sum(target, kernel, sums, I64(0), chunk), place)
    start, stop = _cells_of(b, chunk, cells)
    places = target.pointer(b, offsets, I32)
    with kernel.loop(start, stop, 1) as cell:
        count = _load(target, b, I32, counts, cell)
        b.store(b.load(place), b.gep(places, [cell]))
        b.store(b.add(b.load(place), count), place)
    with b.if_then(b.icmp_signed("==", stop, cells)):
        b.store(b.load(place), b.gep(places, [cells]))
    b.branch(kernel.end)
    return module


def lay_out_module(target: Target, widths: Sequence[int]) -> ir.Module:
    """Return the module of a kernel `lay_out`, for arrays of elements of these bytes.

    Its arguments are the number of rows, the addresses of cells, of numbers within cells, of the cells' first
    places and of the ordered row numbers, and for each array the addresses to copy from and to.
    """
    module = ir.Module("lay_out")
    kernel = target.kernel(module, "lay_out", [I64] * (5 + 2 * len(widths)))
    b, (rows, cells, numbers, offsets, order) = kernel.builder, kernel.args[:5]
    row = _begin(kernel, rows)
    cell = b.zext(_load(target, b, I32, cells, row), I64)
    place = b.add(_load(target, b, I32, offsets, cell), _load(target, b, I32, numbers, row))
    place = b.zext(place, I64)
    b.store(b.trunc(row, I32), b.gep(target.pointer(b, order, I32), [place]))
    for k, width in enumerate(widths):
        source, copy = kernel.args[5 + 2 * k : 7 + 2 * k]
        kind = ir.IntType(8 * width)
        value = _load(target, b, kind, source, row)
        b.store(value, b.gep(target.pointer(b, copy, kind), [place]), align=width)
    b.branch(kernel.end)
    return module


def _begin(kernel: Kernel, rows: ir.Value) -> ir.Value:
    """Begin the work on the row of this thread; return its number."""
    b = kernel.builder
    row = b.zext(b.add(b.mul(kernel.block_x, I32(THREADS)), kernel.thread), I64)
    work = b.append_basic_block("work")
    b.cbranch(b.icmp_signed("<", row, rows), work, kernel.end)
    b.position_at_end(work)
    return row


def _cells_of(b: ir.IRBuilder, chunk: ir.Value, cells: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the first cell of a chunk, and the one behind its last."""
    start = b.mul(chunk, I64(CHUNK))
    stop = b.add(start, I64(CHUNK))
    return start, b.select(b.icmp_signed("<", stop, cells), stop, cells)


def _sum(target: Target, kernel: Kernel, numbers: ir.Value, start: ir.Value, stop: ir.Value) -> ir.Value:
    """Return the sum of some numbers of 32 bits."""
    b, total = kernel.builder, kernel.variable(I32)
    b.store(I32(0), total)
    with kernel.loop(start, stop, 1) as at:
        b.store(b.add(b.load(total), _load(target, b, I32, numbers, at)), total)
    return b.load(total)


def _load(target: Target, b: ir.IRBuilder, kind: ir.Type, address: ir.Value, at: ir.Value) -> ir.Value:
    return b.load(b.gep(target.pointer(b, address, kind), [at]), align=size_of(kind))


def _as_double(b: ir.IRBuilder, column: Column, value: ir.Value) -> ir.Value:
    if isinstance(column.type, Int):
        return b.sitofp(value, _F64) if column.type.signed else b.uitofp(value, _F64)
    return value if value.type == _F64 else b.fpext(value, _F64)


def _part(b: ir.IRBuilder, value: ir.Value, least: ir.Value, scale: ir.Value, parts: ir.Value) -> ir.Value:
    """Return the number of a value's part, as `Grid.reach` does; NaN, which is in no band, is in part 0."""
    part = call(b, "llvm.floor.f64", _F64, b.fmul(b.fsub(value, least), scale))
    most = b.sitofp(b.sub(parts, I64(1)), _F64)
    part = b.select(b.fcmp_ordered(">", part, most), most, part)
    return b.fptosi(
        b.select(b.fcmp_ordered(">", part, ir.Constant(_F64, 0.0)), part, ir.Constant(_F64, 0.0)), I64
    )
