"""Settings for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from spark_session import spark

__all__ = ["spark"]

# Kernels are compiled on first use, so single examples may take long: no test asserts a time.
settings.register_profile("handshake", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("handshake")
