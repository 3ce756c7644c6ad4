"""Settings for all tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from spark_home import use_quick_home
from spark_session import CONNECT, spark

__all__ = ["spark"]

# Kernels are compiled on first use, so single examples may take long: no test asserts a time.
settings.register_profile("handshake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("handshake")

# A shell starts what runs in the background with Ctrl-C ignored, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start hundreds of processes, each of which would compile the whole package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

use_quick_home()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run only tests that take a session with a client of Spark Connect; skip those that need a JVM."""
    if not CONNECT:
        return
    config.hook.pytest_deselected(items=[item for item in items if not takes_session(item)])
    items[:] = [item for item in items if takes_session(item)]
    for item in items:
        mark = item.get_closest_marker("classic")
        if mark is not None:
            item.add_marker(pytest.mark.skip(reason=f"needs a classic session: {mark.args[0]}"))


def takes_session(item: pytest.Item) -> bool:
    """Return whether a test takes the fixture `spark`."""
    return "spark" in getattr(item, "fixturenames", ())
