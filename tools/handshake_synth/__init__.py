"""Synthesis, place and route, and timing closure of join circuits with open tools."""
