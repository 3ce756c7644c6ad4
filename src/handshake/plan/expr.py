"""The expression tree: frozen data. Untyped as parsed or built; typed once bound."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from handshake.errors import ExpressionError
from handshake.plan.literals import literal_text
from handshake.schema import BOOL, Type


@dataclass(frozen=True)
class Unbound(Type):
    """The type of an expression that has not been bound yet."""


UNBOUND = Unbound()


@dataclass(frozen=True)
class Position:
    """The line and column of an expression in its text, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Expr:
    """An expression. Subclasses list their operands in `children`."""

    type: Type = field(default=UNBOUND, kw_only=True)
    at: Position | None = field(default=None, kw_only=True, compare=False, repr=False)

    @property
    def children(self) -> tuple[Expr, ...]:
        """Operands, in order."""
        return ()

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        """Return this operation on other operands."""
        return self


@dataclass(frozen=True)
class Name(Expr):
    """A column as written, not yet resolved."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Column(Expr):
    """A column of one input: side 0 is left, side 1 is right."""

    side: int
    name: str
    shown: str | None = field(default=None, kw_only=True, compare=False, repr=False)
    """The name in messages, if that is not `l.name` or `r.name`."""


@dataclass(frozen=True)
class Literal(Expr):
    """A constant. Dates, timestamps, intervals and decimals hold their scaled whole number."""

    value: Any

    def __eq__(self, other: object) -> bool:
        """Compare as written: 0.0 and -0.0 differ, and NaN equals NaN."""
        return isinstance(other, Literal) and self._written == other._written

    def __hash__(self) -> int:
        return hash(self._written)

    @property
    def _written(self) -> tuple[Type, str]:
        return self.type, repr(self.value)


@dataclass(frozen=True)
class _Binary(Expr):
    op: str
    left: Expr
    right: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.left, self.right)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, left=children[0], right=children[1])


@dataclass(frozen=True)
class Arithmetic(_Binary):
    """One of the operations `+ - * / div %`."""


@dataclass(frozen=True)
class Compare(_Binary):
    """One of the comparisons in `COMPARISONS`."""


COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip
"""Comparisons by operator: of numbers, of arrays, or of signals of a circuit."""


@dataclass(frozen=True)
class _Unary(Expr):
    arg: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, arg=children[0])


@dataclass(frozen=True)
class Negate(_Unary):
    """The negation of a number: `-x`."""


@dataclass(frozen=True)
class Not(_Unary):
    """`NOT x`: NULL stays NULL."""


@dataclass(frozen=True)
class IsNull(_Unary):
    """`x IS NULL`: never NULL itself."""


@dataclass(frozen=True)
class Cast(_Unary):
    """`CAST(x AS type)`: the target is this node's type; a value that does not fit becomes NULL."""


@dataclass(frozen=True)
class _Nary(Expr):
    args: tuple[Expr, ...]

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.args

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, args=children)


@dataclass(frozen=True)
class And(_Nary):
    """Conjunction in three-valued logic."""


@dataclass(frozen=True)
class Or(_Nary):
    """Disjunction in three-valued logic."""


@dataclass(frozen=True)
class Call(_Nary):
    """A named function of the language, `abs(x)`."""

    name: str


@dataclass(frozen=True)
class Udf(_Nary):
    """A Python callable, applied to candidate pairs."""

    function: Callable[..., Any]


