"""Expressions as Spark columns, if Spark computes the same values; else Arrow computes them.

Spark evaluates comparisons and logic (NULL as in SQL in both), and sums, differences and products of integers
that fit 64 bits and of doubles. Arrow evaluates division, decimals, casts that can fail, and functions.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from functools import reduce, singledispatch
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from handshake.plan import expr as tree
from handshake.plan.expr import Expr
from handshake.plan.ranges import ranges
from handshake.schema import BOOL, DATE, FLOAT64, Bool, Date, Float, Int, String, Type

Known = Mapping[str, Column]
_EPOCH = datetime.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (datetime.date.min - _EPOCH).days, (datetime.date.max - _EPOCH).days
_COMPARE: dict[str, Callable[[Column, Column], Column]] = {
    "=": eq,
    "<>": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}


def quote_names(names: Any) -> list[Column]:
    """Return columns by name, whatever characters the names contain."""
    return [F.col(f"`{name}`") for name in names]


@singledispatch
def native(expr: Expr, known: Known) -> Column | None:
    """Return a column with the values of an expression over the `known` columns; None if Spark's differ."""
    return None


@native.register
def _(expr: tree.Column, known: Known) -> Column | None:
    return known[expr.name]


@native.register
def _(expr: tree.Literal, known: Known) -> Column | None:
    kind, value = expr.type, expr.value
    if value is None:
        return None
    if _is_long(kind):
        return F.lit(value) if -(2**63) <= value < 2**63 else None
    if isinstance(kind, (Bool, String)):
        return F.lit(value)
    if kind == FLOAT64:
        return F.lit(float(value))
    if kind == DATE and _FIRST_DAY <= value <= _LAST_DAY:
        return F.lit(_EPOCH + datetime.timedelta(days=int(value)))
    return None


@native.register
def _(expr: tree.Compare, known: Known) -> Column | None:
    a, b = native(expr.left, known), native(expr.right, known)
    x, y = expr.left.type, expr.right.type
    if a is None or b is None:
        return None
    if _is_long(x) and _is_long(y):
        return _COMPARE[expr.op](a, b)
    if x != y or not isinstance(x, (Bool, String, Date, Float)):
        return None
    if not isinstance(x, Float):
        return _COMPARE[expr.op](a, b)
    if expr.op == "<>":
        return None
    # in Spark, NaN equals itself and exceeds all numbers; here every comparison with NaN is false
    odd = a.isNotNull() & b.isNotNull() & (F.isnan(a) | F.isnan(b))
    return F.when(odd, F.lit(False)).otherwise(_COMPARE[expr.op](a, b))


@native.register
def _(expr: tree.And, known: Known) -> Column | None:
    parts = _all(expr.args, known)
    return None if parts is None else reduce(lambda a, b: a & b, parts)


@native.register
def _(expr: tree.Or, known: Known) -> Column | None:
    parts = _all(expr.args, known)
    return None if parts is None else reduce(lambda a, b: a | b, parts)


def _all(args: tuple[Expr, ...], known: Known) -> list[Column] | None:
    parts = [part for arg in args if (part := native(arg, known)) is not None]
    return parts if len(parts) == len(args) else None


@native.register
def _(expr: tree.Not, known: Known) -> Column | None:
    arg = native(expr.arg, known)
    return None if arg is None or expr.arg.type != BOOL else ~arg


@native.register
def _(expr: tree.IsNull, known: Known) -> Column | None:
    arg = native(expr.arg, known)
    return None if arg is None else arg.isNull()


@native.register
def _(expr: tree.Arithmetic, known: Known) -> Column | None:
    a, b = native(expr.left, known), native(expr.right, known)
    if a is None or b is None or expr.op not in ("+", "-", "*"):
        return None
    kinds = (expr.left.type, expr.right.type)
    if all(_is_long(kind) for kind in kinds):
        low, high = ranges(expr, False)
        if low < -(2**63) or high >= 2**63:
            return None
        a, b = a.cast("long"), b.cast("long")
    elif kinds != (FLOAT64, FLOAT64):
        return None
    return a + b if expr.op == "+" else a - b if expr.op == "-" else a * b


def _is_long(kind: Type) -> bool:
    return isinstance(kind, Int) and kind.bits - kind.signed <= 63 and kind.bits <= 64
