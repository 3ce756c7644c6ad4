"""Functions that choose among their arguments."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from handshake.plan.expr import Call, Expr
from handshake.plan.functions.registry import Function, wrong
from handshake.plan.types import common, fail
from handshake.schema import INT64, Binary, Bool, Int, String

__all__ = ["ALIASES", "FUNCTIONS"]


def _common(call: Call, args: tuple[Expr, ...]) -> Call:
    if not args:
        raise fail(f"{call.name}() needs at least one argument", call)
    args = common(args, call)
    kind = args[0].type
    return replace(call, args=args, type=INT64 if isinstance(kind, Int) else kind)


def _comparable(call: Call, args: tuple[Expr, ...]) -> Call:
    bound = _common(call, args)
    if isinstance(bound.type, (String, Binary, Bool)):
        raise wrong(call, bound.args[0], "numbers, dates or timestamps")
    return bound


def _nan_last(value: Any) -> tuple[bool, Any]:
    return (True, 0) if value != value else (False, value)


def _least(*values: Any) -> Any:
    return min((value for value in values if value is not None), key=_nan_last, default=None)


def _greatest(*values: Any) -> Any:
    return max((value for value in values if value is not None), key=_nan_last, default=None)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


FUNCTIONS = (
    Function("coalesce", _common, lambda call: _first, strict=False, compiled=True),
    Function("least", _comparable, lambda call: _least, strict=False, compiled=True),
    Function("greatest", _comparable, lambda call: _greatest, strict=False, compiled=True),
)
ALIASES = dict.fromkeys(("ifnull", "nvl"), "coalesce")
