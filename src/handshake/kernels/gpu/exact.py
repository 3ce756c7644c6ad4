"""The expressions that a GPU computes exactly.

The rest is decided on the host, over the pairs that the GPU lets through.
"""

from __future__ import annotations

from handshake.kernels.prepare import node_compiles
from handshake.plan.expr import Arithmetic, Call, Cast, Expr
from handshake.plan.ranges import ranges, type_range, width_of
from handshake.plan.types import is_exact
from handshake.schema import Float

_MATHEMATICS = ("exp", "ln", "sin", "cos", "power")
"""Functions that the processor's library computes; there is none on a GPU, and others round differently."""


def compiles(expr: Expr) -> bool:
    """Return whether a kernel for a GPU computes this node as the processor does, given its operands."""
    if not node_compiles(expr):
        return False
    match expr:
        case Call(name=name):
            return name not in _MATHEMATICS
        case Arithmetic(op="%"):
            return not isinstance(expr.type, Float)
        case Cast(arg=arg) if isinstance(arg.type, Float) and is_exact(expr.type):
            return type_range(expr.type, False)[1] < 2**63
        case Cast(arg=arg) if isinstance(expr.type, Float) and is_exact(arg.type):
            return (width_of(ranges(arg, False)) or 512) <= 64
    return True
