"""A home of Spark from which tests start quickly.

The home has no archive of PySpark. Spark starts a Python process per streaming query and puts
`$SPARK_HOME/python/lib/pyspark.zip` first on its path. Imports from the archive take more than a second of
processor time. On a busy machine the process then misses the ten seconds that Spark waits for it, which no
setting changes. Without the archive, the process imports the installed package.

Beside the home lies a class-data archive of Java, from which a virtual machine starts with half the processor
time. `python tests/support/spark_home.py` runs a small streaming join and writes the archive at its end. A
virtual machine for which the archive does not exist or does not fit loads its classes as usual.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

__all__ = ["OPTIONS", "use_quick_home"]

BUILD = Path(__file__).parents[2] / "build"
# Tests run each plan once: what the second compiler of a virtual machine would gain is less than it costs.
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SILENT = "-Xlog:disable -Xlog:all=error:stderr"


def use_quick_home() -> Path | None:
    """Set SPARK_HOME and Java's options for this process and those that it starts, unless they are set.

    Returns:
        The home, or None where SPARK_HOME is set or there is no PySpark.
    """
    found = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or found is None or found.origin is None:
        os.environ.setdefault("SPARK_SUBMIT_OPTS", OPTIONS)
        return None
    package = Path(found.origin).resolve().parent
    home = BUILD / f"spark-{hashlib.sha256(str(package).encode()).hexdigest()[:8]}"
    _link_all(package, home)
    os.environ["SPARK_HOME"] = str(home)
    archived = f"{OPTIONS} {SILENT} -XX:SharedArchiveFile={_archive(home)}"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", archived)
    return home


def _link_all(package: Path, home: Path) -> None:
    """Link what Spark needs into the home; several processes may do it at once."""
    home.mkdir(parents=True, exist_ok=True)
    for entry in package.iterdir():
        if entry.name != "python":
            with suppress(FileExistsError):
                (home / entry.name).symlink_to(entry)


def _archive(home: Path) -> Path:
    return home.with_suffix(".jsa")


def _write_archive() -> None:
    """Run a streaming join in a virtual machine that writes its classes into the archive when it ends."""
    home = use_quick_home()
    if home is None or _archive(home).exists():
        return
    part = home.with_suffix(".part")
    options = f"{OPTIONS} {SILENT} -XX:ArchiveClassesAtExit={part}"
    program = str(Path(__file__).with_name("spark_driver.py"))
    with tempfile.TemporaryDirectory() as folder:
        for side, row in (("left", {"l": 1, "x": 5}), ("right", {"r": 1, "a": 5})):
            (Path(folder) / side).mkdir()
            text = json.dumps({**row, "t": "2026-01-01T00:00:00"})
            (Path(folder) / side / "rows.json").write_text(text)
        subprocess.run(
            [sys.executable, program, "local[2]", folder, "inner"],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options}, capture_output=True, check=False,
        )  # fmt: skip
    with suppress(FileNotFoundError):
        part.replace(_archive(home))


if __name__ == "__main__":
    _write_archive()
