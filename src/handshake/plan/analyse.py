"""The analysis of a predicate: which conjuncts an index can use, and which are checked on each candidate.

Every conjunct stays part of the predicate that is checked in the end; analysis only finds out
which candidates can be skipped. So a bound may be loose (floats: by their rounding), never tight.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from handshake.plan import expr as tree
from handshake.plan.casts import round_float32
from handshake.plan.expr import Expr, conjuncts, show, sides, walk
from handshake.plan.types import is_exact
from handshake.schema import BOOL, INT64, Date, Float, Interval, Timestamp, Type

_MIRROR = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


@dataclass(frozen=True)
class Equality:
    """`left = right`, each side reading one input."""

    left: Expr
    right: Expr


@dataclass(frozen=True)
class Bound:
    """`left op right + offset`, op one of < <= > >=.

    `rounding` is the relative error that float arithmetic on the constants may have added (0: exact).
    """

    left: Expr
    right: Expr
    op: str
    offset: int | float
    rounding: float = 0.0
    magnitude: float = 0.0
    """Sum of the constants' sizes, to which `rounding` applies, as it does to the operands."""

    @property
    def is_lower(self) -> bool:
        """True if the left side is bounded from below."""
        return self.op in (">", ">=")


@dataclass(frozen=True)
class Analysis:
    """The conjuncts of a predicate by kind."""

    predicate: Expr
    equalities: tuple[Equality, ...]
    bounds: tuple[Bound, ...]
    left_only: tuple[Expr, ...]
    right_only: tuple[Expr, ...]
    residual: tuple[Expr, ...]

    @property
    def bands(self) -> tuple[tuple[Bound, ...], ...]:
        """Bounds on the same pair of expressions, two-sided ones first."""
        groups: dict[tuple[Expr, Expr], list[Bound]] = {}
        for bound in self.bounds:
            groups.setdefault((bound.left, bound.right), []).append(bound)
        return tuple(sorted(map(tuple, groups.values()), key=lambda group: not _two_sided(group)))

    @property
    def never(self) -> bool:
        """True if the predicate is false or NULL for every pair."""
        return isinstance(self.predicate, tree.Literal) and self.predicate.value is not True


def _two_sided(group: tuple[Bound, ...]) -> bool:
    return len({bound.is_lower for bound in group}) == 2


def analyse(predicate: Expr) -> Analysis:
    """Split a bound predicate.

    >>> from handshake.schema import Schema
    >>> from handshake.plan.bind import Scope, bind
    >>> from handshake.plan.parse import parse
    >>> import pyarrow as pa
    >>> scope = Scope.of(*(Schema.from_arrow(pa.schema([("x", pa.int32())]), s) for s in ("left", "right")))
    >>> [(b.op, b.offset) for b in analyse(bind(parse("ABS(l.x - r.x) <= 10"), scope)).bounds]
    [('<=', 10), ('>=', -10)]
    """
    equalities: list[Equality] = []
    bounds: list[Bound] = []
    residual: list[Expr] = []
    single: dict[int, list[Expr]] = {0: [], 1: []}
    for part in conjuncts(predicate):
        read = sides(part)
        if len(read) == 1:
            single[next(iter(read))].append(part)
        elif (equality := _equality(part)) is not None:
            equalities.append(equality)
        elif found := tuple(_bounds(part)):
            bounds += found
        elif not isinstance(part, tree.Literal):
            residual.append(part)
    return Analysis(
        predicate, tuple(equalities), tuple(bounds), tuple(single[0]), tuple(single[1]), tuple(residual)
    )


def _equality(part: Expr) -> Equality | None:
    if not isinstance(part, tree.Compare) or part.op != "=" or _calls_python(part):
        return None
    a, b = sides(part.left), sides(part.right)
    if len(a) == 1 and len(b) == 1 and a != b:
        return Equality(*((part.left, part.right) if a == {0} else (part.right, part.left)))
    if is_exact(part.left.type) and (moved := separate(part)):
        right = moved.right
        if moved.offset:
            offset = tree.Literal(moved.offset, type=_step(right.type))
            right = tree.Arithmetic("+", right, offset, type=INT64)
        return Equality(moved.left, right)
    return None


