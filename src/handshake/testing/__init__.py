"""Tests of your own stream pipelines: a naive reference, scripted streams, Spark step by step.

The reference is a double loop over plain Python values, which shares nothing with the engines but the reading
of predicates. The project's own tests compare every engine with it.
"""

from handshake.testing.assertions import assert_same_rows
from handshake.testing.reference import reference
from handshake.testing.script import Outcome, Script, scramble
from handshake.testing.steps import SparkSteps

__all__ = ["Outcome", "Script", "SparkSteps", "assert_same_rows", "reference", "scramble"]
