"""Expressions as chains of `Apply`: each operation appends a column with its value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from string import ascii_lowercase

from handshake.errors import ExpressionError
from handshake.plan.algebra import Apply, Node, Project, Select
from handshake.plan.expr import Cast, Column, Expr, Literal, show, transform
from handshake.plan.ranges import ranges
from handshake.schema import BOOL, NULL, Decimal, Int, Type

_WIDEST = 512


class Fresh:
    """A generator of unused column names: a, b, …, z, a1, …"""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {name.casefold() for name in taken}
        self._names = self._all()

    def _all(self) -> Iterator[str]:
        for turn in count():
            yield from (f"{letter}{turn or ''}" for letter in ascii_lowercase)

    def take(self, names: Iterable[str]) -> None:
        """Reserve these names."""
        self._taken |= {name.casefold() for name in names}

    def __call__(self) -> str:
        name = next(name for name in self._names if name not in self._taken)
        self._taken.add(name)
        return name


def exact_type(operation: Expr) -> Type:
    """Return the type of a computed column; a whole number has as few bits or digits as it can need."""
    kind = operation.type
    bounded = isinstance(kind, Int) or (isinstance(kind, Decimal) and kind.precision > 0)
    if not isinstance(kind, (Int, Decimal)) or (isinstance(operation, (Column, Cast)) and bounded):
        return kind
    low, high = ranges(operation, False)
    bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + 1
    if bits > _WIDEST:
        raise ExpressionError(f"{show(operation)} needs more than {_WIDEST} bits; make its operands smaller")
    if isinstance(kind, Int):
        return Int(bits)
    return Decimal(max(len(str(max(abs(low), abs(high)))), kind.scale, 1), kind.scale)


def column_of(node: Node, name: str) -> Column:
    """Return a column of a plan's results as an operand."""
    return Column(0, name, type=node.schema.get(name).type)


def append_column(node: Node, expr: Expr, fresh: Fresh, name: str | None = None) -> tuple[Node, str]:
    """Compute a typed expression over a plan's columns, step by step; the plan, and where the value is.

    `name` is for the last column, unless the expression is one that is there already.
    """
    if isinstance(expr, Column):
        return node, expr.name
    operands: list[Expr] = []
    for child in expr.children:
        if isinstance(child, Literal):
            operands.append(child)
            continue
        node, column = append_column(node, child, fresh)
        operands.append(column_of(node, column))
    operation = expr.with_children(tuple(operands)) if operands else expr
    called = name or fresh()
    kind = BOOL if operation.type == NULL else exact_type(operation)
    return Apply(node, called, operation, kind), called


def add_filter(node: Node, condition: Expr, fresh: Fresh) -> Node:
    """Keep tuples for which a typed condition holds."""
    if isinstance(condition, Literal) and condition.value is True:
        return node
    node, column = append_column(node, condition, fresh)
    return Select(node, column)


def substitute(operation: Expr, columns: dict[str, Expr]) -> Expr:
    """Replace columns in an operation by the expressions that compute them."""
    return transform(operation, lambda e: columns.get(e.name, e) if isinstance(e, Column) else e)


def keep_columns(node: Node, names: Iterable[str]) -> Node:
    """Project on these columns."""
    return Project(node, tuple((name, name) for name in names))
