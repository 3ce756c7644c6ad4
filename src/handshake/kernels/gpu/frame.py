"""Kernels of searches under construction: what they are compiled from, and the columns that they load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from llvmlite import ir

from handshake.kernels.compile import Program, _memory_type, _truth_of, _widen
from handshake.kernels.gpu.target import Target
from handshake.kernels.loosen import loosen
from handshake.kernels.lower import I1, I8, I32, I64, Env, Lowered, Number
from handshake.kernels.reduction import Reduction
from handshake.plan.expr import Column, Expr, walk
from handshake.schema import Bool

CODED_TUPLES, CODED_PROBES = 32, 8
"""For codes: tuples that a thread keeps, and probes between two looks at the filter."""


@dataclass(frozen=True)
class Scan:
    """The description that a scan is compiled from."""

    program: Program
    """The exact predicate, with the window rule; its guard is the condition that is filtered by."""
    inner: int
    all_small: bool = False
    """Whether all whole numbers are `small` (see `filters`)."""
    coded: bool = False
    """Whether the filter compares 16-bit codes of two bands."""
    reduction: Reduction | None = None
    """The reduction of pairs; None: they are written down."""

    @cached_property
    def filter(self) -> Expr:
        """The condition that pairs are filtered by."""
        condition = self.program.guard or self.program.expr
        return loosen(condition, self.inner) or condition

    @cached_property
    def tuples(self) -> int:
        """Tuples of the window that a thread keeps."""
        if self.coded:
            return CODED_TUPLES
        kinds = [device_type(c) for c in columns_of(self.filter, self.inner)]
        size = sum(8 * size_of(kind) for kind in kinds)
        if self.program.nullable:
            size += 32 * len(kinds)
        return 32 if size <= 64 else 16 if size <= 96 else 8 if size <= 256 else 4

    @property
    def blocks(self) -> int:
        """Blocks that a multiprocessor has registers for: 3 pays only with codes (bench/gpu, 7 %)."""
        return 3 if self.coded else 2

    @property
    def at_once(self) -> int:
        """Probes between two looks at the filter."""
        return CODED_PROBES if self.coded else max(4, 32 // self.tuples)


def columns_of(expr: Expr, side: int) -> list[Column]:
    return list(dict.fromkeys(n for n in walk(expr) if isinstance(n, Column) and n.side == side))


def device_type(column: Column) -> ir.Type:
    """Return the type of a column's values in device memory."""
    return I8 if isinstance(column.type, Bool) else _memory_type(column)


def size_of(kind: ir.Type) -> int:
    """Return the bytes of a value in memory."""
    return int(kind.width) // 8 if isinstance(kind, ir.IntType) else 8 if kind == ir.DoubleType() else 4


class Frame:
    """The parts of a scan's kernel that need its arguments."""

    def __init__(
        self, scan: Scan, target: Target, module: ir.Module, sides: Sequence[int], scalars: Sequence[str]
    ) -> None:
        """Begin a kernel with the name of its module.

        Args:
            scan: The predicate.
            target: The machine.
            module: Gets the kernel.
            sides: The sides whose columns are arguments: two addresses for each.
            scalars: The names of the arguments behind them.
        """
        assert len(set(scalars)) == len(scalars), scalars
        columns = [column for side in sides for column in scan.program.columns[side]]
        kernel = target.kernel(module, module.name, [I64] * (2 * len(columns) + len(scalars)))
        self.scan, self.target, self.kernel, self.builder = scan, target, kernel, kernel.builder
        places = zip(kernel.args[::2], kernel.args[1::2], strict=False)
        self.addresses: dict[Column, tuple[ir.Value, ir.Value]] = dict(zip(columns, places, strict=False))
        self.scalars = dict(zip(scalars, kernel.args[2 * len(columns) :], strict=True))
        self._once = self.builder.module.add_metadata([])

    def load(self, kind: ir.Type, address: ir.Value, index: ir.Value, align: int) -> ir.Value:
        """Load an element that never changes while the kernel runs."""
        b = self.builder
        loaded = b.load(b.gep(self.target.pointer(b, address, kind), [index]), align=align)
        loaded.set_metadata("invariant.load", self._once)
        return loaded

    def value(self, column: Column, index: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """Load a value of a column as it is in memory, and its validity."""
        data, validity = self.addresses[column]
        kind = device_type(column)
        valid = self.load(I8, validity, index, 1) if self.scan.program.nullable else None
        return self.load(kind, data, index, min(size_of(kind), 16)), valid

    def lower(self, column: Column, raw: ir.Value, valid: ir.Value | None) -> Lowered:
        """Return a loaded value as the lowering of predicates wants it."""
        known = None if valid is None else self.builder.trunc(valid, I1)
        if isinstance(column.type, Bool):
            return _truth_of(self.builder, self.builder.trunc(raw, I1), known)
        return Number(_widen(self.builder, column, raw, self.scan.program.headroom), known)

    def env(self, find: Callable[[Column], Lowered]) -> Env:
        return Env(self.builder, find, self.scan.program.headroom, self.scan.inner)

    def pair(self, places: Mapping[int, ir.Value]) -> Env:
        """Return where the columns of a pair come from, given the place of the row of each side."""
        return self.env(lambda c: self.lower(c, *self.value(c, places[c.side])))


def note_looked(frame: Frame, lane: ir.Value, looked: ir.Value) -> None:
    """Add a number to the second counter of the output, once for a warp."""
    b = frame.builder
    with b.if_then(b.and_(b.icmp_signed("==", lane, I32(0)), b.icmp_signed("!=", looked, I32(0)))):
        counters = frame.target.pointer(b, frame.scalars["count"], I64)
        b.atomic_rmw("add", b.gep(counters, [I64(1)]), b.zext(looked, I64), "monotonic")
