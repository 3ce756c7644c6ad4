"""Packages of Maven Central for tests, which are skipped if a package cannot be downloaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from handshake_bench import maven
from handshake_bench.maven import IVY, UnreachableError, java

__all__ = ["fetch", "java", "package_settings"]


def fetch(package: str) -> Path:
    """Return a folder with the jars of a package and of all that it needs."""
    try:
        return maven.fetch(package)
    except UnreachableError as error:
        pytest.skip(str(error))


def package_settings(package: str) -> dict[str, str]:
    """Return Spark's settings for a package, which is downloaded first."""
    try:
        maven.resolve(package)
    except UnreachableError as error:
        pytest.skip(str(error))
    return {"spark.jars.packages": package, "spark.jars.ivy": str(IVY)}
