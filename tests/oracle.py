"""The oracle is `handshake.testing.oracle`; tests that are not yet moved import it from here."""

from handshake.testing.oracle import *  # noqa: F403
