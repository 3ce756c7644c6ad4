"""The parent process of Spark's Python workers, which imports their modules before it forks them.

Spark starts a worker per core and kind of function. Each would spend seconds on the same imports. Set as
`spark.python.daemon.module`, this module imports them once; without the setting, everything works, but starts
more slowly.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from pathlib import Path

_MODULES = (
    "handshake.engines.spark.joins.tasks",
    "handshake.engines.spark.queries.tasks",
    "pyspark.sql.pandas.types",
)
_ARCHIVE = Path("pyspark", "python", "lib", "pyspark.zip")


def without_archives(path: list[str]) -> list[str]:
    """Drop pyspark.zip from a path that also has the package which contains it.

    Modules from an archive are compiled each time, and its table of contents is read again for every task.
    """
    copies = {str(Path(entry, _ARCHIVE)) for entry in path if Path(entry, "pyspark", "__init__.py").exists()}
    return [entry for entry in path if entry not in copies]


def preload(*modules: str) -> None:
    """Import modules; a worker reports missing ones itself when it needs them."""
    for module in modules:
        with suppress(ImportError):
            importlib.import_module(module)


if __name__ == "__main__":
    before = sys.path
    sys.path = without_archives(before)
    for archive in {*before} - {*sys.path}:
        sys.path_importer_cache.pop(archive, None)
    preload(*_MODULES, *sys.argv[1:2])
    importlib.import_module("pyspark.daemon").manager()
