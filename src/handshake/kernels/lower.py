"""Lowering of bound expressions to LLVM IR: one small function per node. Unknown nodes are an error.

The same functions serve a single pair (scalars) and a block of pairs (vectors of `LANES`). An operand that
reads only the outer tuple stays scalar until it meets a vector, so LLVM moves it out of the loop.

Truth is a pair of masks: `yes` (the condition may be true) and `no` (it may be false). NULL is neither. A
condition that cannot be decided here is both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from llvmlite import ir

from handshake.errors import UnsupportedError
from handshake.plan.analyse import separate
from handshake.plan.expr import (
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
from handshake.plan.ranges import ranges, scale_factor, type_range, width_of
from handshake.plan.types import is_exact
from handshake.schema import INT64, Bool, Date, Decimal, Float, Int, Timestamp, Type

LANES = 16
"""Tuples per vector: 512 bits of int32, and a mask of 16 bits."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))


@dataclass(frozen=True)
class Number:
    """A value and its validity; `valid` is None if the value is never NULL."""

    value: ir.Value
    valid: ir.Value | None


@dataclass(frozen=True)
class Truth:
    """Two masks: the condition may be true, and it may be false."""

    yes: ir.Value
    no: ir.Value


Lowered = Number | Truth


@dataclass(frozen=True)
class Env:
    """The source of columns, and the side that is in vectors (None: all is scalar)."""

    builder: ir.IRBuilder
    load: Callable[[Column], Lowered]
    headroom: bool
    inner: int | None = None

    def width(self, expr: Expr) -> int:
        """Return the bits in which an exact expression is computed."""
        width = width_of(ranges(expr, self.headroom))
        if width is None:
            raise UnsupportedError(f"{show(expr)} needs more than 512 bits; make its operands smaller")
        return width


def number(expr: Expr, env: Env) -> Number:
    """Emit IR for an expression that is not a condition."""
    lowered = emit(expr, env)
    assert isinstance(lowered, Number), show(expr)
    return lowered


def truth(expr: Expr, env: Env) -> Truth:
    """Emit IR for a condition."""
    lowered = emit(expr, env)
    assert isinstance(lowered, Truth), show(expr)
    return lowered


# Helpers for scalar or vector values.


def lanes(value: ir.Value) -> int:
    """Return the number of elements of a value, 0 for a scalar."""
    return value.type.count if isinstance(value.type, ir.VectorType) else 0


def vector_of(element: ir.Type, count: int) -> ir.Type:
    """Return a vector type, or the element itself if the count is 0."""
    return ir.VectorType(element, count) if count else element


def element_of(value: ir.Value) -> ir.Type:
    """Return the type of one lane."""
    return value.type.element if isinstance(value.type, ir.VectorType) else value.type


def constant(element: ir.Type, value: Any, like: ir.Value | None = None) -> ir.Value:
    """Return a constant, repeated over the lanes of `like`."""
    count = lanes(like) if like is not None else 0
    return ir.Constant(vector_of(element, count), [value] * count if count else value)


def repeat(builder: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    """Return a vector of equal values."""
    undefined = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(I32, count), [0] * count))


def splat(env: Env, value: ir.Value, count: int) -> ir.Value:
    """Repeat a scalar over a vector."""
    return value if not count or lanes(value) else repeat(env.builder, value, count)


def align(env: Env, *values: ir.Value) -> list[ir.Value]:
    """Turn all values into vectors if one is."""
    count = max(lanes(value) for value in values)
    return [splat(env, value, count) for value in values]


def both(env: Env, a: ir.Value | None, b: ir.Value | None) -> ir.Value | None:
    """Combine two validities; None is always valid."""
    if a is None or b is None:
        return a if b is None else b
    return env.builder.and_(*align(env, a, b))


def conj(env: Env, a: ir.Value, b: ir.Value) -> ir.Value:
    return env.builder.and_(*align(env, a, b))


def disj(env: Env, a: ir.Value, b: ir.Value) -> ir.Value:
    return env.builder.or_(*align(env, a, b))


def inverse(env: Env, mask: ir.Value) -> ir.Value:
    return env.builder.xor(mask, constant(I1, 1, mask))


