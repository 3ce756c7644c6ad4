"""A Python builder for predicates, as an alternative to SQL text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handshake.errors import ExpressionError
from handshake.plan import expr as tree
from handshake.plan.expr import Expr, show
from handshake.plan.parse import parse, parse_type

_Operator = Callable[["Expression", Any], "Expression"]


def _infix(kind: type[tree.Arithmetic] | type[tree.Compare], op: str) -> tuple[_Operator, _Operator]:
    """Return an operator with the expression as its left operand, and one with it as the right one."""
    return (
        lambda self, other: Expression(kind(op, self.expr, _expr(other))),
        lambda self, other: Expression(kind(op, _expr(other), self.expr)),
    )


class Expression:
    """An expression under construction: operators build a tree and compute nothing.

    >>> left.x.between(right.a - 10, right.a + 10) & (left.y < right.b)
    <(l.x >= (r.a - 10)) AND (l.x <= (r.a + 10)) AND (l.y < r.b)>
    """

    __slots__ = ("expr",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def __repr__(self) -> str:
        return f"<{show(self.expr)}>"

    def __bool__(self) -> bool:
        raise ExpressionError("an expression has no truth value; use & | ~ instead of and, or, not")

    __add__, __radd__ = _infix(tree.Arithmetic, "+")
    __sub__, __rsub__ = _infix(tree.Arithmetic, "-")
    __mul__, __rmul__ = _infix(tree.Arithmetic, "*")
    __truediv__, __rtruediv__ = _infix(tree.Arithmetic, "/")
    __mod__, __rmod__ = _infix(tree.Arithmetic, "%")
    # Python itself writes `1 < left.x` as `left.x > 1`.
    __eq__ = _infix(tree.Compare, "=")[0]  # type: ignore[assignment]
    __ne__ = _infix(tree.Compare, "<>")[0]  # type: ignore[assignment]
    __lt__ = _infix(tree.Compare, "<")[0]
    __le__ = _infix(tree.Compare, "<=")[0]
    __gt__ = _infix(tree.Compare, ">")[0]
    __ge__ = _infix(tree.Compare, ">=")[0]

    def __neg__(self) -> Expression:
        return Expression(tree.Negate(self.expr))

    def __abs__(self) -> Expression:
        return Expression(tree.Call((self.expr,), "abs"))

    def __and__(self, other: Any) -> Expression:
        return Expression(tree.And((*_parts(self.expr, tree.And), *_parts(_expr(other), tree.And))))

    def __or__(self, other: Any) -> Expression:
        return Expression(tree.Or((*_parts(self.expr, tree.Or), *_parts(_expr(other), tree.Or))))

    def __invert__(self) -> Expression:
        return Expression(tree.Not(self.expr))

    def between(self, low: Any, high: Any) -> Expression:
        """Test for a range that includes both ends, as in SQL."""
        ends = (tree.Compare(">=", self.expr, _expr(low)), tree.Compare("<=", self.expr, _expr(high)))
        return Expression(tree.And(ends))

    def isin(self, *values: Any) -> Expression:
        """Test for equality with one of `values`."""
        equal = tuple(tree.Compare("=", self.expr, _expr(value)) for value in values)
        return Expression(tree.Or(equal)) if equal else lit(False)

    def is_null(self) -> Expression:
        """Test whether the value is NULL."""
        return Expression(tree.IsNull(self.expr))

    def is_not_null(self) -> Expression:
        """Test for a value that is not NULL."""
        return Expression(tree.Not(tree.IsNull(self.expr)))

    def cast(self, to: str) -> Expression:
        """Convert to an SQL type, `cast("decimal(10, 2)")`."""
        return Expression(tree.Cast(self.expr, type=parse_type(to)))

    def like(self, pattern: str) -> Expression:
        """Match a pattern as in SQL: `%` is any text, `_` any character."""
        return Expression(tree.Call((self.expr, tree.Literal(pattern)), "like"))


class Side:
    """The columns of one input as attributes: `left.x`, or `left["x y"]`."""

    def __init__(self, qualifier: str) -> None:
        self._qualifier = qualifier

    def __getattr__(self, name: str) -> Expression:
        if name.startswith("__"):
            raise AttributeError(name)
        return Expression(tree.Name((self._qualifier, name)))

    def __getitem__(self, name: str) -> Expression:
        return Expression(tree.Name((self._qualifier, name)))


left = Side("l")
right = Side("r")


def col(name: str) -> Expression:
    """Return a column by name, as in `col("l.x")`."""
    return Expression(tree.Name(tuple(name.split("."))))


def lit(value: Any) -> Expression:
    """Return a Python value as a constant expression."""
    return Expression(tree.Literal(value))


def sql(text: str) -> Expression:
    """Return an expression from SQL text, to combine with built ones."""
    return Expression(parse(text))


def call(function: Callable[..., Any], *args: Any, returns: str = "boolean") -> Expression:
    """Call a Python function on the values of candidate pairs; NULL arrives as None.

    >>> call(lambda x, a: x == a, left.x, right.a)
    <<lambda>(l.x, r.a)>
    """
    return Expression(tree.Udf(tuple(_expr(a) for a in args), function, type=parse_type(returns)))


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Expression) else tree.Literal(value)


def _parts(expr: Expr, kind: type[tree.And] | type[tree.Or]) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, kind) else (expr,)
