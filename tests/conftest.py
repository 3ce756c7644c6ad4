"""Settings for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

from spark_home import use_quick_home
from spark_session import spark

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
