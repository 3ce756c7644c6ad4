"""A small Python builder for predicates, for those who would rather not write SQL text."""

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

__all__ = ["E", "Side", "call", "col", "left", "lit", "right", "sql"]


class E:
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

    def __add__(self, other: Any) -> E:
        return _arith("+", self, other)

    def __radd__(self, other: Any) -> E:
        return _arith("+", other, self)

    def __sub__(self, other: Any) -> E:
        return _arith("-", self, other)

    def __rsub__(self, other: Any) -> E:
        return _arith("-", other, self)

    def __mul__(self, other: Any) -> E:
        return _arith("*", self, other)

    def __rmul__(self, other: Any) -> E:
        return _arith("*", other, self)

    def __truediv__(self, other: Any) -> E:
        return _arith("/", self, other)

    def __rtruediv__(self, other: Any) -> E:
        return _arith("/", other, self)

    def __mod__(self, other: Any) -> E:
        return _arith("%", self, other)

    def __neg__(self) -> E:
        return E(Negate(self.expr))

    def __abs__(self) -> E:
        return E(Call((self.expr,), "abs"))

    def __eq__(self, other: Any) -> E:  # type: ignore[override]
        return _compare("=", self, other)

    def __ne__(self, other: Any) -> E:  # type: ignore[override]
        return _compare("<>", self, other)

    def __lt__(self, other: Any) -> E:
        return _compare("<", self, other)

    def __le__(self, other: Any) -> E:
        return _compare("<=", self, other)

    def __gt__(self, other: Any) -> E:
        return _compare(">", self, other)

    def __ge__(self, other: Any) -> E:
        return _compare(">=", self, other)

    def __and__(self, other: Any) -> E:
        return E(And((*_parts(self.expr, And), *_parts(_expr(other), And))))

    def __or__(self, other: Any) -> E:
        return E(Or((*_parts(self.expr, Or), *_parts(_expr(other), Or))))

    def __invert__(self) -> E:
        return E(Not(self.expr))

    def between(self, low: Any, high: Any) -> E:
        """Inclusive on both ends, as SQL's."""
        return _compare(">=", self, low) & _compare("<=", self, high)

    def isin(self, *values: Any) -> E:
        """Equal to one of `values`."""
        equal = tuple(Compare("=", self.expr, _expr(value)) for value in values)
        return E(Or(equal)) if equal else lit(False)

    def is_null(self) -> E:
        """True where there is no value."""
        return E(IsNull(self.expr))

    def is_not_null(self) -> E:
        """True where there is a value."""
        return E(Not(IsNull(self.expr)))

    def cast(self, to: str) -> E:
        """Convert to an SQL type, `cast("decimal(10, 2)")`."""
        return E(Cast(self.expr, type=parse_type(to)))

    def like(self, pattern: str) -> E:
        """SQL's LIKE: `%` any text, `_` any character."""
        return E(Call((self.expr, Literal(pattern)), "like"))


class Side:
    """The columns of one input as attributes: `left.x`, or `left["x y"]`."""

    def __init__(self, qualifier: str) -> None:
        self._qualifier = qualifier

    def __getattr__(self, name: str) -> E:
        if name.startswith("__"):
            raise AttributeError(name)
        return E(Name((self._qualifier, name)))

    def __getitem__(self, name: str) -> E:
        return E(Name((self._qualifier, name)))


left = Side("l")
right = Side("r")


def col(name: str) -> E:
    """A column by name, `col("l.x")`."""
    return E(Name(tuple(name.split("."))))


def lit(value: Any) -> E:
    """A constant."""
    return E(Literal(value))


def sql(text: str) -> E:
    """An expression from SQL text, to mix with built ones."""
    return E(parse(text))


def call(function: Callable[..., Any], *args: Any, returns: str = "boolean") -> E:
    """A Python callable on the values of candidate pairs; a missing value arrives as None.

    >>> call(lambda x, a: x == a, left.x, right.a)
    <<lambda>(l.x, r.a)>
    """
    return E(Udf(tuple(_expr(a) for a in args), function, type=parse_type(returns)))


def _expr(value: Any) -> Expr:
    return value.expr if isinstance(value, E) else Literal(value)


def _arith(op: str, a: Any, b: Any) -> E:
    return E(Arithmetic(op, _expr(a), _expr(b)))


def _compare(op: str, a: Any, b: Any) -> E:
    return E(Compare(op, _expr(a), _expr(b)))


def _parts(expr: Expr, kind: type[And] | type[Or]) -> tuple[Expr, ...]:
    return expr.args if isinstance(expr, kind) else (expr,)
