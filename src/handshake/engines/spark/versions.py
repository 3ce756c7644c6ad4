"""Driver and workers must run the same code: they hash, sort and store tuples for each other."""

from __future__ import annotations

import platform
from functools import lru_cache
from importlib.metadata import version

from handshake.errors import HandshakeError

__all__ = ["VersionError", "Versions", "check_versions", "versions"]

Versions = tuple[tuple[str, str], ...]
_PACKAGES = ("handshake", "pyarrow", "numpy", "numba")


class VersionError(HandshakeError):
    """The driver and a worker run different releases."""


@lru_cache(maxsize=1)
def versions() -> Versions:
    """What this process runs."""
    python = ".".join(platform.python_version_tuple()[:2])
    return (("Python", python), *((name, version(name)) for name in _PACKAGES))


def check_versions(wanted: Versions) -> None:
    """Refuse to work for a driver that runs something else."""
    mine = dict(versions())
    for name, release in wanted:
        if mine.get(name) != release:
            raise VersionError(
                f"the driver runs {name} {release}, but the worker on {platform.node()} runs "
                f"{mine.get(name)}; install the same release on both (spark.pyspark.python names the "
                "workers' Python, spark.archives can bring a packed environment along)"
            )
