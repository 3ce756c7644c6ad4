"""Split of a bound predicate into the part that kernels compute and conditions that are tested afterwards.

An expression of one side that kernels cannot compute (text functions, LIKE with a constant, …) becomes a
derived column, computed once per tuple. Comparisons of text across the sides use hashes or first bytes.
Conditions that these do not decide are `doubtful`: candidates are tested with them in Arrow batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal as OneOf

from handshake.errors import UnsupportedError
from handshake.plan.expr import (
    And,
    Arithmetic,
    Call,
    Case,
    Cast,
    Column,
    Compare,
    Expr,
    IsNull,
    Literal,
    Negate,
    Not,
    Or,
    conjuncts,
    show,
    sides,
    walk,
)
from handshake.plan.functions.registry import FUNCTIONS
from handshake.plan.ranges import ranges, width_of
from handshake.plan.types import is_exact
from handshake.schema import (
    BOOL,
    INT64,
    Binary,
    Bool,
    Date,
    Decimal,
    Float,
    Int,
    Opaque,
    String,
    Timestamp,
    Type,
)

HIDDEN = "\0"
"""First character of the names of derived columns. Names of inputs do not begin with it (see joins.spec)."""


@dataclass(frozen=True)
class Source:
    """The definition of a kernel column: the value of an expression, its hash, or its first eight bytes."""

    expr: Expr
    form: OneOf["value", "hash", "prefix"] = "value"


@dataclass
class Prepared:
    """A predicate that kernels can compute, and the `doubtful` conjuncts to test afterwards."""

    expr: Expr
    sources: dict[Column, Source] = field(default_factory=dict)
    doubtful: tuple[Expr, ...] = ()
    compiles: Callable[[Expr], bool] | None = field(default=None, repr=False)
    """Whether kernels compute a node, given its operands, if they are not those of this processor."""


def prepare(predicate: Expr, compiles: Callable[[Expr], bool] | None = None) -> Prepared:
    """Split a predicate into its compiled part and its doubtful conjuncts.

    `compiles` says which nodes kernels compute, if not all that those of this processor do.
    """
    prepared = Prepared(predicate, compiles=compiles)
    parts: list[Expr] = []
    doubtful: list[Expr] = []
    for part in conjuncts(predicate):
        skeleton = _condition(part, prepared)
        parts.append(skeleton)
        if any(isinstance(node, Call) and node.name in _DOUBTS for node in walk(skeleton)):
            doubtful.append(part)
    prepared.expr = parts[0] if len(parts) == 1 else And(tuple(parts), type=BOOL)
    prepared.doubtful = tuple(doubtful)
    return prepared


def prepare_value(expr: Expr, prepared: Prepared) -> Expr:
    """Return an expression as kernels compute it, and add the columns that it needs to a predicate's."""
    found = _operand(expr, prepared)
    if found is None:
        compiles = prepared.compiles or node_compiles
        node = next((n for n in walk(expr) if len(sides(n)) > 1 and not compiles(n)), expr)
        raise UnsupportedError(
            f'a GPU cannot compute {show(node)}, which reads both streams; use device="cpu"'
        )
    return found


_DOUBTS = ("maybe", "may_equal", "may_precede")


def _condition(expr: Expr, prepared: Prepared) -> Expr:
    """Prepare the atoms of a logical expression."""
    if isinstance(expr, (And, Or, Not)):
        return expr.with_children(tuple(_condition(arg, prepared) for arg in expr.children))
    atom = _atom(expr, prepared)
    return atom if atom is not None else Call((), "maybe", type=BOOL)


def _atom(expr: Expr, prepared: Prepared) -> Expr | None:
    """Return an atom that kernels compute or partly decide, or None."""
    compiled = _operand(expr, prepared)
    if compiled is not None:
        return compiled
    if isinstance(expr, Compare) and isinstance(expr.left.type, (String, Binary)):
        return _compare_keys(expr, prepared)
    return None


