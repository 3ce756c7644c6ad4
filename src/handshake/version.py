"""The release of this package; `pyproject.toml` states the same."""

__all__ = ["__version__"]

__version__ = "0.1.0"
