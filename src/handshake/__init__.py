"""Exact window joins of streams on any predicate."""

from handshake.errors import (
    ExpressionError,
    HandshakeError,
    InputError,
    SchemaError,
    UnsupportedError,
    WindowError,
)
from handshake.local import Join, JoinPlan, Metrics, Replay, prepare
from handshake.plan import call, col, left, lit, right, sql
from handshake.session import explain, join, listener, progress, watch
from handshake.window import Time, Tuples

__version__ = "0.1.0"

__all__ = [
    "ExpressionError",
    "HandshakeError",
    "InputError",
    "Join",
    "JoinPlan",
    "Metrics",
    "Replay",
    "SchemaError",
    "Time",
    "Tuples",
    "UnsupportedError",
    "WindowError",
    "__version__",
    "call",
    "col",
    "explain",
    "join",
    "left",
    "listener",
    "lit",
    "prepare",
    "progress",
    "right",
    "sql",
    "watch",
]
