"""Spark's Python workers: they must run the driver's releases, and start tasks quickly."""

from __future__ import annotations

import gc
import os
import platform
import sys
import weakref
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from handshake.engines.spark.failures import reason
from handshake.engines.spark.private import NO_ANALYSIS, is_connect
from handshake.errors import HandshakeError, UnsupportedError
from handshake.version import __version__

Versions = tuple[tuple[str, str], ...]
_PACKAGES = ("pyarrow", "numpy", "numba")
_REMEDY = (
    "name a Python that has handshake-join and its packages (PYSPARK_PYTHON or spark.pyspark.python, before "
    "the session starts), or ship a packed environment (spark.archives)"
)
_checked: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""Sessions whose workers have been seen."""
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
    if is_connect(session) or not str(session.sparkContext.master).startswith("local"):
        return
    if "PYSPARK_PYTHON" not in os.environ and session.conf.get("spark.pyspark.python", None) is None:
        session.sparkContext.pythonExec = sys.executable


def check_workers(session: SparkSession) -> None:
    """Ask a worker once per session whether its Python has all packages, unless `use_this_python` chose it.

    Otherwise the first error would be a failure to import, deep inside Spark.

    Raises:
        UnsupportedError: A package is missing, or no worker starts.
    """
    if session in _checked:
        return
    if not is_connect(session):
        context = session.sparkContext
        if str(context.master).startswith("local") and context.pythonExec == sys.executable:
            return
    try:
        found = session.range(0, 1, 1, 1).mapInArrow(_look_for_packages(), "python string, missing string")
        python, missing = found.collect()[0]
    except PySparkException as error:
        if NO_ANALYSIS in str(error):  # a pipeline's query function may run nothing
            return
        raise UnsupportedError(f"Spark's Python workers do not start: {reason(error)}") from error
    if missing:
        raise UnsupportedError(
            f"the Python of Spark's workers, {python}, has no package '{missing}'; {_REMEDY}"
        )
    _checked.add(session)


def check_driver_python(session: SparkSession) -> None:
    """Check that the driver has the Python of the workers, which a join of streams starts there, too.

    In client mode a packed environment is unpacked where executors run, but not where the driver does.

    Raises:
        UnsupportedError: The path is relative, as with an archive, and is not there.
    """
    if is_connect(session):
        return
    python = str(session.sparkContext.pythonExec)
    if "/" in python and not os.path.isabs(python) and not os.path.exists(python):
        raise UnsupportedError(
            f"Spark starts the Python of its workers, '{python}', on the driver, too, and it is not in "
            f"'{os.getcwd()}'; link it to the environment of the driver: "
            f"ln -s {sys.prefix} {os.path.normpath(python).split('/')[0]}"
        )


def _look_for_packages() -> Any:
    """Return a function for `mapInArrow` that finds a missing package.

    It is nested so that it travels as code: a worker that lacks this package can run it.
    """

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib
        import sys

        import pyarrow

        missing = None
        try:
            for name in ("handshake", "pandas"):
                importlib.import_module(name)
        except ImportError as error:
            missing = error.name or str(error)
        for _ in batches:
            yield pyarrow.RecordBatch.from_pylist([{"python": sys.executable, "missing": missing or ""}])

    return look


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
