"""Conditions as sign bits: a loose filter for scans on a GPU, where subtracting is cheaper than comparing.

Comparisons run on one pipe of a multiprocessor, subtractions on others. The sign of a difference says whether
`a >= b` fails, and a single instruction joins the signs of three conditions. The filter lets through all
that the condition accepts, and equal values of strict comparisons beside.
"""

from __future__ import annotations

from dataclasses import replace

from llvmlite import ir

from handshake.kernels.gpu.target import Target
from handshake.kernels.lower import I32, I64, Env, operands, resize, truth
from handshake.plan.expr import And, Arithmetic, Column, Compare, Expr, Or, transform, walk
from handshake.plan.ranges import ranges, storage_bits
from handshake.plan.types import is_exact
from handshake.schema import INT64, Bool, Float, Int, Type

_SPARE = 3
"""Bits that whole numbers leave unused, so that differences of sums still fit."""


def small_limit(kind: Type) -> int:
    """Return the number below which whole numbers of this type, of either sign, leave enough bits unused."""
    return 1 << (storage_bits(kind) - 1 - _SPARE)


def rejects(expr: Expr, env: Env, target: Target, all_small: bool) -> ir.Value:
    """Emit a word of 32 bits whose sign bit is set only where the condition is not true.

    `all_small` says that all whole numbers in columns are `small`.
    """
    builder = env.builder
    if isinstance(expr, And):
        first, *rest = (rejects(arg, env, target, all_small) for arg in expr.args)
        for other in rest:
            first = builder.or_(first, other)
        return first
    if isinstance(expr, Or):
        first, *rest = (rejects(arg, env, target, all_small) for arg in expr.args)
        for other in rest:
            first = builder.and_(first, other)
        return first
    if isinstance(expr, Compare) and (found := _difference(expr, env, target, all_small)) is not None:
        return found
    return builder.sext(builder.not_(truth(expr, env).yes), I32)


def _difference(expr: Compare, env: Env, target: Target, all_small: bool) -> ir.Value | None:
    if expr.op in ("=", "<>") or isinstance(expr.left.type, Bool):
        return None
    builder = env.builder
    if expr.left.type == Float(32):
        a, b = operands(expr, env)
        if a.valid is not None or b.valid is not None:
            return None
        less, more = (a.value, b.value) if expr.op in ("<", "<=") else (b.value, a.value)
        # Equal values give +0, equal infinities NaN, which passes and is tested again. NaN of 64 bits has its
        # sign set on a GPU, so such floats are compared.
        # -0 less +0 would be -0, so adding 0 makes -0 in `more` +0: once per row, unless both sides make it.
        more = builder.fadd(more, ir.Constant(ir.FloatType(), 0.0))
        return target.float_word(builder, builder.fsub(more, less))
    if not all_small or not is_exact(expr.left.type):
        return None
    a, b = operands(expr, env)
    width = max(a.value.type.width, b.value.type.width)
    if a.valid is not None or b.valid is not None or width > 64 or not _fits(expr, width):
        return None
    x, y = (resize(env, number.value, width) for number in (a, b))
    less, more = (x, y) if expr.op in ("<", "<=") else (y, x)
    return _high(builder, builder.sub(more, less))


def _high(builder: ir.IRBuilder, word: ir.Value) -> ir.Value:
    """Return the upper half of a word of 64 bits, with its sign."""
    return word if word.type == I32 else builder.trunc(builder.lshr(word, I64(32)), I32)


def _fits(expr: Compare, width: int) -> bool:
    """Return whether the difference of operands made of small numbers cannot wrap."""
    nodes = [node for side in (expr.left, expr.right) for node in walk(side)]
    if not all(isinstance(node.type, Int) for node in nodes):
        return False

    def shrink(node: Expr) -> Expr:
        if not isinstance(node, Column) or storage_bits(node.type) < 32:
            return node
        return replace(node, type=Int(storage_bits(node.type) - _SPARE))

    less = Arithmetic("-", transform(expr.left, shrink), transform(expr.right, shrink), type=INT64)
    low, high = ranges(less, False)
    return bool(-(2 ** (width - 1)) <= low and high < 2 ** (width - 1))
