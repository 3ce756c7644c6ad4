"""A Python builder for predicates, as an alternative to SQL text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handshake.errors import ExpressionError
from handshake.plan.expr import (
    And,
    Arithmetic,
    Call,
    Cast,
    Compare,
    Expr,
    IsNull,
    Literal,
    Name,
    Negate,
    Not,
    Or,
    Udf,
    show,
)
from handshake.plan.parse import parse, parse_type


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

    def __add__(self, other: Any) -> Expression:
        return _arith("+", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _arith("+", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _arith("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _arith("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _arith("*", self, other)

    def __rmul__(self, other: Any) -> Expression:
        return _arith("*", other, self)

    def __truediv__(self, other: Any) -> Expression:
        return _arith("/", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _arith("/", other, self)

    def __mod__(self, other: Any) -> Expression:
        return _arith("%", self, other)

    def __neg__(self) -> Expression:
        return Expression(Negate(self.expr))

    def __abs__(self) -> Expression:
        return Expression(Call((self.expr,), "abs"))

    def __eq__(self, other: Any) -> Expression:  # type: ignore[override]
        return _compare("=", self, other)

    def __ne__(self, other: Any) -> Expression:  # type: ignore[override]
        return _compare("<>", self, other)

    def __lt__(self, other: Any) -> Expression:
        return _compare("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return _compare("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _compare(">", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _compare(">=", self, other)

    def __and__(self, other: Any) -> Expression:
        return Expression(And((*_parts(self.expr, And), *_parts(_expr(other), And))))

    def __or__(self, other: Any) -> Expression:
        return Expression(Or((*_parts(self.expr, Or), *_parts(_expr(other), Or))))

    def __invert__(self) -> Expression:
        return Expression(Not(self.expr))

    def between(self, low: Any, high: Any) -> Expression:
        """Test for a range that includes both ends, as in SQL."""
        return _compare(">=", self, low) & _compare("<=", self, high)

    def isin(self, *values: Any) -> Expression:
        """Test for equality with one of `values`."""
        equal = tuple(Compare("=", self.expr, _expr(value)) for value in values)
        return Expression(Or(equal)) if equal else lit(False)

    def is_null(self) -> Expression:
        """Test whether the value is NULL."""
        return Expression(IsNull(self.expr))

    def is_not_null(self) -> Expression:
        """Test for a value that is not NULL."""
        return Expression(Not(IsNull(self.expr)))

    def cast(self, to: str) -> Expression:
        """Convert to an SQL type, `cast("decimal(10, 2)")`."""
        return Expression(Cast(self.expr, type=parse_type(to)))

    def like(self, pattern: str) -> Expression:
        """Match a pattern as in SQL: `%` is any text, `_` any character."""
        return Expression(Call((self.expr, Literal(pattern)), "like"))


class Side:
    """The columns of one input as attributes: `left.x`, or `left["x y"]`."""

    def __init__(self, qualifier: str) -> None:
        self._qualifier = qualifier

    def __getattr__(self, name: str) -> Expression:
        if name.startswith("__"):
            raise AttributeError(name)
        return Expression(Name((self._qualifier, name)))

    def __getitem__(self, name: str) -> Expression:
        return Expression(Name((self._qualifier, name)))


left = Side("l")
right = Side("r")


def col(name: str) -> Expression:
    """Return a column by name, as in `col("l.x")`."""
    return Expression(Name(tuple(name.split("."))))


def lit(value: Any) -> Expression:
    """Return a Python value as a constant expression."""
    return Expression(Literal(value))


def sql(text: str) -> Expression:
    """Return an expression from SQL text, to combine with built ones."""
    return Expression(parse(text))


def call(function: Callable[..., Any], *args: Any, returns: str = "boolean") -> Expression:
    """Call a Python function on the values of candidate pairs; NULL arrives as None.

    >>> call(lambda x, a: x == a, left.x, right.a)
    <<lambda>(l.x, r.a)>
    """
    return Expression(Udf(tuple(_expr(a) for a in args), function, type=parse_type(returns)))


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, Expression) else Literal(value)


def _arith(op: str, a: Any, b: Any) -> Expression:
    return Expression(Arithmetic(op, _expr(a), _expr(b)))


def _compare(op: str, a: Any, b: Any) -> Expression:
    return Expression(Compare(op, _expr(a), _expr(b)))


def _parts(expr: Expr, kind: type[And] | type[Or]) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, kind) else (expr,)
