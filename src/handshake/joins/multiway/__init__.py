"""Joins of three and more streams (CellJoin 7.1)."""