def _calls_python(expr: Expr) -> bool:
    """Return whether Python is called. It may not be pure, so only candidates are passed to it."""
    return any(isinstance(node, tree.Udf) for node in walk(expr))


def _bounds(part: Expr) -> Iterator[Bound]:
    if not isinstance(part, tree.Compare) or part.op not in ("<", "<=", ">", ">=") or _calls_python(part):
        return
    for compare in _without_abs(_in_float32(part)):
        if is_exact(compare.left.type):
            moved = separate(compare)
        elif isinstance(compare.left.type, Float):
            moved = separate_floats(compare)
        else:
            moved = None
        if moved is None:
            return
        yield moved


def _in_float32(part: tree.Compare) -> tree.Compare:
    """Compare a float32 with the float32 next to a constant, if the constant is not a float32."""
    for compare in (part, _mirror(part)):
        match compare:
            case tree.Compare(left=tree.Cast(arg=arg), right=tree.Literal(value=float() as limit)):
                if arg.type == Float(32) and math.isfinite(round_float32(limit)):
                    near = _float32_next_to(limit, below=compare.op in ("<=", ">"))
                    return replace(compare, left=arg, right=tree.Literal(near, type=arg.type))
    return part


def _float32_next_to(limit: float, *, below: bool) -> float:
    """Return the largest float32 that is not above a number, or the smallest one that is not below it."""
    near = round_float32(limit)
    if near == limit or (near < limit) == below:
        return near
    if near == 0:
        return math.copysign(2.0**-149, -1 if below else 1)
    bits = struct.unpack("i", struct.pack("f", near))[0]
    away = (near > 0) != below  # a larger number of bits is farther from zero
    return float(struct.unpack("f", struct.pack("i", bits + 1 if away else bits - 1))[0])


def _without_abs(part: tree.Compare) -> Iterator[tree.Compare]:
    """Yield the comparisons that one stands for: `ABS(e) <= c` is `e <= c AND e >= -c`."""
    for compare in (part, _mirror(part)):
        match compare:
            case tree.Compare(op="<" | "<=", left=tree.Call(name="abs", args=(inside,)), right=limit):
                negative = _negate(limit)
                yield replace(compare, left=inside)
                yield tree.Compare(_MIRROR[compare.op], inside, negative, type=BOOL)
                return
    yield part


def _mirror(part: tree.Compare) -> tree.Compare:
    return replace(part, op=_MIRROR[part.op], left=part.right, right=part.left)


def _negate(expr: Expr) -> Expr:
    if isinstance(expr, tree.Literal) and expr.value is not None:
        return replace(expr, value=-expr.value)
    return tree.Negate(expr, type=expr.type)


# Exact numbers: every comparison of sums can be separated into left and right.


def separate(compare: tree.Compare) -> Bound | None:
    """Bring an exact comparison to `left op right + offset`, if its terms each read one side."""
    terms, constant = _terms(compare.left, 1)
    more, other = _terms(compare.right, -1)
    terms, constant = [*terms, *more], constant + other
    if any(len(sides(term)) != 1 for _, term in terms):
        return None
    mine = [(n, term) for n, term in terms if sides(term) == {0}]
    theirs = [(-n, term) for n, term in terms if sides(term) == {1}]
    if not mine or not theirs:
        return None
    op, offset = compare.op, -constant
    if mine[0][0] < 0:  # one orientation, so that the two halves of a band meet
        mine, theirs = [(-n, t) for n, t in mine], [(-n, t) for n, t in theirs]
        op, offset = _MIRROR[op], -offset
    return Bound(_sum(mine), _sum(theirs), op, offset)


def _terms(expr: Expr, sign: int) -> tuple[list[tuple[int, Expr]], int]:
    """Split an exact sum into (factor, term) pairs and a constant."""
    match expr:
        case tree.Literal(value=int() as value):
            return [], sign * value
        case tree.Negate(arg=arg):
            return _terms(arg, -sign)
        case tree.Arithmetic(op="+" | "-", left=a, right=b):
            left, x = _terms(a, sign)
            right, y = _terms(b, sign if expr.op == "+" else -sign)
            return [*left, *right], x + y
        case (
            tree.Arithmetic(op="*", left=tree.Literal(value=int() as n), right=e)
            | tree.Arithmetic(op="*", left=e, right=tree.Literal(value=int() as n))
        ) if n:
            return _terms(e, sign * n)
    return [(sign, expr)], 0


