"""The Spark back end: window joins on DataFrames, streaming and batch."""

from __future__ import annotations

import re

import pyspark

from handshake.errors import UnsupportedError

__all__ = ["OLDEST", "check_release"]

OLDEST = (4, 0)
"""The oldest release of PySpark that `make matrix` tests."""


def check_release(release: str) -> None:
    """Refuse a release of PySpark that is not supported.

    Args:
        release: The release, as in `pyspark.__version__`.

    Raises:
        UnsupportedError: It is too old or too new.

    Examples:
        >>> check_release("4.0.1")
        >>> check_release("3.5.4")
        Traceback (most recent call last):
        handshake.errors.UnsupportedError: PySpark 3.5.4 is not supported by Handshake; it needs 4.0 to 4.x
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= numbers < (OLDEST[0] + 1, 0):
        least = ".".join(map(str, OLDEST))
        raise UnsupportedError(
            f"PySpark {release} is not supported by Handshake; it needs {least} to {OLDEST[0]}.x"
        )


check_release(pyspark.__version__)
