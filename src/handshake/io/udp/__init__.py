"""Streams over UDP: wire format, sockets, de-multiplexing and a durable log (Glacier 5.1, 5.3)."""
