"""Spark's Python workers: they must run the driver's releases, and start tasks quickly."""

from __future__ import annotations

import gc
import os
import platform
import sys
from functools import lru_cache
from importlib.metadata import version

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from handshake.errors import HandshakeError
from handshake.version import __version__

__all__ = ["VersionError", "Versions", "check_versions", "freeze_libraries", "use_this_python", "versions"]

Versions = tuple[tuple[str, str], ...]
_PACKAGES = ("pyarrow", "numpy", "numba")
_MANY = 20_000
"""Old objects that the garbage collector may visit after every task: about 10 ms."""


class VersionError(HandshakeError):
    """The driver and a worker run different releases."""


@lru_cache(maxsize=1)
def versions() -> Versions:
    """Return the releases that this process runs."""
    python = ".".join(platform.python_version_tuple()[:2])
    installed = ((name, version(name)) for name in _PACKAGES)
    return (("Python", python), ("handshake", __version__), *installed)


def use_this_python(session: SparkSession) -> None:
    """Let the workers of a session on this machine run the Python of this process.

    PySpark starts the `python3` of the PATH, which may lack this package. On a cluster, and if PYSPARK_PYTHON
    or `spark.pyspark.python` names a Python, nothing changes.
    """
    try:
        context = session.sparkContext
    except PySparkException:  # Spark Connect has none: its server chooses
        return
    if not str(context.master).startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ and session.conf.get("spark.pyspark.python", None) is None:
        context.pythonExec = sys.executable


def check_versions(wanted: Versions) -> None:
    """Refuse to work for a driver that runs other releases: both hash, sort and store rows for each other."""
    mine = dict(versions())
    for name, release in wanted:
        if mine.get(name) != release:
            raise VersionError(
                f"the driver runs {name} {release}, but the worker on {platform.node()} runs "
                f"{mine.get(name)}; install the same release on both (spark.pyspark.python names the "
                "workers' Python, spark.archives can ship a packed environment)"
            )


def freeze_libraries() -> None:
    """Freeze long-lived objects so that the garbage collection after each task skips them.

    Tasks call this first. Spark's daemon runs `gc.collect()` after every task of a worker that it reuses.
    With Numba, Arrow and pandas loaded that visits 130,000 objects, none of which is garbage: 65 to 100 ms of
    CPU, five times per micro-batch of a query.
    """
    if TaskContext.get() is not None and len(gc.get_objects(2)) > _MANY:
        gc.freeze()
