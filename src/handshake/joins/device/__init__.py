"""Windows in the memory of a GPU, and the join core that searches them there."""

from __future__ import annotations

from handshake.joins.device.core import DeviceCore

__all__ = ["DeviceCore"]
