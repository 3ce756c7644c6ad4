"""Packages of Maven Central, fetched by the Ivy that comes with PySpark and kept in `build/ivy`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
import pytest

ROOT = Path(__file__).parents[2]
IVY = ROOT / "build" / "ivy"
_JARS = Path(pyspark.__file__).parent / "jars"
_UNREACHABLE = ("unresolved dependenc", "server access error", "unknownhost", "download failed")


def java() -> str:
    """Return the program that runs Java."""
    from handshake.engines.spark.java import java_home

    return f"{java_home()}/bin/java"


def fetch(package: str) -> Path:
    """Return a folder with the jars of a package and of all that it needs."""
    folder = ROOT / "build" / "jars" / package.replace(":", "-")
    _resolve(package, folder, "-retrieve", f"{folder}/[artifact]-[revision].[ext]")
    return folder


def package_settings(package: str) -> dict[str, str]:
    """Return Spark's settings for a package, which is downloaded first."""
    _resolve(package, ROOT / "build" / "jars" / package.replace(":", "-"))
    return {"spark.jars.packages": package, "spark.jars.ivy": str(IVY)}


def _resolve(package: str, folder: Path, *action: str) -> None:
    """Download a package once; skip the test if it is not here and cannot be downloaded."""
    done = folder / "complete"
    if done.exists():
        return
    (ivy,) = _JARS.glob("ivy-*.jar")
    resolved = subprocess.run(
        [java(), "-Xmx512m", "-jar", ivy, "-cache", IVY / "cache", "-confs", "default",
         "-dependency", *package.split(":"), *action],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = (resolved.stdout + resolved.stderr).lower()
    if resolved.returncode != 0 and any(text in said for text in _UNREACHABLE):
        pytest.skip(f"Maven Central cannot be reached, or lacks {package}")
    assert resolved.returncode == 0, resolved.stdout[-3000:]
    folder.mkdir(parents=True, exist_ok=True)
    done.touch()
