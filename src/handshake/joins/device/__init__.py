"""Windows in the memory of a GPU, and the join core that searches them there."""

from __future__ import annotations

from handshake.joins.device.core import DeviceCore
from handshake.joins.device.reduce import ReducingCore

__all__ = ["DeviceCore", "ReducingCore"]
