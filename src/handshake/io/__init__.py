"""Where streams come from and where results go: files in, files out."""

from handshake.io.files import format_of, one_line, read
from handshake.io.sinks import Sink, check_output, sink_for

__all__ = ["Sink", "check_output", "format_of", "one_line", "read", "sink_for"]
