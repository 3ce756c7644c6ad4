"""The rules of the optimiser, one per file; plan/optimise.py lists them by engine."""
