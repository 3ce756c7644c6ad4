"""Arrangements: the ways to connect join cores."""
