"""The functions that kernels compile, in LLVM IR."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from handshake.kernels.lower import (
    FUNCTIONS,
    I1,
    I32,
    Env,
    Lowered,
    Number,
    Truth,
    aligned,
    both,
    choose,
    conj,
    constant,
    disj,
    element_of,
    emit,
    floor_divide,
    intrinsic,
    inverse,
    lanes,
    number,
    resize,
    round_divide,
    select,
    vector_of,
)
from handshake.plan.expr import Call
from handshake.plan.types import is_exact
from handshake.schema import Decimal, Float

__all__: list[str] = []


def _maybe(expr: Call, env: Env) -> Truth:
    """A condition that only the residual filter can decide."""
    return Truth(constant(I1, 1), constant(I1, 1))


def _may_equal(expr: Call, env: Env) -> Truth:
    """Equality of hashes: other hashes are other values, equal ones must be looked at."""
    a, b = (number(arg, env) for arg in expr.args)
    valid = both(env, a.valid, b.valid)
    same = env.builder.icmp_signed("==", *aligned(env, a.value, b.value))
    present = valid if valid is not None else constant(I1, 1)
    return Truth(conj(env, same, present), present)


def _may_precede(expr: Call, env: Env) -> Truth:
    """Order by the first eight bytes: decides unless they are equal."""
    a, b = (number(arg, env) for arg in expr.args)
    valid = both(env, a.valid, b.valid)
    present = valid if valid is not None else constant(I1, 1)
    x, y = aligned(env, a.value, b.value)
    yes = env.builder.icmp_signed("<=", x, y)
    no = env.builder.icmp_signed(">=", x, y)
    return Truth(conj(env, yes, present), conj(env, no, present))


def _edge(expr: Call, env: Env) -> Number:
    """A limit widened by `slack * |value| + more` (see kernels.loosen); none at all for an infinite value."""
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
    """FLOOR, CEIL, ROUND."""
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
        result = choose(env, _known(env, value), value, result, width)
    return result


def _known(env: Env, value: Lowered) -> ir.Value:
    if isinstance(value, Truth):
        return disj(env, value.yes, value.no)
    return value.valid if value.valid is not None else constant(I1, 1)


def _extreme(expr: Call, env: Env) -> Number:
    """LEAST and GREATEST: NULL is skipped, NaN is larger than every number."""
    width = env.width(expr) if is_exact(expr.type) else 0
    result = number(expr.args[0], env)
    for arg in expr.args[1:]:
        other = number(arg, env)
        keep = _precedes(expr, env, result, other)
        chosen = conj(env, disj(env, keep, inverse(env, _known(env, other))), _known(env, result))
        picked = choose(env, chosen, result, other, width)
        assert isinstance(picked, Number)
        result = picked
    return result


def _precedes(expr: Call, env: Env, a: Number, b: Number) -> ir.Value:
    """Whether `a` is at least as extreme as `b`."""
    if isinstance(expr.type, Float):
        x, y = aligned(env, a.value, b.value)
        op, nan = ("<=", y) if expr.name == "least" else (">=", x)
        return disj(env, env.builder.fcmp_ordered(op, x, y), _is_nan(env, nan))
    width = max(element_of(a.value).width, element_of(b.value).width)
    x, y = aligned(env, resize(env, a.value, width), resize(env, b.value, width))
    return env.builder.icmp_signed("<=" if expr.name == "least" else ">=", x, y)


def _is_nan(env: Env, value: ir.Value) -> ir.Value:
    return env.builder.fcmp_unordered("!=", value, value)


FUNCTIONS |= {
    "maybe": _maybe,
    "may_equal": _may_equal,
    "may_precede": _may_precede,
    **dict.fromkeys(("edge_below", "edge_above"), _edge),
    "abs": _absolute,
    "sign": _sign,
    **dict.fromkeys(("floor", "ceil", "round"), _whole),
    **{name: _mathematics(name) for name in ("sqrt", "exp", "sin", "cos")},
    "ln": _mathematics("log"),
    "power": _mathematics("pow"),
    "coalesce": _coalesce,
    **dict.fromkeys(("least", "greatest"), _extreme),
}
