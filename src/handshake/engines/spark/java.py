"""The choice of the Java that Spark runs on, and of the Python of its workers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

from handshake.errors import UnsupportedError

OLDEST = 17
_REMEDY = (
    f"install Java {OLDEST} or later (scripts/java --install, apt-get install openjdk-17-jre-headless, "
    "dnf install java-21-openjdk-headless, brew install openjdk@21) or set JAVA_HOME to one"
)


def prepare_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set JAVA_HOME and PYSPARK_PYTHON unless they are set.

    Raises:
        UnsupportedError: There is no Java that is recent enough.
    """
    environment["JAVA_HOME"] = java_home(environment)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)


def java_home(environment: MutableMapping[str, str] = os.environ, prefix: str = sys.prefix) -> str:
    """Return the home of a recent Java: JAVA_HOME, else the one that `make setup` recorded, else PATH's."""
    given = environment.get("JAVA_HOME")
    if given:
        return _check_home(Path(given), "JAVA_HOME is")
    record = Path(prefix, "java_home")
    if record.is_file():
        return _check_home(Path(record.read_text().strip()), f"'{record}' names")
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise UnsupportedError(f"Spark needs Java, and there is none: JAVA_HOME is not set; {_REMEDY}")
    return _check_home(Path(os.path.realpath(found)).parent.parent, "PATH leads to")


def _check_home(home: Path, origin: str) -> str:
    version = _version(home / "bin" / "java")
    if version is None:
        raise UnsupportedError(f"Spark needs Java, but {origin} '{home}', where no bin/java runs; {_REMEDY}")
    if version < OLDEST:
        raise UnsupportedError(
            f"Spark needs Java {OLDEST} or later, but {origin} '{home}', which is Java {version}; {_REMEDY}"
        )
    return str(home)


def _version(java: Path) -> int | None:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return _major(said.stderr + said.stdout)


def _major(said: str) -> int | None:
    """Extract the major version from the output of `java -version`.

    >>> _major('openjdk version "17.0.12" 2024-07-16'), _major('java version "1.8.0_401"'), _major("what?")
    (17, 8, None)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else None
