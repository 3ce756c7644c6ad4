"""A home of Spark without the archive of PySpark, which Python compiles anew in every process.

Spark starts a Python process per streaming query and puts `$SPARK_HOME/python/lib/pyspark.zip` first on its
path. Imports from the archive take more than a second of processor time. On a busy machine the process then
misses the ten seconds that Spark waits for it, which no setting changes. Without the archive, the process
imports the installed package.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

__all__ = ["use_home_without_archive"]


def use_home_without_archive() -> None:
    """Set SPARK_HOME for this process and those that it starts, unless it is set or there is no PySpark."""
    found = find_spec("pyspark")
    if "SPARK_HOME" in os.environ or found is None or found.origin is None:
        return
    home = Path(tempfile.mkdtemp(prefix="handshake-spark-home-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for entry in Path(found.origin).parent.iterdir():
        if entry.name != "python":
            (home / entry.name).symlink_to(entry)
    os.environ["SPARK_HOME"] = str(home)
