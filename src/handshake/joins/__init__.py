"""Basic windows, the join core, and the ways of arranging cores."""
