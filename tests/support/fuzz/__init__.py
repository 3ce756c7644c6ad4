# ruff: noqa: E501 - texts to mutate, and errors to look at
"""Mutated inputs of every kind that the package reads: each is accepted or refused, and nothing else happens."""