def _operand(expr: Expr, prepared: Prepared) -> Expr | None:
    if (prepared.compiles or node_compiles)(expr):
        children = tuple(_operand(child, prepared) for child in expr.children)
        if any(child is None for child in children):
            return None
        if isinstance(expr, Column):
            prepared.sources[expr] = Source(expr)
        return expr.with_children(tuple(c for c in children if c is not None)) if children else expr
    if len(sides(expr)) == 1 and not _is_text(expr.type):
        return _derive(Source(expr), expr.type, prepared)
    return None


def _derive(source: Source, kind: Type, prepared: Prepared) -> Column:
    for column, known in prepared.sources.items():
        if known == source and column.name.startswith(HIDDEN):
            return column
    # Numbered, since expressions of the same text may differ, such as two lambdas.
    name = f"{HIDDEN}{source.form} {len(prepared.sources)}"
    column = Column(next(iter(sides(source.expr))), name, type=held_type(kind))
    prepared.sources[column] = source
    return column


def held_type(kind: Type) -> Type:
    """Return the type of a column of computed values; whole numbers have one width."""
    if isinstance(kind, Decimal):
        return Decimal(kind.precision or 38, kind.scale)
    return INT64 if isinstance(kind, Int) else kind


def _compare_keys(expr: Compare, prepared: Prepared) -> Expr | None:
    """Compare texts: for equality by hash, for order by the first bytes."""
    if len(sides(expr.left)) != 1 or len(sides(expr.right)) != 1:
        return None
    form: OneOf["hash", "prefix"] = "hash" if expr.op in ("=", "<>") else "prefix"
    a, b = (_derive(Source(side, form), INT64, prepared) for side in (expr.left, expr.right))
    if form == "hash":
        same = Call((a, b), "may_equal", type=BOOL)
        return same if expr.op == "=" else Not(same, type=BOOL)
    first, second = (a, b) if expr.op in ("<", "<=") else (b, a)
    return Call((first, second), "may_precede", type=BOOL)


def _is_text(kind: Type) -> bool:
    return isinstance(kind, (String, Binary, Opaque))


def node_compiles(expr: Expr) -> bool:
    """Return whether kernels can compute this node, given its operands."""
    if _is_text(expr.type) or any(_is_text(child.type) for child in expr.children):
        return False
    if not isinstance(expr, (Column, Literal)) and any(is_exact(e.type) for e in (expr, *expr.children)):
        _check_width(expr)
    match expr:
        case (
            Column()
            | Literal()
            | And()
            | Or()
            | Not()
            | IsNull()
            | Compare()
            | Case()
            | Arithmetic()
            | Negate()
        ):
            return True
        case Call(name=name):
            return name in FUNCTIONS and FUNCTIONS[name].compiled
        case Cast(arg=arg):
            return _cast_compiles(arg, expr.type)
    return False


def _check_width(expr: Expr) -> None:
    """Refuse intermediate whole numbers of more than 512 bits."""
    try:
        width = max(width_of(ranges(e, False)) or 1024 for e in (expr, *expr.children) if is_exact(e.type))
    except UnsupportedError:
        return  # an operand that kernels cannot compute: its derived column will have a range
    if width > 512:
        raise UnsupportedError(
            f"{show(expr)} may need more than 512 bits; cast its operands to smaller types"
        )


def _cast_compiles(arg: Expr, target: Type) -> bool:
    if isinstance(arg.type, Float):
        return isinstance(target, (Float, Int))
    if isinstance(arg.type, Bool):
        return isinstance(target, Int)
    if isinstance(arg.type, Timestamp) and isinstance(target, Date) and arg.type.zone is not None:
        return False  # the day depends on the rules of the zone
    if isinstance(target, Float) and isinstance(arg.type, Decimal) and arg.type.scale:
        # One division is correctly rounded only if both numbers are exact in float64.
        low, high = ranges(arg, False)
        return max(-low, high) <= 2**53 and arg.type.scale <= 22
    return is_exact(arg.type) and (is_exact(target) or isinstance(target, Float))