@dataclass(frozen=True)
class Case(Expr):
    """`CASE WHEN c THEN v … ELSE d END`; `branches` alternate condition and value."""

    branches: tuple[Expr, ...]
    default: Expr

    @property
    def children(self) -> tuple[Expr, ...]:
        return (*self.branches, self.default)

    def with_children(self, children: tuple[Expr, ...]) -> Expr:
        return replace(self, branches=children[:-1], default=children[-1])

    @property
    def pairs(self) -> Iterator[tuple[Expr, Expr]]:
        """(condition, value), in order."""
        return zip(self.branches[::2], self.branches[1::2], strict=True)


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it, parents first."""
    waiting = [expr]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(reversed(node.children))


MAX_DEPTH = 100
MAX_NODES = 500_000


def check_size(expr: Expr) -> None:
    """Refuse a tree that is too deep, or too large when shared parts count each time."""
    sizes: dict[int, tuple[int, int]] = {}  # depth and number of nodes below each object
    waiting = [expr]
    while waiting:
        missing = [child for child in waiting[-1].children if id(child) not in sizes]
        if missing:
            waiting.extend(missing)
            continue
        node = waiting.pop()
        below = [sizes[id(child)] for child in node.children]
        sizes[id(node)] = (1 + max((d for d, _ in below), default=0), 1 + sum(n for _, n in below))
    depth, count = sizes[id(expr)]
    if depth > MAX_DEPTH:
        raise ExpressionError(
            f"the predicate is nested too deeply: {depth} levels, {MAX_DEPTH} are allowed; take it apart"
        )
    if count > MAX_NODES:
        raise ExpressionError(
            f"the predicate is too large: {MAX_NODES} operations are allowed; join a table of constants"
        )


def columns_of(expr: Expr) -> tuple[Column, ...]:
    """Return the columns that an expression reads, each once."""
    return tuple(dict.fromkeys(node for node in walk(expr) if isinstance(node, Column)))


def sides(expr: Expr) -> frozenset[int]:
    """Return the numbers of the inputs that an expression reads."""
    return frozenset(node.side for node in walk(expr) if isinstance(node, Column))


def transform(expr: Expr, rule: Callable[[Expr], Expr]) -> Expr:
    """Rebuild a tree bottom-up, applying `rule` to each node."""
    children = tuple(transform(child, rule) for child in expr.children)
    return rule(expr.with_children(children) if children else expr)


def conjuncts(expr: Expr) -> tuple[Expr, ...]:
    """Return the parts of a conjunction, nested ones too."""
    if not isinstance(expr, And):
        return (expr,)
    return tuple(part for arg in expr.args for part in conjuncts(arg))


def conjunction(parts: tuple[Expr, ...]) -> Expr:
    """Return the conjunction of `parts`; TRUE if there are none."""
    if not parts:
        return Literal(True, type=BOOL)
    return parts[0] if len(parts) == 1 else And(parts, type=BOOL)


def show(expr: Expr) -> str:
    """Return a short SQL-like text for messages and `explain`."""
    match expr:
        case Name(parts=parts):
            return ".".join(parts)
        case Column(side=side, name=name, shown=shown):
            return shown or f"{'lr'[side]}.{name}"
        case Literal(value=value):
            return literal_text(value, expr.type)
        case Arithmetic(op=op) | Compare(op=op):
            return f"{_operand(expr.left)} {op} {_operand(expr.right)}"
        case Negate(arg=arg):
            return f"-{_operand(arg)}"
        case Not(arg=arg):
            return f"NOT {_operand(arg)}"
        case IsNull(arg=arg):
            return f"{_operand(arg)} IS NULL"
        case And(args=args) | Or(args=args):
            return f" {type(expr).__name__.upper()} ".join(_operand(a) for a in args)
        case Cast(arg=arg):
            return f"CAST({show(arg)} AS {expr.type})"
        case Call(name="path", args=(owner, *steps)):
            return show(owner) + "".join(map(_step, steps))
        case Call(name=name, args=args):
            return f"{name.upper()}({', '.join(show(a) for a in args)})"
        case Udf(function=function, args=args):
            return f"{getattr(function, '__name__', 'function')}({', '.join(show(a) for a in args)})"
        case Case():
            whens = " ".join(f"WHEN {show(c)} THEN {show(v)}" for c, v in expr.pairs)
            return f"CASE {whens} ELSE {show(expr.default)} END"
    return repr(expr)


def _step(key: Expr) -> str:
    """Return the text of a step to a field or an element."""
    named = isinstance(key, Literal) and isinstance(key.value, str)
    return f".{key.value}" if isinstance(key, Literal) and named else f"[{show(key)}]"


def _operand(expr: Expr) -> str:
    atomic = isinstance(expr, (Name, Column, Literal, Call, Cast, Udf, Case, Negate))
    return show(expr) if atomic else f"({show(expr)})"
