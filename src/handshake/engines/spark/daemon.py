"""The parent of Spark's Python workers, with all that they need imported before they are forked.

Spark starts a worker for each core, and more for every other kind of function; each would read the same
modules again, which takes seconds. As `spark.python.daemon.module` this does it once.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["preload", "unpacked"]

_MODULES = (
    "handshake.engines.spark.operators",
    "handshake.engines.spark.queries.tasks",
    "pyspark.sql.pandas.types",
)
_ARCHIVE = Path("pyspark", "python", "lib", "pyspark.zip")


def unpacked(path: list[str]) -> list[str]:
    """The path without Spark's archive of its own modules, where the package around it is on the path too.

    From an archive, modules are compiled each time; and its table of contents is read again for every task.
    """
    copies = {str(Path(entry, _ARCHIVE)) for entry in path if Path(entry, "pyspark", "__init__.py").exists()}
    return [entry for entry in path if entry not in copies]


def preload(*modules: str) -> None:
    """Import what is there; the worker says what is missing, as it would without this."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


if __name__ == "__main__":
    known = sys.path
    sys.path = unpacked(known)
    for archive in {*known} - {*sys.path}:
        sys.path_importer_cache.pop(archive, None)
    preload(*_MODULES, *sys.argv[1:2])
    importlib.import_module("pyspark.daemon").manager()
