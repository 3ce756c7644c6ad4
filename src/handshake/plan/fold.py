"""Constant folding, and the normal form of conditions that analysis expects."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from handshake.errors import ExpressionError, HandshakeError
from handshake.plan import expr as tree
from handshake.plan.casts import cast_value, round_float32
from handshake.plan.expr import COMPARISONS, Expr, transform
from handshake.plan.functions.registry import FUNCTIONS, call_values
from handshake.plan.types import fail, is_exact
from handshake.schema import BOOL, FLOAT32, Float

_FLIP = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def fold(expr: Expr) -> Expr:
    """Compute what does not depend on columns."""
    return transform(expr, fold_node)


def fold_node(expr: Expr) -> Expr:
    """Compute a node whose operands are folded."""
    match expr:
        case tree.And() | tree.Or():
            return _fold_logic(expr)
        case tree.Not(arg=arg):
            return _fold_not(arg, expr)
        case tree.Negate(arg=tree.Literal(value=value)):
            return tree.Literal(None if value is None else -value, type=expr.type, at=expr.at)
        case tree.Cast(arg=tree.Literal(value=value, type=source)):
            return tree.Literal(cast_value(value, source, expr.type), type=expr.type, at=expr.at)
        case tree.IsNull(arg=tree.Literal(value=value)):
            return tree.Literal(value is None, type=BOOL, at=expr.at)
        case tree.Arithmetic(left=tree.Literal(value=a), right=tree.Literal(value=b)):
            value = None if a is None or b is None else _compute(expr, a, b)
            return tree.Literal(value, type=expr.type, at=expr.at)
        case tree.Compare(op=op, left=tree.Literal(value=a), right=tree.Literal(value=b)):
            value = None if a is None or b is None else COMPARISONS[op](a, b)
            return tree.Literal(value, type=BOOL, at=expr.at)
        case tree.Call():
            return _fold_call(expr)
        case tree.Case():
            return _fold_case(expr)
    return expr


def _fold_call(expr: tree.Call) -> Expr:
    """Compute a function of constants, and one that a NULL argument makes NULL."""
    function = FUNCTIONS.get(expr.name)
    if function is None or function.values is None:
        return expr
    if function.strict and any(map(_is_null, expr.args)):
        return tree.Literal(None, type=expr.type, at=expr.at)
    if not all(isinstance(arg, tree.Literal) for arg in expr.args):
        return expr
    values = [arg.value for arg in expr.args if isinstance(arg, tree.Literal)]
    try:
        return tree.Literal(call_values(expr)(*values), type=expr.type, at=expr.at)
    except ExpressionError:
        raise
    except HandshakeError as error:
        raise fail(str(error), expr) from None


def _fold_case(expr: tree.Case) -> Expr:
    """Drop branches whose condition is never true; stop at one that is always true."""
    branches: list[Expr] = []
    default = expr.default
    for condition, value in expr.pairs:
        if not isinstance(condition, tree.Literal):
            branches += (condition, value)
        elif condition.value is True:
            default = value
            break
    if all(_is_null(value) for value in (default, *branches[1::2])):
        return tree.Literal(None, type=expr.type, at=expr.at)
    if branches:
        return replace(expr, branches=tuple(branches), default=default)
    return replace(default, type=expr.type) if isinstance(default, tree.Literal) else default


def _is_null(expr: Expr) -> bool:
    return isinstance(expr, tree.Literal) and expr.value is None


def _fold_logic(expr: tree.And | tree.Or) -> Expr:
    """Flatten; drop the neutral constant; the dominant one decides."""
    dominant = isinstance(expr, tree.Or)
    parts: list[Expr] = []
    for arg in expr.args:
        parts += arg.args if isinstance(arg, type(expr)) else (arg,)
    if any(isinstance(p, tree.Literal) and p.value is dominant for p in parts):
        return tree.Literal(dominant, type=BOOL, at=expr.at)
    parts = [p for p in parts if not (isinstance(p, tree.Literal) and p.value is (not dominant))]
    if not parts:
        return tree.Literal(not dominant, type=BOOL, at=expr.at)
    if all(map(_is_null, parts)):
        return tree.Literal(None, type=BOOL, at=expr.at)
    return parts[0] if len(parts) == 1 else type(expr)(tuple(parts), type=BOOL, at=expr.at)


def _fold_not(arg: Expr, expr: Expr) -> Expr:
    match arg:
        case tree.Literal(value=value):
            return tree.Literal(None if value is None else not value, type=BOOL, at=expr.at)
        case tree.Not(arg=inner):
            return inner
        case tree.Compare(op=op, left=a, right=b) if not isinstance(a.type, Float):
            # Not for floats: NOT (x < NaN) is true, x >= NaN is not.
            return tree.Compare(_FLIP[op], a, b, type=BOOL, at=expr.at)
    return expr


def _compute(expr: tree.Arithmetic, a: Any, b: Any) -> Any:
    if expr.op in ("/", "div", "%") and b == 0:
        return None  # an operation without a value is NULL (docs/semantics.md)
    if is_exact(expr.type):
        return _whole(expr.op, a, b)
    value = _float(expr.op, a, b)
    return round_float32(value) if expr.type == FLOAT32 else value


def _whole(op: str, a: int, b: int) -> int:
    if op in ("div", "%"):
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        return quotient if op == "div" else a - quotient * b
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def _float(op: str, a: float, b: float) -> float:
    if op == "%":
        return math.nan if math.isinf(a) else math.fmod(a, b)
    return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a / b}[op]()
