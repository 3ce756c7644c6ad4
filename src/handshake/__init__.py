"""Exact window joins of streams on any predicate."""

from handshake.api import explain, join, listener, progress, watch
from handshake.errors import (
    ExpressionError,
    HandshakeError,
    InputError,
    QueryError,
    SchemaError,
    UnsupportedError,
    WindowError,
)
from handshake.joins.join import Join, JoinPlan, Metrics, Replay, prepare
from handshake.joins.multiway.multi_join import (
    MultiJoin,
    MultiMetrics,
    MultiPlan,
    MultiReplay,
    explain_streams,
    join_streams,
    prepare_streams,
)
from handshake.operators.query import Query, QueryMetrics
from handshake.plan import call, col, left, lit, right, sql
from handshake.windows import Time, Tuples

__version__ = "0.1.0"

__all__ = [
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
    "Query",
    "QueryError",
    "QueryMetrics",
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
    "explain_streams",
    "join",
    "join_streams",
    "left",
    "listener",
    "lit",
    "prepare",
    "prepare_streams",
    "progress",
    "right",
    "sql",
    "watch",
]
