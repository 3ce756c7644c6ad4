"""The command `handshake`."""

from handshake.cli.app import main

__all__ = ["main"]
