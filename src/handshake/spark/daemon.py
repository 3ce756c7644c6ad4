"""The parent of Spark's Python workers, with all that they need imported before they are forked.

Spark starts a worker for each core, and more for every other kind of function; each would read the same
modules again, which takes seconds. As `spark.python.daemon.module` this does it once.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress

from pyspark.daemon import manager

__all__ = ["preload"]

_MODULES = ("handshake.spark.operators", "handshake.spark.query_tasks", "pyspark.sql.pandas.types")


def preload(*modules: str) -> None:
    """Import what is there; the worker says what is missing, as it would without this."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


if __name__ == "__main__":
    preload(*_MODULES, *sys.argv[1:2])
    manager()
