"""Operators of continuous queries on Arrow batches, shared by the local and the Spark engine."""
