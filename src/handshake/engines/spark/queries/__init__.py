"""Continuous queries on DataFrames."""

from handshake.engines.spark.queries.translate import QueryFrames, query_frames

__all__ = ["QueryFrames", "query_frames"]
