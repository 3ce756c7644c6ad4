"""From text or Python to a typed, analysed predicate. Building a plan runs nothing."""

from handshake.plan.analyse import Analysis, Bound, Equality, analyse
from handshake.plan.bind import Scope, bind
from handshake.plan.build import Expression, call, col, left, lit, right, sql
from handshake.plan.expr import Expr
from handshake.plan.parse import parse

__all__ = [
    "Analysis",
    "Bound",
    "Equality",
    "Expr",
    "Expression",
    "Scope",
    "analyse",
    "bind",
    "call",
    "col",
    "left",
    "lit",
    "parse",
    "right",
    "sql",
]