def _sum(terms: list[tuple[int, Expr]]) -> Expr:
    ordered = sorted(terms, key=lambda item: item[0] < 0)
    total: Expr | None = None
    for factor, term in ordered:
        part = term
        if abs(factor) != 1:
            part = tree.Arithmetic("*", tree.Literal(abs(factor), type=INT64), term, type=INT64)
        if total is None:
            total = part if factor > 0 else tree.Negate(part, type=INT64)
        else:
            total = tree.Arithmetic("+" if factor > 0 else "-", total, part, type=INT64)
    assert total is not None
    return total


# Floats: only constants are moved, and the rounding that this brings is remembered.


def separate_floats(compare: tree.Compare) -> Bound | None:
    """Bring a float comparison to `left op right + offset`, remembering what rounding that may hide."""
    if not sides(compare.left):
        compare = _mirror(compare)
    difference = compare.left
    if (
        isinstance(compare.right, tree.Literal)
        and isinstance(difference, tree.Arithmetic)
        and difference.op == "-"
    ):
        return _float_bound(compare, difference.left, difference.right, 0.0, compare.right.value)
    (a, x), (b, y) = _without_constant(compare.left), _without_constant(compare.right)
    return _float_bound(compare, a, b, x, y)


def _without_constant(expr: Expr) -> tuple[Expr, float]:
    match expr:
        case tree.Arithmetic(op="+", left=e, right=tree.Literal(value=float() as c)):
            return e, c
        case tree.Arithmetic(op="+", left=tree.Literal(value=float() as c), right=e):
            return e, c
        case tree.Arithmetic(op="-", left=e, right=tree.Literal(value=float() as c)):
            return e, -c
    return expr, 0.0


def _float_bound(compare: tree.Compare, a: Expr, b: Expr, x: float, y: float | None) -> Bound | None:
    """Return the bound of `a + x op b + y`, oriented left to right."""
    if len(sides(a)) != 1 or len(sides(b)) != 1 or sides(a) == sides(b) or y is None:
        return None
    assert isinstance(compare.left.type, Float)
    bits = compare.left.type.bits
    op, offset = compare.op, y - x
    # A constant this large may carry a sum to infinity, where comparisons say nothing about the operands.
    if not math.isfinite(offset) or max(abs(x), abs(y)) >= (2.0**103 if bits == 32 else 2.0**969):
        return None
    if sides(a) == {1}:
        a, b, op, offset = b, a, _MIRROR[op], -offset
    moved = (a, b) != (compare.left, compare.right) and (b, a) != (compare.left, compare.right)
    unit = 2.0**-24 if bits == 32 else 2.0**-53
    return Bound(a, b, op, offset, unit if moved else 0.0, abs(x) + abs(y))


def describe(analysis: Analysis) -> Iterator[str]:
    """Yield one line per conjunct, for `explain`."""
    for equality in analysis.equalities:
        yield f"equality    {show(equality.left)} = {show(equality.right)}"
    for band in analysis.bands:
        kind = "band" if _two_sided(band) else "inequality"
        for bound in band:
            yield f"{kind:<11} {_show_bound(bound)}"
    for name, parts in (("left only", analysis.left_only), ("right only", analysis.right_only)):
        for part in parts:
            yield f"{name:<11} {show(part)}"
    for part in analysis.residual:
        yield f"residual    {show(part)}"


def _show_bound(bound: Bound) -> str:
    size = show(tree.Literal(abs(bound.offset), type=_step(bound.left.type)))
    offset = f" {'-' if bound.offset < 0 else '+'} {size}" if bound.offset else ""
    return f"{show(bound.left)} {bound.op} {show(bound.right)}{offset}"


def _step(kind: Type) -> Type:
    """Return the type of the difference of two values."""
    match kind:
        case Timestamp(unit=unit):
            return Interval(unit)
        case Date():
            return Interval("d")
    return kind
