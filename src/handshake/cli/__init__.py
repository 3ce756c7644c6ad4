"""The command `handshake`."""

from handshake.cli.app import app, main

__all__ = ["app", "main"]
