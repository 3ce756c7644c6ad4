"""The cell arrangement: a coordinator assigns parts of both windows to cores (CellJoin)."""
