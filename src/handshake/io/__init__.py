"""Inputs and outputs: files, frames, and streams over UDP."""

from handshake.io.files import describe_formats, format_of, read
from handshake.io.sinks import Sink, check_output, sink_for

__all__ = ["Sink", "check_output", "describe_formats", "format_of", "read", "sink_for"]