def select(env: Env, mask: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    """Choose `a` in the lanes of the mask, else `b`."""
    return env.builder.select(*align(env, mask, a, b))


def resize(env: Env, value: ir.Value, width: int, signed: bool = True) -> ir.Value:
    """Convert a whole number to another width."""
    have = element_of(value).width
    if have == width:
        return value
    target = vector_of(ir.IntType(width), lanes(value))
    if have > width:
        return env.builder.trunc(value, target)
    return env.builder.sext(value, target) if signed else env.builder.zext(value, target)


def _convert(env: Env, name: str, value: ir.Value, element: ir.Type) -> ir.Value:
    return getattr(env.builder, name)(value, vector_of(element, lanes(value)))


def intrinsic(env: Env, name: str, *values: ir.Value) -> ir.Value:
    """Call an LLVM intrinsic, lane by lane."""
    values = tuple(align(env, *values))
    kind = values[0].type
    suffix = f"v{lanes(values[0])}" if lanes(values[0]) else ""
    full = f"llvm.{name}.{suffix}{'f32' if element_of(values[0]) == ir.FloatType() else 'f64'}"
    function = env.builder.module.globals.get(full)
    if function is None:
        function = ir.Function(env.builder.module, ir.FunctionType(kind, [v.type for v in values]), full)
    return env.builder.call(function, values)


def _mask(env: Env, holds: ir.Value, valid: ir.Value | None) -> Truth:
    """Return the masks of a comparison whose operands are valid in `valid`."""
    fails = inverse(env, holds)
    if valid is None:
        return Truth(holds, fails)
    return Truth(conj(env, holds, valid), conj(env, fails, valid))


# Nodes.


@singledispatch
def emit(expr: Expr, env: Env) -> Lowered:
    """Emit IR for a bound expression."""
    raise UnsupportedError(f"kernels cannot compute {show(expr)}")


@emit.register
def _(expr: Column, env: Env) -> Lowered:
    return env.load(expr)


@emit.register
def _(expr: Literal, env: Env) -> Lowered:
    missing = expr.value is None
    if isinstance(expr.type, Bool):
        return Truth(constant(I1, int(expr.value is True)), constant(I1, int(expr.value is False)))
    if isinstance(expr.type, Float):
        value = constant(_float_type(expr.type), 0.0 if missing else float(expr.value))
    else:
        value = constant(ir.IntType(env.width(expr)), 0 if missing else int(expr.value))
    return Number(value, constant(I1, 0) if missing else None)


def _float_type(kind: Type) -> ir.Type:
    return ir.FloatType() if kind == Float(32) else ir.DoubleType()


@emit.register(And)
@emit.register(Or)
def _(expr: And | Or, env: Env) -> Lowered:
    yes, no = (conj, disj) if isinstance(expr, And) else (disj, conj)
    first, *rest = (truth(arg, env) for arg in expr.args)
    for other in rest:
        first = Truth(yes(env, first.yes, other.yes), no(env, first.no, other.no))
    return first


@emit.register
def _(expr: Not, env: Env) -> Lowered:
    inside = truth(expr.arg, env)
    return Truth(inside.no, inside.yes)


@emit.register
def _(expr: IsNull, env: Env) -> Lowered:
    inside = emit(expr.arg, env)
    known = _has_value(env, inside)
    return Truth(inverse(env, known), known)


@emit.register
def _(expr: Compare, env: Env) -> Lowered:
    if isinstance(expr.left.type, Bool):
        return _compare_truths(expr, env)
    a, b = operands(expr, env)
    valid = both(env, a.valid, b.valid)
    if isinstance(expr.left.type, Float):
        x, y = align(env, a.value, b.value)
        test = env.builder.fcmp_unordered if expr.op == "<>" else env.builder.fcmp_ordered
        return _mask(env, test(_ir_op(expr.op), x, y), valid)
    width = max(element_of(a.value).width, element_of(b.value).width)
    x, y = align(env, resize(env, a.value, width), resize(env, b.value, width))
    return _mask(env, env.builder.icmp_signed(_ir_op(expr.op), x, y), valid)


def _ir_op(op: str) -> str:
    return {"=": "==", "<>": "!="}.get(op, op)


def operands(expr: Compare, env: Env) -> tuple[Number, Number]:
    """Return the operands; exact sums are rearranged so that the outer tuple's part is computed once."""
    if env.inner is not None and is_exact(expr.left.type) and (moved := separate(expr)):
        offset = Literal(moved.offset, type=INT64)
        if env.inner == 1 and moved.offset:
            shifted = Arithmetic("-", moved.left, offset, type=INT64)
            return _orient(expr, moved.op, shifted, moved.right, env)
        if moved.offset:
            shifted = Arithmetic("+", moved.right, offset, type=INT64)
            return _orient(expr, moved.op, moved.left, shifted, env)
        return _orient(expr, moved.op, moved.left, moved.right, env)
    return number(expr.left, env), number(expr.right, env)


def _orient(expr: Compare, op: str, a: Expr, b: Expr, env: Env) -> tuple[Number, Number]:
    """Swap the operands if rearranging has mirrored the operator."""
    left, right = number(a, env), number(b, env)
    return (left, right) if op == expr.op else (right, left)


def _compare_truths(expr: Compare, env: Env) -> Truth:
    a, b = truth(expr.left, env), truth(expr.right, env)
    yes = {
        "=": lambda: disj(env, conj(env, a.yes, b.yes), conj(env, a.no, b.no)),
        "<>": lambda: disj(env, conj(env, a.yes, b.no), conj(env, a.no, b.yes)),
        "<": lambda: conj(env, a.no, b.yes),
        ">": lambda: conj(env, a.yes, b.no),
        "<=": lambda: inverse(env, conj(env, a.yes, b.no)),
        ">=": lambda: inverse(env, conj(env, a.no, b.yes)),
    }[expr.op]()
    known = conj(env, disj(env, a.yes, a.no), disj(env, b.yes, b.no))
    return _mask(env, yes, known)


@emit.register
def _(expr: Case, env: Env) -> Lowered:
    result = emit(expr.default, env)
    width = env.width(expr) if is_exact(expr.type) else 0
    for condition, value in reversed(list(expr.pairs)):
        result = choose(env, truth(condition, env).yes, emit(value, env), result, width)
    return result


def choose(env: Env, mask: ir.Value, a: Lowered, b: Lowered, width: int) -> Lowered:
    """Choose one of two lowered values by a mask; exact ones in `width` bits."""
    if isinstance(a, Truth) and isinstance(b, Truth):
        return Truth(select(env, mask, a.yes, b.yes), select(env, mask, a.no, b.no))
    assert isinstance(a, Number)
    assert isinstance(b, Number)
    x, y = (resize(env, n.value, width) if width else n.value for n in (a, b))
    if a.valid is None and b.valid is None:
        return Number(select(env, mask, x, y), None)
    valid = [n.valid if n.valid is not None else constant(I1, 1) for n in (a, b)]
    return Number(select(env, mask, x, y), select(env, mask, *valid))


@emit.register
def _(expr: Negate, env: Env) -> Lowered:
    arg = number(expr.arg, env)
    if isinstance(expr.type, Float):
        return Number(env.builder.fneg(arg.value), arg.valid)
    width = max(env.width(expr), element_of(arg.value).width)
    value = resize(env, arg.value, width)
    return Number(env.builder.sub(constant(ir.IntType(width), 0, value), value), arg.valid)


@emit.register
def _(expr: Arithmetic, env: Env) -> Lowered:
    a, b = number(expr.left, env), number(expr.right, env)
    valid = both(env, a.valid, b.valid)
    if isinstance(expr.type, Float):
        x, y = align(env, a.value, b.value)
        return _float_arithmetic(expr, env, x, y, valid)
    width = max(env.width(expr), element_of(a.value).width, element_of(b.value).width)
    x, y = align(env, resize(env, a.value, width), resize(env, b.value, width))
    if expr.op in ("div", "%"):
        return _divide(expr.op, env, x, y, valid)
    return Number({"+": env.builder.add, "-": env.builder.sub, "*": env.builder.mul}[expr.op](x, y), valid)


def _float_arithmetic(expr: Arithmetic, env: Env, x: ir.Value, y: ir.Value, valid: ir.Value | None) -> Number:
    name = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv", "%": "frem"}[expr.op]
    value = getattr(env.builder, name)(x, y)
    if expr.op not in ("/", "%"):
        return Number(value, valid)
    present = env.builder.fcmp_unordered("!=", y, constant(element_of(y), 0.0, y))
    return Number(value, both(env, valid, present))


def _divide(op: str, env: Env, x: ir.Value, y: ir.Value, valid: ir.Value | None) -> Number:
    """Divide whole numbers. The processor traps on division by 0 and on overflow by -1, so avoid both."""
    element = element_of(y)
    zero, minus_one = constant(element, 0, y), constant(element, -1, y)
    present = env.builder.icmp_signed("!=", y, zero)
    negates = env.builder.icmp_signed("==", y, minus_one)
    unsafe = disj(env, inverse(env, present), negates)
    safe = select(env, unsafe, constant(element, 1, y), y)
    quotient = env.builder.sdiv(x, safe) if op == "div" else env.builder.srem(x, safe)
    negated = env.builder.sub(zero, x) if op == "div" else zero
    return Number(select(env, negates, negated, quotient), both(env, valid, present))


@emit.register
def _(expr: Cast, env: Env) -> Lowered:
    inside = emit(expr.arg, env)
    if isinstance(inside, Truth):
        known = disj(env, inside.yes, inside.no)
        one = constant(I32, 1, inside.yes)
        return Number(select(env, inside.yes, one, constant(I32, 0, inside.yes)), known)
    if isinstance(expr.type, Float):
        return _to_float(expr, env, inside)
    if isinstance(expr.arg.type, Float):
        return _float_to_whole(expr, env, inside)
    return _rescale(expr, env, inside)


def _to_float(expr: Cast, env: Env, arg: Number) -> Number:
    if isinstance(expr.arg.type, Float):
        name = "fpext" if expr.type == Float(64) else "fptrunc"
        return Number(_convert(env, name, arg.value, _float_type(expr.type)), arg.valid)
    value = _convert(env, "sitofp", arg.value, ir.DoubleType())
    if isinstance(expr.arg.type, Decimal) and expr.arg.type.scale:
        # Correctly rounded, since both numbers are exact in float64 (kernels.prepare checks that).
        value = env.builder.fdiv(value, constant(ir.DoubleType(), 10.0**expr.arg.type.scale, value))
    if expr.type == Float(32):
        value = _convert(env, "fptrunc", value, ir.FloatType())
    return Number(value, arg.valid)


def _float_to_whole(expr: Cast, env: Env, arg: Number) -> Number:
    low, high = type_range(expr.type, False)
    wide = arg.value
    if element_of(wide) == ir.FloatType():
        wide = _convert(env, "fpext", wide, ir.DoubleType())
    floor, ceiling = (constant(ir.DoubleType(), float(v), wide) for v in (low - 1, high + 1))
    # float(-2**63 - 1) rounds up to -2**63, which itself fits: compare with >= there.
    above = ">=" if float(low - 1) == float(low) else ">"
    fits = env.builder.fcmp_ordered(above, wide, floor)
    fits = conj(env, fits, env.builder.fcmp_ordered("<", wide, ceiling))
    safe = select(env, fits, wide, constant(ir.DoubleType(), 0.0, wide))
    width = 128 if high >= 2**63 else env.width(expr)
    return Number(_convert(env, "fptosi", safe, ir.IntType(width)), both(env, arg.valid, fits))


def _rescale(expr: Cast, env: Env, arg: Number) -> Number:
    up, down = scale_factor(expr.arg.type, expr.type)
    low, high = ranges(expr.arg, env.headroom)
    reach = (min(low * up, low) - down, max(high * up, high) + down)
    width = width_of(reach)
    if width is None:
        raise UnsupportedError(f"{show(expr)} needs more than 512 bits; make its operand smaller")
    value = resize(env, arg.value, max(width, element_of(arg.value).width))
    element = element_of(value)
    if up > 1:
        value = env.builder.mul(value, constant(element, up, value))
    if down > 1:
        floored = isinstance(expr.type, (Date, Timestamp))
        value = floor_divide(env, value, down) if floored else round_divide(env, value, down)
    return _null_unless_fits(expr, env, value, arg.valid)


def _null_unless_fits(expr: Cast, env: Env, value: ir.Value, valid: ir.Value | None) -> Number:
    """Return NULL for values that do not fit a bounded target type."""
    bounded = isinstance(expr.type, Int) or (isinstance(expr.type, Decimal) and expr.type.precision > 0)
    if not bounded:
        return Number(value, valid)
    low, high = type_range(expr.type, False)
    width = max(element_of(value).width, width_of((low, high)) or 512)
    wide = resize(env, value, width)
    element = ir.IntType(width)
    fits = env.builder.icmp_signed(">=", wide, constant(element, low, wide))
    fits = conj(env, fits, env.builder.icmp_signed("<=", wide, constant(element, high, wide)))
    kept = select(env, fits, wide, constant(element, 0, wide))
    narrow = min(width, max(env.width(expr), width_of((low, high)) or 512))
    return Number(resize(env, kept, narrow), both(env, valid, fits))


def floor_divide(env: Env, value: ir.Value, by: int) -> ir.Value:
    """Divide and round toward minus infinity."""
    divisor = constant(element_of(value), by, value)
    quotient, rest = env.builder.sdiv(value, divisor), env.builder.srem(value, divisor)
    negative = env.builder.icmp_signed("<", rest, constant(element_of(value), 0, value))
    return env.builder.add(quotient, env.builder.sext(negative, value.type))


def round_divide(env: Env, value: ir.Value, by: int) -> ir.Value:
    """Divide and round half away from zero."""
    element = element_of(value)
    negative = env.builder.icmp_signed("<", value, constant(element, 0, value))
    half = select(env, negative, constant(element, -(by // 2), value), constant(element, by // 2, value))
    return env.builder.sdiv(env.builder.add(value, half), constant(element, by, value))


@emit.register
def _(expr: Call, env: Env) -> Lowered:
    if expr.name not in FUNCTIONS:
        raise UnsupportedError(f"kernels cannot compute {show(expr)}")
    return FUNCTIONS[expr.name](expr, env)


# Functions.


def _maybe_true(expr: Call, env: Env) -> Truth:
    """Return a condition that only the residual filter can decide."""
    return Truth(constant(I1, 1), constant(I1, 1))


def _may_equal(expr: Call, env: Env) -> Truth:
    """Compare hashes: different ones mean different values, equal ones must be tested."""
    a, b = (number(arg, env) for arg in expr.args)
    valid = both(env, a.valid, b.valid)
    same = env.builder.icmp_signed("==", *align(env, a.value, b.value))
    present = valid if valid is not None else constant(I1, 1)
    return Truth(conj(env, same, present), present)


def _may_precede(expr: Call, env: Env) -> Truth:
    """Compare the first eight bytes, which decide unless they are equal."""
    a, b = (number(arg, env) for arg in expr.args)
    valid = both(env, a.valid, b.valid)
    present = valid if valid is not None else constant(I1, 1)
    x, y = align(env, a.value, b.value)
    yes = env.builder.icmp_signed("<=", x, y)
    no = env.builder.icmp_signed(">=", x, y)
    return Truth(conj(env, yes, present), conj(env, no, present))


def _edge(expr: Call, env: Env) -> Number:
    """Widen a limit by `slack * |value| + more` (see kernels.loosen); an infinite value has none."""
    value, offset, slack, more = (number(arg, env) for arg in expr.args)
    double, below = ir.DoubleType(), expr.name == "edge_below"
    wide = value.value
    if wide.type == ir.FloatType():
        wide = env.builder.fpext(wide, double)
    size = intrinsic(env, "fabs", wide)
    widening = env.builder.fadd(env.builder.fmul(size, slack.value), more.value)
    edge = env.builder.fadd(wide, offset.value)
    edge = env.builder.fsub(edge, widening) if below else env.builder.fadd(edge, widening)
    infinite = constant(double, float("-inf") if below else float("inf"))
    finite = env.builder.fcmp_ordered("<", size, constant(double, float("inf")))
    edge = env.builder.select(finite, edge, infinite)
    if isinstance(expr.type, Float) and expr.type.bits == 32:
        edge = env.builder.fptrunc(edge, ir.FloatType())
    return Number(edge, value.valid)


def _absolute(expr: Call, env: Env) -> Number:
    arg = number(expr.args[0], env)
    if isinstance(expr.type, Float):
        return Number(intrinsic(env, "fabs", arg.value), arg.valid)
    width = max(env.width(expr), element_of(arg.value).width)
    value = resize(env, arg.value, width)
    zero = constant(ir.IntType(width), 0, value)
    negative = env.builder.icmp_signed("<", value, zero)
    return Number(select(env, negative, env.builder.sub(zero, value), value), arg.valid)


def _sign(expr: Call, env: Env) -> Number:
    arg = number(expr.args[0], env)
    if isinstance(expr.type, Float):
        zero, one = (constant(element_of(arg.value), v, arg.value) for v in (0.0, 1.0))
        size = intrinsic(env, "copysign", one, arg.value)
        unequal = env.builder.fcmp_ordered("!=", arg.value, zero)
        return Number(select(env, unequal, size, arg.value), arg.valid)
    zero = constant(element_of(arg.value), 0, arg.value)
    target = vector_of(I32, lanes(arg.value))
    more = env.builder.zext(env.builder.icmp_signed(">", arg.value, zero), target)
    less = env.builder.zext(env.builder.icmp_signed("<", arg.value, zero), target)
    return Number(env.builder.sub(more, less), arg.valid)


def _whole(expr: Call, env: Env) -> Number:
    """Compute FLOOR, CEIL or ROUND."""
    arg = number(expr.args[0], env)
    kind = expr.args[0].type
    if isinstance(kind, Float):
        return Number(intrinsic(env, expr.name, arg.value), arg.valid)
    if not isinstance(kind, Decimal) or kind.scale == 0:
        return arg
    value = resize(env, arg.value, max(env.width(expr), element_of(arg.value).width))
    by = 10**kind.scale
    if expr.name == "round":
        return Number(round_divide(env, value, by), arg.valid)
    if expr.name == "floor":
        return Number(floor_divide(env, value, by), arg.valid)
    zero = constant(element_of(value), 0, value)
    return Number(env.builder.sub(zero, floor_divide(env, env.builder.sub(zero, value), by)), arg.valid)


def _mathematics(name: str) -> Callable[[Call, Env], Number]:
    def compute(expr: Call, env: Env) -> Number:
        args = [number(arg, env) for arg in expr.args]
        valid = None
        for arg in args:
            valid = both(env, valid, arg.valid)
        return Number(intrinsic(env, name, *(arg.value for arg in args)), valid)

    return compute


def _coalesce(expr: Call, env: Env) -> Lowered:
    *firsts, result = (emit(arg, env) for arg in expr.args)
    width = env.width(expr) if is_exact(expr.type) else 0
    for value in reversed(firsts):
        result = choose(env, _has_value(env, value), value, result, width)
    return result


def _has_value(env: Env, value: Lowered) -> ir.Value:
    if isinstance(value, Truth):
        return disj(env, value.yes, value.no)
    return value.valid if value.valid is not None else constant(I1, 1)


def _extreme(expr: Call, env: Env) -> Number:
    """Compute LEAST or GREATEST. NULL is skipped, NaN is larger than every number."""
    width = env.width(expr) if is_exact(expr.type) else 0
    result = number(expr.args[0], env)
    for arg in expr.args[1:]:
        other = number(arg, env)
        keep = _precedes(expr, env, result, other)
        chosen = conj(env, disj(env, keep, inverse(env, _has_value(env, other))), _has_value(env, result))
        picked = choose(env, chosen, result, other, width)
        assert isinstance(picked, Number)
        result = picked
    return result


def _precedes(expr: Call, env: Env, a: Number, b: Number) -> ir.Value:
    """Return whether `a` is at least as extreme as `b`."""
    if isinstance(expr.type, Float):
        x, y = align(env, a.value, b.value)
        op, nan = ("<=", y) if expr.name == "least" else (">=", x)
        is_nan = env.builder.fcmp_unordered("!=", nan, nan)
        return disj(env, env.builder.fcmp_ordered(op, x, y), is_nan)
    width = max(element_of(a.value).width, element_of(b.value).width)
    x, y = align(env, resize(env, a.value, width), resize(env, b.value, width))
    return env.builder.icmp_signed("<=" if expr.name == "least" else ">=", x, y)


def _bits(expr: Call, env: Env) -> Number:
    """Compute AND, OR, exclusive OR or the complement of bits."""
    args = [number(arg, env) for arg in expr.args]
    width = max(env.width(expr), *(element_of(arg.value).width for arg in args))
    values = align(env, *(resize(env, arg.value, width) for arg in args))
    if expr.name == "bit_not":
        return Number(env.builder.not_(values[0]), args[0].valid)
    operation = {"bit_and": "and_", "bit_or": "or_", "bit_xor": "xor"}[expr.name]
    return Number(getattr(env.builder, operation)(*values), both(env, args[0].valid, args[1].valid))


FUNCTIONS: dict[str, Callable[[Call, Env], Lowered]] = {
    "maybe": _maybe_true,
    "may_equal": _may_equal,
    "may_precede": _may_precede,
    **dict.fromkeys(("edge_below", "edge_above"), _edge),
    "abs": _absolute,
    "sign": _sign,
    **dict.fromkeys(("floor", "ceil", "round"), _whole),
    **{name: _mathematics(name) for name in ("sqrt", "exp", "sin", "cos")},
    "ln": _mathematics("log"),
    "power": _mathematics("pow"),
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor", "bit_not"), _bits),
    "coalesce": _coalesce,
    **dict.fromkeys(("least", "greatest"), _extreme),
}
"""The functions that kernels compile, by name."""
