"""Where streams come from and where results go: files in, files out."""

from handshake.sources.files import format_of, read
from handshake.sources.sinks import Sink, sink_for

__all__ = ["Sink", "format_of", "read", "sink_for"]
