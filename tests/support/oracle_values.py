"""The oracle is `handshake.testing.oracle_values`; tests that are not yet moved import it from here."""

from handshake.testing.oracle_values import *  # noqa: F403
