"""Finding the Java that Spark runs on, and the Python that its workers run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import MutableMapping
from pathlib import Path

from handshake.errors import UnsupportedError

__all__ = ["OLDEST", "java_home", "prepare_environment"]

OLDEST = 17
_REMEDY = (
    f"install Java {OLDEST} or later (scripts/java --install, apt-get install openjdk-17-jre-headless, "
    "dnf install java-21-openjdk-headless, brew install openjdk@21) or set JAVA_HOME to one"
)


def prepare_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Tell Spark which Java and which Python to use, where nobody has; an error where there is no Java.

    `make setup` leaves the home of the Java that it found or installed in the virtual environment.
    """
    environment["JAVA_HOME"] = java_home(environment)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)


def java_home(environment: MutableMapping[str, str] = os.environ, prefix: str = sys.prefix) -> str:
    """The home of a Java that is recent enough: the one that JAVA_HOME names, else set-up's, else PATH's."""
    given = environment.get("JAVA_HOME")
    if given:
        return _checked(Path(given), "JAVA_HOME is")
    record = Path(prefix, "java_home")
    if record.is_file():
        return _checked(Path(record.read_text().strip()), f"'{record}' names")
    found = shutil.which("java", path=environment.get("PATH"))
    if found is None:
        raise UnsupportedError(f"Spark needs Java, and there is none: JAVA_HOME is not set; {_REMEDY}")
    return _checked(Path(os.path.realpath(found)).parent.parent, "PATH leads to")


def _checked(home: Path, whence: str) -> str:
    version = _version(home / "bin" / "java")
    if version is None:
        raise UnsupportedError(f"Spark needs Java, but {whence} '{home}', where no bin/java runs; {_REMEDY}")
    if version < OLDEST:
        raise UnsupportedError(
            f"Spark needs Java {OLDEST} or later, but {whence} '{home}', which is Java {version}; {_REMEDY}"
        )
    return str(home)


def _version(java: Path) -> int | None:
    """The major version of a Java; None where it does not run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return _major(told.stderr + told.stdout)


def _major(told: str) -> int | None:
    """The major version in what `java -version` says.

    >>> _major('openjdk version "17.0.12" 2024-07-16'), _major('java version "1.8.0_401"'), _major("what?")
    (17, 8, None)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else None
