"""Cycle-accurate simulation: one interface, two simulators."""
