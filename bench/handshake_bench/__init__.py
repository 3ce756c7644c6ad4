"""Benchmarks: each prints a table and, as its last line, `RESULT key=value …`."""
