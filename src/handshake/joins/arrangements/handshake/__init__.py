"""The handshake arrangement: a line of cores that talk to their neighbours (handshake join)."""
