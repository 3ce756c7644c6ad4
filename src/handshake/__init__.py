"""Exact window joins and continuous queries of streams, on any predicate.

The names below are imported when they are first used, so that `import handshake` stays quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from handshake.api import asof, explain, join, listener, nearest, progress, run, watch, why, why_streams
    from handshake.errors import (
        ExpressionError,
        HandshakeError,
        InputError,
        QueryError,
        SchemaError,
        UnsupportedError,
        WindowError,
    )
    from handshake.joins.asof_streams import AsOfJoin
    from handshake.joins.join import (
        Join,
        JoinPlan,
        Metrics,
        MultiJoin,
        MultiMetrics,
        MultiPlan,
        MultiReplay,
        Replay,
        explain_streams,
        join_streams,
        prepare,
        prepare_streams,
    )
    from handshake.joins.nearest_streams import NearestJoin
    from handshake.joins.why.answer import Condition, Why
    from handshake.operators.query import Query, QueryMetrics
    from handshake.page.live import live
    from handshake.plan import call, col, left, lit, right, sql
    from handshake.windows import Time, Tuples

from handshake.version import __version__

__all__ = [
    "AsOfJoin",
    "Condition",
    "ExpressionError",
    "HandshakeError",
    "InputError",
    "Join",
    "JoinPlan",
    "Metrics",
    "MultiJoin",
    "MultiMetrics",
    "MultiPlan",
    "MultiReplay",
    "NearestJoin",
    "Query",
    "QueryError",
    "QueryMetrics",
    "Replay",
    "SchemaError",
    "Time",
    "Tuples",
    "UnsupportedError",
    "Why",
    "WindowError",
    "__version__",
    "asof",
    "call",
    "col",
    "explain",
    "explain_streams",
    "join",
    "join_streams",
    "left",
    "listener",
    "lit",
    "live",
    "nearest",
    "prepare",
    "prepare_streams",
    "progress",
    "right",
    "run",
    "sql",
    "watch",
    "why",
    "why_streams",
]

_HOMES = {
    "api": (
        "asof", "explain", "join", "listener", "nearest", "progress", "run", "watch", "why", "why_streams",
    ),
    "joins.asof_streams": ("AsOfJoin",),
    "joins.join": (
        "Join", "JoinPlan", "Metrics", "MultiJoin", "MultiMetrics", "MultiPlan", "MultiReplay", "Replay",
        "explain_streams", "join_streams", "prepare", "prepare_streams",
    ),
    "joins.nearest_streams": ("NearestJoin",),
    "joins.why.answer": ("Condition", "Why"),
    "page.live": ("live",),
    "operators.query": ("Query", "QueryMetrics"),
    "plan": ("call", "col", "left", "lit", "right", "sql"),
    "windows": ("Time", "Tuples"),
}  # fmt: skip
"""The module of each public name; the errors are the rest."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name == "metrics":  # a module, so that `handshake.metrics.export` needs no import of its own
        return import_module("handshake.metrics")
    if name not in __all__:
        raise AttributeError(f"module 'handshake' has no attribute '{name}'")
    found: object = getattr(import_module(f"handshake.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
