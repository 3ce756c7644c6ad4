"""Packages of Maven Central, fetched by the Ivy that comes with PySpark and kept in `build/`."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path

from handshake.engines.spark.java import java_home
from handshake.errors import HandshakeError

__all__ = ["IVY", "UnreachableError", "fetch", "is_fetched", "java", "resolve"]

_BUILD = Path(__file__).parents[2] / "build"
IVY = _BUILD / "ivy"
"""The folder of Ivy's cache."""
_UNREACHABLE = ("unresolved dependenc", "server access error", "unknownhost", "download failed")


class UnreachableError(HandshakeError):
    """A package that is not here and cannot be downloaded."""


def java(program: str = "java") -> str:
    """Return the path of a program of Java."""
    return f"{java_home()}/bin/{program}"


def fetch(package: str) -> Path:
    """Return a folder with the jars of a package and of all that it needs."""
    folder = _folder(package)
    resolve(package, "-retrieve", f"{folder}/[artifact]-[revision].[ext]")
    return folder


def is_fetched(package: str) -> bool:
    """Return True if the package has been fetched before."""
    return (_folder(package) / "complete").exists()


def resolve(package: str, *action: str) -> None:
    """Download a package once.

    Raises:
        UnreachableError: The package is not here and cannot be downloaded.
    """
    if is_fetched(package):
        return
    resolved = subprocess.run(
        [java(), "-Xmx512m", "-jar", str(_ivy()), "-cache", str(IVY / "cache"), "-confs", "default",
         "-dependency", *package.split(":"), *action],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = (resolved.stdout + resolved.stderr).lower()
    if resolved.returncode != 0 and any(text in said for text in _UNREACHABLE):
        raise UnreachableError(f"Maven Central cannot be reached, or lacks {package}")
    if resolved.returncode != 0:
        raise HandshakeError(f"Ivy cannot fetch {package}: {resolved.stdout[-3000:]}")
    _folder(package).mkdir(parents=True, exist_ok=True)
    (_folder(package) / "complete").touch()


def _folder(package: str) -> Path:
    return _BUILD / "jars" / package.replace(":", "-")


def _ivy() -> Path:
    pyspark = find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise UnreachableError("packages of Maven Central are fetched by PySpark's Ivy; install '.[spark]'")
    return next((Path(pyspark.origin).parent / "jars").glob("ivy-*.jar"))
