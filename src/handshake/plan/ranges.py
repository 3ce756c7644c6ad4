"""The ranges of whole numbers, by which kernels choose a width that cannot overflow."""

from __future__ import annotations

from functools import singledispatch

from handshake.errors import UnsupportedError
from handshake.plan.expr import Arithmetic, Call, Case, Cast, Column, Expr, Literal, Negate, show
from handshake.schema import UNITS, Date, Decimal, Int, Interval, TimeOfDay, Timestamp, Type, scale_of

Range = tuple[int, int]


def storage_bits(kind: Type) -> int:
    """Return the number of bits of a value of this exact type in memory."""
    match kind:
        case Int(bits=bits):
            return bits
        case Date() | TimeOfDay(unit="s" | "ms"):
            return 32
        case Decimal():
            return 128
    return 64


def type_range(kind: Type, headroom: bool) -> Range:
    """Return the range of a type; with `headroom` it leaves two bits unused, so that sums still fit."""
    match kind:
        case Int(bits=bits, signed=False):
            return (0, 2 ** (bits - (2 if headroom and bits >= 32 else 0)) - 1)
        case Decimal(precision=precision) if precision:
            limit = 10**precision - 1
            return (-min(limit, 2**62 - 1), min(limit, 2**62 - 1)) if headroom else (-limit, limit)
    bits = storage_bits(kind)
    if headroom and bits >= 32:
        limit = 2 ** (min(bits, 64) - 2) - 1
        return (-limit, limit)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def width_of(span: Range) -> int | None:
    """Return the smallest of 32, 64, … 512 bits that holds a range, or None."""
    for width in (32, 64, 128, 256, 512):
        if -(2 ** (width - 1)) <= span[0] and span[1] < 2 ** (width - 1):
            return width
    return None


@singledispatch
def ranges(expr: Expr, headroom: bool) -> Range:
    """Return the range of the values of a bound exact expression."""
    raise UnsupportedError(f"{show(expr)} has no range")


@ranges.register
def _(expr: Column, headroom: bool) -> Range:
    return type_range(expr.type, headroom)


@ranges.register
def _(expr: Literal, headroom: bool) -> Range:
    value = 0 if expr.value is None else int(expr.value)
    return (value, value)


@ranges.register
def _(expr: Negate, headroom: bool) -> Range:
    low, high = ranges(expr.arg, headroom)
    return (-high, -low)


@ranges.register
def _(expr: Arithmetic, headroom: bool) -> Range:
    (a, b), (c, d) = ranges(expr.left, headroom), ranges(expr.right, headroom)
    match expr.op:
        case "+":
            return (a + c, b + d)
        case "-":
            return (a - d, b - c)
        case "*":
            corners = (a * c, a * d, b * c, b * d)
            return (min(corners), max(corners))
        case "div":
            return (-max(abs(a), abs(b)), max(abs(a), abs(b)))
    most = min(max(abs(a), abs(b)), max(abs(c), abs(d)))
    return (-most, most)


@ranges.register
def _(expr: Case, headroom: bool) -> Range:
    return _union([v for _, v in expr.pairs] + [expr.default], headroom)


@ranges.register
def _(expr: Call, headroom: bool) -> Range:
    match expr.name:
        case "abs":
            low, high = ranges(expr.args[0], headroom)
            return (0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))
        case "sign":
            return (-1, 1)
        case "floor" | "ceil" | "round":
            low, high = ranges(expr.args[0], headroom)
            return (low - 1, high + 1) if isinstance(expr.args[0].type, Decimal) else (low, high)
        case "bit_and" | "bit_or" | "bit_xor" | "bit_not":
            low, high = _union(list(expr.args), headroom)
            bits = max(low.bit_length(), high.bit_length())
            return (-(2**bits), 2**bits - 1)
        case "coalesce" | "least" | "greatest":
            return _union(list(expr.args), headroom)
    return type_range(expr.type, False)


@ranges.register
def _(expr: Cast, headroom: bool) -> Range:
    if not isinstance(expr.arg.type, (Int, Decimal, Date, Timestamp, Interval, TimeOfDay)):
        return type_range(expr.type, False)
    up, down = scale_factor(expr.arg.type, expr.type)
    low, high = (bound * up // down for bound in ranges(expr.arg, headroom))
    if isinstance(expr.type, Int) or (isinstance(expr.type, Decimal) and expr.type.precision):
        # The check that makes an unfitting value NULL comes after; the value itself stays in range.
        floor, ceiling = type_range(expr.type, False)
        return (min(max(low, floor), ceiling), max(min(high, ceiling), floor))
    return (low - 1, high + 1) if down > 1 else (low, high)


def _union(exprs: list[Expr], headroom: bool) -> Range:
    spans = [ranges(e, headroom) for e in exprs]
    return (min(low for low, _ in spans), max(high for _, high in spans))


def scale_factor(source: Type, target: Type) -> tuple[int, int]:
    """Return the factors (multiply, divide) that convert a whole number of one exact type to another."""
    match source, target:
        case (Int() | Decimal(), Int() | Decimal()):
            shift = scale_of(target) - scale_of(source)
            return (10**shift, 1) if shift >= 0 else (1, 10**-shift)
        case _:
            up, down = _nanoseconds(source), _nanoseconds(target)
            return (up // down, 1) if up >= down else (1, down // up)


def _nanoseconds(kind: Type) -> int:
    if isinstance(kind, (Timestamp, Interval, TimeOfDay)):
        return UNITS[kind.unit]
    return UNITS["d"]  # dates, and whole numbers that stand for days
