"""Joins of DataFrames: definition, routing, segments, and the Spark operators that run them."""
