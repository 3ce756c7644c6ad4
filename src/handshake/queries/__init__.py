"""The in-process back end of continuous queries."""

from handshake.queries.engine import Query, QueryMetrics, output_schema
from handshake.queries.sources import arrow_schema

__all__ = ["Query", "QueryMetrics", "arrow_schema", "output_schema"]
