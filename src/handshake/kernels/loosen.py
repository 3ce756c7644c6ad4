"""A cheaper predicate that accepts everything the real one does.

`y >= b - 10` with b in vectors costs an addition per lane. `b <= y + 10` costs none, since the outer tuple's
part is computed once. For floats the two round differently. So the second is loosened by more than that and
tested first; the real predicate is evaluated on blocks that pass.
"""

from __future__ import annotations

from handshake.plan.analyse import Bound, separate_floats
from handshake.plan.expr import Arithmetic, Call, Compare, Expr, Literal, conjunction, conjuncts, sides
from handshake.schema import BOOL, FLOAT64, Float


def loosen(expr: Expr, inner: int) -> Expr | None:
    """Return the loosened predicate, or None if nothing would be gained."""
    parts = [(part, _loosen_part(part, inner)) for part in conjuncts(expr)]
    if all(loose is None for _, loose in parts):
        return None
    return conjunction(tuple(part if loose is None else loose for part, loose in parts))


def _loosen_part(part: Expr, inner: int) -> Expr | None:
    if not isinstance(part, Compare) or part.op not in ("<", "<=", ">", ">="):
        return None
    vectors = [e for e in (part.left, part.right) if inner in sides(e)]
    if not isinstance(part.left.type, Float) or not any(isinstance(e, Arithmetic) for e in vectors):
        return None
    bound = separate_floats(part)
    return _compare(bound, inner, part.left.type) if bound is not None and bound.rounding else None


def _compare(bound: Bound, inner: int, kind: Float) -> Expr:
    mine, other = (bound.left, bound.right) if inner == 0 else (bound.right, bound.left)
    offset = bound.offset if inner == 0 else -bound.offset
    is_lower = bound.is_lower if inner == 0 else not bound.is_lower
    # Twice the slack that indexes use: here the edge is also rounded to the width of the column.
    slack = 8 * bound.rounding
    numbers = (offset, slack, slack * bound.magnitude + (1e-43 if kind.bits == 32 else 1e-322))
    args = (other, *(Literal(float(n), type=FLOAT64) for n in numbers))
    edge = Call(args, "edge_below" if is_lower else "edge_above", type=kind)
    return Compare(">=" if is_lower else "<=", mine, edge, type=BOOL)
