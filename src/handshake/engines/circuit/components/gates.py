"""Expressions to gates: comparators, adders and logic, one small function per node; the default is an error.

Whole numbers grow in width as they are added and multiplied, so nothing wraps. A value may have a NULL
wire; three-valued logic is made of gates like any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from operator import add, and_, mul, or_, sub, xor
from typing import Any

from amaranth.hdl import Cat, Const, Mux, Value

from handshake.engines.circuit.components.trees import tree_of
from handshake.engines.circuit.components.types import Row, Wire, bits_of_range, null_of
from handshake.errors import UnsupportedError
from handshake.plan.expr import (
    COMPARISONS,
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    IsNull,
    Literal,
    Negate,
    Not,
    Or,
    show,
)
from handshake.plan.ranges import scale_factor, type_range
from handshake.schema import Binary, Bool, Date, Decimal, Float, Int, Null, Opaque, String, Timestamp, Type

Operands = Callable[[Column], "Lowered"]
"""Returns the gates that carry the value of a column."""


@dataclass(frozen=True)
class Lowered:
    """Gates that carry a value, and whether it is NULL (None: it never is)."""

    value: Value
    null: Value | None
    type: Type

    def is_known(self) -> Value:
        """Return a bit that is high if there is a value."""
        return Const(1, 1) if self.null is None else ~self.null


def columns_of(payload: Any, row: Row) -> Operands:
    """Return the fields of a payload as operands."""

    def operand(column: Column) -> Lowered:
        each = row[column.name]
        if each.count_bits:
            raise UnsupportedError(
                f"{column.name} is an average, which leaves the circuit as a sum and a count for the host to "
                'divide; select it as it is, without computing on it, or use divider="pipelined"'
            )
        null = payload[null_of(each.name)] if each.nullable else None
        return Lowered(Value.cast(payload[each.name]), null, each.type)

    return operand


def wire_of(name: str, lowered: Lowered, kind: Type) -> Wire:
    """Return the wires that carry a computed value: no more than it needs."""
    shape = lowered.value.shape()
    return Wire(name, kind, max(1, shape.width), shape.signed, lowered.null is not None)


@singledispatch
def lower(expr: Expr, operands: Operands) -> Lowered:
    """Return the gates that compute a bound expression."""
    raise _no_unit(show(expr))


def _no_unit(what: str) -> UnsupportedError:
    return UnsupportedError(f"the circuit has no unit for {what}; the local engine computes it")


@lower.register
def _(expr: Column, operands: Operands) -> Lowered:
    return operands(expr)


@lower.register
def _(expr: Literal, operands: Operands) -> Lowered:
    if expr.value is None:
        return Lowered(Const(0, 1), Const(1, 1), expr.type)
    return Lowered(_constant(expr), None, expr.type)


def _constant(expr: Literal) -> Const:
    match expr.type:
        case String() | Binary():
            data = expr.value.encode() if isinstance(expr.value, str) else bytes(expr.value)
            if b"\0" in data:
                raise UnsupportedError(
                    f'{show(expr)} holds a zero byte, which ends text on wires; use engine="local"'
                )
            return Const(int.from_bytes(data, "big"), 8 * len(data))
        case Float(bits=bits):
            return Const(int.from_bytes(struct.pack(">f" if bits == 32 else ">d", expr.value), "big"), bits)
        case Opaque():
            raise _no_unit(f"{show(expr)} ({expr.type})")
    number = int(expr.value)
    bits, signed = bits_of_range(min(number, 0), max(number, 0))
    return Const(number, type(Const(0).shape())(bits, signed=signed))


def _null(*operands: Lowered) -> Value | None:
    """Return a bit that is high if one of the operands is NULL."""
    present = [each.null for each in operands if each.null is not None]
    return tree_of(or_, present) if present else None


# Logic.


def _is_true(each: Lowered) -> Value:
    return each.value[0] if each.null is None else each.value[0] & ~each.null


def _no(each: Lowered) -> Value:
    return ~each.value[0] if each.null is None else ~each.value[0] & ~each.null


def _truth(yes: Value, no: Value, parts: list[Lowered]) -> Lowered:
    """Return a truth value from where it is certainly true and certainly false; NULL if neither."""
    null = None if all(part.null is None for part in parts) else ~(yes | no)
    return Lowered(yes, null, Bool())


@lower.register(And)
@lower.register(Or)
def _(expr: And | Or, operands: Operands) -> Lowered:
    yes, no = (and_, or_) if isinstance(expr, And) else (or_, and_)
    parts = [lower(arg, operands) for arg in expr.args]
    return _truth(tree_of(yes, map(_is_true, parts)), tree_of(no, map(_no, parts)), parts)


@lower.register
def _(expr: Not, operands: Operands) -> Lowered:
    inside = lower(expr.arg, operands)
    return _truth(_no(inside), _is_true(inside), [inside])


@lower.register
def _(expr: IsNull, operands: Operands) -> Lowered:
    return Lowered(~lower(expr.arg, operands).is_known(), None, Bool())


# Comparisons.


@lower.register
def _(expr: Compare, operands: Operands) -> Lowered:
    a, b = lower(expr.left, operands), lower(expr.right, operands)
    compare = COMPARISONS[expr.op]
    if isinstance(a.type, Float) and isinstance(b.type, Float):
        return Lowered(_compare_floats(expr, a, b), _null(a, b), Bool())
    if isinstance(a.type, (String, Binary)):
        return Lowered(compare(*_pad(a.value, b.value)), _null(a, b), Bool())
    return Lowered(compare(a.value, b.value), _null(a, b), Bool())


def _pad(*texts: Value) -> list[Value]:
    """Return texts of the same length: the shorter ones end in zero bytes."""
    longest = max(len(text) for text in texts)
    return [Cat(Const(0, longest - len(text)), text) for text in texts]


def _compare_floats(expr: Compare, a: Lowered, b: Lowered) -> Value:
    if len(a.value) != len(b.value):
        raise UnsupportedError(
            f"the circuit compares floats of the same width only, not {show(expr)}; cast one of them"
        )
    ordered = COMPARISONS[expr.op](_float_order(a.value), _float_order(b.value))
    unordered = _is_nan(a.value) | _is_nan(b.value)
    return ordered | unordered if expr.op == "<>" else ordered & ~unordered


def _float_order(bits: Value) -> Value:
    """Return a whole number that orders as the float does; both zeros are 0."""
    return Mux(bits[-1], -bits[:-1], bits[:-1])


def _is_nan(bits: Value) -> Value:
    exponent = {32: 8, 64: 11}[len(bits)]
    infinity = ((1 << exponent) - 1) << (len(bits) - 1 - exponent)
    return bits[:-1] > infinity


# Arithmetic.


def _exact(expr: Expr, *parts: Lowered) -> None:
    for part in parts:
        if isinstance(part.type, (Float, String, Binary)):
            raise UnsupportedError(
                f"the circuit has no unit for arithmetic on {part.type}: {show(expr)}; "
                f"integers, decimals, dates and times have one"
            )
    if isinstance(expr.type, Float):
        raise _no_unit(f"{show(expr)}, which is {expr.type}")


@lower.register
def _(expr: Arithmetic, operands: Operands) -> Lowered:
    a, b = lower(expr.left, operands), lower(expr.right, operands)
    _exact(expr, a, b)
    if expr.op in ("div", "%"):
        return _divide(expr, a, b)
    operation = {"+": add, "-": sub, "*": mul}[expr.op]
    return Lowered(operation(a.value, b.value), _null(a, b), expr.type)


def _divide(expr: Arithmetic, a: Lowered, b: Lowered) -> Lowered:
    """Divide towards zero, as SQL does; division by zero gives NULL."""
    negative = a.value < 0
    zero = b.value == 0
    null = zero if (given := _null(a, b)) is None else given | zero
    magnitudes = abs(a.value), abs(b.value)
    if expr.op == "%":
        rest = magnitudes[0] % magnitudes[1]
        return Lowered(Mux(negative, -rest, rest), null, expr.type)
    quotient = magnitudes[0] // magnitudes[1]
    return Lowered(Mux(negative ^ (b.value < 0), -quotient, quotient), null, expr.type)


@lower.register
def _(expr: Negate, operands: Operands) -> Lowered:
    arg = lower(expr.arg, operands)
    _exact(expr, arg)
    return Lowered(-arg.value, arg.null, expr.type)


@lower.register
def _(expr: Cast, operands: Operands) -> Lowered:
    arg = lower(expr.arg, operands)
    if isinstance(arg.type, (String, Binary)) and isinstance(expr.type, type(arg.type)):
        return arg
    _exact(expr, arg)
    if isinstance(expr.type, (String, Binary, Bool)):
        raise _no_unit(show(expr))
    value = arg.value if isinstance(arg.type, Bool) else _rescale(arg, expr.type)
    return _fit(value, arg.null, expr.type)


def _rescale(arg: Lowered, kind: Type) -> Value:
    up, down = scale_factor(arg.type, kind)
    value = arg.value * up if up > 1 else arg.value
    if down == 1:
        return value
    if isinstance(kind, (Date, Timestamp)):
        return value // down
    return _half_away(value, down)


def _half_away(value: Value, by: int) -> Value:
    """Divide by `by`, rounding halves away from zero."""
    rounded = (abs(value) + by // 2) // by
    return Mux(value < 0, -rounded, rounded)


def _fit(value: Value, null: Value | None, kind: Type) -> Lowered:
    """Return a value that fits its type; it is NULL if it does not fit."""
    bounded = isinstance(kind, Int) or (isinstance(kind, Decimal) and kind.precision > 0)
    if not bounded:
        return Lowered(value, null, kind)
    low, high = type_range(kind, False)
    shape = value.shape()
    least, most = (
        (-(1 << shape.width - 1), (1 << shape.width - 1) - 1) if shape.signed else (0, 2**shape.width - 1)
    )
    if low <= least and most <= high:
        return Lowered(value, null, kind)
    outside = (value < low) | (value > high)
    bits, signed = bits_of_range(low, high)
    narrow = value[:bits].as_signed() if signed else value[:bits]
    return Lowered(narrow, outside if null is None else null | outside, kind)


# Choices and functions.


@lower.register
def _(expr: Case, operands: Operands) -> Lowered:
    branches = [
        (_is_true(lower(condition, operands)), lower(value, operands)) for condition, value in expr.pairs
    ]
    _, result = tree_of(_first, [*branches, (Const(1, 1), lower(expr.default, operands))])
    return Lowered(result.value, result.null, expr.type)


_Branch = tuple[Value, Lowered]


def _first(a: _Branch, b: _Branch) -> _Branch:
    """Combine two branches, or runs of branches: the first whose condition holds gives the value."""
    return a[0] | b[0], _choose(a[0], a[1], b[1])


def _choose(condition: Value, a: Lowered, b: Lowered) -> Lowered:
    x, y = (a.value, b.value)
    if isinstance(a.type, (String, Binary)) or isinstance(b.type, (String, Binary)):
        x, y = _pad(x, y)
    null = None
    if a.null is not None or b.null is not None:
        null = Mux(condition, ~a.is_known(), ~b.is_known())
    return Lowered(Mux(condition, x, y), null, b.type if isinstance(a.type, Null) else a.type)


@lower.register
def _(expr: Call, operands: Operands) -> Lowered:
    args = [lower(arg, operands) for arg in expr.args]
    if expr.name == "coalesce":
        return tree_of(lambda first, later: _choose(first.is_known(), first, later), args)
    if expr.name not in _FUNCTIONS:
        raise _no_unit(f"{expr.name}(): {show(expr)}")
    _exact(expr, *args)
    return _FUNCTIONS[expr.name](expr, args)


def _sign(expr: Call, args: list[Lowered]) -> Lowered:
    value = args[0].value
    sign = Mux(value < 0, Const(-1, 2).as_signed(), (value != 0).as_unsigned())
    return Lowered(sign, args[0].null, expr.type)


def _whole(expr: Call, args: list[Lowered]) -> Lowered:
    """Lower floor, ceil and round of a decimal; whole numbers stay as they are."""
    (arg,) = args
    if not isinstance(arg.type, Decimal) or arg.type.scale == 0:
        return Lowered(arg.value, arg.null, expr.type)
    unit = 10**arg.type.scale
    value = {
        "floor": lambda: arg.value // unit,
        "ceil": lambda: -(-arg.value // unit),
        "round": lambda: _half_away(arg.value, unit),
    }[expr.name]()
    return Lowered(value, arg.null, expr.type)


def _extreme(expr: Call, args: list[Lowered]) -> Lowered:
    """Lower least and greatest, which leave NULL operands out."""
    return tree_of(lambda a, b: _choose(_prefers(expr.name, a, b), a, b), args)


def _prefers(name: str, a: Lowered, b: Lowered) -> Value:
    better = a.value <= b.value if name == "least" else a.value >= b.value
    return a.is_known() & (better | ~b.is_known())


def _bits(expr: Call, args: list[Lowered]) -> Lowered:
    """Lower operations on bits; the complement of an unsigned number is negative, as in SQL."""
    if expr.name == "bit_not":
        return Lowered(-args[0].value - 1, args[0].null, expr.type)
    operation = {"bit_and": and_, "bit_or": or_, "bit_xor": xor}[expr.name]
    return Lowered(operation(args[0].value, args[1].value), _null(*args), expr.type)


_FUNCTIONS: dict[str, Callable[[Call, list[Lowered]], Lowered]] = {
    "abs": lambda expr, args: Lowered(abs(args[0].value), args[0].null, expr.type),
    "sign": _sign,
    "floor": _whole,
    "ceil": _whole,
    "round": _whole,
    "least": _extreme,
    "greatest": _extreme,
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor", "bit_not"), _bits),
}
