"""State of a streaming join: immutable chunk files and the manifest that refers to them."""
