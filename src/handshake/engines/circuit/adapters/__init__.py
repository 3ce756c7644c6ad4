"""Adapters between a circuit and its surroundings: network frames and CPU registers (Glacier 5.1, 5.2)."""
